"""A history's lines, read without Spark, and the last one of each key as an event that a fold begins with.

  all lines -> where the last one of each key is (`last_rows`) -> all lines again, of which those last ones stay

A line says all of its row: values that the log left out were filled in when it was written, and what nobody knew then
is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.delta_types import StructType
from dblog_core.delta_writer.features import check_rows_readable
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.shape import readable_shape_of
from dblog_core.delta_writer.stored_rows import living_rows
from dblog_core.lake.task_plans import Past
from dblog_core.lake_engine.events.last_rows import LastRows
from dblog_core.lake_engine.events.unchanged_values import Flags
from dblog_core.lake_engine.tables import alter_table
from dblog_core.lake_engine.tables.column_types import COMMIT_TIME, OFFSET, OP, ORIGIN, POSITION, UNCHANGED
from dblog_core.model.events import CREATE, DELETE, TRUNCATE
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution.renames import Renames
from dblog_core.storage.location import Location

_NAMES = pa.list_(pa.string())
_META = {
    "origin": (ORIGIN, pa.string()),
    "position": (POSITION, pa.string()),
    "commit_time": (COMMIT_TIME, pa.timestamp("us", tz="UTC")),
}


class HistoryLines:
    """The lines of a history's newest version. Raises TableRefused where its files are not all there is to read."""

    def __init__(self, path: Location) -> None:
        self._files = TableFiles.at(path)
        self._version = snapshot.newest(self._files)
        check_rows_readable(self._version.protocol, self._version.metadata, str(self._files))

    @property
    def columns(self) -> StructType:
        return StructType.of(orjson.loads(self._version.metadata["schemaString"]))

    @property
    def renamed_upto(self) -> int:
        """The offset up to which its columns are renamed."""
        return alter_table.renamed_upto(self._version.metadata.get("configuration") or {})

    def estimate(self) -> int:
        """How many they are; 0: the log does not say."""
        return self._version.count_rows() or 0

    def read(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """These columns of all lines, some lines at a time, each time in the same order."""
        shape = readable_shape_of(self._version.metadata, names, str(self._files))
        for live in self._version.files.values():
            yield from living_rows(self._files, live, shape, names)

    def find_newest(self, upto: int) -> tuple[int, int]:
        """The highest offset up to `upto` of a TRUNCATE, and of any line; 0: there is none."""
        truncate = newest = 0
        for lines in self.read([OFFSET, OP]):
            merged = lines.filter(pc.less_equal(lines[OFFSET], upto))
            of_truncates = merged[OFFSET].filter(pc.equal(merged[OP], TRUNCATE))
            truncate = max(truncate, pc.max(of_truncates).as_py() or 0)
            newest = max(newest, pc.max(merged[OFFSET]).as_py() or 0)
        return truncate, newest


class LastLines:
    """The last line of each key of `past`, as events that say all of the row: c, or d. They have the columns of
    `staged_events.read_events` in the shape `schema`, `with_unchanged`. `renames`: those that led to the shape."""

    def __init__(self, path: Location, schema: TableSchema, past: Past, renames: Renames) -> None:
        self._lines = HistoryLines(path)
        self._schema = schema
        self._past = past
        later = renames.after(self._lines.renamed_upto)
        self._names = {later.current_name(name): name for name in self._lines.columns.names}
        self._last = self._find_last()
        self._count = int(self._last.sum())

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[pa.Table]:
        columns = [self._names[c.name] for c in self._schema.columns if c.name in self._names]
        first = 0
        for lines in self._lines.read([*columns, OP, OFFSET, POSITION, COMMIT_TIME, ORIGIN, UNCHANGED]):
            last = self._last[first : first + len(lines)]
            first += len(lines)
            if last.any():
                yield self._events(lines.filter(pa.array(last)))

    def _find_last(self) -> Flags:
        """By line whether it is the last one of its key."""
        keys = [self._names[name] for name in self._schema.key]
        last = LastRows(keys, self._lines.estimate(), order=OFFSET)
        for lines in self._lines.read([*keys, OP, OFFSET]):
            last.add(lines, among=self._are_inside(lines))
        marks, _ = last.mark()
        return marks > 0

    def _are_inside(self, lines: pa.Table) -> Flags:
        """Which lines are of a row, and of the past."""
        offsets = lines[OFFSET]
        in_past = pc.and_(pc.greater(offsets, self._past.lower), pc.less_equal(offsets, self._past.upto))
        return np.asarray(pc.and_(in_past, pc.not_equal(lines[OP], TRUNCATE)))

    def _unknown_names(self, lines: pa.Table) -> pa.ChunkedArray:
        """By line the columns of which nobody knew the value. Where one of them has another name today, it may be any
        of the row's."""
        names = lines[UNCHANGED].cast(_NAMES)
        if names.null_count == len(names):
            return names
        others = [c.name for c in self._schema.columns if c.name not in self._schema.key]
        names_now = {c.name for c in self._schema.columns}
        lists = [listed if listed is None or names_now.issuperset(listed) else others for listed in names.to_pylist()]
        return pa.chunked_array([pa.array(lists, _NAMES)])

    def _events(self, lines: pa.Table) -> pa.Table:
        count = len(lines)
        deleted = pc.equal(lines[OP], DELETE)
        events: dict[str, pa.Array | pa.ChunkedArray] = {
            "offset": lines[OFFSET],
            "op": pc.if_else(deleted, DELETE, CREATE),
            **{name: lines[column].cast(kind) for name, (column, kind) in _META.items()},
            "created": pc.invert(deleted),
        }
        for i, column in enumerate(self._schema.key_columns):
            events[f"k{i}"] = lines[self._names[column.name]].cast(column.type)
        for i, column in enumerate(self._schema.columns):
            nothing = pa.scalar(None, column.type)
            stored = self._names.get(column.name)
            values = nothing if stored is None else pc.if_else(deleted, nothing, lines[stored].cast(column.type))
            events[f"v{i}"] = pa.repeat(nothing, count) if stored is None else values
        events["unchanged"] = pc.if_else(deleted, pa.scalar(None, _NAMES), self._unknown_names(lines))
        events["moved"] = pa.repeat(False, count)
        events |= {f"m{i}": pa.nulls(count, c.type) for i, c in enumerate(self._schema.key_columns)}
        return pa.table(events)
