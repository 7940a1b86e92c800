"""Builds staged segments from rows as Python values."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, LogMark, Manifest
from dblog_core.staging.row_format import log_schema

Row = dict[str, Any]
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def table(name: str, /, *, key: Sequence[str] = ("id",), **columns: pa.DataType) -> TableSchema:
    """A table shop.NAME."""
    return TableSchema(TableName("shop", name), tuple(Column(n, str(t), t) for n, t in columns.items()), tuple(key))


def json_in(schema: TableSchema, **kinds: str) -> TableSchema:
    """The shape, with columns that are JSON at the source: their types there, by name."""
    columns = tuple(replace(c, source_type=kinds.get(c.name, c.source_type)) for c in schema.columns)
    return replace(schema, columns=columns)


@dataclass
class SegmentBuilder:
    """Gathers lines and publishes them as the next segment; offsets go on from one to the next."""

    staging: Staging
    offset: int = 0
    segment: int = 0
    sealed_later: int = 0
    """Microseconds between the time of a segment's last line and when it is sealed."""
    _rows: dict[str, list[Row]] = field(default_factory=dict)
    _batches: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    _schemas: dict[str, TableSchema] = field(default_factory=dict)
    _newest: dict[str, str] = field(default_factory=dict)
    _chunks: list[ChunkRef] = field(default_factory=list)
    _marks: list[LogMark] = field(default_factory=list)
    _first: int = 1

    def next(self, count: int = 1) -> int:
        first = self.offset + 1
        self.offset += count
        return first

    def schema(
        self,
        schema: TableSchema,
        *,
        renamed: dict[str, str] | None = None,
        filled: Row | None = None,
        whole: bool | None = None,
        dump: str | None = None,
    ) -> None:
        """An s mark: from here on the table has this shape. `renamed`, `filled`: what is proven of it; `whole`, `dump`:
        whether it has all of its rows, and what will bring them."""
        self._know(schema)
        self._mark("s", schema, schema=schema.fingerprint, renamed=renamed, filled=filled, whole=whole, dump=dump)

    def _know(self, schema: TableSchema) -> None:
        self.staging.put_schema(schema)
        self._newest[str(schema.table)] = schema.fingerprint

    def line(
        self,
        schema: TableSchema,
        op: str,
        *,
        before: Row | None = None,
        after: Row | None = None,
        unchanged: Sequence[str] | None = None,
        moved_from: Row | None = None,
        origin: str = "log",
    ) -> int:
        if str(schema.table) not in self._newest:
            self._know(schema)
        self._schemas[schema.fingerprint] = schema
        offset = self.next()
        row = {
            "offset": offset,
            "op": op,
            "origin": origin,
            "transaction": f"t{offset}",
            "position": f"p{offset}",
            "commit_time": EPOCH + dt.timedelta(seconds=offset),
            "key_only": op == "d",
            "unchanged": list(unchanged) if unchanged else None,
            "moved_from": moved_from,
            "before": before,
            "after": after,
        }
        self._rows.setdefault(schema.fingerprint, []).append(row)
        return offset

    def batch(self, schema: TableSchema, lines: pa.RecordBatch) -> None:
        """Lines of the log as they are staged, with offsets from `next`."""
        if str(schema.table) not in self._newest:
            self._know(schema)
        self._schemas[schema.fingerprint] = schema
        self._batches.setdefault(schema.fingerprint, []).append(lines)

    def create(self, schema: TableSchema, after: Row) -> int:
        return self.line(schema, "c", after=after)

    def update(self, schema: TableSchema, after: Row, *, unchanged: Sequence[str] | None = None) -> int:
        return self.line(schema, "u", after=after, unchanged=unchanged)

    def delete(self, schema: TableSchema, key: Row, *, origin: str = "log") -> int:
        return self.line(schema, "d", before=key, origin=origin)

    def move(self, schema: TableSchema, old: Row, after: Row, *, unchanged: Sequence[str] | None = None) -> int:
        """A change of key: a d of the old key and a c of the new one."""
        self.delete(schema, old)
        return self.line(schema, "c", after=after, unchanged=unchanged, moved_from=old)

    def truncate(self, schema: TableSchema) -> None:
        self._mark("t", schema)

    def finished(
        self,
        schema: TableSchema,
        dump: str,
        *,
        since: int,
        since_segment: int,
        key_from: Any = None,
        key_to: Any = None,
    ) -> None:
        self._mark("f", schema, dump=dump, since=since, since_segment=since_segment, key_from=key_from, key_to=key_to)

    def _mark(self, op: str, of: TableSchema, /, **more: Any) -> None:
        offset = self.next()
        self._marks.append(LogMark(offset, op, str(of.table), f"p{offset}", offset * 1_000_000, **more))

    def chunk(
        self,
        schema: TableSchema,
        rows: Sequence[Row] | pa.RecordBatch,
        *,
        evicted: Sequence[int] = (),
        dump: str = "d1",
    ) -> int:
        if str(schema.table) not in self._newest:
            self._know(schema)
        first = self.next(len(rows))
        of_rows = rows if isinstance(rows, pa.RecordBatch) else pa.RecordBatch.from_pylist(list(rows), schema.arrow)
        file = self.staging.write_chunk(f"{dump}/0", f"{first}", of_rows)
        self._chunks.append(
            ChunkRef(
                str(schema.table),
                schema.fingerprint,
                dump,
                f"{dump}/0",
                first,
                file.path,
                file.rows,
                file.bytes,
                file.checksum,
                first,
                tuple(evicted),
                f"p{first}",
                first * 1_000_000,
            )
        )
        return first

    def seal(self, *, partial: int = 0, unseen_after: int | None = None) -> Manifest:
        """Publishes what was gathered."""
        self.segment += 1
        writer = self.staging.open_segment(self.segment, 1)
        for fingerprint, rows in self._rows.items():
            schema = self._schemas[fingerprint]
            writer.add(schema, pa.RecordBatch.from_pylist(rows, schema=log_schema(schema)))
        for fingerprint, batches in self._batches.items():
            for batch in batches:
                writer.add(self._schemas[fingerprint], batch)
        manifest = Manifest(
            source=self.staging.source,
            segment=self.segment,
            epoch=1,
            first_offset=self._first,
            last_offset=self.offset,
            position=f"p{self.offset}",
            partial=partial,
            log_position=f"p{self.offset}",
            commit_time=self.offset * 1_000_000,
            sealed_at=self.offset * 1_000_000 + self.sealed_later,
            files=writer.write(),
            chunks=tuple(self._chunks),
            marks=tuple(self._marks),
            schemas=dict(self._newest),
            unseen_after=unseen_after,
        )
        self.staging.publish(manifest)
        self._batches = {}
        self._rows = {}
        self._chunks = []
        self._marks = []
        self._first = self.offset + 1
        return manifest
