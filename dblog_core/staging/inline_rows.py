"""Rows of a small segment as bytes that stand in the manifest itself: no file, no fsync and no footer of their own.

The bytes: which of the optional columns are left out since no row has them (a bit each), the size of what follows once
it is unpacked (8 bytes), and one Arrow record batch, packed with zstd. Its columns are known from the table version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from dblog_core.errors import CorruptSegment

OPTIONAL = ("unchanged", "moved_from", "before", "after")
"""Columns of log rows that are left out of a file in which they are null everywhere."""

_CODEC = pa.Codec("zstd", compression_level=1)


def empty_columns(batch: pa.RecordBatch) -> frozenset[str]:
    """Those optional columns that hold nothing."""
    rows = len(batch)
    return frozenset([name for name in OPTIONAL if batch.column(name).null_count == rows])


def without(batch: pa.RecordBatch, names: Iterable[str]) -> pa.RecordBatch:
    left_out = set(names)
    return batch.select([name for name in batch.schema.names if name not in left_out]) if left_out else batch


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with dictionary columns as plain ones."""
    if not any(pa.types.is_dictionary(f.type) for f in batch.schema):
        return batch
    columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def complete(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with all columns of `schema`: what was left out is null."""
    if batch.schema.equals(schema):
        return batch
    have = set(batch.schema.names)
    columns = [batch.column(f.name) if f.name in have else pa.nulls(len(batch), f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def encode(batches: Sequence[pa.RecordBatch], empty: frozenset[str]) -> bytes:
    """The rows of one table version; `empty`: the optional columns that hold nothing in any of them."""
    parts = [without(b, empty) for b in batches]
    if any(part.schema != parts[0].schema for part in parts):
        parts = [plain(part) for part in parts]
    raw = plain(pa.concat_batches(parts)).serialize()
    flags = sum(1 << i for i, name in enumerate(OPTIONAL) if name in empty)
    return b"".join((bytes([flags]), raw.size.to_bytes(8, "little"), _CODEC.compress(raw)))


def decode(data: bytes, schema: pa.Schema, *, where: str) -> pa.RecordBatch:
    """The rows, with the columns of `schema`. Raises CorruptSegment."""
    left_out = {name for i, name in enumerate(OPTIONAL) if data[0] & 1 << i}
    stored = pa.schema([f for f in schema if f.name not in left_out])
    try:
        raw = _CODEC.decompress(data[9:], decompressed_size=int.from_bytes(data[1:9], "little"))
        return complete(pa.ipc.read_record_batch(raw, stored), schema)
    except (pa.ArrowException, OSError) as error:
        raise CorruptSegment(f"cannot be decoded: {error}", where=where, fix="restore it from a backup") from error
