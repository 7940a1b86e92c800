"""One term of a relay: an output is opened, gets its place, and then the lines after it until something goes wrong.

A term ends with the first error, whatever it is; what was not committed is gone then, and the next term begins at the
place that the target tells.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from dblog_core.config.output import OutputConfig
from dblog_core.errors import LeaseLost, PoisonLine
from dblog_core.interfaces import Clock, Json, Lease, Output, StateStore
from dblog_core.model import table_patterns
from dblog_core.model.schema import TableName
from dblog_core.outputs.batching import Part, split_parts, split_singly
from dblog_core.outputs.dead_letters import DeadLetters
from dblog_core.outputs.positions import Record
from dblog_core.staging import Staging
from dblog_core.staging.reader import Follower

_SHORTEST_LOOK_SECONDS = 0.01  # between two looks for a new segment, right after one
_LONGEST_LOOK_SECONDS = 0.5  # the same, when there was none for long
_SAVE_SECONDS = 1.0  # between two mirrors of a place that its target keeps


@dataclass(frozen=True, slots=True)
class RelayContext:
    """What the relay of one output works with."""

    name: str
    settings: OutputConfig
    output: Output
    staging: Staging
    state: StateStore
    letters: DeadLetters
    clock: Clock
    stop: threading.Event


class Term:
    """`singly_upto`: up to this offset lines go one by one, since the target refuses one of them."""

    def __init__(self, context: RelayContext, lease: Lease, *, singly_upto: int = 0) -> None:
        self._context = context
        self._lease = lease
        self._singly_upto = singly_upto
        self._output = context.output
        self._clock = context.clock
        self._saved_at = self._read_since = context.clock.monotonic()
        self._last_written: Json | None = None  # the last line of what is not committed
        self._lines_tried: tuple[Json, ...] = ()
        self._until: int | None = None
        self._paused = False
        self.has_progressed = False  # lines were delivered, or none were left

    def run(self, *, once: bool) -> None:
        """Gives on all that is staged, and what comes until the relay is stopped. Raises DblogError."""
        self._check_lease()
        context = self._context
        # Before the first line: one that was noted and not passed yet must not be tried again.
        context.letters.read()
        self._record = Record.open(context.state, context.name, self._first_offset)
        delivered = self._output.open(self._lease.epoch)
        after = self._record.resume(delivered, exactly_once=self._output.exactly_once)
        self._until = None if self._output.exactly_once else self._record.place.until
        follower = Follower(
            context.staging,
            from_offset=after + 1,
            tables=_TableFilter(context.settings.tables),
            whole=True,
            pause=self._is_time_to_pause,
        )
        head = context.staging.head()
        upto = head.last_offset if once and head is not None else None
        while True:
            self._pass_on(follower)
            if context.stop.is_set() or (once and (not self._paused or upto is None or follower.passed >= upto)):
                return
            if not self._paused:
                self._wait(follower)

    def find_poison_line(self, error: PoisonLine) -> Json | None:
        """The line that the error is about; None: not known, one of those that were given last."""
        if error.offset is None:
            return self._lines_tried[0] if len(self._lines_tried) == 1 else None
        return next((line for line in self._lines_tried if line["offset"] == error.offset), None)

    @property
    def tried_upto(self) -> int:
        """The offset of the last line that the target was given."""
        return int(self._lines_tried[-1]["offset"]) if self._lines_tried else 0

    def count_dead_letter(self) -> None:
        """One more dead letter."""
        self._record.count_dead_letter()
        self._record.save()

    def _first_offset(self) -> int:
        """The offset after which a new output begins."""
        start = self._context.settings.start
        staging = self._context.staging
        if isinstance(start, int):
            return start - 1
        if start == "earliest":
            return staging.beginning().offset - 1
        head = staging.head()
        while head is not None and head.partial:  # the rest of a transaction alone would be none
            head = staging.manifest(head.first - 1) if head.first > staging.first_number() else None
        return head.last_offset if head is not None else 0

    def _pass_on(self, follower: Follower) -> None:
        self._read_since = self._clock.monotonic()
        self._paused = False
        for part in self._parts(follower):
            # Inside a transaction the relay continues to its end, so that the target can commit it.
            if self._context.stop.is_set() and self._last_written is None:
                return
            self._write_part(part)
        self._record.advance(follower.passed)
        self._save()

    def _parts(self, follower: Follower) -> Iterator[Part]:
        for part in split_parts(follower.lines(), self._context.settings.batch_rows, until=self._until):
            if part.lines[0]["offset"] <= self._singly_upto:
                yield from split_singly(part)
            else:
                yield part

    def _write_part(self, part: Part) -> None:
        lines = tuple(line for line in part.lines if not self._context.letters.holds_line(line))
        if lines:
            self._check_lease()
            self._lines_tried = lines
            self._last_written = lines[-1]
            if not self._output.exactly_once:
                self._record.record_delivery(lines[-1]["offset"])
            self._output.write(lines)
        if part.ends or not self._output.exactly_once:
            self._commit(part.lines[-1]["offset"])

    def _commit(self, offset: int) -> None:
        if (written := self._last_written) is not None:
            self._check_lease()
            self._lines_tried = ()
            # The target first, our record after it: a crash between the two repeats lines, or is seen by the target's
            # own place.
            self._output.commit(written["offset"])
            self._last_written = None
            self.has_progressed = True
            self._record.advance(offset, delivered=written["offset"], commit_time=_microseconds(written["commit_time"]))
        else:
            self._record.advance(offset)
        if not self._output.exactly_once or self._clock.monotonic() - self._saved_at >= _SAVE_SECONDS:
            self._save()

    def _save(self) -> None:
        self._record.save()
        self._saved_at = self._clock.monotonic()

    def _check_lease(self) -> None:
        if not self._lease.valid():
            raise LeaseLost(
                "the lease of the output is gone or in doubt",
                where=f"output {self._context.name}",
            )

    def _is_time_to_pause(self) -> bool:
        """Whether lines have been read for so long that what there is goes out, and the place is saved."""
        patience = max(_SAVE_SECONDS, self._context.settings.every)
        self._paused = self._context.stop.is_set() or self._clock.monotonic() - self._read_since >= patience
        return self._paused

    def _wait(self, follower: Follower) -> None:
        """Until there is more, and `every` is over."""
        self.has_progressed = True
        stop = self._context.stop
        self._clock.wait(stop, self._read_since + self._context.settings.every - self._clock.monotonic())
        pause_seconds = _SHORTEST_LOOK_SECONDS
        while not follower.is_behind() and not self._clock.wait(stop, pause_seconds):
            self._check_lease()
            pause_seconds = min(_LONGEST_LOOK_SECONDS, pause_seconds * 1.3)


class _TableFilter:
    """The tables that patterns mean, as a container."""

    def __init__(self, tables: tuple[str, ...]) -> None:
        self._patterns = tables
        self._matches_by_name: dict[str, bool] = {}

    def __contains__(self, table: object) -> bool:
        name = str(table)
        if name not in self._matches_by_name:
            self._matches_by_name[name] = table_patterns.matches(TableName.parse(name), self._patterns)
        return self._matches_by_name[name]


def _microseconds(time: str) -> int:
    return round(dt.datetime.fromisoformat(time).timestamp() * 1e6)
