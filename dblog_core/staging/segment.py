"""The log files of one segment: row changes gathered per table version, then written durably in one new directory."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import quote

import pyarrow as pa

from dblog_core.errors import StagingError
from dblog_core.events import image_type
from dblog_core.schema import TableSchema
from dblog_core.staging import parquet
from dblog_core.staging.manifest import DataFile
from dblog_core.staging.storage import Storage

_REPEATED = ("op", "origin", "transaction", "position", "unchanged.list.element")
_BATCH_OVERHEAD = 8192  # bytes that the arrays of a batch take beside their values


@lru_cache(maxsize=1024)
def log_schema(schema: TableSchema) -> pa.Schema:
    """The columns of a log file of this table version (see `manifest`).

    Parquet has no struct without fields: where the table has no key, `moved_from` is a bool, always null.
    """
    key = [pa.field(c.name, c.type) for c in schema.key_columns]
    return pa.schema(
        [
            pa.field("offset", pa.int64()),
            pa.field("op", pa.string()),
            pa.field("origin", pa.string()),
            pa.field("transaction", pa.string()),
            pa.field("position", pa.string()),
            pa.field("commit_time", pa.timestamp("us", tz="UTC")),
            pa.field("key_only", pa.bool_()),
            pa.field("unchanged", pa.list_(pa.string())),
            pa.field("moved_from", pa.struct(key) if key else pa.bool_()),
            pa.field("before", image_type(schema)),
            pa.field("after", image_type(schema)),
        ]
    )


@dataclass(slots=True)
class _Buffer:
    schema: TableSchema
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    has_unchanged: bool = False
    has_moves: bool = False

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.rows += len(batch)
        self.has_unchanged |= batch.column("unchanged").null_count < len(batch)
        self.has_moves |= batch.column("moved_from").null_count < len(batch)


class SegmentWriter:
    """The segment that is being filled. `bytes` and `rows` tell how much it holds in memory."""

    def __init__(self, storage: Storage, number: int, epoch: int) -> None:
        self._storage = storage
        self._number = number
        self._epoch = epoch
        self._buffers: dict[str, _Buffer] = {}
        self._written: tuple[DataFile, ...] | None = None
        self.bytes = 0
        self.rows = 0

    def add(self, schema: TableSchema, batch: pa.RecordBatch) -> None:
        """Rows of one table version with the columns of `log_schema(schema)`, after all that this table has so far."""
        if not len(batch):
            return
        if not schema.columns:
            raise StagingError(
                f"{schema.table} has no column to stage", fix="leave it out of `tables`, or exclude fewer columns"
            )
        self._buffers.setdefault(schema.fingerprint, _Buffer(schema)).add(batch)
        self._written = None
        self.bytes += batch.nbytes + _BATCH_OVERHEAD
        self.rows += len(batch)

    def write(self) -> tuple[DataFile, ...]:
        """Writes one file per table version; durable when it returns. After StagingUnavailable it can be called again.

        Each try has a directory of its own: a file whose fsync has failed once is never trusted again.
        """
        if self._written is None:
            directory = f"log/{self._number:020d}-{self._epoch}-{uuid.uuid4().hex}"
            encoded = {_file_name(b.schema): (b, _encode(b)) for b in self._buffers.values()}
            if encoded:
                self._storage.write_directory(directory, {name: data for name, (_, data) in encoded.items()})
            self._written = tuple(_data_file(b, f"{directory}/{name}", data) for name, (b, data) in encoded.items())
        return self._written


def safe_name(text: str) -> str:
    """A file name of at most 120 plain characters for any text, percent-encoded with `~` for `%`.

    Spark and URLs would read `%` as an escape of their own.
    """
    return quote(text, safe="").replace("%", "~")[:120]


def _file_name(schema: TableSchema) -> str:
    # The fingerprint first: it is unique, and Spark passes over names that begin with _ or a dot.
    return f"{schema.fingerprint}-{safe_name(str(schema.table))}.parquet"


def _encode(buffer: _Buffer) -> pa.Buffer:
    return parquet.encode(log_schema(buffer.schema), buffer.batches, repeated=_REPEATED)


def _data_file(buffer: _Buffer, path: str, data: pa.Buffer) -> DataFile:
    return DataFile(
        table=str(buffer.schema.table),
        schema=buffer.schema.fingerprint,
        path=path,
        rows=buffer.rows,
        bytes=data.size,
        checksum=parquet.checksum(data),
        first_offset=buffer.batches[0].column("offset")[0].as_py(),
        last_offset=buffer.batches[-1].column("offset")[-1].as_py(),
        has_unchanged=buffer.has_unchanged,
        has_moves=buffer.has_moves,
    )
