"""A Parquet file of new rows, in the form that the table's shape asks for, with its statistics."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblog_core.delta_writer.bitmaps import Rows
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.partitions import Partition, split_rows
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


KEY_BYTES = 64 << 20
"""Of new files' keys that wait for a commit; those of more files are read when the index next needs them."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is written: its name in the table, its bytes and rows, their statistics, its key columns by physical
    names (None: nobody has asked for them, or they are many), and the partition that all its rows belong to."""

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


class KeptKeys:
    """The keys of some files, as long as there is room for them."""

    def __init__(self) -> None:
        self._bytes = 0

    def limit(self, file: StoredFile) -> StoredFile:
        """The file, without its keys where those before it have taken the room."""
        if file.keys is None:
            return file
        self._bytes += file.keys.nbytes
        return file if self._bytes <= KEY_BYTES else replace(file, keys=None)


def store_rows(
    files: TableFiles,
    rows: pa.Table,
    shape: Shape,
    configuration: Mapping[str, str],
    new_id: Callable[[], uuid.UUID],
    *,
    keys: Sequence[str] | None = None,
    directory: str = "",
) -> Iterator[tuple[StoredFile, Rows]]:
    """Writes a file for the rows of each partition, with the numbers of these rows. They have every column of the shape
    by its logical name. `keys`, `directory`: as for `FileWriter`.

    Raises LakeError where the rows are of another shape: it has changed, or a value has no place in it.
    """
    for partition, numbers in split_rows(rows, shape.partitions, str(files)):
        name = new_id()
        with FileWriter(
            files, shape, configuration, name, keys=keys, partition=partition, directory=directory
        ) as writer:
            writer.write(rows.take(pa.array(numbers)) if partition else rows)
        yield writer.store(), numbers


def codec_of(configuration: Mapping[str, str]) -> str:
    """What a table's new files are compressed by; zstd where it names something else than `check_writable` takes."""
    return _CODECS.get(configuration.get("delta.parquet.compression.codec", "zstd").lower(), "zstd")


class FileWriter:
    """A file that is written part by part; entered while there are more parts. `keys`: the columns whose values
    `StoredFile` has as keys, by their logical names; `partition`: that of all rows; `directory`: below the table, with
    a slash behind it."""

    def __init__(
        self,
        files: TableFiles,
        shape: Shape,
        configuration: Mapping[str, str],
        name: uuid.UUID,
        *,
        keys: Sequence[str] | None = None,
        partition: Partition | None = None,
        directory: str = "",
    ) -> None:
        codec = codec_of(configuration)
        self._files = files
        self._name = f"{directory}part-00000-{name}-c000{'' if codec == 'none' else f'.{codec}'}.parquet"
        self._where = str(files)
        self._shape = shape
        self._keys = keys
        self._partition = partition or {}
        self._key_parts: list[pa.Table] = []
        self._count = 0
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
        self._count += len(rows)
        if self._keys is not None:
            physical = [self._shape[name].physical for name in self._keys]
            self._key_parts.append(pa.table([values[name] for name in physical], names=physical))

    @property
    def size(self) -> int:
        """The bytes that were written so far."""
        return self._out.tell()

    def store(self) -> StoredFile:
        """Puts the file in its place in the table, once all its rows are written."""
        data = pa.py_buffer(self._out.getbuffer())
        self._files.create_new(self._name, data)
        keys = None if self._keys is None else pa.concat_tables(self._key_parts)
        return StoredFile(self._name, data.size, self._count, self._statistics.json(), keys, self._partition)


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
