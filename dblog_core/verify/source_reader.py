"""Reading the source for a comparison: one SELECT between its watermarks, all of a table, chosen keys, or their rows.

Rows stay where they are: the server hashes them, and keys and hashes come. Each SELECT's result waits on the `Desk`
until it is compared.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from dblog_core.dumps.key_ranges import Range
from dblog_core.dumps.pace.locked_tables import LOCK_SECONDS
from dblog_core.dumps.read_only_windows import NotOpened
from dblog_core.errors import DblogError, TableLocked
from dblog_core.interfaces import ChunkReader, Clock, Hashes, Source, WatermarkWriter
from dblog_core.model import watermark
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_from_json, keys_of, lake_key_from_json
from dblog_core.model.watermark import Probe
from dblog_core.retry import retrying
from dblog_core.rows.arrow_hashes import sum_exactly
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging.manifest import Probed
from dblog_core.verify.exchange import Desk
from dblog_core.verify.window_positions import Interrupted, Places

WINDOW_ROWS = 50_000
"""Rows of one SELECT: large enough that two watermarks cost nothing beside it."""

WINDOW_KEYS = 1_000
_ALL_ROWS = 1 << 31  # rows: more than lie between two keys that were WINDOW_ROWS apart a moment ago
_PATIENCE_SECONDS = 60.0  # for which a source that is away is waited for
_PLACE_ATTEMPTS = 20  # times that a window is read again because nobody could tell where it lies

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SelectResult:
    """What one SELECT said: columns for the lake's side, PostgreSQL's snapshot, and for a range its rows, the sum of
    their hashes, and the last key. `batch` None: the desk has it."""

    batch: pa.RecordBatch | None
    snapshot: str | None
    rows: int = 0
    hash: int = 0
    last: Key | None = None


Select = Callable[[ChunkReader], SelectResult]
Announce = Callable[[ChunkReader], WatermarkWriter]
"""Makes what stands for watermarks where the source is never written."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A SELECT between two watermarks, its file, and how to do it again. `last`: the last key of a range."""

    window: str
    file: str
    result: SelectResult
    repeat: Select
    last: Any = None


@dataclass(frozen=True, slots=True)
class PlacedReading:
    """A reading, and where in the log it lies."""

    reading: Reading
    since: int
    upto: int
    position: str


class Prober:
    """One worker's connections."""

    def __init__(self, source: Source, name: str, worker: str, desk: Desk, announce: Announce | None = None) -> None:
        self._name = name
        self._desk = desk
        self._is_announced = announce is not None
        # The reader must not leak where the second connection fails.
        with ExitStack() as opened:
            self.reader: ChunkReader = source.open_reader(lock_seconds=LOCK_SECONDS)
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

    def read(self, table: str, select: Select, *, repeat: Select | None = None, last: Any = None) -> Reading:
        """Low watermark, SELECT, high watermark; then the file, which nobody waits for in the log."""
        window = secrets.token_hex(16)
        self._watermarks.write(watermark.encode(Probe(self._name, window, table, high=False)))
        # The order is the proof: the SELECT begins after the low watermark has been committed and ends before the
        # high one is written.
        answered = select(self.reader)
        end = self.reader.log_end() if self._is_announced else None
        high = Probe(self._name, window, table, high=True, snapshot=answered.snapshot, end=end)
        self._watermarks.write(watermark.encode(high))
        # After the high watermark: the time that the writing takes does not widen the window.
        assert answered.batch is not None
        file = self._desk.put_rows(table, window, answered.batch)
        # Kept here as well, the rows of a large table would fill the memory.
        return Reading(window, file, replace(answered, batch=None), repeat or select, last)


class Readers:
    """Workers that read at the same time; `rate`: rows a second of all of them together (0: no limit).

    Tables that are compared at the same time share them: within `turn` the source is read for one table alone. Where
    somebody keeps it locked, each reading raises TableLocked, after a moment.
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
        self._source = source
        self._name = name
        self._desk = desk
        self._announce = announce
        self._workers = workers
        self._rate = rate
        self._clock = clock
        self._stop = stop
        self._numbers = iter(range(1 << 62))
        self._lock = threading.Lock()
        self.turn = threading.RLock()

    def read_table(
        self, schema: TableSchema, parts: Sequence[Range], on_rows: Callable[[int], None] = lambda _: None
    ) -> list[Reading]:
        """Every row of the table, in ranges that have no gap, in their order. Raises Interrupted."""

        def scan(prober: Prober, part: Range) -> list[Reading]:
            return [self._report_rows(reading, on_rows) for reading in self._scan(prober, schema, part)]

        return [reading for readings in self._each(parts, scan) for reading in readings]

    def read_hashes(self, schema: TableSchema, keys: Sequence[Any]) -> list[Reading]:
        """The hashes of chosen keys (JSON); none for those that the source does not have."""
        return self._read_keys(
            schema, keys, lambda keys_of_part: lambda reader: _hash_keys(reader, schema, keys_of_part)
        )

    def read_rows(self, schema: TableSchema, keys: Sequence[Any], rules: Rules) -> list[Reading]:
        """The rows of chosen keys, as they are staged."""

        def select(keys_of_part: list[Key]) -> Select:
            def rows(reader: ChunkReader) -> SelectResult:
                chunk = reader.read_keys(schema, keys_of_part)
                return SelectResult(rules.rows(chunk.schema, chunk.rows), chunk.snapshot)

            return rows

        return self._read_keys(schema, keys, select)

    def read_again(self, schema: TableSchema, readings: Sequence[Reading]) -> list[Reading]:
        """The same SELECTs, in new windows; what they have answered before is forgotten."""
        self._desk.drop(reading.file for reading in readings)

        def read(prober: Prober, reading: Reading) -> Reading:
            return prober.read(str(schema.table), reading.repeat, last=reading.last)

        return self._each(readings, read)

    def _read_keys(
        self, schema: TableSchema, keys: Sequence[Any], select: Callable[[list[Key]], Select]
    ) -> list[Reading]:
        typed = [lake_key_from_json(key, schema) for key in keys]
        parts = [typed[i : i + WINDOW_KEYS] for i in range(0, len(typed), WINDOW_KEYS)]

        def read(prober: Prober, part: list[Key]) -> Reading:
            return prober.read(str(schema.table), select(part))

        return self._each(parts, read)

    def _scan(self, prober: Prober, schema: TableSchema, part: Range) -> Iterator[Reading]:
        """One range, SELECT after SELECT. An open end is fixed after the first of them, inside its window: what comes
        above it later has an event there."""
        after = None if part.after is None else key_from_json(part.after, schema)
        upto = None if part.key_to is None else key_from_json(part.key_to, schema)
        table = str(schema.table)
        final = False
        while not final:
            if self._stop.is_set():
                raise Interrupted
            started_at = self._clock.monotonic()
            fixed = upto
            end = [upto]  # a list, so that the SELECT below can set it

            def select(reader: ChunkReader, after: Key | None = after, end: list[Key | None] = end) -> SelectResult:
                answered = _hash_range(reader, schema, after, end[0], WINDOW_ROWS)
                # Within the SELECT's snapshot, so that the end is one that this reading could have seen.
                if end[0] is None and answered.rows == WINDOW_ROWS:
                    end[0] = reader.last_key(schema)
                return answered

            reading = prober.read(table, select)
            upto = end[0]
            rows = reading.result.rows
            last = reading.result.last
            final = rows < WINDOW_ROWS or last == upto
            # A repeated SELECT covers the whole range: keys above its last row may have got rows meanwhile.
            stands_for = fixed if final else last

            def again(reader: ChunkReader, after: Key | None = after, upto: Key | None = stands_for) -> SelectResult:
                return _hash_range(reader, schema, after, upto, _ALL_ROWS)

            yield Reading(reading.window, reading.file, reading.result, again, last=stands_for)
            after = last
            self._pace(rows, started_at)

    def _pace(self, rows: int, started_at: float) -> None:
        if self._rate:
            rest_seconds = rows * self._workers / self._rate - (self._clock.monotonic() - started_at)
            if rest_seconds > 0 and self._clock.wait(self._stop, rest_seconds):
                raise Interrupted

    def _each(self, parts: Sequence[Any], read: Callable[[Prober, Any], Result]) -> list[Result]:
        """The parts by all workers at the same time, their results in the parts' order."""
        with self.turn:
            return self._read_each(parts, read)

    def _read_each(self, parts: Sequence[Any], read: Callable[[Prober, Any], Result]) -> list[Result]:
        queue = iter(enumerate(parts))
        lock = threading.Lock()
        failed = threading.Event()
        results: dict[int, Result] = {}

        def work() -> None:
            prober: Prober | None = None
            try:
                while not (self._stop.is_set() or failed.is_set()):
                    with lock:
                        number, part = next(queue, (None, None))
                    if number is None:
                        return
                    prober, results[number] = self._read_part(prober, part, read)
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

    def _read_part(
        self, prober: Prober | None, part: Any, read: Callable[[Prober, Any], Result]
    ) -> tuple[Prober, Result]:
        """One part, over new connections where the old ones broke."""
        idle_prober = [prober]

        def attempt() -> Result:
            own_prober = idle_prober[0] or self._open()
            idle_prober[0] = None  # whatever breaks, the next try has connections of its own
            try:
                result = read(own_prober, part)
            except NotOpened as stopped:
                own_prober.close()
                raise Interrupted from stopped
            except BaseException:
                own_prober.close()
                raise
            idle_prober[0] = own_prober
            return result

        # A locked table is tried again later: other tables wait for their turn meanwhile.
        policy = retrying(give_up_after=_PATIENCE_SECONDS, stop=self._stop, clock=self._clock, but_not=(TableLocked,))
        result: Result = policy(attempt)
        assert idle_prober[0] is not None
        return idle_prober[0], result

    def _open(self) -> Prober:
        with self._lock:
            number = next(self._numbers) % self._workers
        return Prober(self._source, self._name, f"verify-{number}", self._desk, self._announce)

    @staticmethod
    def _report_rows(reading: Reading, on_rows: Callable[[int], None]) -> Reading:
        on_rows(reading.result.rows)
        return reading


def place_readings(
    readers: Readers, places: Places, schema: TableSchema, readings: Iterable[Reading]
) -> list[PlacedReading]:
    """Where each reading lies, in their order; those of which nobody can tell are read again until somebody can."""
    order = list(readings)
    placed: dict[int, PlacedReading] = {}
    for _ in range(_PLACE_ATTEMPTS):
        waiting = [i for i in range(len(order)) if i not in placed]
        if not waiting:
            return [placed[i] for i in range(len(order))]
        where = places.wait_for_places(order[i].window for i in waiting)
        for i in waiting:
            if (place := _place_reading(order[i], where[order[i].window])) is not None:
                placed[i] = place
        void = [i for i in waiting if i not in placed]
        for i, reading in zip(void, readers.read_again(schema, [order[i] for i in void]), strict=True):
            order[i] = reading
    raise DblogError(
        "the capture cannot tell where SELECTs lie in the log",
        where=str(schema.table),
        fix="verify again when captures do not restart, and the table is not altered, all the time",
    )


def _place_reading(reading: Reading, where: Probed) -> PlacedReading | None:
    if where.since is None:
        return None
    return PlacedReading(reading, where.since, where.offset, where.position)


def _hash_range(
    reader: ChunkReader, schema: TableSchema, after: Key | None, upto: Key | None, limit: int
) -> SelectResult:
    hashed = reader.hashes(schema, after=after, upto=upto, limit=limit)
    rows = hashed.rows
    return SelectResult(
        rows, hashed.snapshot, rows.num_rows, sum_exactly(rows.column(HASH).to_numpy()), _last_key(rows, schema)
    )


def _hash_keys(reader: ChunkReader, schema: TableSchema, keys: list[Key]) -> SelectResult:
    """Asked keys that the source does not have follow at the end, without a hash."""
    hashed = _read_hashes(reader, schema, [key for key in keys if None not in key])
    have = set(keys_of(hashed.rows, schema))
    absent = [key for key in keys if key not in have]
    types = [hashed.rows.schema.field(name).type for name in schema.key]
    columns = [pa.array([key[i] for key in absent], kind) for i, kind in enumerate(types)]
    rest = pa.RecordBatch.from_arrays([*columns, pa.nulls(len(absent), pa.int64())], names=[*schema.key, HASH])
    both = pa.Table.from_batches([hashed.rows.select([*schema.key, HASH]).cast(rest.schema), rest]).combine_chunks()
    batches = both.to_batches()
    return SelectResult(batches[0] if batches else rest, hashed.snapshot, hashed.rows.num_rows)


def _read_hashes(reader: ChunkReader, schema: TableSchema, keys: list[Key]) -> Hashes:
    """No row of a source has NULL in its key: if nothing else is asked for, any SELECT gives the snapshot."""
    if keys:
        return reader.hashes_of(schema, keys)
    first = reader.hashes(schema, after=None, upto=None, limit=1)
    return replace(first, rows=first.rows.slice(0, 0))


def _last_key(batch: pa.RecordBatch, schema: TableSchema) -> Key | None:
    rows = batch.num_rows
    return keys_of(batch.slice(rows - 1, 1), schema)[0] if rows else None
