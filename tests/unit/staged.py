"""Small segments for tests: rows, schemas and manifests without a source."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, DataFile, LogMark, Manifest
from dblog_core.staging.row_format import log_schema
from dblog_core.storage.local import LocalStorage

TIME = dt.datetime(2026, 11, 21, 9, 30, tzinfo=dt.UTC)
MICROSECONDS = int(TIME.timestamp()) * 1_000_000


def table(name: str = "shop.orders", /, *, key: tuple[str, ...] = ("id",), **columns: pa.DataType) -> TableSchema:
    """A table with the columns given; default: id int64, name string, big string."""
    columns = columns or {"id": pa.int64(), "name": pa.string(), "big": pa.string()}
    return TableSchema(TableName.parse(name), tuple(Column(n, str(t), t) for n, t in columns.items()), key)


def log_rows(schema: TableSchema, *rows: dict[str, Any]) -> pa.RecordBatch:
    """Rows of a log file; what a row leaves out has a usual value."""
    usual = {
        "origin": "log",
        "transaction": "tx1",
        "position": "p1",
        "commit_time": TIME,
        "key_only": False,
        "unchanged": None,
        "moved_from": None,
        "before": None,
        "after": None,
    }
    return pa.RecordBatch.from_pylist([{**usual, **row} for row in rows], schema=log_schema(schema))


def creates(schema: TableSchema, first: int, count: int) -> pa.RecordBatch:
    """`count` inserts with offsets from `first` on, each with its offset as id."""
    return log_rows(
        schema, *({"offset": o, "op": "c", "after": {"id": o, "name": f"n{o}"}} for o in range(first, first + count))
    )


def manifest(
    segment: int,
    first: int,
    last: int,
    *,
    epoch: int = 1,
    source: str = "shop",
    files: tuple[DataFile, ...] = (),
    chunks: tuple[ChunkRef, ...] = (),
    marks: tuple[LogMark, ...] = (),
) -> Manifest:
    return Manifest(
        source,
        segment,
        epoch,
        first,
        last,
        f"pos{segment}",
        0,
        f"log{segment}",
        MICROSECONDS,
        MICROSECONDS,
        files,
        chunks,
        marks,
    )


def publish(
    staging: Staging,
    segment: int,
    first: int,
    last: int,
    *batches: tuple[TableSchema, pa.RecordBatch],
    chunks: tuple[ChunkRef, ...] = (),
    marks: tuple[LogMark, ...] = (),
) -> Manifest:
    """Writes and publishes one segment."""
    writer = staging.open_segment(segment, 1)
    for schema, batch in batches:
        staging.put_schema(schema)
        writer.add(schema, batch)
    new_manifest = manifest(segment, first, last, files=writer.write(), chunks=chunks, marks=marks)
    staging.publish(new_manifest)
    return new_manifest


def chunk(
    staging: Staging, schema: TableSchema, first: int, *rows: dict[str, Any], evicted: tuple[int, ...] = ()
) -> ChunkRef:
    """Writes a chunk file, and the reference that places it at `first`."""
    staging.put_schema(schema)
    file = staging.write_chunk("d1/0", f"{first:08d}", pa.RecordBatch.from_pylist(list(rows), schema=schema.arrow))
    return ChunkRef(
        str(schema.table), schema.fingerprint, "d1", "d1/0", 0, file.path, file.rows, file.bytes, file.checksum, first,
        evicted, "p9", MICROSECONDS,
    )  # fmt: skip


def root_of(staging: Staging) -> Path:
    """The directory of the staged files of this source."""
    assert isinstance(staging.storage, LocalStorage)
    return staging.storage.root
