"""Windows: which rows of a chunk the log already knows better (DBLog, section 3.3; our DESIGN in ARCHITECTURE.md).

Theory of operation. A chunk may be placed at any point of the log at or after its SELECT, if every row is evicted whose
key has an event that the SELECT may not have seen, up to that point. What is evicted is in the log already; what
survives is the state at that point. A `Visibility` says which events those are:

- `LogOrder` (MySQL, MariaDB): commits become visible in log order, so all that lies before the low watermark was seen.
  What counts is the stretch between low and high.
- `Snapshots` (PostgreSQL): a transaction may be in the log and not yet visible, even before the low watermark. What
  counts is every event from a transaction that the SELECT's own snapshot does not see. So events are remembered until
  a *horizon* (a snapshot of the server, read before some place in the log) sees their transaction, and longer while a
  window is open that was opened before that place: its SELECT may be older than the horizon.

A hot standby of PostgreSQL is of the first kind: it replays the log one record after the other, so that a commit shows
when its turn comes, and never out of the log's order. Its snapshot names no running transactions, and would have those
count as seen that are half replayed: a chunk from a standby comes without one, and `LogOrder` judges it, also where
`Snapshots` judges the others. The log of a standby, too, is what it has replayed: nothing in it is still to become
visible there. Where a standby is promoted, commits are logged by others and become visible later: whatever goes by the
log's order ends then, and the log is opened again (`sources/postgres/standby.py`).

Where nothing may be written (`read_only`), a window is announced in the state store instead, and the log's positions
stand in for watermarks. Each of four steps is needed:

1. The capture *opens* the window between two transactions, at the place that it has read, and only then says so: it
   collects from there on. One that did not see the announcement, or met one that another term has answered, has no
   window: what was logged in between, it would not know. The worker tells with its chunk which answer it went by.
2. The worker waits until all before that place is *visible* to it (`ChunkReader.sees`): an event is in the log, and
   read by the capture, before its commit shows. Under `LogOrder` the window's low offset is then what a low watermark
   makes of it. Under `Snapshots` there is nothing to wait for: the snapshot says which events the SELECT has seen. A
   standby is waited for until it has replayed up to that place, whose log it is whether the capture reads it there or
   on the primary.
3. The SELECT may have seen anything that was logged by the time at which it ended. So the worker reads the log's *end*
   after it: a place after whatever can have been visible. That is not the set of transactions that the server calls
   executed: MySQL shows a commit before it is in that set. Nor is it what PostgreSQL has flushed: a commit that does
   that does not wait for its flush is visible before it. Nor what a standby says it has replayed: a commit shows while
   its record is being replayed, and is counted when that is done.
4. The capture places the chunk once it has *passed* that end, between two transactions, and evicts what it has
   collected up to there. That the position is past the end is the test, not a next event: heartbeats, keepalives and
   other tables move it, and on an idle server it is past the end at once.

Nobody waits for a window but its worker, and whatever goes wrong (a restart, a takeover, an answer that is lost) ends
as with watermarks: no window is open, and the chunk is read again.

Eviction goes by column. An update may leave columns out (`unchanged`): for a row that nobody has seen before, the log
then does not hold what eviction would remove. So each touched row is followed through its events, over changes of its
key; columns that no event has set survive, under the row's last key.

Offsets order everything here; there is no clock and no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from dblog_core.algorithm.eviction import Overlap, Touches, follow, incomplete_moves
from dblog_core.algorithm.visibility import RecordedEvents, Snapshot, Visibility
from dblog_core.model.schema import TableName
from dblog_core.model.values import Key

ROW_EVENTS = 200_000
"""Row events of one table that are remembered at most: some 40 MB of keys."""


@dataclass(frozen=True, slots=True)
class _Window:
    table: TableName
    low: int


class UnknownWindow(LookupError):
    """A window that was never opened here: its low watermark lies before our start, or it was discarded."""


class TooManyKeys(LookupError):
    """The chunk's SELECT did not see events whose keys were too many to remember."""


class Windows:
    """The open windows of all tables and the events that they may need: at most `limit` row events of a table."""

    def __init__(self, visibility: Visibility, *, limit: int = ROW_EVENTS) -> None:
        self._visibility = visibility
        self._limit = limit
        self._windows: dict[str, _Window] = {}
        self._memory: dict[TableName, deque[RecordedEvents]] = {}
        self._counts: dict[TableName, int] = {}  # row events in the memory of each table

    def open(self, window: str, table: TableName, offset: int) -> None:
        """The low watermark stands right after `offset`. Raises ValueError if the window is open already."""
        if window in self._windows:
            raise ValueError(f"window {window} was opened twice")
        self._windows[window] = _Window(table, offset)

    @property
    def tables(self) -> set[TableName]:
        """Those of which a window is open."""
        return {window.table for window in self._windows.values()}

    def discard(self, window: str) -> None:
        """Forgets a window that will not be placed; no error if it is not open."""
        discarded = self._windows.pop(window, None)
        if discarded is not None:
            self._prune(discarded.table)

    def wants(self, table: TableName) -> bool:
        """Whether row events of the table must be recorded now."""
        return self._visibility.records_always() or any(w.table == table for w in self._windows.values())

    def record(
        self,
        table: TableName,
        offsets: tuple[int, int],
        xid: int | None,
        touches: Touches | None,
        *,
        arrives: bool = True,
    ) -> None:
        """Row events of one transaction (None: a TRUNCATE), the first and the last of them at `offsets`; `arrives`:
        whether there may be `incomplete_moves` among them."""
        if not self.wants(table):
            return
        memory = self._memory.setdefault(table, deque())
        memory.append(RecordedEvents(*offsets, xid, touches, arrives=arrives))
        self._counts[table] = self._counts.get(table, 0) + (0 if touches is None else len(touches))
        if self._counts[table] > self._limit:
            for entry in memory:
                entry.lost = entry.lost or entry.touches is not None
                entry.touches = None
            self._counts[table] = 0
            if not self._visibility.records_always():
                self._memory[table] = self._join_lost(table, memory, _both)

    def _join_lost(self, table: TableName, memory: deque[RecordedEvents], join: _Join) -> deque[RecordedEvents]:
        """The memory with one entry for neighbours that are lost, as far as `join` has one for two: otherwise a window
        that stays open long collects one for each transaction. No low watermark lies between two that are joined, so
        by the log's order each window, open or to come, has seen both or neither."""
        lows = sorted(w.low for w in self._windows.values() if w.table == table)
        joined: deque[RecordedEvents] = deque()
        for entry in memory:
            both = None
            if joined and joined[-1].lost and entry.lost:
                before = joined[-1]
                both = None if _has_window_between(lows, before.offset, entry.offset) else join(before, entry)
            if both is None:
                joined.append(entry)
            else:
                joined[-1] = both
        return joined

    def close(self, window: str, snapshot: str | None) -> Overlap:
        """The high watermark: what the log holds that the chunk's SELECT may not have seen.

        Raises UnknownWindow or TooManyKeys; the window is closed in any case.
        """
        if (opened := self._windows.pop(window, None)) is None:
            raise UnknownWindow(window)
        memory = self._memory.get(opened.table, ())
        unseen = [e for e in memory if self._visibility.counts_as_unseen(e, opened.low, snapshot)]
        self._prune(opened.table)
        if any(e.lost for e in unseen):
            raise TooManyKeys(window)
        return follow((e.touches for e in unseen), certain=self._visibility.is_certain(snapshot))

    def close_probe(self, window: str, snapshot: str | None) -> int:
        """The high watermark of a verification: the largest offset, its low one's at most, before every event that its
        SELECT may not have seen. Raises UnknownWindow; the window is closed in any case."""
        if (opened := self._windows.pop(window, None)) is None:
            raise UnknownWindow(window)
        memory = self._memory.get(opened.table, ())
        unseen = [e.first - 1 for e in memory if self._visibility.counts_as_unseen(e, opened.low, snapshot)]
        self._prune(opened.table)
        return min([opened.low, *unseen])

    def advance_horizon(self, snapshot: str, offset: int) -> None:
        """Every SELECT of a window opened after `offset` sees what `snapshot` sees (PostgreSQL)."""
        seen = Snapshot.parse(snapshot)
        for table in list(self._memory):
            for entry in self._memory[table]:
                if entry.retired_at is None and entry.xid is not None and seen.sees(entry.xid):
                    entry.retired_at = offset
            if sum(entry.lost for entry in self._memory[table]) > 1:
                self._memory[table] = self._join_lost(table, self._memory[table], _Ended(seen).both)
            self._prune(table)

    def moves_after(self, table: TableName, after: int) -> Iterator[tuple[Key, Key]]:
        """The `incomplete_moves` of the table after offset `after`, by the remembered events. What is lost concerns no
        chunk: one whose SELECT did not see it is not placed."""
        later = (e for e in self._memory.get(table, ()) if e.offset > after and e.arrives)
        return incomplete_moves(chain.from_iterable(e.touches for e in later if e.touches is not None))

    def earliest_unseen(self, offset: int) -> int:
        """The largest offset, `offset` at most, before every event that a SELECT from now on may not see."""
        if not self._visibility.records_always():
            return offset
        first = (e.first for memory in self._memory.values() for e in memory if e.retired_at is None)
        return min([offset, *(o - 1 for o in first)])

    def _prune(self, table: TableName) -> None:
        """Drops what no open or later window of the table can need."""
        memory = self._memory.get(table)
        if memory is None:
            return
        lows = [w.low for w in self._windows.values() if w.table == table]
        oldest = min(lows, default=None)
        if self._visibility.records_always():
            needed = deque(e for e in memory if e.retired_at is None or (oldest is not None and oldest <= e.retired_at))
        else:
            needed = deque(e for e in memory if oldest is not None and e.offset > oldest)
        if len(needed) == len(memory):
            return
        if needed:
            self._memory[table] = needed
            self._counts[table] = sum(len(e.touches) for e in needed if e.touches is not None)
        else:
            del self._memory[table], self._counts[table]


_Join = Callable[[RecordedEvents, RecordedEvents], RecordedEvents | None]
"""One entry for two that are neighbours and lost; None where they must stay two."""


def _both(before: RecordedEvents, entry: RecordedEvents) -> RecordedEvents:
    """Where visibility follows the log's order."""
    return replace(before, offset=entry.offset)


@dataclass(frozen=True, slots=True)
class _Ended:
    """Joins transactions that a horizon sees, where none between their ids still runs by then.

    It would have the range count as unseen for as long as it runs. As none does, all of the range has ended, so
    that every snapshot from then on sees it: joined or not, later windows fare the same. One that was read before the
    horizon may count as unseen what it saw, and is read again.
    """

    horizon: Snapshot

    def both(self, before: RecordedEvents, entry: RecordedEvents) -> RecordedEvents | None:
        if before.retired_at is None or entry.retired_at is None or before.xid is None or entry.xid is None:
            return None
        ends = [self.horizon.widen(x) for e in (before, entry) for x in (e.xid, e.last_xid) if x is not None]
        if not self.horizon.sees_all(min(ends), max(ends)):
            return None
        retired = max(before.retired_at, entry.retired_at)
        return replace(before, offset=entry.offset, xid=min(ends), last_xid=max(ends), retired_at=retired)


def _has_window_between(lows: Sequence[int], first: int, second: int) -> bool:
    """Whether one of the low watermarks, by growing offset, stands behind offset `first` and before `second`."""
    return bisect_left(lows, first) < bisect_left(lows, second)
