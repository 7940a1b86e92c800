"""The deliberate mistakes in the real code, as patches; `mutants.py` says which small world shows each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dblog_core.algorithm import arriving_rows as arrivals_module
from dblog_core.algorithm import chunk_placement as chunks_module
from dblog_core.algorithm import eviction as eviction_module
from dblog_core.algorithm import window as window_module
from dblog_core.algorithm.chunk_placement import Chunks, Finished
from dblog_core.algorithm.eviction import Overlap, Survivor, Touch
from dblog_core.algorithm.range_cursor import RangeCursor
from dblog_core.algorithm.task_progress import TaskProgress, Tasks
from dblog_core.algorithm.visibility import LogOrder, RecordedEvents, Snapshots
from dblog_core.algorithm.window import Windows
from tests.protocol.capture import Capture
from tests.protocol.changelog import ChunkLine, LakeTable, Values


class ByOffsetAlone(LakeTable):
    def without_ghosts(
        self, rows: dict[int, tuple[Values, int]], since: int, chunks: tuple[ChunkLine, ...]
    ) -> dict[int, tuple[Values, int]]:
        return super().without_ghosts(rows, since, (ChunkLine(0, frozenset()),))


def no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "close", lambda self, window, snapshot: Overlap())


def short_at_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogOrder, "counts_as_unseen", lambda self, entry, low, snapshot: entry.offset > low + 1)


def short_at_high(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = eviction_module.follow
    monkeypatch.setattr(
        window_module, "follow", lambda stretches, *, certain: follow(list(stretches)[:-1], certain=certain)
    )


def after_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    step = eviction_module._step

    def mistaken_step(touch: Touch, *more: Any) -> None:
        step(touch if touch.moved_to is None else Touch(touch.moved_to), *more)

    monkeypatch.setattr(eviction_module, "_step", mistaken_step)


def whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    overlapping = chunks_module._overlapping

    def mistaken_step(*arguments: Any) -> Any:
        evicted, _, found_rows = overlapping(*arguments)
        return evicted, (), found_rows

    monkeypatch.setattr(chunks_module, "_overlapping", mistaken_step)


def survives_under_old_key(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = eviction_module.follow

    def mistaken_step(stretches: Any, *, certain: bool) -> Overlap:
        overlap = follow(stretches, certain=certain)
        overlap.rows = {k: None if rest is None else Survivor(k, rest.columns) for k, rest in overlap.rows.items()}
        return overlap

    monkeypatch.setattr(window_module, "follow", mistaken_step)


def always_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogOrder, "is_certain", lambda self, snapshot: True)


def truncate_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Windows.record

    def mistaken_step(self: Windows, table: Any, offsets: Any, xid: Any, touches: Any, **more: Any) -> None:
        if touches is not None:
            record(self, table, offsets, xid, touches, **more)

    monkeypatch.setattr(Windows, "record", mistaken_step)


def attempt_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    low = Tasks.admit_low
    high = Tasks.admit_high

    def open_any(self: Tasks, mark: Any, **more: Any) -> None:
        task = mark.mark.task
        if task in self._tasks:
            self._tasks[task] = replace(self._tasks[task], attempt=mark.mark.attempt, broken=0)
        low(self, mark, **more)

    def close_any(self: Tasks, mark: Any) -> None:
        progress = self._tasks.get(mark.mark.task, TaskProgress(mark.mark.table))
        self._tasks[mark.mark.task] = replace(progress, attempt=mark.mark.attempt, broken=0, ordinal=mark.mark.ordinal)
        high(self, mark)

    monkeypatch.setattr(Tasks, "admit_low", open_any)
    monkeypatch.setattr(Tasks, "admit_high", close_any)


def order_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    high = Tasks.admit_high

    def close_any(self: Tasks, mark: Any) -> None:
        if (progress := self._tasks.get(mark.mark.task)) is not None and not progress.done:
            self._tasks[mark.mark.task] = replace(progress, ordinal=mark.mark.ordinal)
        high(self, mark)

    monkeypatch.setattr(Tasks, "admit_high", close_any)


def window_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart, a chunk is placed though nobody has collected the keys of its window from its beginning."""
    high = Tasks.admit_high
    close = Windows.close

    def close_any(self: Tasks, mark: Any) -> None:
        self._windows.setdefault(mark.mark.window, mark.mark)
        high(self, mark)

    def nothing(self: Windows, window: str, snapshot: str | None) -> Overlap:
        return close(self, window, snapshot) if window in self._windows else Overlap()

    monkeypatch.setattr(Tasks, "admit_high", close_any)
    monkeypatch.setattr(Windows, "close", nothing)


def alter_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chunks, "void_windows_of", lambda self, table: None)


def since_at_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "earliest_unseen", lambda self, offset: offset)


def since_at_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unseen transaction counts from its last row on."""
    record = Windows.record

    def mistaken_step(self: Windows, table: Any, offsets: tuple[int, int], xid: Any, touches: Any, **more: Any) -> None:
        record(self, table, (offsets[1], offsets[1]), xid, touches, **more)

    monkeypatch.setattr(Windows, "record", mistaken_step)


def since_of_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = Chunks._finished

    def mistaken_step(self: Chunks, mark: Any) -> Finished | None:
        is_finished = finished(self, mark)
        return is_finished and replace(
            is_finished, since=max(p.since for p in self._tasks.of(is_finished.dump, mark.table))
        )

    monkeypatch.setattr(Chunks, "_finished", mistaken_step)


def finished_at_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = Chunks._finished
    monkeypatch.setattr(Chunks, "_finished", lambda self, mark: finished(self, replace(mark, parts=1)))


def evicted_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evicted rows do not count as seen."""
    placed = Capture._record_placed

    def mistaken_step(self: Capture, chunk: Any, placement: Any) -> None:
        placed(self, chunk, placement)
        *rest, last = self.now.chunks
        evicted = {chunk.rows[number][0] for number in placement.evicted}
        self.now = replace(self.now, chunks=(*rest, replace(last, keys=last.keys - evicted)))

    monkeypatch.setattr(Capture, "_record_placed", mistaken_step)


def absent_though_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    high = Chunks.place_chunk

    def mistaken_step(self: Chunks, mark: Any, *, absent: Any, **more: Any) -> Any:
        return replace(high(self, mark, absent=absent, **more), deleted=tuple(absent()))

    monkeypatch.setattr(Chunks, "place_chunk", mistaken_step)


def absent_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    high = Chunks.place_chunk
    monkeypatch.setattr(Chunks, "place_chunk", lambda self, mark, **more: high(self, mark, **{**more, "absent": tuple}))


def start_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Snapshots, "admits", lambda self, snapshot, table="": True)


def opens_before_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk's own snapshot is asked, and no horizon is awaited."""
    monkeypatch.setattr(Snapshots, "may_open", lambda self, table: True)


def settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def horizon(self: Snapshots, snapshot: str) -> None:
        if self.admits(snapshot):
            self._start = None

    monkeypatch.setattr(Snapshots, "advance_horizon", horizon)


def horizon_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a horizon sees is forgotten, also where a window is open that is older than it."""
    horizon = Windows.advance_horizon

    def mistaken_step(self: Windows, snapshot: str, offset: int) -> None:
        horizon(self, snapshot, -1)

    monkeypatch.setattr(Windows, "advance_horizon", mistaken_step)


def horizon_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that opened at the very offset of the horizon is taken for a later one."""
    horizon = Windows.advance_horizon
    monkeypatch.setattr(Windows, "advance_horizon", lambda self, snapshot, offset: horizon(self, snapshot, offset - 1))


def arrivals_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tasks, "record_moves", lambda self, table, moves: None)


def arrivals_before_the_low_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "moves_after", lambda self, table, after: iter(()))


def arrived_though_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key counts as brought by a SELECT that may not have seen the row arrive."""
    follow = eviction_module.follow

    def mistaken_step(stretches: Any, *, certain: bool) -> Overlap:
        return replace(follow(stretches, certain=certain), partial={})

    monkeypatch.setattr(window_module, "follow", mistaken_step)


def looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that has been brought is to be read at each key that it goes to."""
    moved = arrivals_module.follow_moves
    monkeypatch.setattr(
        arrivals_module,
        "follow_moves",
        lambda trails, moves, arrived_keys, *, all_read: moved(trails, moves, set(), all_read=False),
    )


def found_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that went on while its chunk was read is to be read at the key that it went to."""
    looked = arrivals_module.apply_look
    monkeypatch.setattr(
        arrivals_module,
        "apply_look",
        lambda trails, look, arrived_keys: looked(trails, replace(look, touched=set()), arrived_keys),
    )


def all_read_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows count as brought while ranges are left."""
    monkeypatch.setattr(Tasks, "_all_read", lambda self, tasks: True)


def left_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last task ends without the keys that were left for those before it."""
    monkeypatch.setattr(Tasks, "_trails_to_read", lambda self, task: self._tasks[task].arrived)


def every_look_meets_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    _count_looks_by(monkeypatch, lambda has_met_row: True)


def no_look_meets_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    _count_looks_by(monkeypatch, lambda has_met_row: False)


def _count_looks_by(monkeypatch: pytest.MonkeyPatch, mistaken: Callable[[bool], bool]) -> None:
    record = Tasks.record_placed_chunk

    def record_placed_chunk(self: Tasks, high: Any, *, has_met_row: bool = False, **more: Any) -> TaskProgress:
        return record(self, high, has_met_row=mistaken(has_met_row), **more)

    monkeypatch.setattr(Tasks, "record_placed_chunk", record_placed_chunk)


def forgotten_are_seen(visibility: type[LogOrder | Snapshots], monkeypatch: pytest.MonkeyPatch) -> None:
    real = visibility.counts_as_unseen

    def counts_as_unseen(self: Any, event: RecordedEvents, low: int, snapshot: str | None) -> bool:
        return not event.lost and real(self, event, low, snapshot)

    monkeypatch.setattr(visibility, "counts_as_unseen", counts_as_unseen)


def forgotten_are_joined_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(self: object, before: RecordedEvents, entry: RecordedEvents) -> RecordedEvents:
        return replace(before, offset=entry.offset, retired_at=before.retired_at or entry.retired_at)

    monkeypatch.setattr(window_module._Ended, "both", both)


def end_at_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RangeCursor, "is_last", lambda self, last, *, is_short: True)
