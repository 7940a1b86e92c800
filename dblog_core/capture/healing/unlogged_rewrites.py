"""Rows that are others than before while no log says so: what a source's catalogue shows of that.

PostgreSQL logs nothing of what ALTER TABLE and ALTER TYPE make of rows that are there. A stamp says of a table which
column a name stands for, which files hold its rows, when the description of each column was written last, and what the
text of its values depends on; two stamps show that rows now hold other values, or print others, under names and types
that may be the same. The table records keep those that were looked at last, so that it makes no difference whether a
capture ran meanwhile.

While a table is UNLOGGED its changes are in no log, and both ALTER TABLE to that and back write all rows again.

A publication may also keep rows out of the log: one that does not show all changes, or not this table, or with a
filter. While it does, the table is stopped. Where it was altered between two looks, it may have done so meanwhile.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import orjson

from dblog_core.interfaces import Nodes
from dblog_core.model.table_stamp import ColumnStamp, PublicationStamp, TableStamp
from dblog_core.staging.table_records import STAMP_NODES, STAMPED_OFFSET

_PLACES = len(STAMP_NODES)
"""Entries that they are spread over: a table that is altered has one of them written again."""

_TEXT, _VARCHAR, _BIT, _VARBIT = 25, 1043, 1560, 1562
_PRINT_ALIKE = (frozenset({_TEXT, _VARCHAR}), frozenset({_BIT, _VARBIT}))
"""Different types of PostgreSQL whose values have the same bytes, and print the same text for them. Any other change of
a type counts as one of the text."""


def mixed_up(before: TableStamp, now: TableStamp) -> bool:
    """Whether rows of one table may hold other values than before, under a name that is the same.

    A new description of a column alone says little: its values are different only where the files were written again
    as well, or where the same bytes print another text (`_prints_otherwise`). New files of a *partition* alone say
    enough: TRUNCATE of a partition is in no log, while that of a whole table is; VACUUM FULL and CLUSTER look the same.
    """
    both = [(column, now.columns[name]) for name, column in before.columns.items() if name in now.columns]
    if any(old.number != new.number or _prints_otherwise(old, new) for old, new in both):
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


def has_other_places(before: TableStamp, now: TableStamp) -> bool:
    """Whether the description of a column that the table has had at both looks was written in between: it may have had
    another name or type meanwhile."""
    written = {column.number: column.written for column in before.columns.values()}
    return any(written.get(column.number, column.written) != column.written for column in now.columns.values())


def has_passing_columns(before: TableStamp, now: TableStamp) -> bool:
    """Whether the table has had a column in between that it had at neither look, under whatever name."""
    if before.dropped is None or now.dropped is None:
        return False
    newest = max([*before.dropped, *(column.number for column in before.columns.values())], default=0)
    return any(number > newest for number in now.dropped)


def find_other_labels(before: TableStamp, now: TableStamp) -> tuple[bool, set[str]]:
    """Whether a label of an enum was written in between, and the columns that may hold a label which is new.

    Either may have had another text meanwhile. Of a stamp of a former version nobody knows.
    """
    were_written = False
    with_new = set()
    for name, new in now.columns.items():
        old = before.columns.get(name)
        if old is None or old.prints is None or new.prints is None or old.prints.base != new.prints.base:
            continue
        writes = new.prints.label_writes
        were_written |= any(writes.get(label) != at for label, at in old.prints.label_writes.items())
        if writes.keys() - old.prints.label_writes.keys():
            with_new.add(name)
    return were_written, with_new


def has_other_texts(before: TableStamp, now: TableStamp) -> bool:
    """Whether rows that were logged in between may print another text than the same values print now."""
    both = [(column, now.columns[name]) for name, column in before.columns.items() if name in now.columns]
    were_written, with_new = find_other_labels(before, now)
    return were_written or bool(with_new) or any(_prints_otherwise(old, new) for old, new in both)


def _prints_otherwise(old: ColumnStamp, new: ColumnStamp) -> bool:
    """Whether the same bytes of a value may print another text than before.

    A length or precision is no matter: no function that prints a value gets it. A label that is added is none of the
    values that were there.
    """
    if any(new.all_labels.get(label) != text for label, text in old.all_labels.items()):
        return True
    if old.prints is None or new.prints is None:
        # A former version has described no types, other than a column's own labels.
        return new.prints is not None and not old.labels
    bases = {old.prints.base, new.prints.base}
    if any(bases <= alike for alike in _PRINT_ALIKE):
        return False
    return len(bases) > 1 or old.prints.form != new.prints.form


class Stamps:
    """The stamps that were looked at last; new ones count once they are saved."""

    def __init__(self, records: Nodes) -> None:
        self._records = records
        self._saved: dict[str, TableStamp] | None = None
        self._known: dict[str, TableStamp] = {}
        self._saved_offset: int | None = None
        self.before: dict[str, TableStamp] = {}
        """The stamps of the look before the last."""
        self.reshaped: list[str] = []
        """Tables that had another shape at the look before the last."""
        self.left_out: dict[str, PublicationStamp] = {}
        """Tables that the publication no longer shows as it did at the look before the last."""

    def look(self, stamps: dict[str, TableStamp]) -> list[str]:
        """Takes the stamps of all tables; returns the tables whose rows are others than at the last look."""
        if self._saved is None:
            self._known = self._saved = dict(item for n in range(_PLACES) for item in self._read(n).items())
        self.before = before = self._known
        self._known = stamps
        altered = {name: stamp for name, stamp in stamps.items() if name in before and _is_altered(before[name], stamp)}
        self.reshaped = [name for name, stamp in altered.items() if has_other_shape(before[name], stamp)]
        self.left_out = {
            name: stamp.shown for name, stamp in altered.items() if is_left_out(before[name], stamp) and stamp.shown
        }
        return [
            name
            for name, stamp in altered.items()
            if mixed_up(before[name], stamp) or has_missed_changes(before[name], stamp)
        ]

    def read_offset(self) -> int | None:
        """The last offset that was read as the catalogue was looked at last, as it was saved; None where it never was.

        Rows up to there are older than the saved stamps.
        """
        entry = self._records.get(STAMPED_OFFSET)
        self._saved_offset = None if entry is None else int(entry.data)
        return self._saved_offset

    def save(self, in_doubt: Mapping[str, TableStamp] | None = None, offset: int | None = None) -> None:
        """What was found is seen to, other than that of tables in doubt, which keep these stamps. `offset`: as
        `read_offset` says."""
        if self._saved is None:
            return
        known = {**self._known, **{table: stamp for table, stamp in (in_doubt or {}).items() if table in self._known}}
        if known != self._saved:
            self._save_stamps(known, self._saved)
        # Not before the stamps: what is saved first must not be newer than they are.
        if offset is not None and offset != self._saved_offset:
            self._put(STAMPED_OFFSET, str(offset).encode())
            self._saved_offset = offset

    def _save_stamps(self, known: dict[str, TableStamp], saved: dict[str, TableStamp]) -> None:
        new = _group_by_place(known)
        old = _group_by_place(saved)
        # Only the entries that changed: a manifest has each of them written again.
        for place in sorted(place for place in new.keys() | old.keys() if new.get(place) != old.get(place)):
            self._write(place, new.get(place, {}))
        self._saved = known

    def _read(self, place: int) -> dict[str, TableStamp]:
        entry = self._records.get(STAMP_NODES[place])
        stamps = {} if entry is None else orjson.loads(zlib.decompress(entry.data))
        return {name: TableStamp.from_json(stamp) for name, stamp in stamps.items()}

    def _write(self, place: int, stamps: dict[str, TableStamp]) -> None:
        self._put(
            STAMP_NODES[place], zlib.compress(orjson.dumps({name: stamp.to_json() for name, stamp in stamps.items()}))
        )

    def _put(self, node: str, data: bytes) -> None:
        entry = self._records.get(node)
        if entry is None:
            self._records.create(node, data)
        else:
            self._records.update(node, data, entry.version)


def _is_altered(before: TableStamp, now: TableStamp) -> bool:
    # Another table of the same name is found by its identity (`table_identity`).
    return before.table == now.table and before != now


def _group_by_place(stamps: dict[str, TableStamp]) -> dict[int, dict[str, TableStamp]]:
    groups: dict[int, dict[str, TableStamp]] = {}
    for name, stamp in stamps.items():
        groups.setdefault(zlib.crc32(name.encode()) % _PLACES, {})[name] = stamp
    return groups
