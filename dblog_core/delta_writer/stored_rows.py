"""Rows of data files, by column and by number: all columns in the types that the table has now."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dblog_core.delta_writer.bitmaps import Rows, RowSet
from dblog_core.delta_writer.features import ValuesTooLarge, refusal
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.shape import DeltaColumn, Shape
from dblog_core.delta_writer.snapshot import LiveFile
from dblog_core.errors import LakeError

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
        raise refusal(where, f"its times are of another calendar: {old[0]}")


def stored_count(files: TableFiles, live: LiveFile, dead: RowSet) -> int:
    """The rows of a data file, the `dead` ones too: as its statistics say, where the dead ones can be right then."""
    if live.rows is not None and len(dead) < live.rows and dead.last < live.rows:
        return live.rows
    with open_data_file(files, live) as file:
        return int(file.metadata.num_rows)


def column_batches(
    files: TableFiles, live: LiveFile, shape: Shape, names: Sequence[str]
) -> Iterator[tuple[int, pa.Table]]:
    """All rows of a file, some columns alone: the number of the first row, and a row group."""
    columns = [shape[name] for name in names]
    first = 0
    with open_data_file(files, live) as file:
        stored = _stored_names(file, columns, by_id=shape.by_id)
        for group in range(file.num_row_groups):
            rows = _group(file, group, columns, stored, files.url(live.path))
            yield first, rows
            first += len(rows)


def row_stretches(
    files: TableFiles,
    live: LiveFile,
    shape: Shape,
    names: Sequence[str],
    *,
    is_wanted: Callable[[int, int], bool] = lambda first, end: True,
) -> Iterator[tuple[int, pa.Table]]:
    """All rows of a file, some columns alone, as `column_batches`, and few at a time: the number of the first one, and
    the rows. `is_wanted`: asked of each row group, from its first row to before its end, whether it is read."""
    columns = [shape[name] for name in names]
    first = 0
    with open_data_file(files, live) as file:
        stored = _stored_names(file, columns, by_id=shape.by_id)
        for group in range(file.num_row_groups):
            end = first + file.metadata.row_group(group).num_rows
            if is_wanted(first, end):
                parts = _stretches(file, group, columns, stored, files.url(live.path), most_rows=_ROWS_AT_ONCE)
                for within, rows in parts:
                    yield first + within, rows
            first = end


def rows_at(
    files: TableFiles, live: LiveFile, shape: Shape, names: Sequence[str], rows: Rows, *, most: int = MOST_BYTES
) -> pa.Table:
    """These rows of a file, in the order that they are asked for. Raises ValuesTooLarge where they have more than
    `most` bytes."""
    columns = [shape[name] for name in names]
    parts: list[pa.Table] = []
    places: list[Rows] = []
    bytes_held = 0
    with open_data_file(files, live) as file:
        stored = _stored_names(file, columns, by_id=shape.by_id)
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
            for first, part in _stretches(file, group, columns, stored, files.url(live.path)):
                in_part = rows[at_group] - edges[group] - first
                within = (in_part >= 0) & (in_part < len(part))
                chosen = part.take(pa.array(in_part[within]))
                if (bytes_held := bytes_held + chosen.nbytes) > most:
                    what = f"the values that changes keep, or are compared with, take more than {MOST_BYTES >> 20} MiB"
                    raise ValuesTooLarge(what, where=str(files), fix="Spark writes them")
                parts.append(chosen)
                places.append(at_group[within])
                # The rows are in order: no later part has one of them.
                if in_part[-1] < len(part):
                    break
    if not parts:
        return pa.table({c.name: pa.array([], c.type) for c in columns})
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_tables(parts).take(pa.array(order))


def _stored_names(file: pq.ParquetFile, columns: Sequence[DeltaColumn], *, by_id: bool) -> dict[str, str]:
    """The name in the file of each column that it has, by logical name."""
    # A file from before a column was added does not have it: its rows hold NULL there (`_values`).
    if not by_id:
        have = set(file.schema_arrow.names)
        return {c.name: c.physical for c in columns if c.physical in have}
    # With the column mapping `id`, ids count and not the names in the file (PROTOCOL.md, "Column Mapping").
    ids = {(field.metadata or {}).get(_FIELD_ID): field.name for field in file.schema_arrow}
    return {c.name: ids[key] for c in columns if (key := str(c.id).encode()) in ids}


def _stretches(
    file: pq.ParquetFile,
    group: int,
    columns: Sequence[DeltaColumn],
    stored: dict[str, str],
    where: str,
    *,
    most_rows: int | None = None,
) -> Iterator[tuple[int, pa.Table]]:
    """A row group's columns, whole or in parts: the number of a part's first row in the group, and its rows."""
    about = file.metadata.row_group(group)
    names = set(stored.values())
    chunks = (about.column(i) for i in range(about.num_columns))
    size = sum(c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] in names)
    if size <= _AT_ONCE and (most_rows is None or about.num_rows <= most_rows):
        yield 0, _group(file, group, columns, stored, where)
        return
    first = 0
    rows = max(1, about.num_rows * _AT_ONCE // max(size, 1))
    rows = rows if most_rows is None else min(rows, most_rows)
    for batch in file.iter_batches(rows, row_groups=[group], columns=list(stored.values())):
        part = pa.Table.from_batches([batch])
        yield first, pa.table({c.name: _values(part, c, stored.get(c.name), len(part), where) for c in columns})
        first += len(part)


def _group(
    file: pq.ParquetFile, group: int, columns: Sequence[DeltaColumn], stored: dict[str, str], where: str
) -> pa.Table:
    rows = file.read_row_group(group, columns=list(stored.values()))
    count = file.metadata.row_group(group).num_rows
    return pa.table({c.name: _values(rows, c, stored.get(c.name), count, where) for c in columns})


def _values(rows: pa.Table, column: DeltaColumn, name: str | None, count: int, where: str) -> pa.ChunkedArray:
    """In the table's type: files of other writers have views and dictionaries, older files narrower types."""
    if name is None:
        return pa.chunked_array([pa.nulls(count, column.type)])
    values = rows[name]
    try:
        return values if values.type == column.type else values.cast(column.type)
    except pa.ArrowException as error:
        what = f"column {column.name} of file {where} is {values.type}, and {column.type} in the table"
        raise refusal(where, what) from error
