"""The checker's world: a source, dump workers, captures and a merge, one step at a time, around the real `Chunks`.

The capture reads each log entry as soon as it is there. That loses no behaviour: what it makes of an entry depends on
the entries before it alone, a worker's answer to it comes whenever the search lets the worker go on, and horizons are
taken and reached in steps of their own. That a commit becomes visible is noticed by those who read: so which of them
have, is chosen when somebody reads. Likewise a crash that cuts off unpublished entries is one that came right after the
last publication: where nothing else depends on it, every entry is published at once (`Scenario.publish`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, pairwise
from typing import Any, Self

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.algorithm.window import ROW_EVENTS
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Heals, High, Low, Mark
from tests.protocol.capture import DUMP, TABLE, Capture, Chunk, Rules, Staged, Violation
from tests.protocol.changelog import UNKNOWN, LakeTable
from tests.protocol.source import FULL, Event, Rows, Script, Visible, alters, conflicts, run

STALE = -7
ATTEMPTS = 3
"""Attempts on a task before all transactions are over: each may be refused for those, and the search must end. So must
it where a row stays unseen where it has arrived: its key is read once more before they are."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What may happen: the search tries all orders of it.

    `tasks`: for each task the keys of its chunks; `listed`: they are requested keys, not ranges; `rows`: keys at the
    beginning; `ghosts`: keys that the lake alone has; `stale`: it has none of the source's values. `publish`: 0 if
    every entry is published at once, otherwise how many times all that is read may be published before the end. Faults,
    horizons and merges are numbers of times. `opened_late`: the log is opened at any time, without what was logged
    before. `read_only`: windows are announced (`read_only.py`). `standby`: chunks are read there, where commits show in
    the order of the log. `restless`: of its one row keys are read again while it may still move.
    `memory`: row events of the table beyond which it is forgotten which keys they have.
    """

    name: str
    visible: Visible
    scripts: tuple[Script, ...]
    tasks: tuple[tuple[tuple[int, ...], ...], ...] = (((1,),), ((2, 3),))
    rows: tuple[int, ...] = (1, 2)
    ghosts: tuple[int, ...] = ()
    stale: bool = False
    listed: bool = False
    publish: int = 0
    capture_crashes: int = 0
    worker_crashes: int = 0
    takeovers: int = 0
    horizons: int = 0
    merges: int = 0
    opened_late: bool = False
    read_only: bool = False
    standby: bool = False
    restless: bool = False
    memory: int = ROW_EVENTS


@dataclass(frozen=True, slots=True)
class Worker:
    """One attempt on a task. `phase`: ready, low (written), read (SELECT done), waits (nothing left to read).

    `behind`: a chunk that is being staged, with its number; its high watermark is still to come, while the next chunk
    is on its way already. `arrived`: what it reads is the keys that rows have arrived at; `whole`: and
    the whole table for their sake.
    """

    task: int
    attempt: int
    ordinal: int
    phase: str = "ready"
    chunk: Chunk | None = None
    behind: tuple[int, Chunk] | None = None
    arrived: tuple[str, ...] | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """How often each may still happen."""

    publish: int
    capture_crashes: int
    worker_crashes: int
    takeovers: int
    horizons: int
    merges: int


def _told(shown: frozenset[int]) -> str:
    names = ", ".join(f"T{number + 1}" for number in sorted(shown))
    return f", {names} being visible now" if names else ""


Entry = int | Low | High
"""An entry of the log: a script's number, or a watermark."""


@dataclass(slots=True)
class World:
    """One state; every step makes a new one."""

    scenario: Scenario
    rules: Rules
    budget: Budget
    workers: tuple[Worker, ...]
    attempts: tuple[int, ...]
    lake: LakeTable
    log: tuple[Entry, ...] = ()
    visible: frozenset[int] = frozenset()
    staged: Staged = field(default_factory=Staged)
    capture: Capture | None = None
    zombie: tuple[Staged, Staged] | None = None
    horizon: str | None = None
    horizon_at: int = 0
    merged: int = 0
    acknowledged: int = 0
    old_rows: Chunk | None = None
    replayed: int = 0
    cache: dict[tuple[int, ...], tuple[Rows, int]] = field(default_factory=dict)

    @classmethod
    def begin(cls, scenario: Scenario, rules: Rules) -> World:
        s = scenario
        budget = Budget(s.publish, s.capture_crashes, s.worker_crashes, s.takeovers, s.horizons, s.merges)
        workers = tuple(Worker(number, 1, 0) for number in range(len(s.tasks)))
        lake = rules.lake(dict.fromkeys((*s.rows, *s.ghosts), ((STALE, STALE) if s.stale else (0, 0), 0)))
        world = cls(s, rules, budget, workers, (1,) * len(s.tasks), lake)
        if not s.opened_late:
            world._open(None)
        return world

    def frozen(self) -> tuple[object, ...]:
        """Equal for equal states."""
        return (
            self.budget, self.workers, self.attempts, self.lake.frozen(), self.log, self.visible, self.staged,
            self.capture and self.capture.frozen(), self.zombie, self.horizon, self.horizon_at, self.merged,
            self.acknowledged, self.old_rows, self.replayed,
        )  # fmt: skip

    def copy(self, **spent: int) -> Self:
        new = replace(self, lake=self.lake.copy())
        new.capture = None if self.capture is None else self.capture.copy()
        if spent:
            new.budget = replace(self.budget, **{kind: getattr(self.budget, kind) - n for kind, n in spent.items()})
        return new

    def _new_capture(self, staged: Staged) -> Capture:
        return Capture(staged, snapshots=self._snapshots(), rules=self.rules, memory=self.scenario.memory)

    # The source -----------------------------------------------------------------------------------------------------

    def _scripts(self, entries: Iterable[Entry]) -> list[int]:
        return [entry for entry in entries if isinstance(entry, int)]

    def _rows(self, scripts: Iterable[int]) -> tuple[Rows, int]:
        """Rows and shape after the scripts, in log order; not to be changed."""
        order = tuple(scripts)
        if order not in self.cache:
            rows: Rows = dict.fromkeys(self.scenario.rows, (0, 0))
            for number in order:
                run(self.scenario.scripts[number], number + 1, rows)
            self.cache[order] = rows, sum(alters(self.scenario.scripts[number]) for number in order)
        return self.cache[order]

    def _hidden(self, place: int | None = None) -> list[int]:
        """Scripts that are logged (before `place`) and not visible, in log order."""
        return [number for number in self._scripts(self.log[:place]) if number not in self.visible]

    def _snapshot(self) -> str:
        running = [FULL + number for number in range(len(self.scenario.scripts)) if number not in self.visible]
        end = FULL + len(self.scenario.scripts)
        return f"{min(running, default=end)}:{end}:{','.join(map(str, running))}"

    def _select(self, worker: Worker) -> Chunk:
        if worker.arrived is None:
            keys = self.scenario.tasks[worker.task][worker.ordinal]
        else:
            keys = tuple(map(int, worker.arrived))
        seen = self._scripts(self.log[: self.replayed])
        if not self.scenario.standby:
            seen = [number for number in self._scripts(self.log) if number in self.visible]
        rows, shape = self._rows(seen)
        if worker.whole:
            keys = tuple(sorted(rows))
        named = self.scenario.listed or (worker.arrived is not None and not worker.whole)
        absent = tuple(key for key in keys if key not in rows) if named else ()
        snapshot = self._standbys() if self.scenario.standby else self._snapshot()
        found = tuple((key, rows[key]) for key in keys if key in rows)
        return Chunk(found, absent, snapshot, shape, worker.arrived or (), worker.whole)

    def _standbys(self) -> str | None:
        """What comes with a chunk of a standby: nothing; believed, a snapshot that names nobody who runs."""
        if not self.rules.standbys_snapshot:
            return None
        end = FULL + 1 + max(self._scripts(self.log[: self.replayed]), default=-1)
        return f"{end}:{end}:"

    # Steps ----------------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[tuple[str, World]]:
        """Every step that may come next, with the state after it. Raises Violation."""
        found = False
        for step in self._steps():
            found = True
            yield step
        if not found and self.capture is not None:
            if self.capture.late is not None:
                new = self.copy()
                new._late()
                yield "the chunk is placed at last", new
            elif self.capture.now != self.staged:
                new = self.copy()
                new.publish()
                yield "publish", new
            else:
                self._end()

    def _steps(self) -> Iterator[tuple[str, World]]:
        yield from self._source_steps()
        for place, worker in enumerate(self.workers):
            yield from self._worker_steps(place, worker)
        if self.capture is None:
            for shown in self._appear():
                new = self.copy()
                new.visible |= shown
                new._open(new._snapshot())
                yield f"the log is opened{_told(shown)}", new
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
            for shown in self._appear(n for n in self._hidden() if conflicts(script, self.scenario.scripts[n])):
                new = self.copy()
                new.visible |= shown
                if self.scenario.visible is Visible.ATOMIC:
                    new.visible |= {number}
                new._append(number)
                yield f"T{number + 1} is logged{_told(shown)}", new
                break  # a write reads no more than what it waits for: who else became visible shows later

    def _appear(self, needed: Iterable[int] = ()) -> Iterator[frozenset[int]]:
        """The sets of hidden scripts that may have become visible by now, at least the needed ones; smallest first."""
        hidden = self._hidden()
        must = frozenset(needed)
        if self.scenario.visible is Visible.LOG_ORDER:
            choices = [frozenset(hidden[:n]) for n in range(len(hidden) + 1)]
        else:
            choices = [frozenset(c) for n in range(len(hidden) + 1) for c in combinations(hidden, n)]
        yield from (choice for choice in choices if must <= choice)

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
            for shown, replayed in self._sights(worker):
                new = self.copy()
                new.visible |= shown
                new.replayed = replayed
                new._set(place, replace(worker, phase="read", chunk=new._select(worker)))
                new._has_read(worker)
                new._hand_over(place, high)
                at = f" at place {replayed}" if self.scenario.standby else ""
                yield f"{name} reads chunk {worker.ordinal}{_told(shown)}{at}", new
        if worker.behind is not None:
            new = self.copy()
            new._high(worker, *worker.behind)
            new._set(place, replace(worker, behind=None))
            new._hand_over(place, high)
            yield f"{name} writes high {worker.behind[0]}", new
        left = progress.ended and not progress.done and progress.ordinal == worker.ordinal and not broken
        over = len(self._scripts(self.log)) == len(self.scenario.scripts)
        again = worker.arrived is not None
        may_look = not again or over or self.scenario.restless
        if newest and left and worker.phase == "waits" and worker.behind is None and may_look:
            if again and self.scenario.stale and self._moves() == 1 and not self.scenario.worker_crashes:
                raise Violation("a dump waits for a commit to become visible")
            arrived = tuple(chain.from_iterable(progress.arrived))
            for whole in (False, True) if again and self.scenario.restless else (False,):
                new = self.copy()
                if again and over:
                    new.visible |= frozenset(self._hidden())
                new._set(place, replace(worker, phase="ready", arrived=arrived, whole=whole))
                yield f"{name} takes up {'all rows for ' if whole else ''}keys {', '.join(arrived)}", new
        last = worker.attempt >= ATTEMPTS
        if broken and (over or not last):
            new = self.copy()
            if last:
                new.visible |= frozenset(self._hidden())
            new._retry(place, worker, progress)
            yield f"{name} gives way to attempt {worker.attempt + 1}", new
        if newest and self.budget.worker_crashes and not progress.done and not broken:
            new = self.copy(worker_crashes=1)
            new.workers = (*new.workers, worker)  # what is left of it may go on, as a zombie
            new._retry(place, worker, progress)
            yield f"{name} is taken for dead, attempt {worker.attempt + 1} begins", new

    def _capture_steps(self, capture: Capture) -> Iterator[tuple[str, World]]:
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
            for shown in self._appear():
                new = self.copy(horizons=1)
                new.visible |= shown
                new.horizon = new._snapshot()
                new.horizon_at = len(new.log)
                yield f"a horizon is taken{_told(shown)}", new

    # Workers --------------------------------------------------------------------------------------------------------

    def _mark(self, worker: Worker, ordinal: int) -> Mark:
        window = f"{worker.task}.{worker.attempt}.{ordinal}"
        heals = None if self.scenario.listed else Heals()
        parts = len(self.scenario.tasks)
        return Mark("shop", TaskId(DUMP, worker.task), worker.attempt, ordinal, window, str(TABLE), parts, heals)

    def _may_read(self, worker: Worker) -> bool:
        return True

    def _has_read(self, worker: Worker) -> None:
        """The SELECT is over."""

    def _sights(self, worker: Worker) -> Iterator[tuple[frozenset[int], int]]:
        """What may show now, and how far a standby may have replayed: what lies before the window it has."""
        if not self.scenario.standby:
            yield from ((shown, 0) for shown in self._appear(self._awaited(worker)))
            return
        awaited = 0 if self.rules.visible_unawaited else self._opened_at(worker)
        yield from ((frozenset(), place) for place in range(max(self.replayed, awaited), len(self.log) + 1))

    def _awaited(self, worker: Worker) -> set[int]:
        """What a SELECT waits for: an altering transaction, which has the table to itself; under log order all before
        its low watermark, since that is visible."""
        altering = {number for number in self._hidden() if alters(self.scenario.scripts[number])}
        if self.scenario.visible is Visible.ANY_ORDER or self.rules.select_before_low:
            return altering
        return altering | set(self._hidden(self._opened_at(worker)))

    def _opened_at(self, worker: Worker) -> int:
        """The place in the log from which the worker's window is open."""
        mark = self._mark(worker, worker.ordinal)
        return max(i for i, e in enumerate(self.log) if isinstance(e, Low) and e.mark == mark)

    def _set(self, place: int, worker: Worker) -> None:
        self.workers = (*self.workers[:place], worker, *self.workers[place + 1 :])

    def _hand_over(self, place: int, complete: str) -> None:
        """A chunk that has all but its high watermark is staged as soon as the one before is, and the next begins."""
        worker = self.workers[place]
        if worker.phase == complete and worker.chunk is not None and worker.behind is None:
            final = worker.ordinal + 1 >= len(self.scenario.tasks[worker.task])
            behind = worker.ordinal, worker.chunk
            phase = "waits" if final else "ready"
            self._set(place, replace(worker, ordinal=worker.ordinal + 1, phase=phase, chunk=None, behind=behind))

    def _high(self, worker: Worker, ordinal: int, chunk: Chunk) -> None:
        if self.rules.reuse_rows and self.old_rows is not None:
            chunk = self.old_rows
            self.old_rows = None
        final = ordinal + 1 >= len(self.scenario.tasks[worker.task])
        payload: Any = chunk
        self._tell(
            High(
                self._mark(worker, ordinal),
                file="f" if chunk.rows else None,
                rows=len(chunk.rows),
                bytes=0,
                checksum=payload,
                schema=str(chunk.shape),
                last_key=ordinal,
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
        self._set(place, Worker(worker.task, attempt, progress.ordinal, phase, arrived=arrived))

    # The capture ----------------------------------------------------------------------------------------------------

    def _open(self, start: str | None) -> None:
        """The first capture: it begins at the log's present end."""
        _, shape = self._rows(self._scripts(self.log))
        # What workers have begun by now may lie before the log's start: nobody would ever answer to it.
        attempts = self.attempts if self.scenario.opened_late else ()
        begun = {TaskId(DUMP, task): number for task, number in enumerate(attempts)}
        tasks = tuple((task, TaskProgress(str(TABLE), attempt=n, broken=n)) for task, n in begun.items())
        self.staged = Staged(place=len(self.log), shape=shape, start=start, tasks=tasks)
        self.restart()

    def restart(self) -> None:
        """A capture begins from what is staged."""
        staged = self.staged
        if self.rules.acknowledge_early:
            staged = replace(staged, place=max(staged.place, self.acknowledged))
        self.capture = self._new_capture(staged)
        self.horizon = None  # it was taken by the capture that is gone
        for place in range(staged.place, len(self.log)):
            self._process(self.capture, place)

    def _snapshots(self) -> bool:
        return self.scenario.visible is Visible.ANY_ORDER

    def publish(self) -> None:
        assert self.capture is not None
        if self._publish(self.capture.base, self.capture.now):
            self.capture.base = self.capture.now = self.staged
        else:
            self.restart()

    def _publish(self, base: Staged, now: Staged) -> bool:
        """Creates the next segment if its number is free."""
        if base.number != self.staged.number and not self.rules.no_fencing:
            return False
        lines = (*self.staged.lines, *now.lines[len(base.lines) :])
        if any(one.offset >= two.offset for one, two in pairwise(lines)):
            raise Violation("offsets do not grow from line to line")
        self.staged = replace(now, number=self.staged.number + 1, lines=lines)
        return True

    def _append(self, entry: Entry) -> None:
        self.log = (*self.log, entry)
        if self.capture is not None:
            self._process(self.capture, len(self.log) - 1)
            if not self.scenario.publish:
                self.publish()

    def _late(self) -> None:
        assert self.capture is not None and self.capture.late is not None
        late = self.capture.late
        self.capture.late = None
        self.capture.place(*late)
        self.capture.seal(self.capture.now.place)
        self._check(self.capture)

    def _process(self, capture: Capture, place: int) -> None:
        try:
            self._read(capture, place)
        except Violation as violation:
            raise Violation(f"{violation}, when the capture has read {self._named(self.log[place])}") from None

    def _named(self, entry: Entry) -> str:
        if isinstance(entry, int):
            return f"T{entry + 1}"
        return f"the {type(entry).__name__.lower()} watermark {entry.mark.window}"

    def _read(self, capture: Capture, place: int) -> None:
        entry = self.log[place]
        late = capture.late
        capture.late = None
        if isinstance(entry, int):
            capture.transaction(entry, self._events(place, entry))
        elif isinstance(entry, Low):
            capture.low(entry)
        else:
            capture.high(entry)
        if late is not None:
            capture.place(*late)
        capture.seal(place + 1)
        self.acknowledged = max(self.acknowledged, place + 1)
        self._check(capture)

    def _events(self, place: int, number: int) -> list[Event]:
        rows, shape = self._rows(self._scripts(self.log[:place]))
        return run(self.scenario.scripts[number], number + 1, dict(rows), shape)

    def _reach(self, horizon: str) -> None:
        assert self.capture is not None
        self.capture.dumps.advance_horizon(horizon, self.capture.now.offset)
        self.capture.seal(self.capture.now.place)
        self.horizon = None
        if not self.scenario.publish:
            self.publish()

    def merge(self) -> None:
        before = set(self.lake.rows)
        self.lake.merge(self.staged.lines[self.merged :], self.staged.chunks)
        self.merged = len(self.staged.lines)
        rows, _ = self._rows(self._scripts(self.log[: self.staged.place]))
        if (gone := (before & rows.keys()) - self.lake.rows.keys()) and not self._moves():
            raise Violation(f"a merge has removed keys {sorted(gone)}, and the source has them")

    # Invariants -----------------------------------------------------------------------------------------------------

    def _check(self, capture: Capture) -> None:
        """The replay of every prefix: never a wrong value, never a row that is gone, all rows of placed ranges."""
        rows, _ = self._rows(self._scripts(self.log[: capture.now.place]))
        replay = capture.replay.rows
        for key, values in replay.items():
            if key not in rows:
                raise Violation(f"key {key} is back, and the source does not have it")
            for name, value, right in zip(("v", "big"), values, rows[key], strict=True):
                if value not in (right, UNKNOWN):
                    raise Violation(f"key {key} has {name} of T{value}, and the source has that of T{right}")
        for key in self._placed(capture):
            if key in rows and key not in replay:
                raise Violation(f"key {key} is in a placed range, and lost")
            if key in rows and UNKNOWN in replay[key] and not self._moves():
                raise Violation(f"key {key} is in a placed range, and a value of it is unknown")
        # Where the log's order judges, a row that a SELECT has found after its move counts as missed.
        sure = self.scenario.restless and self._snapshots()
        if sure and capture.met and any(p.arrived for _, p in capture.now.tasks):
            raise Violation("a row is to be looked for again that the dump has brought whole")

    def _moves(self) -> int:
        """A row that changes its key between two chunks' SELECTs is in neither: a value stays unknown until the key is
        read that it has arrived at."""
        return sum(op.kind == "move" for script in self.scenario.scripts for op in script)

    def _placed(self, capture: Capture) -> set[int]:
        done = {task: progress.ordinal for task, progress in capture.now.tasks}
        return {
            key
            for task, chunks in enumerate(self.scenario.tasks)
            for chunk in chunks[: done.get(TaskId(DUMP, task), 0)]
            for key in chunk
        }

    def _end(self) -> None:
        """Nothing can happen any more: every dump is done, and the lake equals the source."""
        if not all(progress.done for _, progress in self.staged.tasks) or len(self.staged.tasks) < len(self.attempts):
            raise Violation("a dump never ends")
        self.lake = self.lake.copy()
        self.merge()
        rows, _ = self._rows(self._scripts(self.log))
        lake = {key: values for key, (values, _) in self.lake.rows.items()}
        withheld = rows.keys() - lake.keys() if self._moves() and self.scenario.listed else set()
        assert self.capture is not None
        if not self.scenario.listed and self.capture.replay.rows != rows:
            raise Violation(f"the dump has brought {self.capture.replay.rows}, and the source has {rows}")
        if self.scenario.listed:
            asked = {key for chunks in self.scenario.tasks for chunk in chunks for key in chunk}
            lake = {key: values for key, values in lake.items() if key in asked}
        if {key: values for key, values in rows.items() if key not in withheld} != lake:
            raise Violation(f"the lake ends as {lake}, and the source as {rows}")
