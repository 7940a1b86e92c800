"""Rows of data files, by column and by number: all columns in the types that the table has now, those of partitions
too, and what tracks rows."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.delta_writer.features import ValuesTooLarge, refusal
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.partitions import read_value
from dblog_core.delta_writer.shape import DeltaColumn, Shape, Stands
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.delta_writer.vectors import read_vector
from dblog_core.errors import LakeError
from dblog_core.rows.variant_encoding import VARIANT, join_parts

_FIELD_ID = b"PARQUET:field_id"
_OLD_CALENDARS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
"""What Spark writes into a file whose days and times it has counted in the Julian calendar before 1582."""
_VERSION = b"org.apache.spark.version"
_NEW_CALENDAR = b"3.1.0"
"""The version since which Spark says so; what older ones wrote it reads in the Julian calendar."""
MOST_BYTES = 96 << 20
"""Of rows that are held at once: a few changes may ask for large values of many rows."""
_AT_ONCE = 64 << 20
"""Bytes of a row group's columns beyond which they are read in parts: values may be large, and few are asked for."""
_RESET = "delete the rows of the file in Spark, or run `dblog reset` for the table: it is built again by a dump"
_ROWS_AT_ONCE = 1 << 17
"""Of a file that is read whole: its encoding may be a hundredth of what the rows take in memory."""


@contextlib.contextmanager
def open_data_file(files: TableFiles, live: LiveFile) -> Iterator[pq.ParquetFile]:
    """A data file. Raises LakeError where it is missing or no Parquet; TableRefused where Spark has written its days in
    an older calendar: keys would not be found, and values would be other days."""
    where = files.url(live.path)
    try:
        with (
            files.open(live.path, live.size) as source,
            # Spark may write timestamps as INT96: read as nanoseconds they would end in the year 2262.
            pq.ParquetFile(source, pre_buffer=True, coerce_int96_timestamp_unit="us") as file,
        ):
            _check_calendar(file, where)
            yield file
    except (pa.ArrowException, OSError) as error:
        raise LakeError(
            f"a data file of the table cannot be read: {error}",
            where=where,
            fix="restore it from a backup, or run `dblog reset` for the table",
        ) from error


def _check_calendar(file: pq.ParquetFile, where: str) -> None:
    about = file.metadata.metadata or {}
    old = [key.decode() for key in _OLD_CALENDARS if key in about]
    # As texts, like Spark compares them.
    if about.get(_VERSION, _NEW_CALENDAR) < _NEW_CALENDAR:
        old.append(f"Spark {about[_VERSION].decode(errors='replace')}")
    if old:
        raise refusal(where, f"its times are of another calendar: {old[0]}", _RESET)


def stored_count(files: TableFiles, live: LiveFile, dead: RowSet) -> int:
    """The rows of a data file, the `dead` ones too: as its statistics say, where the dead ones can be right then."""
    if live.rows is not None and len(dead) < live.rows and dead.last < live.rows:
        return live.rows
    with open_data_file(files, live) as file:
        return int(file.metadata.num_rows)


def row_stretches(
    files: TableFiles,
    live: LiveFile,
    shape: Shape,
    names: Sequence[str],
    *,
    is_wanted: Callable[[int, int], bool] = lambda first, end: True,
    most_rows: int | None = None,
) -> Iterator[tuple[int, pa.Table]]:
    """All rows of a file, some columns alone, and few at a time: the number of the first one, and the rows.
    `is_wanted`: asked of each row group, from its first row to before its end, whether it is read."""
    first = 0
    with open_data_file(files, live) as file:
        opened = _Opened.of(file, live, shape, names, files.url(live.path))
        for group in range(file.num_row_groups):
            end = first + file.metadata.row_group(group).num_rows
            if is_wanted(first, end):
                for within, rows in opened.read_stretches(group, first, most_rows=most_rows or _ROWS_AT_ONCE):
                    yield first + within, rows
            first = end


def living_rows(files: TableFiles, live: LiveFile, shape: Shape, names: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of a file without the dead ones, some columns alone, and few at a time."""
    dead = None if live.vector is None else read_vector(files, live.vector)
    for first, rows in row_stretches(files, live, shape, names):
        yield rows if dead is None else rows.filter(pa.array(~dead.contains(np.arange(first, first + len(rows)))))


def rows_at(
    files: TableFiles, live: LiveFile, shape: Shape, names: Sequence[str], rows: Rows, *, most: int = MOST_BYTES
) -> pa.Table:
    """These rows of a file, in the order that they are asked for. Raises ValuesTooLarge where they have more than
    `most` bytes."""
    parts: list[pa.Table] = []
    places: list[Rows] = []
    bytes_held = 0
    with open_data_file(files, live) as file:
        opened = _Opened.of(file, live, shape, names, files.url(live.path))
        # Row numbers count through all row groups of a file.
        edges = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))])
        if len(rows) and not 0 <= rows.min() <= rows.max() < edges[-1]:
            raise LakeError(
                f"row {rows.max()} is asked of a file of {edges[-1]} rows",
                where=files.url(live.path),
                fix="this is a defect: report it; remove the table's index to continue",
            )
        groups = np.searchsorted(edges, rows, side="right") - 1
        for group in np.unique(groups).tolist():
            at_group = np.flatnonzero(groups == group)
            at_group = at_group[np.argsort(rows[at_group], kind="stable")]
            for first, part in opened.read_stretches(group, int(edges[group])):
                in_part = rows[at_group] - edges[group] - first
                within = (in_part >= 0) & (in_part < len(part))
                chosen = part.take(pa.array(in_part[within]))
                if (bytes_held := bytes_held + chosen.nbytes) > most:
                    what = f"the values that changes keep, or are compared with, take more than {MOST_BYTES >> 20} MiB"
                    raise ValuesTooLarge(what, where=str(files))
                parts.append(chosen)
                places.append(at_group[within])
                # The rows are in order: no later part has one of them.
                if in_part[-1] < len(part):
                    break
    if not parts:
        return pa.table({name: pa.array([], shape[name].type) for name in names})
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_tables(parts).take(pa.array(order))


def row_ids_at(files: TableFiles, live: LiveFile, shape: Shape, rows: Rows) -> npt.NDArray[np.int64]:
    """The ids of these rows of a file, whose rows are tracked. Of a file that stores no ids they follow from the places
    of the rows (PROTOCOL.md, "Row IDs"), and nothing is read but its footer."""
    assert shape.row_id is not None, "rows are tracked"
    tracked = shape.with_row_ids()
    has_place = live.add.get("baseRowId") is not None and live.add.get("defaultRowCommitVersion") is not None
    with open_data_file(files, live) as file:
        name = _stored_names(file, [tracked[shape.row_id]], by_id=shape.by_id).get(shape.row_id)
        is_stored = name is not None and not _holds_nulls_alone(file, name)
        is_within = len(rows) == 0 or 0 <= rows.min() <= rows.max() < file.metadata.num_rows
    if has_place and is_within and not is_stored:
        return np.asarray(live.add["baseRowId"] + rows.astype(np.int64))
    return np.asarray(rows_at(files, live, tracked, [shape.row_id], rows)[shape.row_id])


def _holds_nulls_alone(file: pq.ParquetFile, name: str) -> bool:
    """Whether a column of a file is NULL in every row, by its statistics."""
    number = [file.schema.column(i).path for i in range(len(file.schema.names))].index(name)
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    statistics = [(group.column(number).statistics, group.num_rows) for group in groups]
    return all(about is not None and about.has_null_count and about.null_count == rows for about, rows in statistics)


@dataclass(frozen=True, slots=True)
class _Opened:
    """A data file that is open, and the columns that are read of it. `stored`: the name in the file of each column that
    it has, by logical name."""

    file: pq.ParquetFile
    live: LiveFile
    columns: tuple[DeltaColumn, ...]
    stored: dict[str, str]
    where: str

    @classmethod
    def of(cls, file: pq.ParquetFile, live: LiveFile, shape: Shape, names: Sequence[str], where: str) -> _Opened:
        columns = tuple(shape[name] for name in names)
        return cls(file, live, columns, _stored_names(file, columns, by_id=shape.by_id), where)

    def read_stretches(self, group: int, begin: int, *, most_rows: int = sys.maxsize) -> Iterator[tuple[int, pa.Table]]:
        """A row group, whole or in parts: the number of a part's first row in the group, and its rows. `begin`: the
        number of the group's first row in the file."""
        about = self.file.metadata.row_group(group)
        names = set(self.stored.values())
        chunks = (about.column(i) for i in range(about.num_columns))
        size = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] in names)
        if not self.stored or (size <= _AT_ONCE and about.num_rows <= most_rows):
            yield 0, self.read_group(group, begin)
            return
        first = 0
        rows = min(max(1, about.num_rows * _AT_ONCE // max(size, 1)), most_rows)
        for batch in self.file.iter_batches(rows, row_groups=[group], columns=list(self.stored.values())):
            yield first, self._rows(pa.Table.from_batches([batch]), begin + first, len(batch))
            first += len(batch)

    def read_group(self, group: int, begin: int) -> pa.Table:
        """A row group, whole."""
        count = self.file.metadata.row_group(group).num_rows
        rows = self.file.read_row_group(group, columns=list(self.stored.values())) if self.stored else pa.table({})
        return self._rows(rows, begin, count)

    def _rows(self, stored: pa.Table, begin: int, count: int) -> pa.Table:
        """So many rows from `begin` on, in the columns of the table."""
        return pa.table({column.name: self._values(stored, column, begin, count) for column in self.columns})

    def _values(self, rows: pa.Table, column: DeltaColumn, begin: int, count: int) -> pa.ChunkedArray:
        """In the table's type: files of other writers have views and dictionaries, older files narrower types."""
        if column.stands is Stands.IN_LOG:
            partition = self.live.add.get("partitionValues") or {}
            return pa.chunked_array([pa.repeat(read_value(partition, column, self.where), count)])
        values = self._stored_values(rows, column, count)
        if column.stands is Stands.IN_FILES or not values.null_count:
            return values
        # What was not written is what the row's place says (PROTOCOL.md, "Row IDs" and "Row Commit Versions").
        return pc.coalesce(values, self._default(column.stands, begin, count))

    def _stored_values(self, rows: pa.Table, column: DeltaColumn, count: int) -> pa.ChunkedArray:
        if (name := self.stored.get(column.name)) is None:
            return pa.chunked_array([pa.nulls(count, column.type)])
        values = rows[name]
        if column.type == VARIANT:
            return self._variants(values, column)
        try:
            return values if values.type == column.type else values.cast(column.type)
        except pa.ArrowException as error:
            what = f"column {column.name} of file {self.where} is {values.type}, and {column.type} in the table"
            raise refusal(self.where, what, _RESET) from error

    def _variants(self, values: pa.ChunkedArray, column: DeltaColumn) -> pa.ChunkedArray:
        """The parts of VARIANTs, in the order that we write them in."""
        names = [field.name for field in VARIANT]
        have = values.type
        if not pa.types.is_struct(have) or sorted(field.name for field in have) != sorted(names):
            raise refusal(self.where, f"column {column.name} of file {self.where} has shredded VARIANTs: {have}")
        value, metadata = names
        return pa.chunked_array(
            [join_parts(pc.struct_field(c, value), pc.struct_field(c, metadata), c.is_null()) for c in values.chunks],
            VARIANT,
        )

    def _default(self, stands: Stands, begin: int, count: int) -> pa.Array:
        first_id = self.live.add.get("baseRowId")
        version = self.live.add.get("defaultRowCommitVersion")
        if first_id is None or version is None:
            raise refusal(self.where, "its rows are tracked, and a file has no ids of rows", _RESET)
        if stands is Stands.AS_ROW_ID:
            return pa.array(np.arange(first_id + begin, first_id + begin + count))
        return pa.repeat(pa.scalar(version, pa.int64()), count)


def _stored_names(file: pq.ParquetFile, columns: Sequence[DeltaColumn], *, by_id: bool) -> dict[str, str]:
    """The name in the file of each column that it has, by logical name."""
    # A file from before a column was added does not have it: its rows hold NULL there. A partition's column may be in
    # a file, and the log's value counts.
    columns = [column for column in columns if column.stands is not Stands.IN_LOG]
    have = set(file.schema_arrow.names)
    by_name = {c.name: c.physical for c in columns if c.physical in have}
    if not by_id:
        return by_name
    # With the column mapping `id`, ids count and not the names in the file (PROTOCOL.md, "Column Mapping").
    ids = {(field.metadata or {}).get(_FIELD_ID): field.name for field in file.schema_arrow}
    by_field = {c.name: ids[key] for c in columns if (key := str(c.id).encode()) in ids}
    return {c.name: by_name[c.name] for c in columns if c.id is None and c.name in by_name} | by_field
