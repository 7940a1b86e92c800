"""What a placed chunk becomes: a reference to its file, refreshes of columns, deletes, and the mark of its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from dblog_core.algorithm.chunk_placement import Finished, Placement
from dblog_core.algorithm.eviction import Survivor
from dblog_core.capture.draft_segment import DraftSegment
from dblog_core.capture.row_changes import log_batch, repeat_text
from dblog_core.model.events import Transaction
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import Key
from dblog_core.model.watermark import High
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef
from dblog_core.staging.row_format import log_schema

Row = dict[str, Any]


def read_chunk_rows(staging: Staging, high: High, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """The rows of the chunk's file, of which there is one. Raises CorruptSegment."""
    assert high.file is not None
    table = staging.read_chunk(high.file, checksum=high.checksum, columns=columns).combine_chunks()
    return table.to_batches()[0]


def add_chunk(
    draft: DraftSegment, staging: Staging, high: High, schema: TableSchema, placement: Placement, at: Transaction
) -> None:
    """Puts the chunk into the segment, at that place in the log."""
    if high.file is not None:
        draft.chunks.append(_refer_to_file(draft, high, placement.evicted, at))
    if placement.survivors:
        _add_refreshes(draft, read_chunk_rows(staging, high), schema, placement.survivors, at)
    if placement.deleted:
        _add_deletes(draft, schema, placement.deleted, at)
    # Last: all that the dump has brought lies before its end.
    if placement.finished is not None:
        _add_finish_mark(draft, schema.table, placement.finished, at)


def _refer_to_file(draft: DraftSegment, high: High, evicted: tuple[int, ...], at: Transaction) -> ChunkRef:
    assert high.file is not None
    return ChunkRef(
        table=high.mark.table,
        schema=high.schema,
        dump=high.mark.task.dump,
        task=str(high.mark.task),
        ordinal=high.mark.ordinal,
        path=high.file,
        rows=high.rows,
        bytes=high.bytes,
        checksum=high.checksum,
        # Evicted rows have offsets too: the file stays as the worker wrote it, and readers pass them over.
        first_offset=draft.take_offsets(high.rows),
        evicted=evicted,
        position=at.position,
        commit_time=at.commit_time,
    )


def _add_refreshes(
    draft: DraftSegment,
    rows: pa.RecordBatch,
    schema: TableSchema,
    survivors: Sequence[tuple[int, Survivor]],
    at: Transaction,
) -> None:
    """Refreshes of those columns of evicted rows that the log left out."""
    images = []
    unchanged = []
    for number, survivor in survivors:
        row = rows.slice(number, 1).to_pylist()[0]
        image = {name: value if name in survivor.columns else None for name, value in row.items()}
        # Under the key of now: the row may have changed it since the SELECT.
        images.append({**image, **dict(zip(schema.key, survivor.key, strict=True))})
        stays = survivor.columns | set(schema.key)
        unchanged.append([c.name for c in schema.columns if c.name not in stays])
    _add_dump_rows(draft, schema, "r", at, after=images, unchanged=unchanged)


def _add_deletes(draft: DraftSegment, schema: TableSchema, keys: Sequence[Key], at: Transaction) -> None:
    """Requested keys that neither the SELECT nor the log has."""
    before = [dict(zip(schema.key, key, strict=True)) for key in keys]
    _add_dump_rows(draft, schema, "d", at, before=before)


def _add_finish_mark(draft: DraftSegment, table: TableName, finished: Finished, at: Transaction) -> None:
    draft.add_mark(
        "f",
        table,
        at,
        dump=finished.dump,
        since=finished.since,
        since_segment=finished.segment,
        key_from=finished.heals.key_from,
        key_to=finished.heals.key_to,
    )


def _add_dump_rows(
    draft: DraftSegment,
    schema: TableSchema,
    op: str,
    at: Transaction,
    *,
    before: list[Row] | None = None,
    after: list[Row] | None = None,
    unchanged: list[list[str]] | None = None,
) -> None:
    """Rows as a log file has them, of a dump: for few rows, which no chunk file holds."""
    count = len(before or after or ())
    first = draft.take_offsets(count)
    target = log_schema(schema)
    columns = {
        "offset": pa.array(range(first, first + count), pa.int64()),
        "op": pa.array([op] * count, pa.string()),
        "origin": repeat_text("dump", count),
        "transaction": repeat_text(None, count),
        "position": repeat_text(at.position, count),
        "commit_time": pa.array([at.commit_time] * count, pa.timestamp("us", tz="UTC")),
        # Of a deleted row nobody has read more than the key that was asked for.
        "key_only": pa.array([before is not None] * count, pa.bool_()),
    }
    for name, values in (("unchanged", unchanged), ("before", before), ("after", after)):
        if values is not None:
            columns[name] = pa.array(values, target.field(name).type)
    for absent in (f for f in target if f.name not in columns):
        columns[absent.name] = pa.nulls(count, absent.type)
    draft.add_rows(schema, log_batch(columns))
