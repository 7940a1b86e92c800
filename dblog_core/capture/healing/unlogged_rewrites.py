"""Rows that are others than before while no log says so: what a source's catalogue tells of that.

PostgreSQL logs nothing of what ALTER TABLE makes of rows that are there. A stamp says of a table which column a name
stands for, which files hold its rows, and when the description of each column was written last; two stamps tell that
rows hold other values by now under names and types that may be the same. The state store keeps those that were looked
at last, so that it makes no difference whether a capture ran meanwhile.
"""

from __future__ import annotations

import zlib

import orjson

from dblog_core.interfaces import Json, StateStore

_PLACES = 64
"""Entries of the state store that they are spread over: ZooKeeper takes a megabyte in each."""


def mixed_up(before: Json, now: Json) -> bool:
    """Whether rows of one table may hold other values than before, under a name that is the same.

    `columns` {name: [number, labels, …]}: numbers are never used again; labels {id: text} of an enum. What comes after
    them changes whenever the column's description is written, which alone says little: values are others only where
    `files` {id: name} were written anew as well. New files of a *partition* alone say enough: TRUNCATE of one is in no
    log, where a whole table's is; VACUUM FULL and CLUSTER look the same.
    """
    old = before["columns"]
    new = now["columns"]
    both = [name for name in old if name in new]
    if any(old[name][0] != new[name][0] or _has_other_labels(old[name][1], new[name][1]) for name in both):
        return True
    rewritten = [file for file, name in before["files"].items() if now["files"].get(file, name) != name]
    if any(file != str(before["table"]) for file in rewritten):
        return True
    return bool(rewritten) and any(old[name][2:] != new[name][2:] for name in both)


def has_other_shape(before: Json, now: Json) -> bool:
    """Whether the table has other columns than before, or columns of other types, whatever rows hold."""

    def shape(stamp: Json) -> Json:
        return {name: (number, *kind[:2]) for name, (number, _, *kind) in stamp["columns"].items()}

    return bool(shape(before) != shape(now))


def _has_other_labels(before: dict[str, str], now: dict[str, str]) -> bool:
    return any(now.get(label, text) != text for label, text in before.items())


class Stamps:
    """The stamps that were looked at last; new ones count once they are saved."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._saved: dict[str, Json] | None = None
        self._known: dict[str, Json] = {}
        self.reshaped: list[str] = []
        """Tables that had another shape at the look before the last."""

    def look(self, stamps: dict[str, Json]) -> list[str]:
        """Takes the stamps of all tables; returns the tables whose rows are others than at the last look."""
        if self._saved is None:
            self._known = self._saved = dict(item for n in range(_PLACES) for item in self._read(n).items())
        before = self._known
        self._known = stamps
        same = {name: stamp for name, stamp in stamps.items() if name in before and _is_same(before[name], stamp)}
        self.reshaped = [name for name, stamp in same.items() if has_other_shape(before[name], stamp)]
        return [name for name, stamp in same.items() if mixed_up(before[name], stamp)]

    def save(self) -> None:
        """What was found is seen to. Raises VersionConflict where another capture does so in this moment."""
        if self._saved is None or self._known == self._saved:
            return
        new = _group_by_place(self._known)
        old = _group_by_place(self._saved)
        # Only the entries that changed: a look comes every few seconds, and each write is a round trip.
        for place in sorted(place for place in new.keys() | old.keys() if new.get(place) != old.get(place)):
            self._write(place, new.get(place, {}))
        self._saved = self._known

    def _read(self, place: int) -> dict[str, Json]:
        entry = self._state.get(_node(place))
        return {} if entry is None else dict(orjson.loads(zlib.decompress(entry.data)))

    def _write(self, place: int, stamps: dict[str, Json]) -> None:
        data = zlib.compress(orjson.dumps(stamps))
        entry = self._state.get(_node(place))
        if entry is None:
            self._state.create(_node(place), data)
        else:
            self._state.update(_node(place), data, entry.version)


def _is_same(before: Json, now: Json) -> bool:
    # Another table of the same name is found by its identity (`table_identity`).
    return bool(before["table"] == now["table"])


def _node(place: int) -> str:
    return f"stamps/{place:02}"


def _group_by_place(stamps: dict[str, Json]) -> dict[int, dict[str, Json]]:
    groups: dict[int, dict[str, Json]] = {}
    for name, stamp in stamps.items():
        groups.setdefault(zlib.crc32(name.encode()) % _PLACES, {})[name] = stamp
    return groups
