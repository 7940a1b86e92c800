"""One attempt of a worker on its task: chunk after chunk, without waiting for the log, at the pace that is asked for.

The worker continues at once with the next chunk, up to `in_flight` that the capture has not yet placed; the previous
chunk is staged meanwhile. What is placed it learns from the task's progress; when that says that the attempt is broken
(the capture was restarted, the table was altered, another worker took over) it begins a new attempt after the last
placed chunk. Options are read again for every chunk. There is no other wait than the clock's, and that for a chunk's
staging.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from dblog_core.algorithm.chunk_width import Width
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps.dump_records import OVER, DumpOptions, DumpState
from dblog_core.dumps.pace.throttle import Limits, Pace
from dblog_core.dumps.read_only_windows import NotOpened
from dblog_core.dumps.reading.accepted_reads import ShapeChanged
from dblog_core.dumps.reading.background_step import BackgroundStep
from dblog_core.dumps.reading.connections import Connections
from dblog_core.dumps.reading.window_reader import WindowReader
from dblog_core.dumps.task_lease import Hold, TaskLook
from dblog_core.interfaces import ChunkTooLarge

log = logging.getLogger(__name__)

PLACED_POLL_SECONDS = 0.05  # at most between two looks at what the capture has placed
_FIRST_POLL_SECONDS = 0.005  # a capture that keeps up places a chunk within a few milliseconds
_OPTIONS_POLL_SECONDS = 0.25  # at most between two looks at the options while the worker rests
_SHORTEST_REST_SECONDS = 1e-3


class AttemptEnd(Enum):
    """How an attempt ends."""

    LEAVE = "leave"  # the worker leaves the task
    RETRY = "retry"  # another attempt continues it
    ALL_READ = "all read"  # what is read waits to be placed


class WorkerPace:
    """The pace of one worker, and the last reading of the source that it has taken into account."""

    def __init__(self) -> None:
        self._dump = ""
        self._reading_number = 0
        self._has_warned = False
        self._widths: dict[str, Width] = {}
        self.pace = Pace()

    def begin(self, dump_id: str) -> None:
        """The worker turns to a task of this dump: tasks of one dump continue at the pace of those before."""
        if dump_id != self._dump:
            self._dump = dump_id
            self.pace = Pace()
            self._has_warned = False

    def width(self, table: str) -> Width:
        """What is known of the width of the table's rows: attempts and tasks of one table continue with what is
        known."""
        return self._widths.setdefault(table, Width())

    def rest(self, hold: Hold, options: DumpOptions) -> float:
        """Seconds until the next chunk may begin. Raises LeaseLost, and what a look at the source raises for good."""
        limits = Limits.of(options)
        self.pace.follow(limits)
        if limits.watches:
            reading = hold.worker.gauge.read()
            if reading is not None and reading.number != self._reading_number:
                self._reading_number = reading.number
                self.pace.record_strain(reading.strain, limits)
                strain = reading.strain
                if limits.max_retained and strain is not None and strain.retained_bytes is None:
                    self._warn_of_unmeasured_log(hold)
        hold.report_slowdown(self.pace.slowdown, self.pace.factor)
        return self.pace.rest(hold.worker.clock.monotonic(), limits)

    def _warn_of_unmeasured_log(self, hold: Hold) -> None:
        if not self._has_warned:
            log.warning("%s: the source does not tell how much log it retains: max_retained has no effect", hold)
        self._has_warned = True


class Attempt:
    """Chunks from the last placed one on."""

    def __init__(
        self, hold: Hold, connections: Connections, pace: WorkerPace, beside: Callable[[], None] = lambda: None
    ) -> None:
        """`beside`: called again and again while the attempt continues."""
        self._hold = hold
        self._pace = pace
        self._worker = hold.worker
        self._beside = beside
        self._number = hold.begin_attempt()
        self._background = BackgroundStep(hold.worker.spawn)
        self._placed_chunks = -1
        self._poll_seconds = _FIRST_POLL_SECONDS
        self._given_up = False  # a chunk, and with it the reader: what was read before it is still to be placed
        width = pace.width(hold.task.table)
        look = hold.look()  # after the attempt has begun
        self._unused_look: TaskLook | None = look
        self._reader = WindowReader(hold, connections, self._number, look[0], self._background, width)

    @property
    def number(self) -> int:
        return self._number

    @property
    def ordinal(self) -> int:
        """The chunk after the last one that is read."""
        return self._reader.ordinal

    def run(self, *, to_the_end: bool) -> AttemptEnd:
        """How it ends; unless `to_the_end` it may be ALL_READ, and may then be run again.

        Raises LeaseLost, and what the source, staging and the state store raise. Nothing of it continues afterwards.
        """
        try:
            end = self._work(to_the_end)
            self._background.wait()
        except BaseException as error:
            self._background.abandon(error)
            if isinstance(error, ShapeChanged | NotOpened):
                log.info("%s: a new attempt: %s", self._hold, error)
                return AttemptEnd.RETRY
            raise
        return end

    def _work(self, to_the_end: bool) -> AttemptEnd:
        while not self._worker.stop.is_set():
            self._beside()
            self._hold.check()
            self._background.raise_fault()
            progress, state, options = self._look()
            if progress.done:
                return AttemptEnd.LEAVE
            if progress.broken >= self._number or progress.attempt > self._number:
                log.info("%s: a new attempt: %s", self._hold, progress.reason or "somebody has begun one")
                return AttemptEnd.RETRY
            if state in OVER or self._hold.is_surplus(options):
                return AttemptEnd.LEAVE
            if state == DumpState.PAUSED and self._reader.ordinal == progress.ordinal:
                return AttemptEnd.LEAVE
            if self._given_up and self._reader.ordinal <= progress.ordinal:
                return AttemptEnd.RETRY
            self._reader.take_up_arrived_keys(progress)
            if self._reader.final and not to_the_end and state != DumpState.PAUSED:
                return AttemptEnd.ALL_READ
            wait_seconds = self._wait_seconds(progress, state, options)
            if wait_seconds > _SHORTEST_REST_SECONDS:
                self._worker.clock.wait(self._worker.stop, wait_seconds)
                continue
            self._read_chunk(options)
            if self._reader.final and not to_the_end:
                return AttemptEnd.ALL_READ  # whoever keeps it aside looks how it goes on
        return AttemptEnd.LEAVE

    def _look(self) -> TaskLook:
        """How the task stands; the look that the attempt began with is good for its first chunk."""
        look = self._unused_look or self._hold.look()
        self._unused_look = None
        return look

    def _wait_seconds(self, progress: TaskProgress, state: DumpState, options: DumpOptions) -> float:
        """Seconds to wait before anything is looked at again; 0: the next chunk is due."""
        waits = self._reader.final or self._given_up or state == DumpState.PAUSED
        if waits or self._reader.ordinal - progress.ordinal >= options.in_flight:
            return self._seconds_to_next_look(progress.ordinal)
        return min(self._pace.rest(self._hold, options), _OPTIONS_POLL_SECONDS)

    def _seconds_to_next_look(self, placed_chunks: int) -> float:
        """Before another look at what is placed: longer each time that nothing has moved."""
        has_moved = placed_chunks > self._placed_chunks
        self._poll_seconds = _FIRST_POLL_SECONDS if has_moved else min(PLACED_POLL_SECONDS, 2 * self._poll_seconds)
        self._placed_chunks = placed_chunks
        return self._poll_seconds

    def _read_chunk(self, options: DumpOptions) -> None:
        """Reads one chunk. Raises ShapeChanged or NotOpened if this attempt cannot."""
        began = self._worker.clock.monotonic()
        size = options.chunk_size
        try:
            rows = self._reader.read(size, options.chunk_bytes or self._worker.config.dump.chunk_bytes)
        except ChunkTooLarge as reason:
            log.info("%s: fewer rows in another attempt: %s", self._hold, reason)
            self._given_up = True
            return
        self._worker.locked_tables.record_free(self._hold.task.table)
        self._pace.pace.record_chunk(
            of=(self._hold.task.table, size),
            began=began,
            select_seconds=self._reader.select_seconds,
            ended=self._worker.clock.monotonic(),
            rows=rows,
        )
