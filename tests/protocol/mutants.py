"""Deliberate mistakes, each in the real code or in the part of it that the checker plays; the checker must find all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from dblog_core.algorithm import arriving_rows as arrivals_module
from dblog_core.algorithm import chunk_placement as chunks_module
from dblog_core.algorithm import eviction as eviction_module
from dblog_core.algorithm import window as window_module
from dblog_core.algorithm.chunk_placement import Chunks, Finished
from dblog_core.algorithm.eviction import Overlap, Survivor, Touch
from dblog_core.algorithm.task_progress import TaskProgress, Tasks
from dblog_core.algorithm.visibility import LogOrder, RecordedEvents, Snapshots
from dblog_core.algorithm.window import Windows
from tests.protocol.capture import Capture, Rules
from tests.protocol.changelog import ChunkLine, LakeTable, Values
from tests.protocol.read_only import read_only
from tests.protocol.scenarios import (
    ALTER,
    ALTER_AND_PUT,
    BESIDE,
    BOTH,
    IN_TURN,
    MOVE,
    OTHER,
    PART,
    PUT,
    THIRD,
    TRUNCATE,
    WHOLE,
    script,
)
from tests.protocol.source import Script, Visible
from tests.protocol.world import Scenario

Patch = Callable[[pytest.MonkeyPatch], None]
ATOMIC = Visible.ATOMIC
LOG_ORDER = Visible.LOG_ORDER
ANY_ORDER = Visible.ANY_ORDER


@dataclass(frozen=True)
class Mutant:
    """A mistake, and the small world that shows it."""

    name: str
    scenario: Scenario
    rules: Rules = field(default_factory=Rules)
    patch: Patch = lambda monkeypatch: None


def world(visible: Visible, *scripts: Script, **more: Any) -> Scenario:
    return Scenario("mutant", visible, scripts, **{"tasks": WHOLE, **more})


def announced(visible: Visible, *scripts: Script, **more: Any) -> Scenario:
    return read_only(world(visible, *scripts, **more))


class ByOffsetAlone(LakeTable):
    def without_ghosts(
        self, rows: dict[int, tuple[Values, int]], since: int, chunks: tuple[ChunkLine, ...]
    ) -> dict[int, tuple[Values, int]]:
        return super().without_ghosts(rows, since, (ChunkLine(0, frozenset()),))


def _no_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "close", lambda self, window, snapshot: Overlap())


def _short_at_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogOrder, "counts_as_unseen", lambda self, entry, low, snapshot: entry.offset > low + 1)


def _short_at_high(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = eviction_module.follow
    monkeypatch.setattr(
        window_module, "follow", lambda stretches, *, certain: follow(list(stretches)[:-1], certain=certain)
    )


def _after_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    step = eviction_module._step

    def mutated(touch: Touch, *more: Any) -> None:
        step(touch if touch.moved_to is None else Touch(touch.moved_to), *more)

    monkeypatch.setattr(eviction_module, "_step", mutated)


def _whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    overlapping = chunks_module._overlapping

    def mutated(*arguments: Any) -> Any:
        evicted, _, found = overlapping(*arguments)
        return evicted, (), found

    monkeypatch.setattr(chunks_module, "_overlapping", mutated)


def _survives_under_old_key(monkeypatch: pytest.MonkeyPatch) -> None:
    follow = eviction_module.follow

    def mutated(stretches: Any, *, certain: bool) -> Overlap:
        overlap = follow(stretches, certain=certain)
        overlap.rows = {k: None if rest is None else Survivor(k, rest.columns) for k, rest in overlap.rows.items()}
        return overlap

    monkeypatch.setattr(window_module, "follow", mutated)


def _always_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogOrder, "is_certain", lambda self, snapshot: True)


def _truncate_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Windows.record

    def mutated(self: Windows, table: Any, offsets: Any, xid: Any, touches: Any, **more: Any) -> None:
        if touches is not None:
            record(self, table, offsets, xid, touches, **more)

    monkeypatch.setattr(Windows, "record", mutated)


def _attempt_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    low = Tasks.admit_low
    high = Tasks.admit_high

    def open_any(self: Tasks, mark: Any, **more: Any) -> None:
        task = mark.mark.task
        if task in self._tasks:
            self._tasks[task] = replace(self._tasks[task], attempt=mark.mark.attempt, broken=0)
        low(self, mark, **more)

    def close_any(self: Tasks, mark: Any) -> None:
        known = self._tasks.get(mark.mark.task, TaskProgress(mark.mark.table))
        self._tasks[mark.mark.task] = replace(known, attempt=mark.mark.attempt, broken=0, ordinal=mark.mark.ordinal)
        high(self, mark)

    monkeypatch.setattr(Tasks, "admit_low", open_any)
    monkeypatch.setattr(Tasks, "admit_high", close_any)


def _order_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    high = Tasks.admit_high

    def close_any(self: Tasks, mark: Any) -> None:
        if (known := self._tasks.get(mark.mark.task)) is not None and not known.done:
            self._tasks[mark.mark.task] = replace(known, ordinal=mark.mark.ordinal)
        high(self, mark)

    monkeypatch.setattr(Tasks, "admit_high", close_any)


def _window_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
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


def _alter_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chunks, "void_windows_of", lambda self, table: None)


def _since_at_low(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "earliest_unseen", lambda self, offset: offset)


def _since_at_last_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unseen transaction counts from its last row on."""
    record = Windows.record

    def mutated(self: Windows, table: Any, offsets: tuple[int, int], xid: Any, touches: Any, **more: Any) -> None:
        record(self, table, (offsets[1], offsets[1]), xid, touches, **more)

    monkeypatch.setattr(Windows, "record", mutated)


def _since_of_the_last_part(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = Chunks._finished

    def mutated(self: Chunks, mark: Any) -> Finished | None:
        found = finished(self, mark)
        return found and replace(found, since=max(p.since for p in self._tasks.of(found.dump, mark.table)))

    monkeypatch.setattr(Chunks, "_finished", mutated)


def _finished_at_first_part(monkeypatch: pytest.MonkeyPatch) -> None:
    finished = Chunks._finished
    monkeypatch.setattr(Chunks, "_finished", lambda self, mark: finished(self, replace(mark, parts=1)))


def _evicted_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evicted rows do not count as seen."""
    placed = Capture._placed

    def mutated(self: Capture, chunk: Any, placement: Any) -> None:
        placed(self, chunk, placement)
        *rest, last = self.now.chunks
        evicted = {chunk.rows[number][0] for number in placement.evicted}
        self.now = replace(self.now, chunks=(*rest, replace(last, keys=last.keys - evicted)))

    monkeypatch.setattr(Capture, "_placed", mutated)


def _absent_though_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    high = Chunks.place_chunk

    def mutated(self: Chunks, mark: Any, *, absent: Any, **more: Any) -> Any:
        return replace(high(self, mark, absent=absent, **more), deleted=tuple(absent()))

    monkeypatch.setattr(Chunks, "place_chunk", mutated)


def _absent_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    high = Chunks.place_chunk
    monkeypatch.setattr(Chunks, "place_chunk", lambda self, mark, **more: high(self, mark, **{**more, "absent": tuple}))


def _start_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Snapshots, "admits", lambda self, snapshot: True)


def _settled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def horizon(self: Snapshots, snapshot: str) -> None:
        if self.admits(snapshot):
            self._start = None

    monkeypatch.setattr(Snapshots, "advance_horizon", horizon)


def _horizon_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a horizon sees is forgotten, also where a window is open that is older than it."""
    horizon = Windows.advance_horizon

    def mutated(self: Windows, snapshot: str, offset: int) -> None:
        horizon(self, snapshot, -1)

    monkeypatch.setattr(Windows, "advance_horizon", mutated)


def _horizon_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that opened at the very offset of the horizon is taken for a later one."""
    horizon = Windows.advance_horizon
    monkeypatch.setattr(Windows, "advance_horizon", lambda self, snapshot, offset: horizon(self, snapshot, offset - 1))


def _arrivals_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tasks, "record_moves", lambda self, table, moves: None)


def _arrivals_before_the_low_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Windows, "moves_after", lambda self, table, after: iter(()))


def _arrived_though_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key counts as brought by a SELECT that may not have seen the row arrive."""
    follow = eviction_module.follow

    def mutated(stretches: Any, *, certain: bool) -> Overlap:
        return replace(follow(stretches, certain=certain), partial={})

    monkeypatch.setattr(window_module, "follow", mutated)


def _looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that has been brought is to be read at each key that it goes to."""
    moved = arrivals_module.follow_moves
    monkeypatch.setattr(
        arrivals_module,
        "follow_moves",
        lambda trails, moves, brought, *, all_read: moved(trails, moves, set(), all_read=False),
    )


def _found_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that went on while its chunk was read is to be read at the key that it went to."""
    looked = arrivals_module.apply_look
    monkeypatch.setattr(
        arrivals_module,
        "apply_look",
        lambda trails, look, brought: looked(trails, replace(look, touched=set()), brought),
    )


def _all_read_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows count as brought while ranges are left."""
    monkeypatch.setattr(Tasks, "_all_read", lambda self, tasks: True)


def _left_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last task ends without the keys that were left for those before it."""
    monkeypatch.setattr(Tasks, "_trails_to_read", lambda self, task: self._tasks[task].arrived)


AWAY = script(("move", 3, 1))
"""Out of a range that is still to be read, into one that has been."""


def _forgotten_are_seen(visibility: type[LogOrder | Snapshots], monkeypatch: pytest.MonkeyPatch) -> None:
    real = visibility.counts_as_unseen

    def counts_as_unseen(self: Any, event: RecordedEvents, low: int, snapshot: str | None) -> bool:
        return not event.lost and real(self, event, low, snapshot)

    monkeypatch.setattr(visibility, "counts_as_unseen", counts_as_unseen)


def _forgotten_are_joined_blindly(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(self: object, before: RecordedEvents, entry: RecordedEvents) -> RecordedEvents:
        return replace(before, offset=entry.offset, retired_at=before.retired_at or entry.retired_at)

    monkeypatch.setattr(window_module._Ended, "both", both)


MUTANTS = [
    Mutant("no window", world(ATOMIC, PUT), patch=_no_window),
    Mutant("a window that begins late", world(ATOMIC, PUT), patch=_short_at_low),
    Mutant("a window that ends early", world(ATOMIC, PUT), patch=_short_at_high),
    Mutant("a SELECT before the low watermark", world(ATOMIC, PUT), Rules(select_before_low=True)),
    Mutant("a retry that reuses old rows", world(ATOMIC, PUT, worker_crashes=1), Rules(reuse_rows=True)),
    Mutant("eviction by the after-key alone", world(ATOMIC, MOVE, tasks=IN_TURN), patch=_after_key_alone),
    Mutant("eviction of whole rows", world(ANY_ORDER, PART), patch=_whole_rows),
    Mutant("survivors under their old key", world(ANY_ORDER, MOVE, tasks=IN_TURN), patch=_survives_under_old_key),
    Mutant("survivors of a row that may be another", world(ATOMIC, MOVE, PUT, tasks=BESIDE), patch=_always_certain),
    Mutant("TRUNCATE ignored", world(ATOMIC, TRUNCATE), patch=_truncate_ignored),
    Mutant("attempts not checked", world(ATOMIC, PUT, tasks=IN_TURN, worker_crashes=1), patch=_attempt_not_checked),
    Mutant("order of chunks not checked", world(ATOMIC, tasks=IN_TURN, worker_crashes=1), patch=_order_not_checked),
    Mutant("window not required", world(ATOMIC, PUT, capture_crashes=1), patch=_window_not_required),
    Mutant("a chunk placed after later events", world(ATOMIC, PUT), Rules(place_late=True)),
    Mutant("the paper's rule under any order", world(ANY_ORDER, PUT), Rules(log_order_always=True)),
    Mutant("memory lost at a restart", world(ANY_ORDER, PUT, capture_crashes=1), Rules(forget_at_restart=True)),
    Mutant(
        "what was before the log's start ignored", world(ANY_ORDER, PUT, OTHER, opened_late=True), patch=_start_ignored
    ),
    Mutant(
        "settled while an older window is open",
        world(ANY_ORDER, PUT, OTHER, opened_late=True, horizons=1),
        patch=_settled_at_once,
    ),
    Mutant("a horizon that forgets too much", world(ANY_ORDER, PUT, horizons=1), patch=_horizon_forgets),
    Mutant("a horizon at a window's own offset", world(ANY_ORDER, PUT, horizons=1), patch=_horizon_ties),
    Mutant("ghosts by offset alone", world(ATOMIC), Rules(lake=ByOffsetAlone)),
    Mutant("ghosts forget evicted rows", world(ATOMIC, script(("same", 1))), patch=_evicted_unseen),
    Mutant("ghosts forget inserts that no SELECT saw", world(ANY_ORDER, THIRD), patch=_since_at_low),
    Mutant("an unseen insert counts from its last row", world(ANY_ORDER, BOTH, rows=(1,)), patch=_since_at_last_row),
    Mutant(
        "ghosts since the last part began",
        world(ATOMIC, script(("move", 2, 1)), rows=(2,), tasks=BESIDE),
        patch=_since_of_the_last_part,
    ),
    Mutant("ghosts after the first part", world(ATOMIC, tasks=BESIDE, merges=1), patch=_finished_at_first_part),
    Mutant("arrivals ignored", world(ATOMIC, AWAY, tasks=IN_TURN, rows=(3,), stale=True), patch=_arrivals_ignored),
    Mutant(
        "arrivals ignored that no SELECT has seen at the first low watermark",
        world(ANY_ORDER, AWAY, tasks=IN_TURN, rows=(3,), stale=True),
        patch=_arrivals_before_the_low_ignored,
    ),
    Mutant(
        "an arrival that a SELECT has not seen",
        world(ATOMIC, AWAY, MOVE, AWAY, tasks=IN_TURN, rows=(3,), stale=True),
        patch=_arrived_though_unseen,
    ),
    Mutant(
        "arrivals left to tasks that are done",
        world(ATOMIC, AWAY, tasks=BESIDE, rows=(3,), stale=True),
        patch=_left_to_the_others,
    ),
    Mutant(
        "a row that was brought is looked for wherever it goes",
        world(ATOMIC, AWAY, script(("move", 2, 3)), tasks=IN_TURN, rows=(2, 3), stale=True),
        patch=_looked_for_again,
    ),
    Mutant(
        "a row that moves on inside its window is looked for again",
        world(ANY_ORDER, AWAY, script(("move", 1, 2)), tasks=IN_TURN, rows=(3,), stale=True, restless=True),
        patch=_found_where_it_was,
    ),
    Mutant(
        "rows that move while ranges are left count as brought",
        world(ATOMIC, AWAY, tasks=IN_TURN, rows=(3,), stale=True),
        patch=_all_read_too_early,
    ),
    Mutant(
        "events whose keys are forgotten count as seen, log order",
        world(ATOMIC, BOTH, memory=1),
        patch=partial(_forgotten_are_seen, LogOrder),
    ),
    Mutant(
        "events whose keys are forgotten count as seen, snapshots",
        world(ANY_ORDER, PUT, memory=0),
        patch=partial(_forgotten_are_seen, Snapshots),
    ),
    Mutant(
        "forgotten events are one, whatever a horizon sees of them",
        world(ANY_ORDER, PUT, OTHER, memory=0, horizons=1),
        patch=_forgotten_are_joined_blindly,
    ),
    Mutant("DDL ignored", world(ATOMIC, ALTER_AND_PUT), patch=_alter_ignored),
    Mutant("DDL that a chunk alone tells of ignored", world(ATOMIC, ALTER, tasks=BESIDE), Rules(ignore_alter=True)),
    Mutant(
        "a requested key deleted though it was born", world(ATOMIC, THIRD, listed=True), patch=_absent_though_touched
    ),
    Mutant("a requested key that is gone stays", world(ATOMIC, listed=True, ghosts=(3,)), patch=_absent_ignored),
    Mutant(
        "acknowledging before publishing",
        world(ATOMIC, PUT, publish=1, capture_crashes=1),
        Rules(acknowledge_early=True),
    ),
    Mutant("two leaders without fencing", world(ATOMIC, PUT, publish=2, takeovers=1), Rules(no_fencing=True)),
    Mutant("a SELECT before its window is open", announced(ATOMIC, PUT), Rules(select_unopened=True)),
    Mutant(
        "a window opened again, late, after a restart",
        announced(ATOMIC, PUT, capture_crashes=1),
        Rules(open_answered=True),
    ),
    Mutant("a SELECT that may not see what is read", announced(LOG_ORDER, PUT), Rules(visible_unawaited=True)),
    Mutant(
        "a standby that has not replayed so far", world(ANY_ORDER, PUT, standby=True), Rules(visible_unawaited=True)
    ),
    Mutant(
        "a standby that has not replayed what is read",
        announced(ANY_ORDER, PUT, standby=True),
        Rules(visible_unawaited=True),
    ),
    Mutant(
        "a standby's snapshot believed",
        world(ANY_ORDER, PUT, OTHER, standby=True),
        Rules(standbys_snapshot=True),
    ),
    Mutant("the second position not awaited", announced(ATOMIC, PUT), Rules(end_unawaited=True)),
    Mutant("a second position before what was seen", announced(LOG_ORDER, PUT), Rules(end_early=True)),
    Mutant("a window closed early, at its second position", announced(ATOMIC, PUT), Rules(close_at_end=True)),
    Mutant("a chunk placed by the next event alone", announced(ATOMIC), Rules(wait_for_event=True)),
    Mutant(
        "a chunk forgotten before it is published",
        announced(ATOMIC, publish=2, capture_crashes=1),
        Rules(forget_unpublished=True),
    ),
]
