"""Row events, as far as one alone can be read: what its type says, its table's shape, and where its rows begin."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dblog_core.config.source import ColumnRules
from dblog_core.model.events import CREATE, DELETE, UPDATE
from dblog_core.model.schema import TableName
from dblog_core.rows.value_forms import shape_to_read
from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.events import Event, Type
from dblog_core.sources.mysql.row_events import table_map
from dblog_core.sources.mysql.row_events.row_decoder import Buffer, RowEvents, complete_images
from dblog_core.sources.mysql.row_events.table_map import TableVersion
from dblog_core.sources.mysql.values.charsets import Charsets

KINDS = {
    Type.WRITE_ROWS_V1: (CREATE, False, False),
    Type.UPDATE_ROWS_V1: (UPDATE, False, False),
    Type.DELETE_ROWS_V1: (DELETE, False, False),
    Type.WRITE_ROWS: (CREATE, True, False),
    Type.UPDATE_ROWS: (UPDATE, True, False),
    Type.DELETE_ROWS: (DELETE, True, False),
    Type.WRITE_ROWS_COMPRESSED_V1: (CREATE, False, True),
    Type.UPDATE_ROWS_COMPRESSED_V1: (UPDATE, False, True),
    Type.DELETE_ROWS_COMPRESSED_V1: (DELETE, False, True),
    Type.WRITE_ROWS_COMPRESSED: (CREATE, True, True),
    Type.UPDATE_ROWS_COMPRESSED: (UPDATE, True, True),
    Type.DELETE_ROWS_COMPRESSED: (DELETE, True, True),
}
"""Op, whether the header has the extra part of version 2, whether MariaDB has compressed the rows."""
DUMMY_TABLES = {0xFFFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFF}
"""Table id of a row event without rows, which only ends a statement."""
_VERSIONS = 4096
"""Table versions that are remembered; beyond that they are read again."""


class Versions:
    """Shapes of tables by the table map that describes them."""

    def __init__(
        self,
        keys: Mapping[str, Sequence[str]],
        charsets: Charsets,
        rules: Mapping[str, ColumnRules],
        *,
        mariadb: bool,
        primary_key: Callable[[TableName], Sequence[str]],
        native: Callable[[TableVersion], Mapping[str, str]],
    ) -> None:
        """`primary_key`: as in `Lookups`; `native`: as `NativeTypes.find`."""
        self._keys = keys
        self._charsets = charsets
        self._rules = rules
        self._mariadb = mariadb
        self._primary_key = primary_key
        self._native = native
        self._versions: dict[tuple[bytes, tuple[tuple[str, str], ...]], TableVersion] = {}
        self._primary_keys: dict[bytes, tuple[str, ...]] = {}

    def of(self, body: bytes, table: TableName) -> TableVersion:
        """The shape that a TABLE_MAP gives. Raises UnsupportedType."""
        version = self._with_types(body, table, ())
        native = tuple(self._native(version).items()) if version.unnamed else ()
        return self._with_types(body, table, native) if native else version

    def _with_types(self, body: bytes, table: TableName, native: tuple[tuple[str, str], ...]) -> TableVersion:
        # Behind the table's number: it is another one after each ALTER and restart, and the shape may be the same.
        version = self._versions.get((body[6:], native))
        if version is not None:
            return version
        keys = tuple(self._keys.get(str(table), ()))
        version = table_map.parse(
            body,
            server=self._charsets,
            keys=keys,
            mariadb=self._mariadb,
            primary_key=lambda _: self._find_primary_key(body, table),
            native=dict(native),
        )
        version = table_map.with_types(version, shape_to_read(version.schema, self._rules))
        if (rules := self._rules.get(str(table))) is not None and rules.exclude:
            excluded = frozenset(n for n, c in enumerate(version.schema.columns) if c.name in rules.exclude)
            version = replace(version, excluded=excluded)
        # Cleared as a whole: a server with so many tables in use costs some parsing, and never the memory.
        if len(self._versions) >= _VERSIONS:
            self._versions.clear()
        self._versions[body[6:], native] = version
        return version

    def _find_primary_key(self, body: bytes, table: TableName) -> tuple[str, ...]:
        """The catalogue is asked once about each TABLE_MAP: a table that is refused may have many rows."""
        if body not in self._primary_keys:
            if len(self._primary_keys) >= _VERSIONS:
                self._primary_keys.clear()
            self._primary_keys[body] = tuple(self._primary_key(table))
        return self._primary_keys[body]


class ColumnsMissing(Exception):
    """The event's rows lack columns of their table that are staged: their names, none where they are not known."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)


def images(event: Event, version: TableVersion) -> tuple[Buffer, int, bool]:
    """The event's bytes, where its first image begins, and whether images before a change may hold the key alone.
    Raises ColumnsMissing; ValueError where bytes are missing.

    An event may lack columns: by the session's `binlog_row_image`, whatever the server's own says; and MariaDB 11.8
    leaves generated columns out of updates and deletes. Excluded columns may be missing, and others than the key's
    before a change.
    """
    op, extended, compressed = KINDS[Type(event.type)]
    body = event.body
    # The table's number takes six bytes, flags two.
    at = 8
    if extended:
        at += struct.unpack_from("<H", body, 8)[0]  # partition numbers and such; the length counts itself
    count, at = table_map.lenenc(body, at)
    if count != len(version.columns):
        raise ColumnsMissing
    size = (count + 7) // 8
    every = (1 << count) - 1
    before = after = int.from_bytes(body[at : at + size], "little") & every
    if op == UPDATE:
        at += size
        after = int.from_bytes(body[at : at + size], "little") & every
    at += size
    rows: Buffer = body
    if compressed:
        rows = events.uncompress_mariadb(body[at:])
        at = 0
    if before == after == every:
        return rows, at, False
    key_only = _check_columns(version, op, before, after)
    shown = (_columns_of(before, count), _columns_of(after, count))
    return complete_images(version, op, memoryview(rows)[at:], *shown), 0, key_only


def _check_columns(version: TableVersion, op: str, before: int, after: int) -> bool:
    """Whether columns that are staged are missing before a change. Raises ColumnsMissing."""
    staged = {n: column.name for n, column in enumerate(version.schema.columns) if n not in version.excluded}
    key = version.schema.key

    def missing(present: int) -> list[str]:
        return [name for n, name in staged.items() if not present >> n & 1]

    if op != DELETE and (names := missing(after)):
        raise ColumnsMissing(names)
    if op == CREATE or not (names := missing(before)):
        return False
    if not key or any(name in key for name in names):
        raise ColumnsMissing(names)
    return True


def _columns_of(present: int, count: int) -> npt.NDArray[np.bool_]:
    return np.array([bool(present >> column & 1) for column in range(count)])


def read_watermark_payloads(
    version: TableVersion, op: str, body: Buffer, at: int, zero_dates: str, end: int | None = None
) -> list[str]:
    """The payloads that an event on the watermark table writes. Of an update the image after counts: the image before
    was seen when it was written.
    """
    if op == DELETE:
        return []
    event_rows = RowEvents(version)
    event_rows.add(op, memoryview(body)[at:end])
    event_rows.count()
    return [str(payload) for payload in event_rows.after(zero_dates).field("payload").to_pylist()]


def read_inserted_rows(version: TableVersion, op: str, body: Buffer, at: int) -> list[list[Any]]:
    """The rows that an event inserts, each the values of its columns in their order; of other events none."""
    if op != CREATE:
        return []
    event_rows = RowEvents(version)
    event_rows.add(op, memoryview(body)[at:])
    event_rows.count()
    return [list(row.values()) for row in event_rows.after("null").to_pylist()]
