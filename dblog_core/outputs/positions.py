"""How far outputs are, in the state store: what retention, `status` and a restart ask.

Node `outputs/NAME`: a `Place` as JSON. An output that keeps its place with its lines is mirrored here now and then;
for the others this is the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def lease_of(name: str) -> str:
    """The lease of an output's relay."""
    return f"output-{name}"


def read(state: StateStore, name: str) -> tuple[Place, int] | None:
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


def read_all(state: StateStore) -> Mapping[str, Place]:
    """The places of all outputs that have ever run, also of those that are no longer configured."""
    found = {name: read(state, name) for name in state.children(_NODE)}
    return {name: place[0] for name, place in found.items() if place is not None}


def forget(state: StateStore, name: str) -> None:
    """The output begins anew."""
    state.delete(f"{_NODE}/{name}")


class Record:
    """The node of one output in the hands of the relay that holds its lease; one that was replaced meets
    VersionConflict."""

    def __init__(self, state: StateStore, name: str, place: Place, version: int) -> None:
        self._state, self._path, self.place, self._version = state, f"{_NODE}/{name}", place, version
        self._saved = place

    @classmethod
    def opened(cls, state: StateStore, name: str, begin: Callable[[], int]) -> Record:
        """The node, made with the offset that `begin` tells where it is missing. Raises VersionConflict, StateError."""
        if (found := read(state, name)) is not None:
            return cls(state, name, *found)
        place = Place(begin())
        state.create(f"{_NODE}/{name}", orjson.dumps(asdict(place)))
        return cls(state, name, place, 0)

    def resume(self, delivered: int | None, *, exactly_once: bool) -> int:
        """The offset after which to go on. `delivered`: what the target tells.

        A target that went back (it was restored) is given again what it lacks. Raises OutputRefused for one that lost
        its place altogether.
        """
        if not exactly_once:
            return self.place.offset
        if delivered is None and self.place.delivered is not None:
            raise OutputRefused(
                f"the target tells of no place, and was given all up to offset {self.place.delivered}",
                fix="restore it; or give it all anew, from the output's start on: `dblog relay NAME --restart`",
            )
        if delivered is not None and delivered != self.place.delivered:
            self.place = replace(self.place, offset=delivered, delivered=delivered)
            self.save()
        return self.place.offset

    def begun(self, until: int) -> None:
        """A delivery is under way that may have come to the target, or not."""
        self.place = replace(self.place, until=until)
        self.save()

    def passed(self, offset: int, *, delivered: int | None = None, commit_time: int | None = None) -> None:
        """All up to `offset` needs no more; not saved yet."""
        self.place = replace(
            self.place,
            offset=max(offset, self.place.offset),
            delivered=self.place.delivered if delivered is None else delivered,
            commit_time=self.place.commit_time if commit_time is None else commit_time,
            until=None,
        )

    def refused(self) -> None:
        """One more dead letter; not saved yet."""
        self.place = replace(self.place, dead_letters=self.place.dead_letters + 1)

    def save(self) -> None:
        """Writes what has changed. Raises VersionConflict where another relay has written."""
        if self.place != self._saved:
            self._version = self._state.update(self._path, orjson.dumps(asdict(self.place)), self._version)
            self._saved = self.place
