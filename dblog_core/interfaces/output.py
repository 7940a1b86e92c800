"""What a relay asks of the place that the super-changelog is sent to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dblog_core.interfaces.json import Json


class Output(Protocol):
    """Where the super-changelog goes. Constructing one opens no connection.

    Lines are JSON objects as `dblog log` prints them, by growing offsets. What `write` is given becomes valid with
    `commit`, all of it or nothing where the output is exactly once. After any error the relay calls `open` again, which
    undoes what was not committed.
    """

    exactly_once: bool
    """Whether it keeps its place beside the lines, in one step with them: then `commit` ends between transactions.
    Otherwise each `write` is committed alone, and the relay keeps the place, so that lines may come again."""

    def open(self, epoch: int) -> int | None:
        """Begins, or begins again. From now on nobody with a smaller epoch can commit.

        The offset up to which all is committed; None: nothing is yet, or the output keeps no place.
        Raises OutputUnavailable, OutputRefused, OutputTaken.
        """

    def write(self, lines: Sequence[Json]) -> None:
        """The lines that come next. Raises PoisonLine for one that the target will never take, and what `open` does."""

    def commit(self, offset: int) -> None:
        """All that was written is valid now, durably; `offset`: of its last line. Raises what `open` does."""

    def close(self) -> None:
        """Gives up connections; what was not committed is gone. Raises nothing."""


class Probed(Protocol):
    """What an output may have beside that, for `dblog check`."""

    def probe(self, *, held: bool) -> None:
        """Looks whether `open` and `write` would be let in, sends nothing and leaves nothing behind.

        `held`: a relay is at work (or nobody can tell): it must not be disturbed. Raises what `open` does.
        """
