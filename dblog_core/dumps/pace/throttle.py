"""The pace of a dump worker: how long it rests between two chunks, and when it stands still. Pure: no clock in here.

Three rules, whichever asks for most:

- `delay` and `rate`, as the dump's options say now: seconds after a chunk's end, and rows a second from its beginning.
- `adaptive`: the share of the time that the worker spends on chunks (its duty cycle, `factor`) is halved at every look
  at a source that suffers, and grows by a twentieth at every look at one that does not (additive increase,
  multiplicative decrease, as TCP shares a line that it cannot see).
- `max_retained`: above that many bytes of log that the source keeps the worker stands still; it continues below 90 %.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

from dblog_core.dumps.dump_records import DumpOptions
from dblog_core.interfaces import Strain

SLOWEST = 1 / 32  # the smallest duty cycle: a dump that has been slowed down still ends
RECOVERY = 0.05  # what one look at a source that fares well gives back
LAG_LIMIT = 5.0  # seconds that a replica may be behind
LAG_NOISE = 1.0  # seconds below which a growing lag means nothing
EARLY = 5  # SELECTs that say what is usual
RECENT = 3  # SELECTs that say what is now
SLOWER = 3.0  # times the usual SELECT time
SELECT_NOISE = 0.05  # seconds below which a SELECT is never slow
RUNNING_SLACK = 4  # statements more than twice those at the start, beside our own
GO_ON_BELOW = 0.9  # of max_retained


@dataclass(frozen=True, slots=True)
class Limits:
    """The options of a dump that set its pace: `delay` seconds, `rate` rows a second of one worker (0: no limit),
    `max_retained` bytes (0: no ceiling)."""

    delay: float
    rate: int
    workers: int
    adaptive: bool
    max_retained: int

    @classmethod
    def of(cls, options: DumpOptions) -> Limits:
        return cls(options.delay, options.rate, options.workers, options.adaptive, options.max_retained)

    @property
    def watches(self) -> bool:
        """Whether the pace depends on how the source fares."""
        return self.adaptive or self.max_retained > 0


class Pace:
    """One worker's pace on one dump; `factor`: its duty cycle, 1 where nothing slows it down."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._why: str | None = None
        self._ceiling = 0
        self._began = self._ended = -math.inf
        self._rows = 0
        self._lags: deque[float] = deque(maxlen=RECENT)
        self._running_at_start: int | None = None
        self._selects = _Selects()

    @property
    def slowdown(self) -> str | None:
        """Why the worker is slower than it was asked to be, or stands still; None if it is not."""
        if self._ceiling:
            return (
                f"the source retains more than max_retained = {self._ceiling} bytes of log: stands still until less "
                f"than {GO_ON_BELOW:.0%} of that is left"
            )
        return self._why

    def record_chunk(
        self, *, of: tuple[str, int], began: float, select_seconds: float, ended: float, rows: int
    ) -> None:
        """A chunk was read. `of`: its table and its limit of rows, since only like is compared with like; the other
        times are those of one monotonic clock."""
        self._began = began
        self._ended = ended
        self._rows = rows
        self._selects.add(of, select_seconds)

    def record_strain(self, strain: Strain | None, limits: Limits) -> None:
        """What a look at the source, about once a second, means for the pace; None: it could not tell this time."""
        self.follow(limits)
        if strain is not None and limits.max_retained:
            self._measure(strain.retained_bytes, limits.max_retained)
        if limits.adaptive:
            self._adapt(self._find_strain(strain, limits))

    def follow(self, limits: Limits) -> None:
        """Options that were switched off hold nothing back now."""
        if not limits.adaptive:
            self.factor = 1.0
            self._why = None
        self._ceiling = limits.max_retained if self._ceiling else 0

    def rest(self, now: float, limits: Limits) -> float:
        """Seconds before the next chunk may begin; infinite while the worker stands still."""
        if self._ceiling:
            return math.inf
        if self._began == -math.inf:
            return 0.0
        worked = self._ended - self._began
        until = max(
            self._ended + limits.delay,
            self._began + (self._rows / limits.rate if limits.rate else 0.0),
            self._ended + worked * (1 / self.factor - 1),
        )
        return max(0.0, until - now)

    def _measure(self, retained: int | None, ceiling: int) -> None:
        if retained is None:
            return
        if retained > ceiling:
            self._ceiling = ceiling
        elif retained < GO_ON_BELOW * ceiling:
            self._ceiling = 0

    def _adapt(self, why: str | None) -> None:
        if why is not None:
            self.factor = max(SLOWEST, self.factor / 2)
            self._why = why
        elif not self._selects.slow:  # a slow SELECT is neither held against us twice, nor forgotten by waiting
            self.factor = min(1.0, self.factor + RECOVERY)
            if self.factor == 1.0:
                self._why = None

    def _find_strain(self, strain: Strain | None, limits: Limits) -> str | None:
        """What the source suffers from; the text has no numbers, so that it is reported once."""
        slow = self._selects.judge()  # also where another reason comes first
        if strain is not None:
            why = self._find_lag(strain.replication_lag) or self._find_load(strain.running, limits)
            if why:
                return why
        return f"its SELECTs take over {SLOWER:g} times as long as at first" if slow else None

    def _find_lag(self, lag: float | None) -> str | None:
        if lag is None:
            self._lags.clear()
            return None
        self._lags.append(lag)
        if lag > LAG_LIMIT:
            return f"a replica of the source is more than {LAG_LIMIT:g} s behind"
        grows = all(a < b for a, b in zip(list(self._lags), list(self._lags)[1:], strict=False))
        if len(self._lags) == RECENT and grows and lag > LAG_NOISE:
            return "a replica of the source falls more and more behind"
        return None

    def _find_load(self, running: int | None, limits: Limits) -> str | None:
        if running is None:
            return None
        if self._running_at_start is None:
            self._running_at_start = running
        if running > 2 * self._running_at_start + limits.workers + RUNNING_SLACK:
            return "the source runs more than twice the statements that it ran at the start"
        return None


class _Selects:
    """What SELECTs of one table and size take now, beside what they took at first; `slow`: the last verdict."""

    def __init__(self) -> None:
        self.slow = False
        self._of: tuple[str, int] | None = None
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._new = False

    def add(self, of: tuple[str, int], seconds: float) -> None:
        if of != self._of:
            self._of = of
            self._first = []
            self._new = False
            self.slow = False
            self._recent.clear()
        if len(self._first) < EARLY:
            self._first.append(seconds)
        else:
            self._recent.append(seconds)
            self._new = True

    def judge(self) -> bool:
        """Whether SELECTs that were read since the last verdict are slow."""
        if not self._new:
            return False
        self._new = False
        self.slow = statistics.median(self._recent) > max(SLOWER * statistics.median(self._first), SELECT_NOISE)
        return self.slow
