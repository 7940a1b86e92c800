"""Dump workers: read a table chunk by chunk between watermarks, without ever waiting for the log.

For each chunk a worker writes the low watermark, SELECTs, makes the rows durable in staging, and writes the high
watermark that names the file. It goes on at once with the next chunk, up to `in_flight` that the capture has not yet
placed. What is placed it learns from the task's progress; when that says that the attempt is broken (the capture was
restarted, the table was altered, another worker took over) it begins a new attempt after the last placed chunk.
"""

from __future__ import annotations

import functools
import logging
import threading
import uuid
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as futures_wait
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dblog_core import control, watermark, wiring
from dblog_core.clock import SystemClock
from dblog_core.config import Config
from dblog_core.control import OVER, DumpStatus, TaskStatus
from dblog_core.dumps import TaskProgress
from dblog_core.errors import DblogError, LeaseLost, RequestError
from dblog_core.interfaces import Chunk, ChunkReader, Clock, Lease, Source, StateStore, WatermarkWriter
from dblog_core.rules import Rules
from dblog_core.schema import TableName, TableSchema
from dblog_core.staging import Staging
from dblog_core.values import Key, key_from_json, key_to_json, keys_of
from dblog_core.watermark import Heals, High, Low, Mark

log = logging.getLogger(__name__)

KEYS_PER_CHUNK = 1_000
POLL = 0.05  # seconds between two looks at a progress that somebody else makes
SEARCH = 1.0  # seconds between two looks for work
REPORT = 0.5  # seconds between two reports of progress
WATERMARK_ROWS = 256
PATIENCE = 5  # attempts on one task after faults that may pass, before another worker may have it

OnProgress = Callable[[DumpStatus], None]


def work(
    config: Config,
    *,
    stop: threading.Event,
    once: bool = True,
    dump_id: str | None = None,
    workers: int | None = None,
    requested_by: str | None = None,
    on_progress: OnProgress | None = None,
) -> None:
    """Works on unfinished dumps (on `dump_id` alone, or those that `requested_by` filed) until none is left.

    With `once` false it waits for more. Several processes share the work; a dump uses as many of its workers as its
    options allow, over all of them. Raises what makes a task impossible, after marking its dump as failed.
    """
    with closing(wiring.open_state(config)) as state:
        finder = _Finder(config, state, dump_id, requested_by)
        while not stop.is_set():
            found = finder.unfinished()
            if once and not found:
                return
            if found:
                count = workers or max(d.options["workers"] for d in found)
                _crew(config, finder, stop, count, functools.partial(_report, state, found, on_progress))
            stop.wait(SEARCH if not found else REPORT)


def wait(config: Config, dump_id: str, *, stop: threading.Event, on_progress: OnProgress | None = None) -> DumpStatus:
    """Waits until the dump is over or `stop` is set; returns where it stands then."""
    with closing(wiring.open_state(config)) as state:
        while True:
            status = control.dump(state, dump_id)
            if on_progress is not None:
                on_progress(status)
            if status.state in OVER or stop.wait(0.2):
                return status


class _Finder:
    """Unfinished tasks, and which of them this process works on."""

    def __init__(self, config: Config, state: StateStore, dump_id: str | None, requested_by: str | None) -> None:
        self._config, self._state, self._dump_id, self._by = config, state, dump_id, requested_by
        self._holder = f"{uuid.uuid4().hex[:12]}"
        self._taken: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def unfinished(self) -> list[DumpStatus]:
        if self._dump_id is not None:
            found = [control.dump(self._state, self._dump_id)]
        else:
            found = control.dumps(self._state)
        return [d for d in found if d.state not in OVER and (self._by is None or d.requested_by == self._by)]

    def take(self) -> tuple[DumpStatus, TaskStatus, Lease] | None:
        """A task that nobody works on, with its lease; None if there is none now."""
        with self._lock:
            for dump in self.unfinished():
                if dump.state == "paused":
                    continue
                busy = sum(d == dump.id for d, _ in self._taken)
                for task in dump.tasks if busy < dump.options["workers"] else ():
                    name = f"task-{dump.id}-{task.number}"
                    if task.progress.done or (dump.id, task.number) in self._taken:
                        continue
                    lease = self._state.acquire(name, self._holder, ttl=self._config.state.ttl)
                    if lease is not None:
                        self._taken.add((dump.id, task.number))
                        return dump, task, lease
        return None

    def give_back(self, dump: DumpStatus, task: TaskStatus, lease: Lease) -> None:
        with self._lock:
            self._taken.discard((dump.id, task.number))
        lease.release()


def _report(state: StateStore, dumps: list[DumpStatus], on_progress: OnProgress | None) -> None:
    if on_progress is not None:
        for status in dumps:
            on_progress(control.dump(state, status.id))


def _crew(config: Config, finder: _Finder, stop: threading.Event, count: int, report: Callable[[], None]) -> None:
    """`count` threads that take tasks until none is free; raises the first error of any."""
    with ThreadPoolExecutor(count, thread_name_prefix="dump") as pool:
        futures = {pool.submit(_member, config, finder, stop) for _ in range(count)}
        pending = futures
        while pending:
            _, pending = futures_wait(pending, timeout=REPORT)
            report()
    for future in futures:
        future.result()


def _member(config: Config, finder: _Finder, stop: threading.Event) -> None:
    with closing(wiring.open_state(config)) as state:
        while not stop.is_set() and (taken := finder.take()) is not None:
            try:
                _TaskRun(config, state, *taken, stop).run()
            finally:
                finder.give_back(*taken)


@dataclass(slots=True)
class _Connections:
    """A worker's connections to the source."""

    reader: ChunkReader
    watermarks: WatermarkWriter

    @classmethod
    def open(cls, source: Source, worker: str) -> _Connections:
        reader = source.open_reader()
        try:
            return cls(reader, source.open_watermarks(worker))
        except DblogError:
            reader.close()
            raise

    def close(self) -> None:
        self.reader.close()
        self.watermarks.close()


class _TaskRun:
    """One worker's hold on one task, over as many attempts as it takes."""

    def __init__(
        self,
        config: Config,
        state: StateStore,
        dump: DumpStatus,
        task: TaskStatus,
        lease: Lease,
        stop: threading.Event,
        clock: Clock | None = None,
    ) -> None:
        self._config, self._state, self._dump, self._task, self._lease = config, state, dump, task, lease
        self._stop, self._clock = stop, clock or SystemClock()
        self._source = wiring.open_source(config.source)
        self._staging: Staging = wiring.open_staging(config)

    def run(self) -> None:
        """Until the task is done, its dump is over or paused, or `stop`. Raises what another try cannot mend."""
        faults = 0
        while not self._over():
            try:
                with closing(_Connections.open(self._source, self._row())) as connections:
                    if _Attempt(self, connections).run():
                        return
            except LeaseLost:
                return
            except DblogError as error:
                faults += 1
                if not error.transient:
                    control.fail(self._state, self._dump.id, str(error))
                    raise
                if faults >= PATIENCE:
                    raise
                log.warning("dump %s: trying again: %s", self._dump.id, error)
            self._stop.wait(min(0.2 * (1 + faults), 2.0))

    def _row(self) -> str:
        """Our row in the watermark table: of a bounded number, since two that share one wait only for a moment."""
        return f"worker-{zlib.crc32(f'{self._dump.id}/{self._task.number}'.encode()) % WATERMARK_ROWS}"

    def _over(self) -> bool:
        if self._stop.is_set() or not self._lease.valid():
            return True
        return control.dump(self._state, self._dump.id).state in {*OVER, "paused"}

    def progress(self) -> TaskProgress:
        return control.progress(self._state, self._dump.id, self._task.number, self._task.table)

    def options(self) -> tuple[str, dict[str, Any]]:
        """State and options of the dump now: read for every chunk."""
        if not self._lease.valid():
            raise LeaseLost(f"the lease of task {self._task.number} of dump {self._dump.id} is gone or in doubt")
        status = control.dump(self._state, self._dump.id)
        return status.state, status.options

    @property
    def parts(self) -> tuple[Config, Staging, DumpStatus, TaskStatus, threading.Event, Clock]:
        return self._config, self._staging, self._dump, self._task, self._stop, self._clock

    def next_attempt(self) -> int:
        return control.next_attempt(self._state, self._dump.id, self._task.number)


class _Attempt:
    """Chunks from the last placed one on, until the task is done (True), or this attempt is broken (False)."""

    def __init__(self, run: _TaskRun, connections: _Connections) -> None:
        self._run, self._connections = run, connections
        self._config, self._staging, self._dump, self._task, self._stop, self._clock = run.parts
        self._rules = Rules(self._config.source.columns)
        self._number = run.next_attempt()
        progress = run.progress()
        self._ordinal, self._after = progress.ordinal, progress.key
        self._upto: Any = self._task.key_to
        self._final = False
        self._began: float | None = None
        self._rows = 0

    def run(self) -> bool:
        while not self._stop.is_set():
            progress = self._run.progress()
            if progress.done:
                return True
            if progress.broken >= self._number:
                log.info("dump %s, %s: a new attempt: %s", self._dump.id, self._task.table, progress.reason)
                return False
            state, options = self._run.options()
            if state in OVER:
                return True
            if state == "paused" and self._ordinal == progress.ordinal:
                return True
            full = self._ordinal - progress.ordinal >= options["in_flight"]
            if self._final or full or state == "paused" or self._rests(options):
                self._stop.wait(POLL)
                continue
            self._began = self._clock.monotonic()
            self._rows = self._chunk(options["chunk_size"])
        return True

    def _rests(self, options: dict[str, Any]) -> bool:
        """Whether the pause after the last chunk is not over, by the delay and rate that hold now."""
        if self._began is None:
            return False
        pause: float = max(options["delay"], self._rows / options["rate"] if options["rate"] else 0.0)
        return self._clock.monotonic() < self._began + pause

    def _chunk(self, size: int) -> int:
        """One chunk between its watermarks; returns its rows."""
        name = TableName.parse(self._task.table)
        mark = Mark(
            source=self._config.source.name,
            task=f"{self._dump.id}/{self._task.number}",
            attempt=self._number,
            ordinal=self._ordinal,
            window=uuid.uuid4().hex,
            table=self._task.table,
            heals=Heals() if self._task.full else None,
        )
        self._connections.watermarks.write(watermark.encode(Low(mark)))
        schema = self._connections.reader.schema(name)
        if not schema.key:
            raise RequestError(f"{name} has no key any more", fix="give it one, and request the dump again")
        if self._task.keys is not None:
            high = self._read_listed(mark, schema)
        else:
            high = self._read_range(mark, schema, size)
        self._connections.watermarks.write(watermark.encode(high))
        self._ordinal += 1
        self._final = high.final
        self._after = high.last_key if high.last_key is not None else self._after
        return high.rows

    def _read_listed(self, mark: Mark, schema: TableSchema) -> High:
        """The next keys of a task that lists them; those that the source does not have are named absent."""
        assert self._task.keys is not None
        first = self._ordinal * KEYS_PER_CHUNK
        asked = [key_from_json(k, schema) for k in self._task.keys[first : first + KEYS_PER_CHUNK]]
        chunk = self._connections.reader.read_keys(schema, asked)
        found = set(keys_of(chunk.rows, schema))
        absent = tuple(key_to_json(k) for k in asked if k not in found)
        final = first + KEYS_PER_CHUNK >= len(self._task.keys)
        return self._stage(mark, chunk, last_key=None, final=final, absent=absent)

    def _read_range(self, mark: Mark, schema: TableSchema, size: int) -> High:
        """The next rows of a key range. Its end is fixed inside the first window: rows above it are the log's."""
        reader = self._connections.reader
        if self._upto is None:
            upto = reader.last_key(schema)
            if upto is None:
                empty = reader.read(schema, after=None, upto=None, limit=1)  # in a snapshot, like any chunk
                return self._stage(mark, empty, last_key=_last_key(empty), final=True)
            self._upto = key_to_json(upto)
        upto = key_from_json(self._upto, schema)
        if self._after is None and self._task.key_from is not None:
            first = key_from_json(self._task.key_from, schema)
            chunk = reader.read_keys(schema, [first])  # a range includes its first key; what follows comes after it
            return self._stage(mark, chunk, last_key=self._task.key_from, final=False)
        after = None if self._after is None else key_from_json(self._after, schema)
        chunk = reader.read(schema, after=after, upto=upto, limit=size)
        last = _last_key(chunk)
        return self._stage(mark, chunk, last_key=last, final=chunk.rows.num_rows < size or last == self._upto)

    def _stage(self, mark: Mark, chunk: Chunk, *, last_key: Any, final: bool, absent: tuple[Any, ...] = ()) -> High:
        """Makes the chunk durable; the watermark that tells the capture of it."""
        schema = self._rules.schema(chunk.schema)
        self._staging.put_schema(schema)
        rows = self._rules.rows(chunk.schema, chunk.rows)
        file = None
        if rows.num_rows:
            directory = f"chunks/{self._dump.id}/{self._task.number}"
            file = self._staging.write_chunk(directory, f"{mark.ordinal:08d}-{mark.window}", rows)
        return High(
            mark,
            file=file.path if file else None,
            rows=rows.num_rows,
            bytes=file.bytes if file else 0,
            checksum=file.checksum if file else "",
            schema=schema.fingerprint,
            last_key=last_key,
            final=final,
            snapshot=chunk.snapshot,
            absent=absent,
        )


def _last_key(chunk: Chunk) -> Any:
    rows = chunk.rows
    if not rows.num_rows:
        return None
    key: Key = keys_of(rows.slice(rows.num_rows - 1, 1), chunk.schema)[0]
    return key_to_json(key)
