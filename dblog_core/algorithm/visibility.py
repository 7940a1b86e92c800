"""Visibility: which events of the log a SELECT may not have seen. The theory stands in `window.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from dblog_core.algorithm.eviction import Touches


@dataclass(frozen=True, slots=True)
class Snapshot:
    """PostgreSQL's `pg_current_snapshot()`: `xmin:xmax:xip,…`, 64-bit transaction ids."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    @lru_cache(maxsize=64)  # one is asked about many transactions
    def parse(cls, text: str) -> Snapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x))

    def sees(self, xid: int) -> bool:
        """Whether a transaction that committed is visible. `xid` has 32 bits, as the log has it."""
        full = self.widen(xid)
        return full < self.xmin or (full < self.xmax and full not in self.running)

    def sees_all(self, first: int, last: int) -> bool:
        """Whether every transaction of these ids, ends included, has ended, so that all that committed are
        visible."""
        lowest = self.widen(first)
        highest = self.widen(last)
        return highest < self.xmin or (highest < self.xmax and not any(lowest <= x <= highest for x in self.running))

    def widen(self, xid: int) -> int:
        """The 64-bit id nearest to the snapshot's own: a log and a snapshot are never 2^31 transactions apart."""
        return self.xmax + ((xid - self.xmax + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


@dataclass(slots=True)
class RecordedEvents:
    """Events of one transaction on one table, from offset `first` to `offset`.

    `retired_at`: offset from which every new SELECT sees them. `last_xid`: where it stands for several transactions,
    the largest of their ids, and `xid` the smallest, both of 64 bits.
    `lost`: there were more keys than are remembered, so a chunk that did not see them cannot be placed. `arrives`:
    whether there may be `incomplete_moves` among them.
    """

    first: int
    offset: int
    xid: int | None
    touches: Touches | None  # None: the whole table (TRUNCATE), or lost
    retired_at: int | None = None
    lost: bool = False
    arrives: bool = True
    last_xid: int | None = None


class Visibility(Protocol):
    """Which remembered events a chunk's SELECT may not have seen."""

    def admits(self, snapshot: str | None, table: str = "") -> bool:
        """Whether the SELECT saw every event that was logged before the log was first opened, or before it has shown
        the table."""

    def advance_horizon(self, snapshot: str) -> None:
        """The SELECT of every window that opens from now on sees what `snapshot` sees."""

    def show_table(self, table: str, start: str) -> None:
        """The log shows the table's rows from `start` on, a snapshot that was read since: what was logged before is
        nowhere remembered."""

    def may_open(self, table: str) -> bool:
        """Whether the SELECT of a window of the table that opens now sees all that was logged before it was shown."""

    def records_always(self) -> bool:
        """Whether events are remembered while no window is open."""

    def counts_as_unseen(self, entry: RecordedEvents, low: int, snapshot: str | None) -> bool: ...

    def is_certain(self, snapshot: str | None) -> bool:
        """Whether events that count as unseen were certainly not seen; otherwise the SELECT may have seen the first."""


class LogOrder:
    """Commits become visible in log order: events at or before the low watermark were seen."""

    def admits(self, snapshot: str | None, table: str = "") -> bool:
        return True

    def advance_horizon(self, snapshot: str) -> None:
        raise ValueError("a horizon where visibility follows the log's order")

    def show_table(self, table: str, start: str) -> None:
        raise ValueError("a snapshot where visibility follows the log's order")

    def may_open(self, table: str) -> bool:
        return True

    def records_always(self) -> bool:
        return False

    def counts_as_unseen(self, entry: RecordedEvents, low: int, snapshot: str | None) -> bool:
        return entry.offset > low

    def is_certain(self, snapshot: str | None) -> bool:
        return False


class Snapshots:
    """The SELECT's own snapshot tells; without one it was a standby's, which shows commits in the log's order.

    `start`: a snapshot read when the log was first opened. What was logged before is nowhere remembered, so a chunk
    counts only if its snapshot sees all of it. None: every SELECT does. `starts`: the same of tables that the log shows
    since a later moment, or whose rows were passed over up to then.
    """

    def __init__(self, start: str | None, starts: Mapping[str, str] | None = None) -> None:
        self._start = start
        self._settled = start is None
        self._starts = dict(starts or {})
        self._unsettled = set(self._starts)

    @property
    def start(self) -> str | None:
        """What a restart must ask of windows that open from now on."""
        return None if self._settled else self._start

    @property
    def starts(self) -> dict[str, str]:
        """The same of single tables."""
        return {table: self._starts[table] for table in sorted(self._unsettled)}

    def show_table(self, table: str, start: str) -> None:
        self._starts[table] = start
        self._unsettled.add(table)

    def may_open(self, table: str) -> bool:
        # Its SELECT alone could see all of it sooner. But as long as a horizon does not, rows that were recorded before
        # count as unseen, and a dump that begins would not find out that one of them has been deleted meanwhile.
        return table not in self._unsettled

    def admits(self, snapshot: str | None, table: str = "") -> bool:
        if snapshot is None:
            return True
        starts = (self._start, self._starts.get(table))
        return all(_is_later(snapshot, start) for start in starts if start is not None)

    def advance_horizon(self, snapshot: str) -> None:
        # A window that is open may be older: it is still asked.
        self._settled = self._settled or self.admits(snapshot)
        self._unsettled = {table for table in self._unsettled if not _is_later(snapshot, self._starts[table])}

    def records_always(self) -> bool:
        return True

    def counts_as_unseen(self, entry: RecordedEvents, low: int, snapshot: str | None) -> bool:
        if entry.xid is None:
            raise ValueError("an event of PostgreSQL without a transaction id")
        if snapshot is None:
            return entry.offset > low
        seen = Snapshot.parse(snapshot)
        return not (seen.sees(entry.xid) if entry.last_xid is None else seen.sees_all(entry.xid, entry.last_xid))

    def is_certain(self, snapshot: str | None) -> bool:
        return snapshot is not None


def _is_later(snapshot: str, start: str) -> bool:
    """Whether the snapshot sees all that was committed, or had begun, as the other was read."""
    return Snapshot.parse(snapshot).xmin >= Snapshot.parse(start).xmax
