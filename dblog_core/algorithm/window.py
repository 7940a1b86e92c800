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
   makes of it. Under `Snapshots` nothing is to be waited for: the snapshot tells. A standby is waited for until it has
   replayed up to that place, whose log it is whether the capture reads it there or on the primary.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from typing import Protocol

from dblog_core.model.schema import TableName
from dblog_core.model.values import Key

ROW_EVENTS = 200_000
"""Row events of one table that are remembered at most: some 40 MB of keys."""


@dataclass(frozen=True, slots=True)
class Touch:
    """One row event: the key it concerns, the columns it left out, and the new key where it changed the key.

    A delete or an insert leaves nothing out.
    """

    key: Key
    unchanged: frozenset[str] = frozenset()
    moved_to: Key | None = None


def incomplete_moves(touches: Iterable[Touch]) -> Iterator[tuple[Key, Key]]:
    """The old and the new key of rows that changed it while the log left columns of them out."""
    return ((touch.key, touch.moved_to) for touch in touches if touch.moved_to is not None and touch.unchanged)


class Touches(Protocol):
    """Row events of one table in one transaction, in log order; made from columns only when somebody asks."""

    def __iter__(self) -> Iterator[Touch]: ...

    def __len__(self) -> int: ...


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
        """Whether every transaction of these ids, ends included, has ended by now, so that all that committed are
        visible."""
        lowest, highest = self.widen(first), self.widen(last)
        return highest < self.xmin or (highest < self.xmax and not any(lowest <= x <= highest for x in self.running))

    def widen(self, xid: int) -> int:
        """The 64-bit id nearest to the snapshot's own: a log and a snapshot are never 2^31 transactions apart."""
        return self.xmax + ((xid - self.xmax + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


@dataclass(slots=True)
class _Entry:
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


@dataclass(frozen=True, slots=True)
class _Window:
    table: TableName
    low: int


@dataclass(slots=True)
class _Track:
    """A row, followed through the log from the key `first` on, which it has in the chunk if it is there (None: the row
    that is there may be another). `left_out` None: no event yet; empty: wholly overwritten."""

    first: Key | None
    current: Key
    left_out: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Survivor:
    """What is left of an evicted row: columns that no event has set, and the key the row has now."""

    key: Key
    columns: frozenset[str]


@dataclass(slots=True)
class Overlap:
    """What the log holds of a chunk's rows that its SELECT may not have seen.

    `everything`: the table was truncated. `rows`: key in the chunk -> what survives of it (None: nothing).
    `touched`: every key that an event concerned, by its old or its new value. `partial`: where rows are of which these
    events alone do not tell all, and the key that such a row has in the chunk, if it is there (None: nobody knows).
    """

    everything: bool = False
    rows: dict[Key, Survivor | None] = field(default_factory=dict)
    touched: set[Key] = field(default_factory=set)
    partial: dict[Key, Key | None] = field(default_factory=dict)


class UnknownWindow(LookupError):
    """A window that was never opened here: its low watermark lies before our start, or it was discarded."""


class TooManyKeys(LookupError):
    """The chunk's SELECT did not see events whose keys were too many to remember."""


class Visibility(Protocol):
    """Which remembered events a chunk's SELECT may not have seen."""

    def admits(self, snapshot: str | None) -> bool:
        """Whether the SELECT saw every event that was logged before the log was first opened."""

    def horizon(self, snapshot: str) -> None:
        """The SELECT of every window that opens from now on sees what `snapshot` sees."""

    def records_always(self) -> bool:
        """Whether events are remembered while no window is open."""

    def unseen(self, entry: _Entry, low: int, snapshot: str | None) -> bool: ...

    def knows(self, snapshot: str | None) -> bool:
        """Whether `unseen` events were certainly not seen; otherwise the SELECT may have seen the first of them."""


class LogOrder:
    """Commits become visible in log order: events at or before the low watermark were seen."""

    def admits(self, snapshot: str | None) -> bool:
        return True

    def horizon(self, snapshot: str) -> None:
        raise ValueError("a horizon where visibility follows the log's order")

    def records_always(self) -> bool:
        return False

    def unseen(self, entry: _Entry, low: int, snapshot: str | None) -> bool:
        return entry.offset > low

    def knows(self, snapshot: str | None) -> bool:
        return False


class Snapshots:
    """The SELECT's own snapshot tells; without one it was a standby's, which shows commits in the log's order.

    `start`: a snapshot read when the log was first opened. What was logged before is nowhere remembered, so a chunk
    counts only if its snapshot sees all of it. None: every SELECT does.
    """

    def __init__(self, start: str | None) -> None:
        self._start = start
        self._settled = start is None

    @property
    def start(self) -> str | None:
        """What a restart must ask of windows that open from now on."""
        return None if self._settled else self._start

    def admits(self, snapshot: str | None) -> bool:
        if self._start is None or snapshot is None:
            return True
        return Snapshot.parse(snapshot).xmin >= Snapshot.parse(self._start).xmax

    def horizon(self, snapshot: str) -> None:
        self._settled = self._settled or self.admits(snapshot)  # a window that is open may be older: it is still asked

    def records_always(self) -> bool:
        return True

    def unseen(self, entry: _Entry, low: int, snapshot: str | None) -> bool:
        if entry.xid is None:
            raise ValueError("an event of PostgreSQL without a transaction id")
        if snapshot is None:
            return entry.offset > low
        seen = Snapshot.parse(snapshot)
        return not (seen.sees(entry.xid) if entry.last_xid is None else seen.sees_all(entry.xid, entry.last_xid))

    def knows(self, snapshot: str | None) -> bool:
        return snapshot is not None


class Windows:
    """The open windows of all tables and the events that they may need: at most `limit` row events of a table."""

    def __init__(self, visibility: Visibility, *, limit: int = ROW_EVENTS) -> None:
        self._visibility, self._limit = visibility, limit
        self._windows: dict[str, _Window] = {}
        self._memory: dict[TableName, deque[_Entry]] = {}
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
        if (gone := self._windows.pop(window, None)) is not None:
            self._prune(gone.table)

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
        memory.append(_Entry(*offsets, xid, touches, arrives=arrives))
        self._counts[table] = self._counts.get(table, 0) + (0 if touches is None else len(touches))
        if self._counts[table] > self._limit:
            for entry in memory:
                entry.lost, entry.touches = entry.lost or entry.touches is not None, None
            self._counts[table] = 0
            if not self._visibility.records_always():
                self._memory[table] = self._joined(table, memory, _both)

    def _joined(self, table: TableName, memory: deque[_Entry], join: _Join) -> deque[_Entry]:
        """The memory with one entry for neighbours that are lost, as far as `join` has one for two: otherwise a window
        that stays open long collects one for each transaction. No low watermark lies between two that are joined, so
        by the log's order each window, open or to come, has seen both or neither."""
        lows = sorted(w.low for w in self._windows.values() if w.table == table)
        joined: deque[_Entry] = deque()
        for entry in memory:
            before, both = joined[-1] if joined else None, None
            if before is not None and before.lost and entry.lost and not _divided(lows, before.offset, entry.offset):
                both = join(before, entry)
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
        unseen = [e for e in memory if self._visibility.unseen(e, opened.low, snapshot)]
        self._prune(opened.table)
        if any(e.lost for e in unseen):
            raise TooManyKeys(window)
        return follow((e.touches for e in unseen), certain=self._visibility.knows(snapshot))

    def since(self, window: str, snapshot: str | None) -> int:
        """The high watermark of a verification: the largest offset, its low one's at most, before every event that its
        SELECT may not have seen. Raises UnknownWindow; the window is closed in any case."""
        if (opened := self._windows.pop(window, None)) is None:
            raise UnknownWindow(window)
        memory = self._memory.get(opened.table, ())
        unseen = [e.first - 1 for e in memory if self._visibility.unseen(e, opened.low, snapshot)]
        self._prune(opened.table)
        return min([opened.low, *unseen])

    def horizon(self, snapshot: str, offset: int) -> None:
        """Every SELECT of a window opened after `offset` sees what `snapshot` sees (PostgreSQL)."""
        seen = Snapshot.parse(snapshot)
        for table in list(self._memory):
            for entry in self._memory[table]:
                if entry.retired_at is None and entry.xid is not None and seen.sees(entry.xid):
                    entry.retired_at = offset
            if sum(entry.lost for entry in self._memory[table]) > 1:
                self._memory[table] = self._joined(table, self._memory[table], _Ended(seen).both)
            self._prune(table)

    def arrived(self, table: TableName, after: int) -> Iterator[tuple[Key, Key]]:
        """The `incomplete_moves` of the table after offset `after`, by the remembered events. What is lost concerns no
        chunk: one whose SELECT did not see it is not placed."""
        found = (e for e in self._memory.get(table, ()) if e.offset > after and e.arrives)
        return incomplete_moves(chain.from_iterable(e.touches for e in found if e.touches is not None))

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
            kept = deque(e for e in memory if e.retired_at is None or (oldest is not None and oldest <= e.retired_at))
        else:
            kept = deque(e for e in memory if oldest is not None and e.offset > oldest)
        if len(kept) == len(memory):
            return
        if kept:
            self._memory[table] = kept
            self._counts[table] = sum(len(e.touches) for e in kept if e.touches is not None)
        else:
            del self._memory[table], self._counts[table]


_Join = Callable[[_Entry, _Entry], _Entry | None]
"""One entry for two that are neighbours and lost; None where they must stay two."""


def _both(before: _Entry, entry: _Entry) -> _Entry:
    """Where visibility follows the log's order."""
    return replace(before, offset=entry.offset)


@dataclass(frozen=True, slots=True)
class _Ended:
    """Joins transactions that a horizon sees, where none between their ids still runs by then.

    Such a one would have the range count as unseen for as long as it runs. As none does, all of the range has ended, so
    that every snapshot from then on sees it: joined or not, later windows fare the same. One that was read before the
    horizon may count as unseen what it saw, and is read again.
    """

    horizon: Snapshot

    def both(self, before: _Entry, entry: _Entry) -> _Entry | None:
        if before.retired_at is None or entry.retired_at is None or before.xid is None or entry.xid is None:
            return None
        ends = [self.horizon.widen(x) for e in (before, entry) for x in (e.xid, e.last_xid) if x is not None]
        if not self.horizon.sees_all(min(ends), max(ends)):
            return None
        retired = max(before.retired_at, entry.retired_at)
        return replace(before, offset=entry.offset, xid=min(ends), last_xid=max(ends), retired_at=retired)


def _divided(lows: Sequence[int], first: int, second: int) -> bool:
    """Whether one of the low watermarks, by growing offset, stands behind offset `first` and before `second`."""
    return bisect_left(lows, first) < bisect_left(lows, second)


def follow(stretches: Iterable[Touches | None], *, certain: bool) -> Overlap:
    """Follows rows through events in log order; None among them is a TRUNCATE.

    `certain`: the chunk was read before all of them. Otherwise the row that it has under a key may be a later one than
    that which left the key; nothing of such a row survives.
    """
    overlap = Overlap()
    tracks: dict[Key, _Track] = {}  # by the key that the row has in the chunk
    current: dict[Key, _Track] = {}  # by the key that it has now
    for stretch in stretches:
        if stretch is None:
            overlap.everything = True
            continue
        for touch in stretch:
            _step(touch, tracks, current, certain)
            overlap.touched.add(touch.key)
            if touch.moved_to is not None:
                overlap.touched.add(touch.moved_to)
    for key, track in tracks.items():
        overlap.rows[key] = Survivor(track.current, track.left_out) if track.left_out else None
    overlap.partial = {key: track.first for key, track in current.items() if track.left_out}
    return overlap


def _step(touch: Touch, tracks: dict[Key, _Track], current: dict[Key, _Track], certain: bool) -> None:
    track = current.pop(touch.key, None)
    if track is None and touch.key not in tracks:
        track = tracks[touch.key] = _Track(touch.key, touch.key)
    if touch.moved_to is not None and touch.moved_to not in tracks:
        # A row of the chunk with the new key, if there is one, had to go before this: nothing of it survives.
        tracks[touch.moved_to] = _Track(touch.moved_to, touch.moved_to, frozenset())
    if track is None:  # a later row under a key that the chunk's row has left
        if not certain:
            tracks[touch.key].first = None
            tracks[touch.key] = _Track(touch.key, touch.key, frozenset())
        return
    track.left_out = touch.unchanged if track.left_out is None else track.left_out & touch.unchanged
    if track.left_out:
        track.current = touch.key if touch.moved_to is None else touch.moved_to
        current[track.current] = track
