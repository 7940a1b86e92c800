"""Filing a dump: the tables of a request are cut into tasks, the tasks are written, and then the dump is shown to all.

Until the last step nobody sees the dump: a process that dies before it leaves tasks that `ended_dumps` removes.
"""

from __future__ import annotations

import datetime as dt
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from dblog_core import wiring
from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, key_ranges, task_store
from dblog_core.dumps.dump_records import USER, DumpOptions, DumpRecord, DumpState, Refusal, TaskRecord
from dblog_core.dumps.key_ranges import Range
from dblog_core.dumps.pace.locked_tables import explain_lock
from dblog_core.dumps.requests import DumpRequest, RequestedTable, first_options, look_at_each, resolve_and_look
from dblog_core.errors import RequestError, TableLocked
from dblog_core.interfaces import ChunkReader, Clock, Source, StateStore
from dblog_core.model.filters import FiledFilter
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_from_json, key_to_json
from dblog_core.model.watermark import Heals

log = logging.getLogger(__name__)

KEYS_PER_TASK = 5_000
LOCK_SECONDS = 10.0
"""How long a request waits for a table that somebody has locked, where only its answer waits."""
_CutTable = tuple[RequestedTable, list[TaskRecord]]


@dataclass(frozen=True, slots=True)
class Draft:
    """A dump that is checked and cut, and that nobody sees yet."""

    id: str
    record: DumpRecord
    tasks: tuple[TaskRecord, ...]


def submit(
    config: Config,
    request: DumpRequest,
    *,
    requested_by: str = USER,
    state: StateStore | None = None,
    clock: Clock | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(3),
    on_table: Callable[[str], None] = lambda _: None,
    lock_seconds: float = LOCK_SECONDS,
) -> str:
    """Checks the request against the catalogue, cuts it into tasks and files it; returns the dump's id.

    Reads the boundaries of the ranges from the key's index, which takes its time on a very large table: `on_table` gets
    the name of each. A table that somebody keeps locked for longer than `lock_seconds` is not cut: the workers of the
    dump read other tables until it is free. Raises RequestError before anything is filed.
    """
    draft = make_draft(
        config,
        request,
        requested_by=requested_by,
        clock=clock,
        new_id=new_id,
        on_table=on_table,
        lock_seconds=lock_seconds,
    )
    if state is None:
        with closing(wiring.open_state(config)) as store:
            _file_draft(store, draft)
    else:
        _file_draft(state, draft)
    return draft.id


def make_draft(
    config: Config,
    request: DumpRequest,
    *,
    requested_by: str,
    clock: Clock | None = None,
    new_id: Callable[[], str] = lambda: secrets.token_hex(3),
    on_table: Callable[[str], None] = lambda _: None,
    lock_seconds: float = LOCK_SECONDS,
) -> Draft:
    """The dump that `submit` files. Raises RequestError."""
    options = first_options(config, request)

    def look(tables: list[RequestedTable], is_last: bool) -> tuple[list[_CutTable], list[Refusal]]:
        return _cut_tables(config, request, tables, options, on_table, is_last, lock_seconds)

    _, refused, (cut_tables, unreadable) = resolve_and_look(config, request, look)
    if not cut_tables:
        reasons = "; ".join(f"{refusal.reason} (fix: {refusal.fix})" for refusal in unreadable)
        raise RequestError(f"no table that is asked for can be dumped: {reasons}", fix="as said there")
    now = dt.datetime.fromtimestamp((clock or SystemClock()).time(), dt.UTC)
    record = DumpRecord(
        tables=tuple(str(table.schema.table) for table, _ in cut_tables),
        options=options,
        state=DumpState.REQUESTED,
        error=None,
        requested_at=now.isoformat(timespec="microseconds"),
        requested_by=requested_by,
        refused=(*refused, *unreadable),
    )
    return Draft(dump_store.make_id(now, new_id()), record, tuple(task for _, tasks in cut_tables for task in tasks))


def _file_draft(state: StateStore, draft: Draft) -> None:
    task_store.write_tasks(state, draft.id, draft.tasks)
    dump_store.file_dump(state, draft.id, draft.record)  # last: until then nobody sees the dump


def _cut_tables(
    config: Config,
    request: DumpRequest,
    tables: Sequence[RequestedTable],
    options: DumpOptions,
    on_table: Callable[[str], None],
    is_last: bool,
    lock_seconds: float,
) -> tuple[list[_CutTable], list[Refusal]]:
    """The tasks of each table, and the tables that cannot be cut. The order of a key is that of the time before its
    table is cut: whatever changes it while it is cut, or later, its workers notice."""
    if request.shapes:  # without a key there is no order, and no row that the table could be looked at for
        return [(table, [_task(table.schema, Range(estimated=0), parts=1, keys=())]) for table in tables], []
    source = wiring.open_source(config.source)
    with closing(source.open_reader(lock_seconds=lock_seconds)) as reader:

        def cut(table: RequestedTable) -> list[TaskRecord]:
            order = reader.key_order(table.schema)
            if request.keys:
                tasks = _cut_keys(request, table.schema)
            else:
                on_table(str(table.schema.table))
                tasks = _cut_ranges(source, reader, request, table, options)
            return [replace(task, order=order) for task in tasks]

        return look_at_each(request, tables, cut, is_last=is_last)


def _cut_keys(request: DumpRequest, schema: TableSchema) -> list[TaskRecord]:
    keys = listed_keys(request, schema)
    parts = [tuple(keys[start : start + KEYS_PER_TASK]) for start in range(0, len(keys), KEYS_PER_TASK)]
    return [_task(schema, Range(estimated=len(part)), keys=part, parts=len(parts)) for part in parts]


def listed_keys(request: DumpRequest, schema: TableSchema) -> list[Any]:
    """The request's keys as JSON, each once."""
    return [key_to_json(key) for key in dict.fromkeys(key_from_json(key, schema) for key in request.keys)]


def _cut_ranges(
    source: Source, reader: ChunkReader, request: DumpRequest, table: RequestedTable, options: DumpOptions
) -> list[TaskRecord]:
    schema = table.schema
    ends = _requested_range(request, schema)
    try:
        parts = key_ranges.cut(reader, schema, table.filters, ends, options, number=request.ranges)
    except TableLocked:
        reason = explain_lock(source, schema.table)
        log.warning("%s; once it is free it is dumped, as one range", reason)
        parts = [ends]
    heals = None if table.filters or not _may_heal(ends, schema, reader) else Heals(ends.key_from, ends.key_to)
    tasks = [_task(schema, part, parts=len(parts), heals=heals) for part in parts]
    return [replace(task, filters=tuple(map(FiledFilter.of, table.filters))) for task in tasks]


def _requested_range(request: DumpRequest, schema: TableSchema) -> Range:
    """The range that the request asks for, its ends in the one form that a key has."""
    first, last = (
        None if end is None else key_to_json(key_from_json(end, schema)) for end in (request.key_from, request.key_to)
    )
    return Range(key_from=first, key_to=last)


def _may_heal(ends: Range, schema: TableSchema, reader: ChunkReader) -> bool:
    """Whether the lake can tell which of its rows lie in the range: it must order the key as the database does."""
    if ends.key_from is None and ends.key_to is None:
        return True
    if not key_ranges.ordered_alike(schema):
        return False
    # Of a binary string the database may order a beginning alone, and then no index has the key in its order.
    has_binary = any(pa.types.is_binary(column.type) for column in schema.key_columns)
    try:
        return not has_binary or reader.explain(schema).index is not None
    except TableLocked:
        return False


def _task(
    schema: TableSchema,
    part: Range,
    *,
    parts: int,
    keys: tuple[Any, ...] | None = None,
    heals: Heals | None = None,
) -> TaskRecord:
    return TaskRecord(
        table=str(schema.table),
        keys=keys,
        key_from=part.key_from,
        after=part.after,
        key_to=part.key_to,
        parts=parts,
        heals=heals,
        estimated=part.estimated,
    )
