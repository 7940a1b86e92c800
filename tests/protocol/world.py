"""The checker's world: a source, dump workers, captures and a merge, one step at a time, around the real `Chunks`.

The capture reads each log entry as soon as it is there. That loses no behaviour: what it makes of an entry depends on
the entries before it alone, a worker's answer to it comes whenever the search lets the worker go on, and horizons are
taken and reached in steps of their own. That a commit becomes visible is noticed by those who read: so which of them
have, is chosen when somebody reads. Likewise a crash that cuts off unpublished entries is one that came right after the
last publication: where nothing else depends on it, every entry is published at once (`Scenario.publish`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from dblog_core.algorithm.arriving_rows import LOOKS_IN_VAIN, LookWay, choose_look
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Heals, High, Low, Mark
from tests.protocol.capture import DUMP, TABLE, Capture, Chunk, Rules, Violation
from tests.protocol.source import Visible, alters, conflicts
from tests.protocol.world_state import ATTEMPTS, STALE, Budget, Scenario, Worker, WorldState, name_shown


@dataclass(slots=True)
class World(WorldState):
    """One state; every step makes a new one."""

    @classmethod
    def begin(cls, scenario: Scenario, rules: Rules) -> World:
        s = scenario
        budget = Budget(s.publish, s.capture_crashes, s.worker_crashes, s.takeovers, s.horizons, s.merges)
        begun = s.cursors or (None,) * len(s.tasks)
        workers = tuple(Worker(number, 1, 0, cursor=cursor) for number, cursor in enumerate(begun))
        lake = rules.lake(dict.fromkeys((*s.rows, *s.ghosts), ((STALE, STALE) if s.stale else (0, 0), 0)))
        world = cls(s, rules, budget, workers, (1,) * len(workers), lake)
        if not s.opened_late:
            world._open(None)
        return world

    # Steps ------------------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[tuple[str, World]]:
        """Every step that may come next, with the state after it. Raises Violation."""
        has_step = False
        for step in self._steps():
            has_step = True
            yield step
        if not has_step and self.capture is not None:
            if self.capture.late is not None:
                new = self.copy()
                new._place_late_chunk()
                yield "the chunk is placed at last", new
            elif self.capture.now != self.staged:
                new = self.copy()
                new.publish()
                yield "publish", new
            else:
                self._end()

    def _steps(self) -> Iterator[tuple[str, World]]:
        yield from self._source_steps()
        if not self.scenario.passed_over or self.staged.was_released:
            for place, worker in enumerate(self.workers):
                yield from self._worker_steps(place, worker)
        if self.capture is None:
            for now_visible in self._appear():
                new = self.copy()
                new.visible |= now_visible
                new._open(new._snapshot())
                yield f"the log is opened{name_shown(now_visible)}", new
        else:
            yield from self._capture_steps(self.capture)
        if self.budget.merges and len(self.staged.lines) > self.merged:
            new = self.copy(merges=1)
            new.merge()
            yield "merge", new

    def _source_steps(self) -> Iterator[tuple[str, World]]:
        logged = self._scripts(self.log)
        for number, script in enumerate(self.scenario.scripts):
            if number in logged:
                continue
            for now_visible in self._appear(
                n for n in self._hidden_scripts() if conflicts(script, self.scenario.scripts[n])
            ):
                new = self.copy()
                new.visible |= now_visible
                if self.scenario.visible is Visible.ATOMIC:
                    new.visible |= {number}
                new._append(number)
                yield f"T{number + 1} is logged{name_shown(now_visible)}", new
                break  # a write reads no more than what it waits for: who else became visible shows later

    def _worker_steps(self, place: int, worker: Worker) -> Iterator[tuple[str, World]]:
        name = f"worker {worker.task}.{worker.attempt}"
        newest = worker.attempt == self.attempts[worker.task]
        progress = dict(self.staged.tasks).get(TaskId(DUMP, worker.task), TaskProgress(str(TABLE)))
        broken = newest and progress.broken >= worker.attempt
        low, read, high = ("read", "ready", "low") if self.rules.select_before_low else ("ready", "low", "read")
        if worker.phase == low and not broken:
            new = self.copy()
            new._set(place, replace(worker, phase="low"))
            new._tell(Low(self._mark(worker, worker.ordinal)))
            new._hand_over(place, high)
            yield f"{name} writes low {worker.ordinal}", new
        if worker.phase == read and not broken and self._may_read(worker):
            for now_visible, replayed in self._sights(worker):
                new = self.copy()
                new.visible |= now_visible
                new.replayed = replayed
                new._has_selected(place, replace(worker, phase="read", chunk=new._select(worker)))
                new._hand_over(place, high)
                at = f" at place {replayed}" if self.scenario.standby else ""
                yield f"{name} reads chunk {worker.ordinal}{name_shown(now_visible)}{at}", new
        if worker.phase == "open" or (self.rules.end_before_select and self._fixes_early(worker)):
            yield from self._looks_for_the_end(place, worker, name)
        if worker.behind is not None:
            new = self.copy()
            new._high(worker, *worker.behind)
            new._set(place, replace(worker, behind=None))
            new._hand_over(place, high)
            yield f"{name} writes high {worker.behind[0]}", new
        left = progress.ended and not progress.done and progress.ordinal == worker.ordinal and not broken
        over = len(self._scripts(self.log)) == len(self.scenario.scripts)
        if newest and left and worker.phase == "waits" and worker.behind is None:
            yield from self._looks(place, worker, progress, over)
        last = worker.attempt >= ATTEMPTS
        if broken and (over or not last):
            new = self.copy()
            if last:
                new.visible |= frozenset(self._hidden_scripts())
                new._pass_horizon()
            new._retry(place, worker, progress)
            yield f"{name} gives way to attempt {worker.attempt + 1}", new
        if newest and self.budget.worker_crashes and not progress.done and not broken:
            new = self.copy(worker_crashes=1)
            new.workers = (*new.workers, worker)  # what is left of it may go on, as a zombie
            new._retry(place, worker, progress)
            yield f"{name} is taken for dead, attempt {worker.attempt + 1} begins", new

    def _looks_for_the_end(self, place: int, worker: Worker, name: str) -> Iterator[tuple[str, World]]:
        """The largest key, by a SELECT of its own."""
        for now_visible, replayed in self._sights(worker):
            new = self.copy()
            new.visible |= now_visible
            new.replayed = replayed
            assert worker.cursor is not None
            rows, _ = new._seen_rows()
            with_end = replace(worker, cursor=worker.cursor.fix_end(max(rows, default=None)))
            if worker.chunk is None:
                new._set(place, with_end)
            else:
                new._has_read_range(place, with_end, worker.chunk)
            new._hand_over(place, "read")
            at = f" at place {replayed}" if self.scenario.standby else ""
            yield f"{name} looks up the largest key{name_shown(now_visible)}{at}", new

    def _looks(self, place: int, worker: Worker, progress: TaskProgress, over: bool) -> Iterator[tuple[str, World]]:
        """What a worker does about rows that have arrived; `over`: all transactions are."""
        name = f"worker {worker.task}.{worker.attempt}"
        looks_again = worker.arrived is not None
        if looks_again and not over and not self.scenario.restless:
            return
        if looks_again and self.scenario.stale and self._moves() == 1 and not self.scenario.worker_crashes:
            raise Violation("a dump waits for a commit to become visible")
        arrived = tuple(chain.from_iterable(progress.arrived))
        trails = len(progress.arrived) if self.scenario.looks else 0
        in_vain = self.scenario.looks and looks_again and trails == worker.trails
        worker = replace(worker, trails=trails, in_vain=worker.in_vain + 1 if in_vain else 0)
        if self.scenario.looks and looks_again and self._gives_up(worker, progress):
            new = self.copy()
            new._set(place, replace(worker, phase="failed"))
            yield f"{name} gives up", new
            return
        for whole in (False, True) if looks_again and self.scenario.restless and not self.scenario.looks else (False,):
            new = self.copy()
            if looks_again and over:
                new.visible |= frozenset(self._hidden_scripts())
            new._set(place, replace(worker, phase="ready", arrived=arrived, whole=whole))
            yield f"{name} takes up {'all rows for ' if whole else ''}keys {', '.join(arrived)}", new

    def _gives_up(self, worker: Worker, progress: TaskProgress) -> bool:
        """Whether a worker does that had all looks in vain before but those of the scenario."""
        looks_in_vain = progress.looks_in_vain + LOOKS_IN_VAIN - self.scenario.looks
        gives_up = choose_look(progress.looks, looks_in_vain, may_fit=False) is LookWay.GIVE_UP
        if worker.in_vain >= self.scenario.looks and not gives_up:
            raise Violation("a dump looks for a row that moves on for ever")
        if worker.in_vain < self.scenario.looks and gives_up and worker.attempt == 1:
            raise Violation("a dump gives up while its looks meet rows")
        return gives_up

    def _pass_horizon(self) -> None:
        """One that sees all: without, a table that was passed over is not read."""
        if self.scenario.passed_over and self._snapshots():
            self._reach(self._snapshot())

    def _table_steps(self, capture: Capture) -> Iterator[tuple[str, World]]:
        """Rows of the table are passed over for a while, between any two transactions."""
        if not capture.now.passes_over and not capture.now.was_released:
            new = self.copy()
            new._change_table(lambda capture: capture.pass_over())
            yield "rows of the table are passed over from here on", new
        if capture.now.passes_over:
            for now_visible in self._appear():
                new = self.copy()
                new.visible |= now_visible
                horizon = new._snapshot()
                new._change_table(lambda capture, horizon=horizon: capture.release(horizon))
                yield f"rows of the table count from here on{name_shown(now_visible)}", new

    def _change_table(self, change: Callable[[Capture], None]) -> None:
        assert self.capture is not None
        change(self.capture)
        self.capture.seal(self.capture.now.place)
        if not self.scenario.publish:
            self.publish()

    def _capture_steps(self, capture: Capture) -> Iterator[tuple[str, World]]:
        if self.scenario.passed_over:
            yield from self._table_steps(capture)
        if self.budget.publish and capture.now != self.staged:
            new = self.copy(publish=1)
            new.publish()
            yield "publish", new
        if self.budget.capture_crashes:
            new = self.copy(capture_crashes=1)
            new.restart()
            yield "the capture crashes and starts again", new
        if self.budget.takeovers and capture.now != capture.base:
            new = self.copy(takeovers=1)
            new.zombie = (capture.base, capture.now)
            new.restart()
            yield "another capture leads, and the first one sleeps", new
        if self.zombie is not None:
            new = self.copy()
            new._publish(*self.zombie)
            new.zombie = None
            yield "the first capture wakes up and publishes", new
        if self.horizon is not None:
            if capture.now.place >= self.horizon_at:
                new = self.copy()
                new._reach(self.horizon)
                yield "the horizon is reached", new
        elif self.budget.horizons:
            for now_visible in self._appear():
                new = self.copy(horizons=1)
                new.visible |= now_visible
                new.horizon = new._snapshot()
                new.horizon_at = len(new.log)
                yield f"a horizon is taken{name_shown(now_visible)}", new

    # Workers ----------------------------------------------------------------------------------------------------------

    def _mark(self, worker: Worker, ordinal: int) -> Mark:
        window = f"{worker.task}.{worker.attempt}.{ordinal}"
        heals = None if self.scenario.listed else Heals()
        parts = self.scenario.number_of_tasks
        return Mark("shop", TaskId(DUMP, worker.task), worker.attempt, ordinal, window, str(TABLE), parts, heals)

    def _may_read(self, worker: Worker) -> bool:
        return True

    def _has_read(self, worker: Worker) -> None:
        """The SELECT is over."""

    def _sights(self, worker: Worker) -> Iterator[tuple[frozenset[int], int]]:
        """What may show now, and how far a standby may have replayed: what lies before the window it has."""
        if not self.scenario.standby:
            yield from ((now_visible, 0) for now_visible in self._appear(self._what_a_select_awaits(worker)))
            return
        awaited = 0 if self.rules.visible_unawaited else self._opened_at(worker)
        yield from ((frozenset(), place) for place in range(max(self.replayed, awaited), len(self.log) + 1))

    def _what_a_select_awaits(self, worker: Worker) -> set[int]:
        """What a SELECT waits for: an altering transaction, which has the table to itself; under log order all before
        its low watermark, since that is visible."""
        altering = {number for number in self._hidden_scripts() if alters(self.scenario.scripts[number])}
        has_no_window = self.rules.select_before_low or worker.phase == "ready"
        if self.scenario.visible is Visible.ANY_ORDER or has_no_window:
            return altering
        return altering | set(self._hidden_scripts(self._opened_at(worker)))

    def _opened_at(self, worker: Worker) -> int:
        """The place in the log from which the worker's window is open."""
        mark = self._mark(worker, worker.ordinal)
        return max(i for i, e in enumerate(self.log) if isinstance(e, Low) and e.mark == mark)

    def _set(self, place: int, worker: Worker) -> None:
        self.workers = (*self.workers[:place], worker, *self.workers[place + 1 :])

    def _has_selected(self, place: int, worker: Worker) -> None:
        """Goes on to the range's end, if that has to be looked up."""
        chunk = worker.chunk
        if worker.cursor is None or worker.arrived is not None or chunk is None:
            self._set(place, worker)
            self._has_read(worker)
        elif worker.cursor.needs_end(is_short=chunk.is_short):
            self._set(place, replace(worker, phase="open"))
        else:
            self._has_read_range(place, worker, chunk)

    def _has_read_range(self, place: int, worker: Worker, chunk: Chunk) -> None:
        assert worker.cursor is not None
        final = worker.cursor.is_last(chunk.last, is_short=chunk.is_short)
        cursor = worker.cursor.advance(chunk.last)
        self._set(place, replace(worker, phase="read", cursor=cursor, chunk=replace(chunk, final=final)))
        self._has_read(worker)

    def _fixes_early(self, worker: Worker) -> bool:
        return worker.cursor is not None and worker.cursor.upto is None and worker.phase == "ready"

    def _is_final(self, worker: Worker, ordinal: int, chunk: Chunk) -> bool:
        if self.scenario.cursors:
            return chunk.final or bool(chunk.arrived)
        return ordinal + 1 >= len(self.scenario.tasks[worker.task])

    def _hand_over(self, place: int, complete: str) -> None:
        """A chunk that has all but its high watermark is staged as soon as the one before is, and the next begins."""
        worker = self.workers[place]
        if worker.phase == complete and worker.chunk is not None and worker.behind is None:
            final = self._is_final(worker, worker.ordinal, worker.chunk)
            behind = worker.ordinal, worker.chunk
            phase = "waits" if final else "ready"
            self._set(place, replace(worker, ordinal=worker.ordinal + 1, phase=phase, chunk=None, behind=behind))

    def _high(self, worker: Worker, ordinal: int, chunk: Chunk) -> None:
        if self.rules.reuse_rows and self.old_rows is not None:
            chunk = self.old_rows
            self.old_rows = None
        final = self._is_final(worker, ordinal, chunk)
        payload: Any = chunk
        self._tell(
            High(
                self._mark(worker, ordinal),
                file="f" if chunk.rows else None,
                rows=len(chunk.rows),
                bytes=0,
                checksum=payload,
                schema=str(chunk.shape),
                last_key=ordinal if worker.cursor is None else chunk.last,
                final=final,
                snapshot=chunk.snapshot,
                absent=chunk.absent,
                arrived=chunk.arrived,
                whole=chunk.whole,
            )
        )

    def _tell(self, mark: Low | High) -> None:
        self._append(mark)

    def _retry(self, place: int, worker: Worker, progress: TaskProgress) -> None:
        if self.rules.reuse_rows:
            self.old_rows = worker.chunk or (worker.behind[1] if worker.behind else None) or self.old_rows
        attempt = worker.attempt + 1
        self.attempts = tuple(attempt if i == worker.task else n for i, n in enumerate(self.attempts))
        phase = "waits" if progress.done else "ready"
        arrived = tuple(chain.from_iterable(progress.arrived)) if progress.ended else None
        trails = len(progress.arrived) if self.scenario.looks else 0  # else nobody asks, and there are fewer states
        cursor = self.scenario.cursors[worker.task].advance(progress.key) if self.scenario.cursors else None
        if self.rules.resume_where_read:
            cursor = worker.cursor
        self._set(
            place,
            Worker(worker.task, attempt, progress.ordinal, phase, arrived=arrived, trails=trails, cursor=cursor),
        )
