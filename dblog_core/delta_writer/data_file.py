"""A Parquet file of new rows, in the form that the table's shape asks for, with its statistics."""

from __future__ import annotations

import io
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from dblog_core.delta_writer.shape import DeltaColumn, Shape
from dblog_core.delta_writer.statistics import Json, statistics_of
from dblog_core.errors import LakeError

_CODECS = {"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}
_ROW_GROUP = 1 << 20  # rows
_CALENDAR = {"org.apache.spark.version": "4.0.0"}
"""Of a file with this line Spark 3 knows that its days are those of the proleptic Gregorian calendar; without it, it
reads no day before 1582-10-15 and no time before 1900."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file to write: its name in the table, its bytes, its rows as the file has them (physical names),
    and their statistics."""

    name: str
    data: pa.Buffer
    rows: pa.Table
    statistics: str

    def addition(self, *, now_ms: int, data_change: bool) -> Json:
        """The `add` action of the file; `now_ms`: when it was made, milliseconds since the epoch."""
        return {
            # Paths in the log are URL-encoded.
            "path": quote(self.name),
            "partitionValues": {},
            "size": self.data.size,
            "modificationTime": now_ms,
            "dataChange": data_change,
            "stats": self.statistics,
        }


def data_file(
    rows: pa.Table, shape: Shape, configuration: Mapping[str, str], name: uuid.UUID, *, where: str
) -> DataFile:
    """The file of these rows, which have every column of the shape by its logical name.

    Raises LakeError where the rows are of another shape: it has changed, or a value has no place in it.
    """
    if set(rows.column_names) != set(shape.names):
        left = set(shape.names) - set(rows.column_names)
        more = set(rows.column_names) - set(shape.names)
        raise _misfit(f"the table has {', '.join(sorted(left)) or 'no'} more columns, and lacks {sorted(more)}", where)
    stored = pa.Table.from_arrays([_values(rows, column, where) for column in shape], schema=shape.arrow())
    codec = _CODECS[configuration.get("delta.parquet.compression.codec", "zstd").lower()]
    out = io.BytesIO()
    with pq.ParquetWriter(
        out,
        stored.schema,
        compression=codec,
        store_schema=False,  # the log has the schema; Arrow's own would have readers see other types
        store_decimal_as_integer=True,
    ) as writer:
        writer.write_table(stored, row_group_size=_ROW_GROUP)
        writer.add_key_value_metadata(_CALENDAR)
    file = f"part-00000-{name}-c000{'' if codec == 'none' else f'.{codec}'}.parquet"
    return DataFile(file, pa.py_buffer(out.getbuffer()), stored, statistics_of(stored, shape, configuration))


def _values(rows: pa.Table, column: DeltaColumn, where: str) -> pa.ChunkedArray:
    values = rows[column.name]
    if values.null_count and not column.nullable:
        raise _misfit(f"column {column.name} takes no NULL, and a row has one", where)
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
