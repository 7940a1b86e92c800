"""How far outputs are, in the state store: what retention, `status` and a restart ask.

Node `outputs/NAME`: a `Place` as JSON. An output that keeps its place with its lines is mirrored here now and then;
for the others this is the place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import orjson

from dblog_core.errors import OutputRefused, StateError
from dblog_core.interfaces import StateStore

_NODE = "outputs"


@dataclass(frozen=True, slots=True)
class Place:
    """One output's place.

    `offset`: all lines up to it that the output wants are delivered; `delivered`: the last of them, as its target tells
    (None: nothing yet); `until`: at least once, the last line of the delivery that is under way; `commit_time`: of the
    line at `delivered`, microseconds UTC; `dead_letters`: lines that the target refused.
    """

    offset: int
    delivered: int | None = None
    until: int | None = None
    commit_time: int | None = None
    dead_letters: int = 0


def lease_name(name: str) -> str:
    """The lease of an output's relay."""
    return f"output-{name}"


def read_place(state: StateStore, name: str) -> tuple[Place, int] | None:
    """The place and its node's version; None: the output has never run. Raises StateError for a damaged node."""
    if (entry := state.get(f"{_NODE}/{name}")) is None:
        return None
    try:
        return Place(**orjson.loads(entry.data)), entry.version
    except (ValueError, TypeError) as error:
        raise StateError(
            f"the place of output {name} cannot be read",
            where=f"{_NODE}/{name}",
            fix=f"`dblog relay {name} --restart` forgets it",
        ) from error


def forget_place(state: StateStore, name: str) -> None:
    """The output begins again."""
    state.delete(f"{_NODE}/{name}")


class Record:
    """The node of one output in the hands of the relay that holds its lease; one that was replaced meets
    VersionConflict."""

    def __init__(self, state: StateStore, name: str, place: Place, version: int) -> None:
        self._state = state
        self._path = f"{_NODE}/{name}"
        self.place = place
        self._version = version
        self._saved = place

    @classmethod
    def open(cls, state: StateStore, name: str, begin: Callable[[], int]) -> Record:
        """The node, made with the offset that `begin` tells where it is missing. Raises VersionConflict, StateError."""
        if (entry := read_place(state, name)) is not None:
            return cls(state, name, *entry)
        place = Place(begin())
        state.create(f"{_NODE}/{name}", orjson.dumps(asdict(place)))
        return cls(state, name, place, 0)

    def resume(self, delivered: int | None, *, exactly_once: bool) -> int:
        """The offset after which to continue. `delivered`: what the target tells.

        A target that went back (it was restored) is given again what it lacks. Raises OutputRefused for one that lost
        its place altogether.
        """
        if not exactly_once:
            return self.place.offset
        # To start again in silence would give the target every line a second time.
        if delivered is None and self.place.delivered is not None:
            raise OutputRefused(
                f"the target has no place, but has received all up to offset {self.place.delivered}",
                fix="restore it; or send it all again, from the output's start on: `dblog relay NAME --restart`",
            )
        if delivered is not None and delivered != self.place.delivered:
            self.place = replace(self.place, offset=delivered, delivered=delivered)
            self.save()
        return self.place.offset

    def record_delivery(self, until: int) -> None:
        """A delivery is under way that may have come to the target, or not."""
        self.place = replace(self.place, until=until)
        self.save()

    def advance(self, offset: int, *, delivered: int | None = None, commit_time: int | None = None) -> None:
        """All up to `offset` is done; not saved yet."""
        self.place = replace(
            self.place,
            offset=max(offset, self.place.offset),
            delivered=self.place.delivered if delivered is None else delivered,
            commit_time=self.place.commit_time if commit_time is None else commit_time,
            # What was under way is delivered now.
            until=None,
        )

    def count_dead_letter(self) -> None:
        """One more dead letter; not saved yet."""
        self.place = replace(self.place, dead_letters=self.place.dead_letters + 1)

    def save(self) -> None:
        """Writes what has changed. Raises VersionConflict where another relay has written."""
        # An unchanged place costs no write in the state store.
        if self.place != self._saved:
            self._version = self._state.update(self._path, orjson.dumps(asdict(self.place)), self._version)
            self._saved = self.place
