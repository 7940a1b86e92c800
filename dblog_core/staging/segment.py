"""The rows of one segment: gathered per table version, encoded while more come in, written durably at its end.

A table version with few rows lies in the manifest itself (`inline_rows`). Others become Parquet files in one new
directory; rows that are enough for a row group are encoded beside the loop that reads the log.
"""

from __future__ import annotations

import uuid
from urllib.parse import quote

import pyarrow as pa

from dblog_core.errors import StagingError
from dblog_core.model.schema import TableSchema
from dblog_core.staging import inline_rows, parquet
from dblog_core.staging.manifest import DataFile
from dblog_core.staging.ordered_thread import Background
from dblog_core.staging.row_format import log_schema
from dblog_core.storage import Storage

INLINE_BYTES = 512 << 10
"""Rows of a table version that take less in memory lie in the manifest; the others in a file."""

_REPEATED = ("op", "origin", "transaction", "position", "unchanged.list.element")
_ROW_GROUP_BYTES = 8 << 20  # in memory: so much is encoded at once, while more is read
_BATCH_OVERHEAD = 8192  # bytes that the arrays of a batch take beside their values


class _Rows:
    """Rows of one table version that come to lie in one place."""

    def __init__(self, schema: TableSchema, first_offset: int, empty: frozenset[str]) -> None:
        """`empty`: the optional columns that hold nothing in the first rows."""
        self.schema = schema
        self.rows = self.bytes = 0
        self.has_unchanged = self.has_moves = False
        self.first_offset = first_offset
        self.last_offset = first_offset
        self.pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._left_out = empty
        self._encoder: parquet.Encoder | None = None
        self._started = False

    def takes(self, empty: frozenset[str]) -> bool:
        """Whether a batch with these empty columns can follow: what the file leaves out must be empty in it too."""
        return not self._started or self._left_out <= empty

    def add(self, batch: pa.RecordBatch, empty: frozenset[str], size: int) -> None:
        self._left_out &= empty
        self.has_unchanged |= "unchanged" not in empty
        self.has_moves |= "moved_from" not in empty
        self.rows += len(batch)
        self.bytes += size
        self.last_offset = batch.column("offset")[-1].as_py()
        self.pending.append(batch)
        self._pending_bytes += size

    @property
    def fills_row_group(self) -> bool:
        return self._pending_bytes >= _ROW_GROUP_BYTES

    def take(self) -> list[pa.RecordBatch]:
        """What waits, to be encoded: from now on the file's columns are settled."""
        batches = self.pending
        self.pending = []
        self._pending_bytes = 0
        self._started = True
        return [inline_rows.without(batch, self._left_out) for batch in batches]

    def encode(self, batches: list[pa.RecordBatch]) -> None:
        if self._encoder is None:
            whole = log_schema(self.schema)
            stored = pa.schema([f for f in whole if f.name not in self._left_out])
            repeated = [p for p in _REPEATED if p.partition(".")[0] in stored.names]
            self._encoder = parquet.Encoder(stored, batches[0], repeated=repeated)
        self._encoder.add(batches)

    def finish(self) -> pa.Buffer:
        if self.pending:
            self.encode(self.take())
        assert self._encoder is not None
        return self._encoder.finish()

    def encode_inline(self) -> bytes:
        return inline_rows.encode(self.pending, self._left_out)

    @property
    def is_small(self) -> bool:
        return not self._started and self.bytes < INLINE_BYTES

    def file(self, path: str, data: bytes | pa.Buffer) -> DataFile:
        """`path`: empty for rows that lie in the manifest."""
        return DataFile(
            table=str(self.schema.table),
            schema=self.schema.fingerprint,
            path=path,
            rows=self.rows,
            bytes=data.size if isinstance(data, pa.Buffer) else len(data),
            checksum=parquet.checksum(data),
            first_offset=self.first_offset,
            last_offset=self.last_offset,
            has_unchanged=self.has_unchanged,
            has_moves=self.has_moves,
            inline=b"" if path else bytes(data),
        )


class SegmentWriter:
    """The segment that is being filled. `bytes` and `rows` tell how much was added; encoded rows take less by then."""

    def __init__(self, storage: Storage, number: int, epoch: int) -> None:
        self._storage = storage
        self._number = number
        self._epoch = epoch
        self._tables: dict[str, list[_Rows]] = {}
        self._background = Background(f"encoder-{number}")
        self._encoded: dict[str, tuple[_Rows, pa.Buffer]] | None = None
        self._written: tuple[DataFile, ...] | None = None
        self.bytes = 0
        self.rows = 0

    def add(self, schema: TableSchema, batch: pa.RecordBatch) -> None:
        """Rows of one table version with the columns of `log_schema(schema)`, after all that this table has so far.

        Text columns may be dictionary arrays.
        """
        if not len(batch):
            return
        if not schema.columns:
            raise StagingError(
                f"{schema.table} has no column to stage", fix="leave it out of `tables`, or exclude fewer columns"
            )
        if self._encoded is not None:
            raise ValueError("the segment was encoded whole: no row can follow")
        size = batch.nbytes
        empty = inline_rows.empty_columns(batch)
        rows = self._place(schema, batch, empty)
        rows.add(batch, empty, size)
        if rows.fills_row_group:
            batches = rows.take()
            self._background.do(lambda: rows.encode(batches))
        self._written = None
        self.bytes += size + _BATCH_OVERHEAD
        self.rows += len(batch)

    def _place(self, schema: TableSchema, batch: pa.RecordBatch, empty: frozenset[str]) -> _Rows:
        places = self._tables.setdefault(schema.fingerprint, [])
        if not places or not places[-1].takes(empty):
            places.append(_Rows(schema, batch.column("offset")[0].as_py(), empty))
        return places[-1]

    def write(self) -> tuple[DataFile, ...]:
        """Makes the rows durable, except for those that lie in the manifest. After StagingUnavailable it can be called
        again.

        Each try has a directory of its own: a file whose fsync has failed once is never trusted again.
        """
        if self._written is None:
            self._background.wait()
            places = [rows for places in self._tables.values() for rows in places]
            small = [rows.file("", rows.encode_inline()) for rows in places if rows.is_small]
            self._written = (*small, *self._write_files([rows for rows in places if not rows.is_small]))
        return self._written

    def _write_files(self, places: list[_Rows]) -> tuple[DataFile, ...]:
        if not places:
            return ()
        if self._encoded is None:
            self._encoded = {_file_name(n, rows.schema): (rows, rows.finish()) for n, rows in enumerate(places)}
        directory = f"log/{self._number:020d}-{self._epoch}-{uuid.uuid4().hex}"
        self._storage.write_directory(directory, {name: data for name, (_, data) in self._encoded.items()})
        return tuple(rows.file(f"{directory}/{name}", data) for name, (rows, data) in self._encoded.items())


def safe_name(text: str) -> str:
    """A file name of at most 120 plain characters for any text, percent-encoded with `~` for `%`.

    Spark and URLs would read `%` as an escape of their own.
    """
    return quote(text, safe="").replace("%", "~")[:120]


def _file_name(number: int, schema: TableSchema) -> str:
    # The fingerprint first: Spark passes over names that begin with _ or a dot.
    return f"{schema.fingerprint}-{number}-{safe_name(str(schema.table))}.parquet"
