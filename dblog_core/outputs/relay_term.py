"""One term of a relay: an output is opened, told its place, and given the lines after it until something goes wrong.

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
from dblog_core.outputs.batching import Part, parts, singly
from dblog_core.outputs.dead_letters import DeadLetters
from dblog_core.outputs.positions import Place, Record
from dblog_core.staging import Staging
from dblog_core.staging.reader import Follower

_LOOKS = (0.01, 0.5)  # seconds between two looks for a new segment: right after one, and when there was none for long
_SAVE_EVERY = 1.0  # seconds between two mirrors of a place that its target keeps


@dataclass(frozen=True, slots=True)
class Workplace:
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

    def __init__(self, place: Workplace, lease: Lease, *, singly_upto: int = 0) -> None:
        self._place, self._lease, self._singly_upto = place, lease, singly_upto
        self._output, self._clock = place.output, place.clock
        self._saved_at = self._read_since = place.clock.monotonic()
        self._written: Json | None = None  # the last line of what is not committed
        self._tried: tuple[Json, ...] = ()
        self._until: int | None = None
        self._paused = False
        self.progressed = False  # lines were delivered, or none were left

    def run(self, *, once: bool) -> None:
        """Gives on all that is staged, and what comes until the relay is stopped. Raises DblogError."""
        self._check()
        place = self._place
        place.letters.read()
        self._record = Record.opened(place.state, place.name, self._begin)
        delivered = self._output.open(self._lease.epoch)
        after = self._record.resume(delivered, exactly_once=self._output.exactly_once)
        self._until = None if self._output.exactly_once else self._record.place.until
        follower = Follower(
            place.staging,
            from_offset=after + 1,
            tables=_Wanted(place.settings.tables),
            whole=True,
            pause=self._pauses,
        )
        head = place.staging.head()
        upto = head.last_offset if once and head is not None else None
        while True:
            self._pass_on(follower)
            if place.stop.is_set() or (once and (not self._paused or upto is None or follower.passed >= upto)):
                return
            if not self._paused:
                self._wait(follower)

    def poisoned(self, error: PoisonLine) -> Json | None:
        """The line that the error is about; None: not known, one of those that were given last."""
        if error.offset is None:
            return self._tried[0] if len(self._tried) == 1 else None
        return next((line for line in self._tried if line["offset"] == error.offset), None)

    @property
    def tried_upto(self) -> int:
        """The offset of the last line that the target was given."""
        return int(self._tried[-1]["offset"]) if self._tried else 0

    @property
    def place(self) -> Place:
        return self._record.place

    def note_refused(self) -> None:
        """One more dead letter."""
        self._record.refused()
        self._record.save()

    def _begin(self) -> int:
        """The offset after which a new output begins."""
        start, staging = self._place.settings.start, self._place.staging
        if isinstance(start, int):
            return start - 1
        if start == "earliest":
            return staging.beginning().offset - 1
        head = staging.head()
        while head is not None and head.partial:  # the rest of a transaction alone would be none
            head = staging.manifest(head.first - 1) if head.first > staging.first_number() else None
        return head.last_offset if head is not None else 0

    def _pass_on(self, follower: Follower) -> None:
        self._read_since, self._paused = self._clock.monotonic(), False
        for part in self._parts(follower):
            if self._place.stop.is_set() and self._written is None:
                return
            self._give(part)
        self._record.passed(follower.passed)
        self._save()

    def _parts(self, follower: Follower) -> Iterator[Part]:
        for part in parts(follower.lines(), self._place.settings.batch_rows, until=self._until):
            if part.lines[0]["offset"] <= self._singly_upto:
                yield from singly(part)
            else:
                yield part

    def _give(self, part: Part) -> None:
        lines = tuple(line for line in part.lines if not self._place.letters.has(line))
        if lines:
            self._check()
            self._tried, self._written = lines, lines[-1]
            if not self._output.exactly_once:
                self._record.begun(lines[-1]["offset"])
            self._output.write(lines)
        if part.ends or not self._output.exactly_once:
            self._commit(part.lines[-1]["offset"])

    def _commit(self, offset: int) -> None:
        if (written := self._written) is not None:
            self._check()
            self._tried = ()
            self._output.commit(written["offset"])
            self._written, self.progressed = None, True
            self._record.passed(offset, delivered=written["offset"], commit_time=_microseconds(written["commit_time"]))
        else:
            self._record.passed(offset)
        if not self._output.exactly_once or self._clock.monotonic() - self._saved_at >= _SAVE_EVERY:
            self._save()

    def _save(self) -> None:
        self._record.save()
        self._saved_at = self._clock.monotonic()

    def _check(self) -> None:
        if not self._lease.valid():
            raise LeaseLost(
                "the lease of the output is gone or in doubt",
                where=f"output {self._place.name}",
                fix="none: it is taken again",
            )

    def _pauses(self) -> bool:
        """Whether lines have been read for so long that what there is goes out, and the place is told."""
        patience = max(_SAVE_EVERY, self._place.settings.every)
        self._paused = self._place.stop.is_set() or self._clock.monotonic() - self._read_since >= patience
        return self._paused

    def _wait(self, follower: Follower) -> None:
        """Until there is more, and `every` is over."""
        place, (pause, latest), self.progressed = self._place, _LOOKS, True
        place.clock.wait(place.stop, self._read_since + place.settings.every - self._clock.monotonic())
        while not follower.is_behind() and not place.clock.wait(place.stop, pause):
            self._check()
            pause = min(latest, pause * 1.3)


class _Wanted:
    """The tables that patterns mean, as a container."""

    def __init__(self, tables: tuple[str, ...]) -> None:
        self._patterns = tables
        self._known: dict[str, bool] = {}

    def __contains__(self, table: object) -> bool:
        name = str(table)
        if name not in self._known:
            self._known[name] = table_patterns.matches(TableName.parse(name), self._patterns)
        return self._known[name]


def _microseconds(time: str) -> int:
    return round(dt.datetime.fromisoformat(time).timestamp() * 1e6)
