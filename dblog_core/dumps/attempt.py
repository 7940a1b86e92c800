"""One attempt of a worker on its task: chunk after chunk, without waiting for the log, at the pace that is asked for.

The worker goes on at once with the next chunk, up to `in_flight` that the capture has not yet placed; the one before is
staged meanwhile. What is placed it learns from the task's progress; when that says that the attempt is broken (the
capture was restarted, the table was altered, another worker took over) it begins a new attempt after the last placed
chunk. Options are read again for every chunk. There is no other wait than the clock's, and that for a chunk's staging.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dblog_core.algorithm.chunk_width import Width
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps.background_step import Behind
from dblog_core.dumps.dump_records import OVER, DumpOptions, DumpState
from dblog_core.dumps.read_only_windows import NotOpened
from dblog_core.dumps.task_lease import Hold
from dblog_core.dumps.throttle import Limits, Pace
from dblog_core.dumps.window_reader import Connections, ShapeChanged, WindowReader
from dblog_core.interfaces import ChunkTooLarge

log = logging.getLogger(__name__)

LAST, AGAIN, READ = "last", "again", "read"
"""How an attempt ends: the worker leaves the task; another attempt goes on; all is read, and is to be placed."""

PLACING = 0.05  # seconds at most between two looks at what the capture has placed
SOON = 0.005  # seconds before the first of them: a capture that keeps up places a chunk within a few milliseconds
RESTING = 0.25  # seconds at most between two looks at the options while the worker rests
SHORTEST = 1e-3  # seconds: a shorter rest is none


class WorkerPace:
    """The pace of one worker, and the last reading of the source that it has taken into account."""

    def __init__(self) -> None:
        self._dump, self._seen = "", 0
        self._unmeasured = False
        self._table, self._width = "", Width()
        self.pace = Pace()

    def begin(self, dump_id: str) -> None:
        """The worker turns to a task of this dump: tasks of one dump go on at the pace of those before."""
        if dump_id != self._dump:
            self._dump, self.pace, self._unmeasured = dump_id, Pace(), False

    def width(self, table: str) -> Width:
        """What is known of the width of the table's rows: attempts and tasks of one table go on with what is known."""
        if table != self._table:
            self._table, self._width = table, Width()
        return self._width

    def rest(self, hold: Hold, options: DumpOptions) -> float:
        """Seconds until the next chunk may begin. Raises LeaseLost, and what a look at the source raises for good."""
        limits = Limits.of(options)
        self.pace.follow(limits)
        if limits.watches:
            reading = hold.place.gauge.read()
            if reading is not None and reading.number != self._seen:
                self._seen = reading.number
                self.pace.look(reading.strain, limits)
                strain = reading.strain
                if limits.max_retained and strain is not None and strain.retained_bytes is None:
                    self._warn(hold)
        hold.tell(self.pace.held, self.pace.factor)
        return self.pace.rest(hold.place.clock.monotonic(), limits)

    def _warn(self, hold: Hold) -> None:
        if not self._unmeasured:
            log.warning("%s: the source does not tell how much log it retains: max_retained has no effect", hold)
        self._unmeasured = True


class Attempt:
    """Chunks from the last placed one on."""

    def __init__(
        self, hold: Hold, connections: Connections, pace: WorkerPace, beside: Callable[[], None] = lambda: None
    ) -> None:
        """`beside`: called again and again while the attempt goes on."""
        self._hold, self._pace, self._place, self._beside = hold, pace, hold.place, beside
        self._number = hold.next_attempt()
        self._behind = Behind(hold.place.spawn)
        self._placed, self._look = -1, SOON
        self._given_up = False  # a chunk, and with it the reader: what was read before it is still to be placed
        width = pace.width(hold.task.table)
        self._reader = WindowReader(hold, connections, self._number, hold.progress(), self._behind, width)

    @property
    def number(self) -> int:
        return self._number

    @property
    def ordinal(self) -> int:
        """The chunk after the last one that is read."""
        return self._reader.ordinal

    def run(self, *, to_the_end: bool) -> str:
        """LAST, AGAIN, or, unless `to_the_end`, READ: then it may be run again.

        Raises LeaseLost, and what the source, staging and the state store raise. Nothing of it goes on afterwards.
        """
        try:
            end = self._work(to_the_end)
            self._behind.settle()
        except BaseException as error:
            self._behind.abandon(error)
            raise
        return end

    def _work(self, to_the_end: bool) -> str:
        while not self._place.stop.is_set():
            self._beside()
            self._hold.check()
            self._behind.look()
            progress = self._hold.progress()
            if progress.done:
                return LAST
            if progress.broken >= self._number or progress.attempt > self._number:
                log.info("%s: a new attempt: %s", self._hold, progress.reason or "somebody has begun one")
                return AGAIN
            state, options = self._hold.settings()
            if state in OVER or self._hold.surplus(options):
                return LAST
            if state == DumpState.PAUSED and self._reader.ordinal == progress.ordinal:
                return LAST
            if self._given_up and self._reader.ordinal <= progress.ordinal:
                return AGAIN
            self._reader.look(progress)
            if self._reader.final and not to_the_end and state != DumpState.PAUSED:
                return READ
            wait = self._wait(progress, state, options)
            if wait > SHORTEST:
                self._place.clock.wait(self._place.stop, wait)
            elif not self._chunk(options):
                return AGAIN
        return LAST

    def _wait(self, progress: TaskProgress, state: DumpState, options: DumpOptions) -> float:
        """Seconds to wait before anything is looked at again; 0: the next chunk is due."""
        waits = self._reader.final or self._given_up or state == DumpState.PAUSED
        if waits or self._reader.ordinal - progress.ordinal >= options.in_flight:
            return self._until_placed(progress.ordinal)
        return min(self._pace.rest(self._hold, options), RESTING)

    def _until_placed(self, ordinal: int) -> float:
        """Seconds before another look at what is placed: longer each time that nothing has moved."""
        self._look = SOON if ordinal > self._placed else min(PLACING, 2 * self._look)
        self._placed = ordinal
        return self._look

    def _chunk(self, options: DumpOptions) -> bool:
        """Reads one chunk; False if this attempt cannot."""
        began, size = self._place.clock.monotonic(), options.chunk_size
        try:
            rows = self._reader.read(size, options.chunk_bytes or self._place.config.dump.chunk_bytes)
        except ChunkTooLarge as reason:
            log.info("%s: fewer rows in another attempt: %s", self._hold, reason)
            self._given_up = True
            return True
        except (ShapeChanged, NotOpened) as reason:
            log.info("%s: a new attempt: %s", self._hold, reason)
            return False
        self._pace.pace.chunk(
            of=(self._hold.task.table, size),
            began=began,
            selected=self._reader.selected,
            ended=self._place.clock.monotonic(),
            rows=rows,
        )
        return True
