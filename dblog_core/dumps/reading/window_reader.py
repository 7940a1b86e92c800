"""One chunk of a task between its watermarks: low, SELECT, rows durable in staging, high.

The last two steps happen beside the worker: while a chunk is staged and its high watermark is committed,
the low watermark and the SELECT of the next are on their way, over connections of their own. High watermarks are
written in the order of their chunks, and a chunk whose staging fails is the last of its attempt.

Key ranges are `after < key <= key_to` (`range_cursor`), or begin with `key_from` itself. Keys that rows have arrived
at (`arriving_rows`) are chunks of their own, where many are left, and at the end. Where they do not come to an end, a
table that fits into a chunk is read whole, and the task of a larger one fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa

from dblog_core.algorithm.arriving_rows import LookWay, choose_look
from dblog_core.algorithm.chunk_width import Width
from dblog_core.algorithm.range_cursor import RangeCursor
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps.reading.accepted_reads import AcceptedReads, ShapeChanged
from dblog_core.dumps.reading.background_step import BackgroundStep
from dblog_core.dumps.reading.connections import Connections
from dblog_core.dumps.task_lease import Hold
from dblog_core.errors import DblogError, RequestError
from dblog_core.interfaces import Chunk, ChunkTooLarge
from dblog_core.model import filters, watermark
from dblog_core.model.filters import Filter
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.model.values import Key, key_from_json, key_to_json, keys_of
from dblog_core.model.watermark import High, Low, Mark
from dblog_core.rows import column_rule_faults
from dblog_core.rows.column_rules import Rules

KEYS_PER_CHUNK = 1_000
_MANY_ARRIVED_KEYS = 100
"""Keys that rows have arrived at, from which on they are read before the task's end."""
WHOLE_ROWS = 100_000
"""Rows of a table that is read whole, fewer than; its bytes are those of a chunk. More are too long a SELECT."""


@dataclass(frozen=True, slots=True)
class _Selection:
    """What the SELECT of a chunk has brought, and what its high watermark tells beside the file."""

    chunk: Chunk
    last_key: Any
    final: bool
    absent: tuple[Any, ...] = ()
    end: str | None = None
    arrived: tuple[str, ...] = ()
    whole: bool = False


class WindowReader:
    """Reads the chunks of one attempt, from the last placed one on, and leaves it to `background` to stage them.

    `ordinal`: the next chunk to read; `select_seconds`: of the last chunk's SELECTs; `width`: of the table's rows.
    """

    def __init__(
        self,
        hold: Hold,
        connections: Connections,
        attempt: int,
        progress: TaskProgress,
        background: BackgroundStep,
        width: Width,
    ) -> None:
        self._hold = hold
        self._connections = connections
        self._attempt = attempt
        self._background = background
        self._width = width
        self._byte_limit = 0
        self._worker = hold.worker
        self._task = hold.task.record
        self._rules = Rules.of(self._worker.config.source)
        self._name = TableName.parse(self._task.table)
        self._accepted_reads = AcceptedReads(hold, connections.reader, self._name)
        self._cursor = RangeCursor(self._task.after, self._task.key_to).advance(progress.key)
        self._arrived: tuple[str, ...] = ()
        self._ranges_ended = False
        self._last_look = -1  # the last chunk of keys that rows have arrived at
        self._progress = progress  # when such keys were taken up
        self.ordinal = progress.ordinal
        self.final = False
        self.select_seconds = 0.0

    def take_up_arrived_keys(self, progress: TaskProgress) -> None:
        """Takes up keys that rows have arrived at, by what is placed: some of many, or those left at the end."""
        if progress.ordinal <= self._last_look:
            return  # what was taken up before is not placed yet
        if progress.ended and progress.ordinal == self.ordinal:
            self._ranges_ended = True
            self.final = False
        keys = tuple(chain.from_iterable(progress.arrived))
        # Between two looks a range continues: whatever arrives meanwhile, ranges come to an end.
        is_due = len(keys) >= _MANY_ARRIVED_KEYS and self.ordinal > self._last_look + 1
        if self._ranges_ended or (is_due and not self.final):
            self._arrived = keys[:KEYS_PER_CHUNK]
            self._progress = progress

    def read(self, size: int, byte_limit: int) -> int:
        """One chunk of at most `size` rows and about `byte_limit` bytes; returns its rows.

        Raises LeaseLost, ShapeChanged, NotOpened (nobody wants its window), ChunkTooLarge, RequestError (the table is
        gone, it has another key or another order of it, a filter or key does not fit it, or no look meets its rows)
        and what the source raises; also what staging the chunk before has raised.
        """
        self._byte_limit = byte_limit
        if self._arrived and self._look_way() is LookWay.GIVE_UP:
            raise _restless_error(self._task.table, self._progress)
        mark = self._new_mark()
        self._hold.check()
        self._connections.lows.write(watermark.encode(Low(mark)))
        schema = self._read_schema()
        try:
            selection = self._select_chunk(schema, size)
            self._check_order(selection.chunk.schema)
        except DblogError as error:
            if error.transient:
                raise
            now = self._read_schema()
            self._check_order(now)  # it may be why the server refused
            if now.fingerprint == schema.fingerprint:
                raise
            raise ShapeChanged(f"{self._name} was altered while it was read") from error
        self._accepted_reads.require(selection.chunk.schema)
        if self._worker.config.source.read_only:
            selection = replace(selection, end=self._connections.reader.log_end())
        rows = self._rules.rows(selection.chunk.schema, selection.chunk.rows)
        self._background.begin(f"chunk-{mark.ordinal}", lambda: self._finish(mark, selection, rows))
        if selection.arrived:
            self._arrived = ()
            self._last_look = mark.ordinal
        self.ordinal += 1
        self.final = selection.final
        self._cursor = self._cursor.advance(selection.last_key)
        return len(rows)

    def _new_mark(self) -> Mark:
        return Mark(
            source=self._worker.config.source.name,
            task=self._hold.task_id,
            attempt=self._attempt,
            ordinal=self.ordinal,
            window=self._worker.new_id(),
            table=self._task.table,
            parts=self._task.parts,
            heals=self._task.heals,
        )

    def _read_schema(self) -> TableSchema:
        schema = self._connections.reader.schema(self._name)
        if not schema.key:
            fix = f"give it one, and {_request_again(self._name)}"
            raise RequestError(f"{self._name} no longer has a key", fix=fix)
        return schema

    def _check_order(self, schema: TableSchema) -> None:
        """Raises RequestError if the database no longer orders the key as it did when the dump was requested.

        Looked at after the SELECTs of a chunk, since that look alone counts: a DDL may come between any look before and
        the SELECT, which then runs in the new order from a last key of the old one. What a SELECT has met, a later look
        at the catalogue finds. A DDL that comes after the SELECT and before the look costs only this chunk; one
        that comes after the look, the next chunk finds, and where there is none all rows were read in the old order.
        Listed keys do not depend on an order, but their equality depends on the same collations and labels.
        """
        if self._task.order is None:
            return  # it was filed before orders were remembered
        order = self._connections.reader.key_order(schema)
        if order != self._task.order:
            raise RequestError(
                f"the order of the key of {self._name} has changed since the dump was requested, and rows could be "
                f"skipped: it was {self._task.order}, and is {order}",
                fix=_request_again(self._name),
            )

    def _select_chunk(self, schema: TableSchema, size: int) -> _Selection:
        self._refuse_hidden_filters()
        conditions = filters.parse_filed(self._task.filters, schema)
        self.select_seconds = 0.0
        if self._arrived:
            return self._select_arrived_keys(schema, size)
        if self._task.keys is not None:
            return self._select_listed_keys(schema, conditions)
        if self._cursor.after is None and self._task.key_from is not None:
            return self._select_first_key(schema, conditions)
        return self._select_range(schema, size, conditions)

    def _select_listed_keys(self, schema: TableSchema, conditions: tuple[Filter, ...]) -> _Selection:
        """The next keys of a task that lists them; those that the source does not have are named absent."""
        assert self._task.keys is not None
        # After a chunk of an earlier version, which named no last key and was of so many.
        after = self._cursor.after
        begin = self.ordinal * KEYS_PER_CHUNK if after is None else self._task.keys.index(after) + 1
        listed = self._task.keys[begin : begin + self._width.limit(KEYS_PER_CHUNK)]
        keys = [key_from_json(k, schema) for k in listed]
        chunk = self._select_keys(schema, keys, conditions)
        # A key that a filter leaves out may be there all the same.
        absent = () if conditions else self._find_absent(chunk, keys)
        return _Selection(chunk, listed[-1] if listed else None, begin + len(listed) >= len(self._task.keys), absent)

    def _refuse_hidden_filters(self) -> None:
        """Raises RequestError where the rules have come to hide a filtered column since the dump was requested."""
        columns = [condition.column for condition in self._task.filters]
        column_rule_faults.refuse_hidden_filters(str(self._name), columns, self._worker.config.source.columns)

    def _look_way(self) -> LookWay:
        progress = self._progress
        return choose_look(progress.looks, progress.looks_in_vain, may_fit=self._width.may_fit(self._byte_limit))

    def _select_arrived_keys(self, schema: TableSchema, size: int) -> _Selection:
        """The keys that are taken up; no row is there where one has gone on since. Or the whole table, where rows move
        on faster than they are looked for, and it fits into a chunk."""
        is_whole = self._look_way() is LookWay.WHOLE
        if is_whole and (chunk := self._select_whole(schema, max(size, WHOLE_ROWS))) is not None:
            return _Selection(chunk, None, self._ranges_ended, arrived=self._arrived, whole=True)
        self._arrived = self._arrived[: self._width.limit(KEYS_PER_CHUNK)]
        keys = [key_from_json(orjson.loads(text), schema) for text in self._arrived]
        chunk = self._select_keys(schema, keys, ())
        return _Selection(chunk, None, self._ranges_ended, self._find_absent(chunk, keys), arrived=self._arrived)

    def _select_whole(self, schema: TableSchema, row_limit: int) -> Chunk | None:
        """All rows of the table; None where it has not fewer than `row_limit`."""
        began = self._worker.clock.monotonic()
        try:
            chunk = self._connections.reader.read(schema, after=None, upto=None, limit=row_limit, most=self._byte_limit)
        except ChunkTooLarge:
            self._width.record_large_table(self._byte_limit)
            raise
        self.select_seconds = self._worker.clock.monotonic() - began
        if chunk.rows.num_rows < row_limit:
            return chunk
        self._width.record_large_table(self._byte_limit)
        return None

    def _find_absent(self, chunk: Chunk, keys: list[Key]) -> tuple[Any, ...]:
        """Those of the keys, as JSON, that the source does not have."""
        present = set(keys_of(chunk.rows, chunk.schema))
        absent = [key for key in keys if key not in present]
        if present - set(keys):  # the database takes another spelling for one of them: it says for which
            absent = [key for key in absent if not self._select_keys(chunk.schema, [key], ()).rows.num_rows]
        return tuple(map(key_to_json, absent))

    def _select_first_key(self, schema: TableSchema, conditions: tuple[Filter, ...]) -> _Selection:
        """The first key of a range that includes it: a chunk of its own, since what follows comes *after* a key."""
        chunk = self._select_keys(schema, [key_from_json(self._task.key_from, schema)], conditions)
        return _Selection(chunk, self._task.key_from, final=False)

    def _select_range(self, schema: TableSchema, size: int, conditions: tuple[Filter, ...]) -> _Selection:
        """The next rows of a range, and its end if that has to be fixed."""
        after = None if self._cursor.after is None else key_from_json(self._cursor.after, schema)
        upto = None if self._cursor.upto is None else key_from_json(self._cursor.upto, schema)
        size = self._width.limit(size)
        chunk = self._select_after(schema, after, upto, size, conditions)
        is_short = chunk.rows.num_rows < size
        if self._cursor.needs_end(is_short=is_short):
            largest = self._connections.reader.last_key(schema)
            self._cursor = self._cursor.fix_end(None if largest is None else key_to_json(largest))
        last = _last_key(chunk)
        return _Selection(chunk, last, self._cursor.is_last(last, is_short=is_short))

    def _select_after(
        self, schema: TableSchema, after: Key | None, upto: Key | None, size: int, conditions: tuple[Filter, ...]
    ) -> Chunk:
        def select(most: int | None) -> Chunk:
            reader = self._connections.reader
            return reader.read(schema, after=after, upto=upto, limit=size, filters=conditions, most=most)

        return self._run_select(size, select)

    def _select_keys(self, schema: TableSchema, keys: list[Key], conditions: tuple[Filter, ...]) -> Chunk:
        def select(most: int | None) -> Chunk:
            return self._connections.reader.read_keys(schema, keys, filters=conditions, most=most)

        return self._run_select(len(keys), select)

    def _run_select(self, row_limit: int, select: Callable[[int | None], Chunk]) -> Chunk:
        """What a SELECT of at most so many rows brings. One alone is never too large."""
        began = self._worker.clock.monotonic()
        try:
            chunk = select(self._byte_limit if row_limit > 1 else None)
        except ChunkTooLarge as error:
            self._width.record_overflow(row_limit=row_limit, rows=error.rows)
            raise
        self.select_seconds = self._worker.clock.monotonic() - began
        self._width.record_chunk(
            row_limit=row_limit,
            rows=chunk.rows.num_rows,
            counted_bytes=chunk.counted_bytes,
            byte_limit=self._byte_limit,
        )
        return chunk

    def _finish(self, mark: Mark, selection: _Selection, rows: pa.RecordBatch) -> None:
        """Makes the chunk durable, and then tells the capture of it."""
        self._accepted_reads.confirm(mark.window)
        self._hold.check()
        high = self._stage(mark, selection, rows)
        self._hold.check()
        self._connections.highs.write(watermark.encode(high))

    def _stage(self, mark: Mark, selection: _Selection, rows: pa.RecordBatch) -> High:
        schema = self._rules.schema(selection.chunk.schema)
        self._worker.staging.put_schema(schema)
        file = None
        if rows.num_rows:
            directory = f"chunks/{self._hold.task_id}"
            file = self._worker.staging.write_chunk(directory, f"{mark.ordinal:08d}-{mark.window}", rows)
        return High(
            mark,
            file=file.path if file else None,
            rows=rows.num_rows,
            bytes=file.bytes if file else 0,
            checksum=file.checksum if file else "",
            schema=schema.fingerprint,
            last_key=selection.last_key,
            final=selection.final,
            snapshot=selection.chunk.snapshot,
            absent=selection.absent,
            end=selection.end,
            arrived=selection.arrived,
            whole=selection.whole,
            rules=self._rules.digest(self._name),
        )


def _request_again(table: object) -> str:
    return f"request it again: `dblog dump --table {quote_for_shell(table)}`"


def _restless_error(table: str, progress: TaskProgress) -> RequestError:
    return RequestError(
        f"{len(progress.arrived)} row(s) of {table} change their keys faster than the dump can look for them: the last "
        f"{progress.looks_in_vain} looks have met none of them, and the log leaves out large columns of theirs",
        fix=f"{_request_again(table)} while nothing changes keys of this table; or let the log hold whole rows "
        "(PostgreSQL: ALTER TABLE … REPLICA IDENTITY FULL); or raise chunk_bytes in [dump], so that a table of fewer "
        f"than {WHOLE_ROWS:,} rows is read whole",
    )


def _last_key(chunk: Chunk) -> Any:
    rows = chunk.rows
    if not rows.num_rows:
        return None
    key: Key = keys_of(rows.slice(rows.num_rows - 1, 1), chunk.schema)[0]
    return key_to_json(key)
