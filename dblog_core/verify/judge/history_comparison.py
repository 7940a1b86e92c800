"""The last line of each key of a history, compared with the table's row at one place of the log.

Lines are appended before the table takes their changes, and the status names the version in which all changes up to its
offset are. So that version and the lines up to that offset are of one moment, also while a merge runs.

A history that does not begin with an empty table has no line of keys that have not changed since. It is compared in the
keys of which it has lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.features import TableRefused, check_rows_readable
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.order_guard import Flags, equal_values
from dblog_core.delta_writer.shape import readable_shape_of
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.lake import foreign_commits
from dblog_core.lake.lake_status import (
    HISTORY_AFTER,
    HISTORY_WHOLE,
    LakeStatus,
    State,
    TableStatus,
    history_location,
    read_status,
    table_location,
)
from dblog_core.model.events import DELETE, TRUNCATE
from dblog_core.model.schema import Column, TableSchema
from dblog_core.rows.chunked_columns import mask_named
from dblog_core.schema_evolution import compatibility
from dblog_core.storage.location import Location
from dblog_core.verify.judge.bucketed_rows import Placement, count_parts
from dblog_core.verify.judge.comparison import UnequalKeys
from dblog_core.verify.judge.expected_state import NOWHERE
from dblog_core.verify.judge.hashed_rows import (
    ANY_SIZE,
    NAMES,
    HashedRows,
    Numbers,
    keys_of_numbers,
    number_keys,
    read_in_pieces,
)
from dblog_core.verify.judge.lake_hashes import LakeHashes, estimate_rows
from dblog_core.verify.report import Differences, HistoryReport

_OP = "_dblog_op"
_UNCHANGED = "_dblog_unchanged"
_MOVED_FROM = "_dblog_moved_from"
_EXTRA = {_OP: pa.string(), _UNCHANGED: NAMES}


@dataclass(frozen=True, slots=True)
class _Extent:
    """The lines that count are those behind `lower`. `is_whole`: the table had no row there."""

    lower: int
    is_whole: bool


def compare_history(lake: Location, schema: TableSchema, check: Callable[[], None]) -> HistoryReport:
    """Keys that only the history's last line or only the table has, and the columns in which they differ. Raises
    LakeError for data that cannot be read."""
    status = (read_status(lake) or LakeStatus()).tables.get(str(schema.table))
    if status is None or (reason := explain_not_comparable(status)) is not None:
        return HistoryReport(not_compared="nothing of it is merged" if status is None else reason)
    location = history_location(lake, schema.table)
    gap = None
    try:
        gap = foreign_commits.find_history_gap(location, status)
        files = TableFiles.at(location)
        version = snapshot.newest(files)
        check_rows_readable(version.protocol, version.metadata, str(files))
        reason = explain_no_begin(version.metadata, schema, gap)
    except LakeError as error:
        reason = error.feature if isinstance(error, TableRefused) else error.message
    if reason is not None:
        return HistoryReport(not_compared=reason, gap=gap)
    comparison = _Comparison(lake, schema, version, status, check)
    unequal = UnequalKeys(schema)
    comparison.compare(unequal, gap)
    by_kind = unequal.by_kind()
    missing, extra = (tuple(key for key, _ in by_kind.get(kind, ())) for kind in ("missing", "extra"))
    differences = Differences(missing, extra, tuple(by_kind.get("different", ())))
    return HistoryReport(differences, unequal.more, gap=gap)


def explain_not_comparable(status: TableStatus) -> str | None:
    """Why the history of a table cannot be compared with it now; None: it can."""
    if status.version is None:
        return "the table has no key"
    if status.begun is not None:
        return "a merge has not finished the table's share"
    if status.state is State.STOPPED:
        return "the merge of the table has stopped"
    if status.awaits is not None or status.damage is not None:
        return f"the table lacks rows or values: {status.missing_rows}"
    if not status.told:
        return "the last merge of the table did not write its history"
    return None


# From where on it is compared -----------------------------------------------------------------------------------------


def explain_no_begin(metadata: Json, schema: TableSchema, gap: str | None) -> str | None:
    """The first reason why the history does not say from where on it has every change; None: it does."""
    if HISTORY_AFTER in (metadata.get("configuration") or {}):
        return None
    if gap is not None:
        return f"it may lack lines: {gap}"
    return explain_other_shape(metadata, schema) or "it does not say from where on it is without a gap"


def explain_other_shape(metadata: Json, schema: TableSchema) -> str | None:
    """A reset may have given the table another shape, which its history has not taken yet; wider types do no harm."""
    fields = {field["name"]: field for field in orjson.loads(metadata["schemaString"])["fields"]}
    moved_from = fields.get(_MOVED_FROM, {}).get("type")
    if not isinstance(moved_from, dict) or [f["name"] for f in moved_from["fields"]] != list(schema.key):
        return "it is of another key"
    types = _types_of(metadata, schema)
    changed = [c.name for c in schema.columns if c.name in types and not _is_wider(types[c.name], c.type)]
    return f"another type has {', '.join(changed)}" if changed else None


def find_extent(metadata: Json, schema: TableSchema, status: TableStatus, gap: str | None, emptied: int) -> _Extent:
    """`emptied`: the offset of the last TRUNCATE that the table has; 0: there was none."""
    properties = metadata["configuration"]
    after = int(properties[HISTORY_AFTER])
    starts = [after] if properties.get(HISTORY_WHOLE) == "true" or status.reset_at == after else []
    starts += [offset for offset in (status.reset_at or 0, emptied) if offset > after]
    if starts and gap is None and explain_other_shape(metadata, schema) is None:
        return _Extent(max(starts), is_whole=True)
    return _Extent(max(after, status.reset_at or 0, emptied), is_whole=False)


def _types_of(metadata: Json, schema: TableSchema) -> dict[str, pa.DataType]:
    names = [column.name for column in schema.columns]
    return {column.name: column.type for column in readable_shape_of(metadata, names, str(schema.table))}


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    return old == new or compatibility.is_widening(old, new)


# The comparison -------------------------------------------------------------------------------------------------------


class _Comparison:
    """Of one history, whose newest version is `version`, with its table as `status` has it."""

    def __init__(
        self, lake: Location, schema: TableSchema, version: Snapshot, status: TableStatus, check: Callable[[], None]
    ) -> None:
        assert status.version is not None
        self._source_schema = schema
        self._version = version
        self._status = status
        table = table_location(lake, schema.table)
        history = history_location(lake, schema.table)
        row_version = snapshot.at_version(TableFiles.at(table), status.version)
        self._schema = _shared_columns(schema, version.metadata, row_version.metadata)
        estimates = estimate_rows(table, status.version), estimate_rows(history, version.version)
        placement = Placement.for_rows(max(estimates))
        self._rows = LakeHashes(table, self._schema, placement, check)
        self._lines = LakeHashes(history, self._schema, placement, check, extra=_EXTRA)
        self._buckets = placement.count

    def compare(self, unequal: UnequalKeys, gap: str | None) -> None:
        """Adds the keys that are not equal."""
        assert self._status.version is not None
        self._rows.open(self._status.version, ANY_SIZE)
        self._lines.open(self._version.version, self._status.offset)
        extent = find_extent(self._version.metadata, self._source_schema, self._status, gap, self._last_truncate())
        for bucket in range(self._buckets):
            count = count_parts(self._rows.rows.size_of(bucket), self._lines.rows.size_of(bucket))
            for part in range(count):
                lines = self._lines.load(bucket, part, count)
                lines = lines.where((lines.offsets > extent.lower) & ~_has_op(lines, TRUNCATE))
                rows = self._rows.load(bucket, part, count)
                has_key = [np.asarray(column.is_valid()) for column in rows.keys.columns]
                # Rows of other programs that have NULL in the key have no line.
                self._compare_part(lines, rows.where(np.logical_and.reduce(has_key)), extent, unequal)

    def _last_truncate(self) -> int:
        offsets = (lines.offsets[_has_op(lines, TRUNCATE)] for lines in self._lines.parts())
        return max(int(of_part.max(initial=0)) for of_part in offsets)

    def _compare_part(self, lines: HashedRows, rows: HashedRows, extent: _Extent, unequal: UnequalKeys) -> None:
        (line_keys, row_keys), count = number_keys([lines.keys, rows.keys])
        last = np.full(count, NOWHERE, np.int64)
        by_offset = np.argsort(lines.offsets, kind="stable")
        last[line_keys[by_offset]] = by_offset  # of several for one key the last one stays
        row = np.full(count, NOWHERE, np.int64)
        row[row_keys] = np.arange(len(rows))
        has_line = last != NOWHERE
        has_row = row != NOWHERE
        lives = np.zeros(count, np.bool_)
        is_known = np.ones(count, np.bool_)
        lives[has_line] = ~_has_op(lines, DELETE)[last[has_line]]
        is_known[has_line] = ~_has_unknown(lines)[last[has_line]]
        missing = np.flatnonzero(has_row & ~lives & (has_line | extent.is_whole))
        extra = np.flatnonzero(~has_row & lives & is_known)
        both = np.flatnonzero(has_row & lives)
        both = both[(lines.hashes[last[both]] != rows.hashes[row[both]]) | ~is_known[both]]

        def add(kind: str, numbers: Numbers, columns: Sequence[tuple[str, ...]] | None = None) -> None:
            keys = keys_of_numbers([lines.keys, rows.keys], [line_keys, row_keys], numbers)
            unequal.add(keys, [kind] * len(numbers), columns)

        add("missing", missing)
        add("extra", extra)
        for numbers, columns in self._differing(lines, rows, both, last, row, is_known):
            add("different", numbers, columns)

    def _differing(
        self, lines: HashedRows, rows: HashedRows, keys: Numbers, last: Numbers, row: Numbers, is_known: Flags
    ) -> Iterator[tuple[Numbers, Sequence[tuple[str, ...]]]]:
        """Of these keys those whose line and row differ, with the columns."""

        def read(piece: Numbers, max_bytes: int) -> tuple[pa.Table, pa.Table]:
            line_images = self._lines.images(lines, last[piece], max_bytes=max_bytes)
            return line_images, self._rows.images(rows, row[piece], max_bytes=max_bytes)

        for piece, (line_images, row_images) in read_in_pieces(keys, read):
            unchanged = lines.rows[_UNCHANGED].take(pa.array(last[piece]))
            differ = {
                column.name: ~equal_values(line_images[column.name], row_images[column.name])
                & ~mask_named(unchanged, column.name)
                for column in self._schema.columns
            }
            columns = [tuple(name for name, mask in differ.items() if mask[i]) for i in range(len(piece))]
            # The hashes of a line that knows all values, and of its row, differ.
            are_unequal = np.array([bool(names) for names in columns], np.bool_) | is_known[piece]
            yield piece[are_unequal], [names for names, unequal in zip(columns, are_unequal, strict=True) if unequal]


def _has_op(lines: HashedRows, op: str) -> Flags:
    return np.asarray(pc.fill_null(pc.equal(lines.rows[_OP], op), False))


def _has_unknown(lines: HashedRows) -> Flags:
    """The lines that do not know all values of their row."""
    return np.asarray(pc.greater(pc.fill_null(pc.list_value_length(lines.rows[_UNCHANGED]), 0), 0))


def _shared_columns(schema: TableSchema, lines: Json, rows: Json) -> TableSchema:
    """The columns that the source, the history and the table have (a later one is not in the lines yet), in a type that
    both have, so that all of each value is compared."""
    line_types = _types_of(lines, schema)
    row_types = _types_of(rows, schema)
    if lost := [name for name in schema.key if name not in line_types or name not in row_types]:
        raise LakeError(f"history and table have no common key column {lost[0]}", where=str(schema.table))
    columns = [
        Column(column.name, str(kind), kind)
        for column in schema.columns
        if column.name in line_types and column.name in row_types
        for kind in [_common_type(line_types[column.name], row_types[column.name], column.type)]
    ]
    return replace(schema, columns=tuple(columns))


def _common_type(of_line: pa.DataType, of_row: pa.DataType, staged: pa.DataType) -> pa.DataType:
    if _is_wider(of_line, of_row):
        return of_row
    return of_line if _is_wider(of_row, of_line) else staged
