"""Reading the source for a comparison: one SELECT between its watermarks, all of a table, chosen keys, or their rows.

Rows stay where they are: the server hashes them, and keys and hashes are read. They wait on the local disk until they
are compared.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from itertools import count
from typing import Any, TypeVar

import pyarrow as pa

from dblog_core.dumps.key_ranges import Range
from dblog_core.dumps.pace.locked_tables import LOCK_SECONDS
from dblog_core.dumps.read_only_windows import NotOpened
from dblog_core.errors import DblogError, TableLocked
from dblog_core.interfaces import Chunk, ChunkReader, Clock, Hashes, Source, WatermarkWriter
from dblog_core.model import watermark
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_from_json, keys_of, lake_key_from_json
from dblog_core.model.watermark import Probe
from dblog_core.retry import retrying
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.disk_spool import SpooledRows, TableSpool
from dblog_core.rows.row_hashes import HASH
from dblog_core.verify.window_positions import Interrupted, WindowPositions

WINDOW_ROWS = 50_000
"""Rows of one SELECT: large enough that two watermarks cost nothing next to it."""

WINDOW_KEYS = 1_000
_ALL_ROWS = 1 << 31  # rows: more than lie between two keys that were WINDOW_ROWS apart a moment ago
_PATIENCE_SECONDS = 60.0  # for which a source that is away is waited for
_PLACE_ATTEMPTS = 20  # times that a window is read again because the capture could not tell where it is

Result = TypeVar("Result")


Select = Callable[[ChunkReader], Hashes | Chunk]
Announce = Callable[[ChunkReader], WatermarkWriter]
"""Makes what stands for watermarks where the source is never written."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A SELECT between two watermarks, the rows that it has read, and how to do it again. `key_to`: the last key of its
    range (None: it is open, or none)."""

    window: str
    rows: SpooledRows
    repeat: Select
    key_to: Key | None = None


@dataclass(frozen=True, slots=True)
class PlacedReading:
    """A reading, and where in the log it is."""

    reading: Reading
    since: int
    upto: int
    position: str


class Prober:
    """One worker's connections, and its file of rows on the local disk."""

    def __init__(self, source: Source, name: str, worker: str, announce: Announce | None = None) -> None:
        self._name = name
        self._is_announced = announce is not None
        self._spool = TableSpool()
        # The reader must not leak where the second connection fails.
        with ExitStack() as opened:
            self.reader: ChunkReader = source.open_reader(lock_seconds=LOCK_SECONDS)
            opened.callback(self.reader.close)
            self._watermarks: WatermarkWriter = (
                source.open_watermarks(worker) if announce is None else announce(self.reader)
            )
            opened.callback(self._watermarks.close)
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    def read(self, table: str, select: Select, *, key_to: Key | None = None) -> Reading:
        """Low watermark, SELECT, high watermark; then the rows are written, which nothing in the log waits for."""
        window = secrets.token_hex(16)
        self._watermarks.write(watermark.encode(Probe(self._name, window, table, high=False)))
        # The order is the proof: the SELECT begins after the low watermark has been committed and ends before the
        # high one is written.
        result = select(self.reader)
        end = self.reader.log_end() if self._is_announced else None
        high = Probe(self._name, window, table, high=True, snapshot=result.snapshot, end=end)
        self._watermarks.write(watermark.encode(high))
        # After the high watermark: the time that the writing takes does not widen the window.
        rows = SpooledRows(self._spool, self._spool.write(pa.Table.from_batches([result.rows])))
        return Reading(window, rows, select, key_to)


@dataclass
class Readers:
    """Workers that read at the same time; `rate`: rows a second of all of them together (0: no limit).

    Tables that are compared at the same time share them: within `turn` the source is read for one table only. Where
    another session keeps it locked, each reading raises TableLocked, after a moment.
    """

    source: Source
    name: str
    _: KW_ONLY
    workers: int
    rate: int
    clock: Clock
    stop: threading.Event
    announce: Announce | None = None

    def __post_init__(self) -> None:
        self._numbers = count()
        self._lock = threading.Lock()
        self.turn = threading.RLock()

    def read_table(
        self, schema: TableSchema, parts: Sequence[Range], on_rows: Callable[[int], None] = lambda _: None
    ) -> list[Reading]:
        """Every row of the table, in ranges that have no gap, in their order. Raises Interrupted."""

        def scan(prober: Prober, part: Range) -> list[Reading]:
            readings = []
            for reading in self._scan(prober, schema, part):
                on_rows(len(reading.rows))
                readings.append(reading)
            return readings

        return [reading for readings in self._each(parts, scan) for reading in readings]

    def read_hashes(self, schema: TableSchema, keys: Sequence[Any]) -> list[Reading]:
        """The hashes of chosen keys (JSON); none for those that the source does not have."""
        return self._read_keys(schema, keys, lambda reader, part: _hash_keys(reader, schema, part))

    def read_rows(self, schema: TableSchema, keys: Sequence[Any], rules: Rules) -> list[Reading]:
        """The rows of chosen keys, as they are staged."""

        def select(reader: ChunkReader, part: list[Key]) -> Chunk:
            chunk = reader.read_keys(schema, part)
            return replace(chunk, rows=rules.rows(chunk.schema, chunk.rows))

        return self._read_keys(schema, keys, select)

    def read_again(self, schema: TableSchema, readings: Sequence[Reading]) -> list[Reading]:
        """The same SELECTs, in new windows."""

        def read(prober: Prober, reading: Reading) -> Reading:
            return prober.read(str(schema.table), reading.repeat, key_to=reading.key_to)

        return self._each(readings, read)

    def _read_keys(
        self, schema: TableSchema, keys: Sequence[Any], select: Callable[[ChunkReader, list[Key]], Hashes | Chunk]
    ) -> list[Reading]:
        typed = [lake_key_from_json(key, schema) for key in keys]
        parts = [typed[i : i + WINDOW_KEYS] for i in range(0, len(typed), WINDOW_KEYS)]

        def read(prober: Prober, part: list[Key]) -> Reading:
            return prober.read(str(schema.table), lambda reader: select(reader, part))

        return self._each(parts, read)

    def _scan(self, prober: Prober, schema: TableSchema, part: Range) -> Iterator[Reading]:
        """One range, SELECT after SELECT. An open end is fixed after the first of them, inside its window: what comes
        above it later has an event there."""
        after = None if part.after is None else key_from_json(part.after, schema)
        upto = None if part.key_to is None else key_from_json(part.key_to, schema)
        last_key: Key | None = None

        def select(reader: ChunkReader) -> Hashes:
            nonlocal upto, last_key
            hashes = reader.hashes(schema, after=after, upto=upto, limit=WINDOW_ROWS)
            rows = hashes.rows.num_rows
            last_key = keys_of(hashes.rows.slice(rows - 1), schema)[0] if rows else None
            # Within the SELECT's snapshot, so that the end is one that this reading could have seen.
            if upto is None and rows == WINDOW_ROWS:
                upto = reader.last_key(schema)
            return hashes

        final = False
        while not final:
            if self.stop.is_set():
                raise Interrupted
            started_at = self.clock.monotonic()
            fixed = upto
            reading = prober.read(str(schema.table), select)
            rows = len(reading.rows)
            final = rows < WINDOW_ROWS or last_key == upto
            # A repeated SELECT covers the whole range: keys above its last row may have got rows meanwhile.
            key_to = fixed if final else last_key
            yield replace(reading, repeat=_select_range(schema, after, key_to), key_to=key_to)
            after = last_key
            self._pace(rows, started_at)

    def _pace(self, rows: int, started_at: float) -> None:
        if self.rate:
            rest_seconds = rows * self.workers / self.rate - (self.clock.monotonic() - started_at)
            if rest_seconds > 0 and self.clock.wait(self.stop, rest_seconds):
                raise Interrupted

    def _each(self, parts: Sequence[Any], read: Callable[[Prober, Any], Result]) -> list[Result]:
        """The parts by all workers at the same time, their results in the parts' order."""
        idle: list[Prober] = []

        def read_part(part: Any) -> Result:
            if self.stop.is_set():
                raise Interrupted
            # A locked table is tried again later: other tables wait for their turn meanwhile.
            policy = retrying(give_up_after=_PATIENCE_SECONDS, stop=self.stop, clock=self.clock, but_not=(TableLocked,))
            result: Result = policy(lambda: self._read_part(idle, part, read))
            return result

        with self.turn, ThreadPoolExecutor(self.workers, thread_name_prefix="verify") as pool:
            running = [pool.submit(read_part, part) for part in parts]
            try:
                for future in as_completed(running):
                    future.result()
            finally:
                pool.shutdown(cancel_futures=True)  # nothing comes of the other parts where one has failed
                for prober in idle:
                    prober.close()
        return [future.result() for future in running]

    def _read_part(self, idle: list[Prober], part: Any, read: Callable[[Prober, Any], Result]) -> Result:
        """One part, by a prober that is idle; whatever breaks, the next attempt has new connections."""
        with self._lock:
            prober = idle.pop() if idle else None
        prober = prober or self._open()
        try:
            result = read(prober, part)
        except NotOpened as stopped:
            prober.close()
            raise Interrupted from stopped
        except BaseException:
            prober.close()
            raise
        idle.append(prober)
        return result

    def _open(self) -> Prober:
        with self._lock:
            number = next(self._numbers) % self.workers
        return Prober(self.source, self.name, f"verify-{number}", self.announce)


def place_readings(
    readers: Readers, positions: WindowPositions, schema: TableSchema, readings: Iterable[Reading]
) -> list[PlacedReading]:
    """Where each reading is, in their order; those of which the capture cannot tell are read again until it can."""
    order = list(readings)
    placed: dict[int, PlacedReading] = {}
    for _ in range(_PLACE_ATTEMPTS):
        waiting = [i for i in range(len(order)) if i not in placed]
        places = positions.wait_for_positions(order[i].window for i in waiting)
        for i in waiting:
            place = places[order[i].window]
            if place.since is not None:
                placed[i] = PlacedReading(order[i], place.since, place.offset, place.position)
        if not (void := [i for i in waiting if i not in placed]):
            return [placed[i] for i in range(len(order))]
        for i, reading in zip(void, readers.read_again(schema, [order[i] for i in void]), strict=True):
            order[i] = reading
    raise DblogError(
        "the capture cannot tell where SELECTs lie in the log",
        where=str(schema.table),
        fix="verify again when captures do not restart, and the table is not altered, all the time",
    )


def _select_range(schema: TableSchema, after: Key | None, upto: Key | None) -> Select:
    return lambda reader: reader.hashes(schema, after=after, upto=upto, limit=_ALL_ROWS)


def _hash_keys(reader: ChunkReader, schema: TableSchema, keys: list[Key]) -> Hashes:
    """Asked keys that the source does not have follow at the end, without a hash."""
    hashed = _read_hashes(reader, schema, [key for key in keys if None not in key])
    have = set(keys_of(hashed.rows, schema))
    absent = [key for key in keys if key not in have]
    types = [hashed.rows.schema.field(name).type for name in schema.key]
    columns = [pa.array([key[i] for key in absent], kind) for i, kind in enumerate(types)]
    rest = pa.RecordBatch.from_arrays([*columns, pa.nulls(len(absent), pa.int64())], names=[*schema.key, HASH])
    return replace(hashed, rows=pa.concat_batches([hashed.rows.select(rest.schema.names).cast(rest.schema), rest]))


def _read_hashes(reader: ChunkReader, schema: TableSchema, keys: list[Key]) -> Hashes:
    """No row of a source has NULL in its key: if nothing else is asked for, any SELECT gives the snapshot."""
    if keys:
        return reader.hashes_of(schema, keys)
    first = reader.hashes(schema, after=None, upto=None, limit=1)
    return replace(first, rows=first.rows.slice(0, 0))
