"""Arrow rows to Parquet bytes and back: one place for how staged files are encoded and told whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dblog_core.errors import CorruptSegment

_SAMPLE = 1000
_ROW_GROUP = 65_536
_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 8192


def encode(schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, repeated: Sequence[str] = ()) -> pa.Buffer:
    """The Parquet file of the batches. Columns in `repeated`, and those whose first rows repeat, get a dictionary."""
    sink = pa.BufferOutputStream()
    dictionary = [*repeated, *_repetitive(batches[0])] if batches else list(repeated)
    with pq.ParquetWriter(
        sink, schema, compression="zstd", compression_level=1, use_dictionary=dictionary or False
    ) as writer:
        writer.write_table(pa.Table.from_batches(batches, schema), row_group_size=_ROW_GROUP)
    return sink.getvalue()


def checksum(data: bytes | pa.Buffer) -> str:
    """32 hex digits over the file's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def opened(data: bytes | pa.Buffer, *, expected: str | None, where: str) -> pq.ParquetFile:
    """The file, its bytes compared with the checksum that a manifest or watermark names. Raises CorruptSegment."""
    if expected is not None and (found := checksum(data)) != expected:
        raise CorruptSegment(
            f"the file was changed: its checksum is {found}, {expected} was staged",
            where=where,
            fix="restore it from a backup; or begin a fresh staging directory and dump all tables",
        )
    try:
        return pq.ParquetFile(pa.BufferReader(data))
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
