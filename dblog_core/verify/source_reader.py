"""Reading the source for a comparison: one SELECT between its watermarks, all of a table, chosen keys, or their rows.

Rows stay where they are: the server hashes them, and keys and hashes come. Each SELECT's result is a Parquet file on
the `Desk`, for Spark.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from dblog_core.dumps.key_ranges import Range
from dblog_core.dumps.read_only_windows import NotOpened
from dblog_core.errors import DblogError
from dblog_core.interfaces import ChunkReader, Clock, Source, WatermarkWriter
from dblog_core.model import watermark
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_from_json, keys_of
from dblog_core.model.watermark import Probe
from dblog_core.retry import retrying
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import parquet
from dblog_core.staging.manifest import Probed
from dblog_core.verify.exchange import Desk
from dblog_core.verify.window_positions import Interrupted, Places

WINDOW_ROWS = 50_000
"""Rows of one SELECT: large enough that two watermarks cost nothing beside it."""

WINDOW_KEYS = 1_000
_ALL = 1 << 31  # rows: more than lie between two keys that were WINDOW_ROWS apart a moment ago
_PATIENCE = 60.0  # seconds for which a source that is away is waited for
_VOID = 20  # times that a window is read again because nobody could tell where it lies

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Answered:
    """What one SELECT said: columns for Spark, PostgreSQL's snapshot, and for a range its rows and sum of hashes."""

    batch: pa.RecordBatch
    snapshot: str | None
    rows: int = 0
    hash: int = 0


Select = Callable[[ChunkReader], Answered]
Announce = Callable[[ChunkReader], WatermarkWriter]
"""Makes what stands for watermarks where the source is never written."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A SELECT between two watermarks, its file, and how to do it again. `last`: the last key of a range."""

    window: str
    file: str
    answered: Answered
    again: Select
    last: Any = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A reading, and where in the log it lies."""

    reading: Reading
    since: int
    upto: int
    position: str


class Prober:
    """One worker's connections."""

    def __init__(self, source: Source, name: str, worker: str, desk: Desk, announce: Announce | None = None) -> None:
        self._name, self._desk, self._announced = name, desk, announce is not None
        with ExitStack() as opened:
            self.reader: ChunkReader = source.open_reader()
            opened.callback(self.reader.close)
            self._watermarks: WatermarkWriter = (
                source.open_watermarks(worker) if announce is None else announce(self.reader)
            )
            self._opened = ExitStack()
            self._opened.callback(self._watermarks.close)
            self._opened.callback(self.reader.close)
            opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def read(self, table: str, select: Select, *, again: Select | None = None, last: Any = None) -> Reading:
        """Low watermark, SELECT, high watermark; then the file, which nobody waits for in the log."""
        window = secrets.token_hex(16)
        self._watermarks.write(watermark.encode(Probe(self._name, window, table, high=False)))
        answered = select(self.reader)
        end = self.reader.log_end() if self._announced else None
        high = Probe(self._name, window, table, high=True, snapshot=answered.snapshot, end=end)
        self._watermarks.write(watermark.encode(high))
        file = self._desk.put(window, parquet.encode(answered.batch.schema, [answered.batch]))
        return Reading(window, file, answered, again or select, last)


class Readers:
    """Workers that read at the same time; `rate`: rows a second of all of them together (0: no limit).

    Tables that are compared at the same time share them: within `turn` the source is read for one table alone.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        desk: Desk,
        *,
        workers: int,
        rate: int,
        clock: Clock,
        stop: threading.Event,
        announce: Announce | None = None,
    ) -> None:
        self._source, self._name, self._desk, self._announce = source, name, desk, announce
        self._workers, self._rate, self._clock, self._stop = workers, rate, clock, stop
        self._numbers = iter(range(1 << 62))
        self._lock = threading.Lock()
        self.turn = threading.RLock()

    def whole(
        self, schema: TableSchema, parts: Sequence[Range], on_rows: Callable[[int], None] = lambda _: None
    ) -> list[Reading]:
        """Every row of the table, in ranges that have no gap, in their order. Raises Interrupted."""

        def scan(prober: Prober, part: Range) -> list[Reading]:
            return [self._told(reading, on_rows) for reading in self._scan(prober, schema, part)]

        return [reading for found in self._each(parts, scan) for reading in found]

    def listed(self, schema: TableSchema, keys: Sequence[Any]) -> list[Reading]:
        """The hashes of chosen keys (JSON); none for those that the source does not have."""
        return self._keys(schema, keys, lambda own: lambda reader: _hashes_of(reader, schema, own))

    def rows(self, schema: TableSchema, keys: Sequence[Any], rules: Rules) -> list[Reading]:
        """The rows of chosen keys, as they are staged."""

        def select(own: list[Key]) -> Select:
            def rows(reader: ChunkReader) -> Answered:
                chunk = reader.read_keys(schema, own)
                return Answered(rules.rows(chunk.schema, chunk.rows), chunk.snapshot)

            return rows

        return self._keys(schema, keys, select)

    def again(self, schema: TableSchema, readings: Sequence[Reading]) -> list[Reading]:
        """The same SELECTs, in new windows."""

        def read(prober: Prober, reading: Reading) -> Reading:
            return prober.read(str(schema.table), reading.again, last=reading.last)

        return self._each(readings, read)

    def _keys(self, schema: TableSchema, keys: Sequence[Any], select: Callable[[list[Key]], Select]) -> list[Reading]:
        typed = [key_from_json(key, schema) for key in keys]
        parts = [typed[i : i + WINDOW_KEYS] for i in range(0, len(typed), WINDOW_KEYS)]

        def read(prober: Prober, part: list[Key]) -> Reading:
            return prober.read(str(schema.table), select(part))

        return self._each(parts, read)

    def _scan(self, prober: Prober, schema: TableSchema, part: Range) -> Iterator[Reading]:
        """One range, SELECT after SELECT. An open end is fixed after the first of them, inside its window: what comes
        above it later has an event there."""
        after = None if part.after is None else key_from_json(part.after, schema)
        upto = None if part.key_to is None else key_from_json(part.key_to, schema)
        table, final = str(schema.table), False
        while not final:
            if self._stop.is_set():
                raise Interrupted
            began, fixed, end = self._clock.monotonic(), upto, [upto]

            def select(reader: ChunkReader, after: Key | None = after, end: list[Key | None] = end) -> Answered:
                answered = _hashes(reader, schema, after, end[0], WINDOW_ROWS)
                if end[0] is None and answered.rows == WINDOW_ROWS:
                    end[0] = reader.last_key(schema)
                return answered

            reading = prober.read(table, select)
            upto = end[0]
            rows, last = reading.answered.rows, _last(reading.answered.batch, schema)
            final = rows < WINDOW_ROWS or last == upto
            stands_for = fixed if final else last

            def again(reader: ChunkReader, after: Key | None = after, upto: Key | None = stands_for) -> Answered:
                return _hashes(reader, schema, after, upto, _ALL)

            yield Reading(reading.window, reading.file, reading.answered, again, last=stands_for)
            after = last
            self._pace(rows, began)

    def _pace(self, rows: int, began: float) -> None:
        if self._rate:
            due = rows * self._workers / self._rate - (self._clock.monotonic() - began)
            if due > 0 and self._clock.wait(self._stop, due):
                raise Interrupted

    def _each(self, parts: Sequence[Any], read: Callable[[Prober, Any], Result]) -> list[Result]:
        """The parts by all workers at the same time, their results in the parts' order."""
        with self.turn:
            return self._read_each(parts, read)

    def _read_each(self, parts: Sequence[Any], read: Callable[[Prober, Any], Result]) -> list[Result]:
        queue, lock, failed = iter(enumerate(parts)), threading.Lock(), threading.Event()
        results: dict[int, Result] = {}

        def work() -> None:
            prober: Prober | None = None
            try:
                while not (self._stop.is_set() or failed.is_set()):
                    with lock:
                        number, part = next(queue, (None, None))
                    if number is None:
                        return
                    prober, results[number] = self._tried(prober, part, read)
            except BaseException:
                failed.set()  # nothing comes of the other parts
                raise
            finally:
                if prober is not None:
                    prober.close()

        with ThreadPoolExecutor(self._workers, thread_name_prefix="verify") as pool:
            for running in [pool.submit(work) for _ in range(min(self._workers, len(parts)))]:
                running.result()
        if self._stop.is_set():
            raise Interrupted
        return [results[number] for number in range(len(parts))]

    def _tried(self, prober: Prober | None, part: Any, read: Callable[[Prober, Any], Result]) -> tuple[Prober, Result]:
        """One part, over new connections where the old ones broke."""
        held = [prober]

        def attempt() -> Result:
            own = held[0] or self._open()
            held[0] = None  # whatever breaks, the next try has connections of its own
            try:
                found = read(own, part)
            except NotOpened as stopped:
                own.close()
                raise Interrupted from stopped
            except BaseException:
                own.close()
                raise
            held[0] = own
            return found

        found: Result = retrying(give_up_after=_PATIENCE, stop=self._stop, clock=self._clock)(attempt)
        assert held[0] is not None
        return held[0], found

    def _open(self) -> Prober:
        with self._lock:
            number = next(self._numbers) % self._workers
        return Prober(self._source, self._name, f"verify-{number}", self._desk, self._announce)

    @staticmethod
    def _told(reading: Reading, on_rows: Callable[[int], None]) -> Reading:
        on_rows(reading.answered.rows)
        return reading


def placed(readers: Readers, places: Places, schema: TableSchema, readings: Iterable[Reading]) -> list[Placed]:
    """Where each reading lies, in their order; those of which nobody can tell are read again until somebody can."""
    order = list(readings)
    found: dict[int, Placed] = {}
    for _ in range(_VOID):
        waiting = [i for i in range(len(order)) if i not in found]
        if not waiting:
            return [found[i] for i in range(len(order))]
        where = places.of(order[i].window for i in waiting)
        for i in waiting:
            if (place := _placed(order[i], where[order[i].window])) is not None:
                found[i] = place
        void = [i for i in waiting if i not in found]
        for i, reading in zip(void, readers.again(schema, [order[i] for i in void]), strict=True):
            order[i] = reading
    raise DblogError(
        "the capture cannot tell where SELECTs lie in the log",
        where=str(schema.table),
        fix="verify again when captures do not restart, and the table is not altered, all the time",
    )


def _placed(reading: Reading, where: Probed) -> Placed | None:
    if where.since is None:
        return None
    return Placed(reading, where.since, where.offset, where.position)


def _hashes(reader: ChunkReader, schema: TableSchema, after: Key | None, upto: Key | None, limit: int) -> Answered:
    found = reader.hashes(schema, after=after, upto=upto, limit=limit)
    return Answered(found.rows, found.snapshot, found.rows.num_rows, _sum(found.rows.column(HASH)))


def _hashes_of(reader: ChunkReader, schema: TableSchema, keys: list[Key]) -> Answered:
    """Asked keys that the source does not have follow at the end, without a hash."""
    found = reader.hashes_of(schema, keys)
    have = set(keys_of(found.rows, schema))
    absent = [key for key in keys if key not in have]
    types = [found.rows.schema.field(name).type for name in schema.key]
    columns = [pa.array([key[i] for key in absent], kind) for i, kind in enumerate(types)]
    rest = pa.RecordBatch.from_arrays([*columns, pa.nulls(len(absent), pa.int64())], names=[*schema.key, HASH])
    both = pa.Table.from_batches([found.rows.select([*schema.key, HASH]).cast(rest.schema), rest]).combine_chunks()
    batches = both.to_batches()
    return Answered(batches[0] if batches else rest, found.snapshot, found.rows.num_rows)


def _sum(hashes: pa.Array) -> int:
    """Exact: 64-bit sums would overflow."""
    values = np.asarray(hashes, dtype=np.int64)
    return (int(np.sum(values >> 32)) << 32) + int(np.sum(values & 0xFFFFFFFF))


def _last(batch: pa.RecordBatch, schema: TableSchema) -> Key | None:
    rows = batch.num_rows
    return keys_of(batch.slice(rows - 1, 1), schema)[0] if rows else None
