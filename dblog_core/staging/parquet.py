"""Arrow rows to Parquet bytes and back: one place for how staged files are encoded and checked for completeness.

The encodings are those that cost least in writing and reading, measured on rows of a dozen columns: no statistics but
of the offset (they cost a quarter of the encoder's time, and nothing else is looked up), differences for whole numbers
and times, dictionaries where values repeat, and a codec by what becomes of the file: snappy where it is soon joined
with others or merged, zstd where it stays.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblog_core.errors import CorruptSegment

QUICK = "snappy"
SMALL = "zstd"
"""Codecs: for files that are joined or merged soon, and for those that stay."""

_SAMPLE = 1000
_ROW_GROUP = 131_072
_BATCH_BYTES = 4 << 20
_PART_BYTES = 4 << 20
"""Of a file on the local disk that are in memory at once: of each column, where rows are decoded."""
_BATCH_ROWS = 8192


class Encoder:
    """One Parquet file in the making. Each `add` makes a row group, so give it thousands of rows.

    Columns in `repeated`, and those whose first rows repeat, get a dictionary. Batches may hold columns of `schema`
    as dictionary arrays: the file, and who reads it, has the plain type.
    """

    def __init__(
        self, schema: pa.Schema, sample: pa.RecordBatch | None, *, repeated: Sequence[str] = (), codec: str = QUICK
    ) -> None:
        self._sink = pa.BufferOutputStream()
        dictionary = [*repeated, *_repetitive(sample)] if sample is not None else list(repeated)
        stored = schema if _natural(schema) else schema.with_metadata({b"ARROW:schema": _serialize(schema)})
        self._metadata = stored.metadata
        self._schema = schema if sample is None else sample.schema
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema.with_metadata(self._metadata),
            compression=codec,
            compression_level=1 if codec == SMALL else None,
            use_dictionary=dictionary or False,
            write_statistics=["offset"] if "offset" in schema.names else False,
            column_encoding=dict.fromkeys(_countable(schema, dictionary), "DELTA_BINARY_PACKED") or None,
            store_decimal_as_integer=True,
            store_schema=False,
        )

    def add(self, batches: Sequence[pa.RecordBatch]) -> None:
        alike = [batch if batch.schema.equals(self._schema) else batch.cast(self._schema) for batch in batches]
        # One dictionary for all: the writer takes the first as it is, and would write the others out row by row.
        table = pa.Table.from_batches(alike, self._schema).unify_dictionaries()
        self._writer.write_table(table.replace_schema_metadata(self._metadata), row_group_size=_ROW_GROUP)

    def finish(self) -> pa.Buffer:
        """The file."""
        self._writer.close()
        return self._sink.getvalue()


def encode(schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, codec: str = QUICK) -> pa.Buffer:
    """The Parquet file of the batches."""
    encoder = Encoder(schema, batches[0] if batches else None, codec=codec)
    encoder.add(batches)
    return encoder.finish()


def checksum(data: bytes | pa.Buffer) -> str:
    """32 hex digits over the file's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def open_file(data: bytes | pa.Buffer, *, expected: str | None, where: str) -> pq.ParquetFile:
    """The file, its bytes compared with the checksum that a manifest or watermark names. Raises CorruptSegment."""
    if expected is not None:
        _check_sum(checksum(data), expected, where)
    return _open_parquet(pa.BufferReader(data), where)


def open_large_file(file: IO[bytes], *, expected: str, where: str) -> pq.ParquetFile:
    """As `open_file`, of a file on the local disk, which is read a little at a time."""
    file.seek(0)
    digest = hashlib.blake2b(digest_size=16)
    while data := file.read(_PART_BYTES):
        digest.update(data)
    _check_sum(digest.hexdigest(), expected, where)
    return _open_parquet(file, where, buffer_size=_PART_BYTES)


def _check_sum(actual: str, expected: str, where: str) -> None:
    if actual != expected:
        raise CorruptSegment(
            f"the file was changed: its checksum is {actual}, {expected} was staged",
            where=where,
            fix="restore it from a backup; or begin a fresh staging directory and dump all tables",
        )


def _open_parquet(source: pa.NativeFile | IO[bytes], where: str, *, buffer_size: int = 0) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source, buffer_size=buffer_size)
    except (pa.ArrowException, OSError) as error:
        raise CorruptSegment(
            f"is no whole Parquet file: {error}", where=where, fix="restore it from a backup"
        ) from error


def batches(file: pq.ParquetFile, *, where: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows in pieces of a few MiB, whatever the width of a row."""
    metadata = file.metadata
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    width = max(1, size // max(1, metadata.num_rows))
    try:
        yield from file.iter_batches(max(1, min(_BATCH_ROWS, _BATCH_BYTES // width)), columns=columns)
    except (pa.ArrowException, OSError) as error:
        raise CorruptSegment(f"cannot be decoded: {error}", where=where, fix="restore it from a backup") from error


def _leaves(schema: pa.Schema) -> Iterator[tuple[str, pa.DataType]]:
    """Path and type of every column that is no list, also within the images."""
    for field in schema:
        if pa.types.is_struct(field.type):
            yield from ((f"{field.name}.{f.name}", f.type) for f in field.type)
        else:
            yield field.name, field.type


def _repetitive(batch: pa.RecordBatch) -> Iterator[str]:
    """Paths of text and binary columns of which less than half of a sample is distinct; also within the images."""
    sample = batch.slice(0, _SAMPLE)
    for field, column in zip(sample.schema, sample.columns, strict=True):
        leaves = [(field.name, column)]
        if pa.types.is_struct(field.type):
            leaves = [(f"{field.name}.{f.name}", column.field(i)) for i, f in enumerate(field.type)]
        for path, leaf in leaves:
            textual = pa.types.is_string(leaf.type) or pa.types.is_binary(leaf.type)
            if textual and pc.count_distinct(leaf).as_py() * 2 < len(leaf):
                yield path


def _countable(schema: pa.Schema, dictionary: Sequence[str]) -> list[str]:
    """Paths of signed whole numbers, dates and times: what all readers know as differences."""
    countable = (pa.types.is_signed_integer, pa.types.is_timestamp, pa.types.is_date32)
    return [path for path, kind in _leaves(schema) if path not in dictionary and any(is_(kind) for is_ in countable)]


@lru_cache(maxsize=1024)
def _natural(schema: pa.Schema) -> bool:
    """Whether Parquet's own types say all; otherwise the file holds Arrow's schema too, some kB for each file."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, store_schema=False, store_decimal_as_integer=True) as writer:
        writer.write_table(schema.empty_table())
    return bool(pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema_arrow.equals(schema))


@lru_cache(maxsize=1024)
def _serialize(schema: pa.Schema) -> bytes:
    return base64.b64encode(schema.serialize())
