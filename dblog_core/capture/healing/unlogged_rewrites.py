"""Rows that are others than before while no log says so: what a source's catalogue shows of that.

PostgreSQL logs nothing of what ALTER TABLE makes of rows that are there. A stamp says of a table which column a name
stands for, which files hold its rows, and when the description of each column was written last; two stamps show that
rows now hold other values under names and types that may be the same. The state store keeps those that were looked at
last, so that it makes no difference whether a capture ran meanwhile.

While a table is UNLOGGED its changes are in no log, and both ALTER TABLE to that and back write all rows again.

A publication may also keep rows out of the log: one that does not show all changes, or not this table, or with a
filter. While it does, the table is stopped. Where it was altered between two looks, it may have done so meanwhile.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import orjson

from dblog_core.interfaces import StateStore
from dblog_core.model.table_stamp import PublicationStamp, TableStamp

_PLACES = 64
"""Entries of the state store that they are spread over: ZooKeeper takes a megabyte in each."""


def mixed_up(before: TableStamp, now: TableStamp) -> bool:
    """Whether rows of one table may hold other values than before, under a name that is the same.

    A new description of a column alone says little: its values are different only where the files were written again
    as well. New files of a *partition* alone say enough: TRUNCATE of a partition is in no log, while that of a whole
    table is; VACUUM FULL and CLUSTER look the same.
    """
    both = [(column, now.columns[name]) for name, column in before.columns.items() if name in now.columns]
    if any(old.number != new.number or _has_other_labels(old.labels, new.labels) for old, new in both):
        return True
    rewritten = [file for file, name in before.files.items() if now.files.get(file, name) != name]
    if any(file != str(before.table) for file in rewritten):
        return True
    if _is_written_by_alter(before, now) and not has_other_shape(before, now):
        return True  # SET UNLOGGED and SET LOGGED, or another access method
    return bool(rewritten) and any(old.description != new.description for old, new in both)


def _is_written_by_alter(before: TableStamp, now: TableStamp) -> bool:
    old, new = before.large_values, now.large_values
    return old is not None and new is not None and old.relation != new.relation and new.is_by_alter


def has_missed_changes(before: TableStamp, now: TableStamp) -> bool:
    """Whether the publication, which shows all of the table at both looks, may not have done so between them."""
    old, new = before.shown, now.shown
    # An upgrade of the server makes all of its publications again.
    if old is None or new is None or old.lacks or new.lacks or old.server != new.server:
        return False
    if old.publication != new.publication or old.member != new.member:
        return True
    return old.written != new.written and old.options == new.options


def is_left_out(before: TableStamp, now: TableStamp) -> bool:
    """Whether the publication showed all of the table, and no longer does."""
    return before.shown is not None and not before.shown.lacks and now.shown is not None and bool(now.shown.lacks)


def has_other_shape(before: TableStamp, now: TableStamp) -> bool:
    """Whether the table has other columns than before, or columns of other types, whatever rows hold."""

    def shape(stamp: TableStamp) -> dict[str, tuple[int, int, int]]:
        return {name: column.shape for name, column in stamp.columns.items()}

    return shape(before) != shape(now)


def _has_other_labels(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return any(now.get(label, text) != text for label, text in before.items())


class Stamps:
    """The stamps that were looked at last; new ones count once they are saved."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._saved: dict[str, TableStamp] | None = None
        self._known: dict[str, TableStamp] = {}
        self.reshaped: list[str] = []
        """Tables that had another shape at the look before the last."""
        self.left_out: dict[str, PublicationStamp] = {}
        """Tables that the publication no longer shows as it did at the look before the last."""

    def look(self, stamps: dict[str, TableStamp]) -> list[str]:
        """Takes the stamps of all tables; returns the tables whose rows are others than at the last look."""
        if self._saved is None:
            self._known = self._saved = dict(item for n in range(_PLACES) for item in self._read(n).items())
        before = self._known
        self._known = stamps
        same = {name: stamp for name, stamp in stamps.items() if name in before and _is_same(before[name], stamp)}
        self.reshaped = [name for name, stamp in same.items() if has_other_shape(before[name], stamp)]
        self.left_out = {
            name: stamp.shown for name, stamp in same.items() if is_left_out(before[name], stamp) and stamp.shown
        }
        return [
            name
            for name, stamp in same.items()
            if mixed_up(before[name], stamp) or has_missed_changes(before[name], stamp)
        ]

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

    def _read(self, place: int) -> dict[str, TableStamp]:
        entry = self._state.get(_node(place))
        stamps = {} if entry is None else orjson.loads(zlib.decompress(entry.data))
        return {name: TableStamp.from_json(stamp) for name, stamp in stamps.items()}

    def _write(self, place: int, stamps: dict[str, TableStamp]) -> None:
        data = zlib.compress(orjson.dumps({name: stamp.to_json() for name, stamp in stamps.items()}))
        entry = self._state.get(_node(place))
        if entry is None:
            self._state.create(_node(place), data)
        else:
            self._state.update(_node(place), data, entry.version)


def _is_same(before: TableStamp, now: TableStamp) -> bool:
    # Another table of the same name is found by its identity (`table_identity`).
    return before.table == now.table


def _node(place: int) -> str:
    return f"stamps/{place:02}"


def _group_by_place(stamps: dict[str, TableStamp]) -> dict[int, dict[str, TableStamp]]:
    groups: dict[int, dict[str, TableStamp]] = {}
    for name, stamp in stamps.items():
        groups.setdefault(zlib.crc32(name.encode()) % _PLACES, {})[name] = stamp
    return groups
