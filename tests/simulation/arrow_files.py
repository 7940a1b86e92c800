"""Staged files as Arrow IPC in the place of Parquet, whose encoder would take most of a simulation's time.

The same functions as `staging.parquet`; that Parquet keeps every value is shown elsewhere
(tests/unit/staging/test_staging.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from dblog_core.errors import CorruptSegment
from dblog_core.staging.inline_rows import plain
from dblog_core.staging.parquet import checksum


@dataclass(frozen=True, slots=True)
class File:
    """An opened file."""

    schema_arrow: pa.Schema
    rows: tuple[pa.RecordBatch, ...]


class Encoder:
    """One file in the making."""

    def __init__(self, schema: pa.Schema, sample: pa.RecordBatch | None, **_: object) -> None:
        self._schema = schema
        self._batches = list[pa.RecordBatch]()

    def add(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches += batches

    def finish(self) -> pa.Buffer:
        return encode(self._schema, self._batches)


def encode(schema: pa.Schema, batches: Sequence[pa.RecordBatch], **_: object) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in pa.Table.from_batches([plain(b) for b in batches], schema).combine_chunks().to_batches():
            writer.write_batch(batch)
    return sink.getvalue()


def open_file(data: bytes | pa.Buffer, *, expected: str | None, where: str) -> File:
    if expected is not None and checksum(data) != expected:
        raise CorruptSegment("the file was changed", where=where, fix="none: it is a fault")
    try:
        with pa.ipc.open_stream(data) as reader:
            return File(reader.schema, tuple(reader))
    except (pa.ArrowException, OSError) as error:
        raise CorruptSegment(f"is no whole file: {error}", where=where, fix="none: it is a fault") from error


def batches(file: File, *, where: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    for batch in file.rows:
        yield batch if columns is None else batch.select(list(columns))
