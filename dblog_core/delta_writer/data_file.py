"""A Parquet file of new rows, in the form that the table's shape asks for, with its statistics."""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblog_core.delta_writer.partitions import Partition
from dblog_core.delta_writer.shape import DeltaColumn, Shape
from dblog_core.delta_writer.statistics import FileStatistics
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.rows.variant_encoding import VARIANT, join_parts

_CODECS = {"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}
_ROW_GROUP = 1 << 20  # rows
_DICTIONARY = 64 << 10
"""Bytes of a column's dictionary in a row group beyond which its values follow as they are. Of columns with so many
values Arrow's own limit, a MiB, makes files larger, and Spark reads them more slowly."""
_CALENDAR = {"org.apache.spark.version": "4.0.0"}
"""Of a file with this line Spark 3 knows that its days are those of the proleptic Gregorian calendar; without it, it
reads no day before 1582-10-15 and no time before 1900."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is written: its name in the table, its bytes and rows, their statistics, its key columns by physical
    names (None: they are many), and the partition that all its rows belong to."""

    name: str
    size: int
    count: int
    statistics: str
    keys: pa.Table | None
    partition: Partition = field(default_factory=dict)

    def addition(self, *, now_ms: int, data_change: bool) -> Json:
        """The `add` action of the file; `now_ms`: when it was made, milliseconds since the epoch."""
        return {
            # Paths in the log are URL-encoded.
            "path": quote(self.name),
            "partitionValues": dict(self.partition),
            "size": self.size,
            "modificationTime": now_ms,
            "dataChange": data_change,
            "stats": self.statistics,
        }


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to write: its name in the table, its bytes, its rows as the file has them (physical names; the key's
    columns at least), and their statistics."""

    name: str
    data: pa.Buffer
    rows: pa.Table
    statistics: str
    partition: Partition = field(default_factory=dict)

    @property
    def stored(self) -> StoredFile:
        """What is known of the file once it is written."""
        return StoredFile(self.name, self.data.size, len(self.rows), self.statistics, self.rows, self.partition)

    def addition(self, *, now_ms: int, data_change: bool) -> Json:
        """As that of the stored file."""
        return self.stored.addition(now_ms=now_ms, data_change=data_change)


def data_file(
    rows: pa.Table,
    shape: Shape,
    configuration: Mapping[str, str],
    name: uuid.UUID,
    *,
    where: str,
    partition: Partition | None = None,
) -> DataFile:
    """The file of these rows, all of one `partition`, which have every column of the shape by its logical name.

    Raises LakeError where the rows are of another shape: it has changed, or a value has no place in it.
    """
    with FileWriter(shape, configuration, name, where=where, partition=partition) as writer:
        writer.write(rows)
    return writer.file()


def codec_of(configuration: Mapping[str, str]) -> str:
    """What a table's new files are compressed by; zstd where it names something else than `check_writable` takes."""
    return _CODECS.get(configuration.get("delta.parquet.compression.codec", "zstd").lower(), "zstd")


class FileWriter:
    """A file that is written part by part; entered while there are more parts. `kept`: the columns whose rows the file
    gets, by their logical names (None: all); `partition`: that of all rows."""

    def __init__(
        self,
        shape: Shape,
        configuration: Mapping[str, str],
        name: uuid.UUID,
        *,
        where: str,
        kept: Sequence[str] | None = None,
        partition: Partition | None = None,
    ) -> None:
        codec = codec_of(configuration)
        self._name = f"part-00000-{name}-c000{'' if codec == 'none' else f'.{codec}'}.parquet"
        self._where = where
        self._shape = shape
        self._kept = shape.names if kept is None else kept
        self._partition = partition or {}
        self._parts: list[pa.Table] = []
        self._statistics = FileStatistics(shape, configuration)
        self._out = io.BytesIO()
        self._writer = pq.ParquetWriter(
            self._out,
            shape.arrow(),
            compression=codec,
            store_schema=False,  # the log has the schema; Arrow's own would have readers see other types
            store_decimal_as_integer=True,
            dictionary_pagesize_limit=_DICTIONARY,
        )

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._writer.add_key_value_metadata(_CALENDAR)
        self._writer.close()

    def write(self, rows: pa.Table) -> None:
        """Adds rows. Raises LakeError where they are of another shape."""
        if set(rows.column_names) != set(self._shape.names):
            left = set(self._shape.names) - set(rows.column_names)
            more = set(rows.column_names) - set(self._shape.names)
            what = f"the table has {', '.join(sorted(left)) or 'no'} more columns, and lacks {sorted(more)}"
            raise _misfit(what, self._where)
        values = {column.physical: _values(rows, column, self._where) for column in self._shape}
        schema = self._shape.arrow()
        stored = pa.Table.from_arrays([values[name] for name in schema.names], schema=schema)
        self._writer.write_table(stored, row_group_size=_ROW_GROUP)
        self._statistics.add(stored)
        self._parts.append(pa.table({(name := self._shape[kept].physical): values[name] for kept in self._kept}))

    @property
    def size(self) -> int:
        """The bytes that were written so far."""
        return self._out.tell()

    def file(self) -> DataFile:
        """The file, once it is whole."""
        data = pa.py_buffer(self._out.getbuffer())
        return DataFile(self._name, data, pa.concat_tables(self._parts), self._statistics.json(), self._partition)


def _values(rows: pa.Table, column: DeltaColumn, where: str) -> pa.ChunkedArray:
    values = rows[column.name]
    if values.null_count and not column.nullable:
        raise _misfit(f"column {column.name} takes no NULL, and a row has one", where)
    if column.type == VARIANT == values.type:  # where they were made of NULL, their parts are NULL too
        return pa.chunked_array(
            [join_parts(pc.struct_field(c, 0), pc.struct_field(c, 1), c.is_null()) for c in values.chunks], VARIANT
        )
    try:
        return values if values.type == column.type else values.cast(column.type)
    except pa.ArrowException as error:
        what = f"column {column.name} is {column.type} in the table, and {values.type} in the rows"
        raise _misfit(what, where) from error


def _misfit(what: str, where: str) -> LakeError:
    return LakeError(
        f"the rows do not fit the table: {what}",
        where=where,
        fix="undo what another program changed in the table, unless the next merge succeeds",
    )
