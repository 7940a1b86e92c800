"""The rows that merges add to the table of cuts: each names the version of every table at one offset.

A merge without late tables (`late_tables`) writes its row when it ends. Where some are late, its row waits until their
shares are in. The other tables are further by then: the row names the versions that they had when the merge ended. Of
each late table the row names the version that has the changes up to the same offset, and none after it: a table that
was at work on an earlier share makes a stop there (`Intent.ends`).

Only one row waits at a time. A merge that ends meanwhile with late tables writes none; otherwise rows would pile up
while a table is at work for an hour. A crash drops the row that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from dblog_core.errors import LakeError
from dblog_core.lake.cuts import cuts_location
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.lake_engine.merging import cuts
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.merge_records import Intent, Place


@dataclass(slots=True)
class WaitingCut:
    """The row of the merge `intent`, without the tables in `missing`; `behind`: those that have stopped;
    `incomplete`: those that lack rows, with the cause.

    `ended`: when the merge did. VACUUM keeps what was replaced later, and so the versions of the tables that wait.
    """

    intent: Intent
    ended: float
    missing: set[str]
    versions: dict[str, int] = field(default_factory=dict)
    behind: dict[str, int] = field(default_factory=dict)
    incomplete: dict[str, str] = field(default_factory=dict)

    def add_tables(self, tables: Mapping[str, TableStatus]) -> None:
        """Takes in what is known of missing tables. `tables`: as they are now."""
        for name in sorted(self.missing):
            table = tables.get(name)
            if table is not None and table.is_late(self.intent.span.last):
                continue
            self.missing.discard(name)
            if table is None:
                continue
            if table.version is not None:
                self.versions[name] = table.version
            if table.state is State.STOPPED:
                self.behind[name] = table.offset
            if (cause := table.missing_rows) is not None:
                self.incomplete[name] = cause


class CutWriter:
    """Writes the rows of one lake's merges. `check` raises LeaseLost once another may merge; `now`: seconds since 1970
    UTC; `step` gets each step as it has been done."""

    def __init__(
        self, lake: Lake, *, check: Callable[[], None], now: Callable[[], float], step: Callable[[str], None]
    ) -> None:
        self._lake = lake
        self._check = check
        self._now = now
        self._step = step
        self._waiting: WaitingCut | None = None
        self._table = cuts.open_cuts(cuts_location(lake.location), check)

    @property
    def stop(self) -> Place | None:
        """Where late tables that stand before it make a stop: at the end of the merge whose row waits."""
        span = None if self._waiting is None else self._waiting.intent.span
        return None if span is None else Place(span.last, span.offset)

    def write_waiting(self, tables: Mapping[str, TableStatus]) -> None:
        """Writes the row that waits, if no table is missing in it now."""
        if (cut := self._waiting) is None:
            return
        cut.add_tables(tables)
        if not cut.missing:
            self._write(cut)
            self._waiting = None

    def end_merge(self, intent: Intent, tables: Mapping[str, TableStatus], done: Collection[str]) -> None:
        """Writes the row of a merge that ends, or has it wait. `tables`: as they are after it; `done`: those that have
        their shares of it."""
        self.write_waiting(tables)
        cut = WaitingCut(intent, self._now(), set(tables))
        cut.add_tables(tables)
        if self._waiting is not None:
            return
        if not cut.missing:
            self._write(cut)
        # A table that has made a stop for the row before would never be where the others are: it comes first.
        elif cut.missing.isdisjoint(done):
            self._waiting = cut

    def _write(self, cut: WaitingCut) -> None:
        app = f"{self._lake.app}:cuts"
        append = partial(cuts.append, self._table, cut.intent, cut.versions, app=app, now=cut.ended)
        try:
            append(behind=cut.behind, incomplete=cut.incomplete)
        except LakeError:
            self._check()  # another merger may have been there: that is why, then
            raise
        self._step("cut")
