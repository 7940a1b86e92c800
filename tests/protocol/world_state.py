"""The state of a small world: its source, what is staged of its log, and what must hold in every state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Self

from dblog_core.algorithm.range_cursor import RangeCursor
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.algorithm.window import ROW_EVENTS
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import High, Low
from tests.protocol.capture import DUMP, TABLE, Capture, Chunk, Rules, Staged, Violation
from tests.protocol.changelog import UNKNOWN, LakeTable
from tests.protocol.source import FULL, Event, Rows, Script, Visible, alters, is_in_range, run

STALE = -7
ATTEMPTS = 3
"""Attempts on a task before all transactions are over: each may be refused for those, and the search must end. So must
it where a row stays unseen where it has arrived: its key is read once more before they are."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What may happen: the search tries all orders of it.

    `tasks`: for each task the keys of its chunks; `listed`: they are requested keys, not ranges; `cursors`: tasks read
    ranges instead, `chunk_rows` rows at a time, from where these begin; `rows`: keys at the beginning; `ghosts`: keys
    that the lake alone has; `stale`: it has none of the source's values. `publish`: 0 if every entry is published at
    once, otherwise how many times all that is read may be published before the end. Faults, horizons and merges are
    numbers of times. `passed_over`: rows of the table are left out for a while, and its dump begins after that.
    `opened_late`: the log is opened at any time, without what was logged before. `read_only`: windows
    are announced (`read_only.py`). `standby`: chunks are read there, where commits show in the order of the log.
    `restless`: of its one row keys are read again while it may still move; `looks`: and the table is never read whole,
    but its worker gives up after so many in vain. `memory`: row events of the table beyond which it is forgotten which
    keys they have.
    """

    name: str
    visible: Visible
    scripts: tuple[Script, ...]
    tasks: tuple[tuple[tuple[int, ...], ...], ...] = (((1,),), ((2, 3),))
    rows: tuple[int, ...] = (1, 2)
    ghosts: tuple[int, ...] = ()
    stale: bool = False
    listed: bool = False
    cursors: tuple[RangeCursor, ...] = ()
    chunk_rows: int = 1
    publish: int = 0
    capture_crashes: int = 0
    worker_crashes: int = 0
    takeovers: int = 0
    horizons: int = 0
    merges: int = 0
    passed_over: bool = False
    opened_late: bool = False
    read_only: bool = False
    standby: bool = False
    restless: bool = False
    looks: int = 0
    memory: int = ROW_EVENTS

    @property
    def number_of_tasks(self) -> int:
        return len(self.cursors) or len(self.tasks)


@dataclass(frozen=True, slots=True)
class Worker:
    """One attempt on a task. `phase`: ready, low (written), open (SELECT done, and the range's end is to be looked up),
    read (SELECT done), waits (nothing left to read), failed. `cursor`: where its next SELECT begins.

    `behind`: a chunk that is being staged, with its number; its high watermark is still to come, while the next chunk
    is on its way already. `arrived`: what it reads is the keys that rows have arrived at; `whole`: and
    the whole table for their sake; `trails`, `in_vain`: how many there were, and how many looks have left that many.
    """

    task: int
    attempt: int
    ordinal: int
    phase: str = "ready"
    chunk: Chunk | None = None
    behind: tuple[int, Chunk] | None = None
    arrived: tuple[str, ...] | None = None
    whole: bool = False
    trails: int = 0
    in_vain: int = 0
    cursor: RangeCursor | None = None


@dataclass(frozen=True, slots=True)
class Budget:
    """How often each may still happen."""

    publish: int
    capture_crashes: int
    worker_crashes: int
    takeovers: int
    horizons: int
    merges: int


def name_shown(now_visible: frozenset[int]) -> str:
    names = ", ".join(f"T{number + 1}" for number in sorted(now_visible))
    return f", {names} being visible now" if names else ""


Entry = int | Low | High
"""An entry of the log: a script's number, or a watermark."""


@dataclass(slots=True)
class WorldState:
    """The source, the capture and the lake; `World` has the steps that lead from one state to the next."""

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

    def freeze(self) -> tuple[object, ...]:
        """Equal for equal states."""
        return (
            self.budget, self.workers, self.attempts, self.lake.freeze(), self.log, self.visible, self.staged,
            self.capture and self.capture.freeze(), self.zombie, self.horizon, self.horizon_at, self.merged,
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

    def _hidden_scripts(self, place: int | None = None) -> list[int]:
        """Scripts that are logged (before `place`) and not visible, in log order."""
        return [number for number in self._scripts(self.log[:place]) if number not in self.visible]

    def _snapshot(self) -> str:
        running = [FULL + number for number in range(len(self.scenario.scripts)) if number not in self.visible]
        end = FULL + len(self.scenario.scripts)
        return f"{min(running, default=end)}:{end}:{','.join(map(str, running))}"

    def _appear(self, needed: Iterable[int] = ()) -> Iterator[frozenset[int]]:
        """The sets of hidden scripts that may have become visible by now, at least the needed ones; smallest first."""
        hidden = self._hidden_scripts()
        must = frozenset(needed)
        if self.scenario.visible is Visible.LOG_ORDER:
            choices = [frozenset(hidden[:n]) for n in range(len(hidden) + 1)]
        else:
            choices = [frozenset(c) for n in range(len(hidden) + 1) for c in combinations(hidden, n)]
        yield from (choice for choice in choices if must <= choice)

    def _seen_rows(self) -> tuple[Rows, int]:
        """What a SELECT sees now, and the table's shape."""
        seen = self._scripts(self.log[: self.replayed])
        if not self.scenario.standby:
            seen = [number for number in self._scripts(self.log) if number in self.visible]
        return self._rows(seen)

    def _select(self, worker: Worker) -> Chunk:
        if worker.arrived is None and worker.cursor is not None:
            return self._select_range(worker.cursor)
        if worker.arrived is None:
            keys = self.scenario.tasks[worker.task][worker.ordinal]
        else:
            keys = tuple(map(int, worker.arrived))
        rows, shape = self._seen_rows()
        if worker.whole:
            keys = tuple(sorted(rows))
        named = self.scenario.listed or (worker.arrived is not None and not worker.whole)
        absent = tuple(key for key in keys if key not in rows) if named else ()
        snapshot = self._standbys() if self.scenario.standby else self._snapshot()
        rows_read = tuple((key, rows[key]) for key in keys if key in rows)
        return Chunk(rows_read, absent, snapshot, shape, worker.arrived or (), worker.whole)

    def _select_range(self, cursor: RangeCursor) -> Chunk:
        rows, shape = self._seen_rows()
        keys = sorted(key for key in rows if is_in_range(key, cursor))[: self.scenario.chunk_rows]
        snapshot = self._standbys() if self.scenario.standby else self._snapshot()
        last = keys[-1] if keys else None
        is_short = len(keys) < self.scenario.chunk_rows
        return Chunk(tuple((key, rows[key]) for key in keys), (), snapshot, shape, last=last, is_short=is_short)

    def _standbys(self) -> str | None:
        """What comes with a chunk of a standby: nothing; believed, a snapshot that names nobody who runs."""
        if not self.rules.standbys_snapshot:
            return None
        end = FULL + 1 + max(self._scripts(self.log[: self.replayed]), default=-1)
        return f"{end}:{end}:"

    def _snapshots(self) -> bool:
        return self.scenario.visible is Visible.ANY_ORDER

    # The capture ------------------------------------------------------------------------------------------------------

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
        if any(earlier.offset >= two.offset for earlier, two in pairwise(lines)):
            raise Violation("offsets do not grow from line to line")
        self.staged = replace(now, number=self.staged.number + 1, lines=lines)
        return True

    def _append(self, entry: Entry) -> None:
        self.log = (*self.log, entry)
        if self.capture is not None:
            self._process(self.capture, len(self.log) - 1)
            if not self.scenario.publish:
                self.publish()

    def _place_late_chunk(self) -> None:
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
            raise Violation(f"{violation}, when the capture has read {self._name_entry(self.log[place])}") from None

    def _name_entry(self, entry: Entry) -> str:
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

    # Invariants -------------------------------------------------------------------------------------------------------

    def merge(self) -> None:
        before = set(self.lake.rows)
        self.lake.merge(self.staged.lines[self.merged :], self.staged.chunks)
        self.merged = len(self.staged.lines)
        rows, _ = self._rows(self._scripts(self.log[: self.staged.place]))
        if (removed_keys := (before & rows.keys()) - self.lake.rows.keys()) and not self._moves():
            raise Violation(f"a merge has removed keys {sorted(removed_keys)}, and the source has them")

    def _check(self, capture: Capture) -> None:
        """The replay of every prefix: never a wrong value, never a row that is gone, all rows of placed ranges. Where
        rows were passed over, at the dump's end."""
        if self.scenario.passed_over and not (capture.now.was_released and self._has_ended(capture)):
            return
        rows, _ = self._rows(self._scripts(self.log[: capture.now.place]))
        replay = capture.replay.rows
        for key, values in replay.items():
            if key not in rows:
                raise Violation(f"key {key} is back, and the source does not have it")
            for name, value, right in zip(("v", "big"), values, rows[key], strict=True):
                if value not in (right, UNKNOWN):
                    raise Violation(f"key {key} has {name} of T{value}, and the source has that of T{right}")
        for key in self._placed_keys(capture):
            if key in rows and key not in replay:
                raise Violation(f"key {key} is in a placed range, and lost")
            if key in rows and UNKNOWN in replay[key] and not self._moves():
                raise Violation(f"key {key} is in a placed range, and a value of it is unknown")
        # Where the log's order judges, a row that a SELECT has found after its move counts as missed.
        sure = self.scenario.restless and self._snapshots()
        if sure and capture.met and any(p.arrived for _, p in capture.now.tasks):
            raise Violation("a row is to be looked for again that the dump has brought whole")

    def _has_ended(self, capture: Capture) -> bool:
        tasks = capture.now.tasks
        return len(tasks) == len(self.attempts) and all(progress.done for _, progress in tasks)

    def _moves(self) -> int:
        """A row that changes its key between two chunks' SELECTs is in neither: a value stays unknown until the key is
        read that it has arrived at."""
        return sum(op.kind == "move" for script in self.scenario.scripts for op in script)

    def _placed_keys(self, capture: Capture) -> set[int]:
        if self.scenario.cursors:
            rows, _ = self._rows(self._scripts(self.log[: capture.now.place]))
            return {
                key
                for task, progress in capture.now.tasks
                for key in rows
                if is_in_range(key, self.scenario.cursors[task.number])
                and (progress.ended or (progress.key is not None and key <= progress.key))
            }
        done = {task: progress.ordinal for task, progress in capture.now.tasks}
        return {
            key
            for task, chunks in enumerate(self.scenario.tasks)
            for chunk in chunks[: done.get(TaskId(DUMP, task), 0)]
            for key in chunk
        }

    def _end(self) -> None:
        """Nothing can happen any more: every dump is done, and the lake equals the source; or one has given up."""
        if any(worker.phase == "failed" for worker in self.workers):
            self._end_given_up()
            return
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
            listed_keys = {key for chunks in self.scenario.tasks for chunk in chunks for key in chunk}
            lake = {key: values for key, values in lake.items() if key in listed_keys}
        if {key: values for key, values in rows.items() if key not in withheld} != lake:
            raise Violation(f"the lake ends as {lake}, and the source as {rows}")

    def _end_given_up(self) -> None:
        """A dump that fails has all rows that its ranges have, and heals nothing."""
        assert self.capture is not None
        if any(line.op == "f" for line in self.staged.lines) or any(p.forgotten for _, p in self.staged.tasks):
            raise Violation("a dump that has given up says that it has brought every row")
        rows, _ = self._rows(self._scripts(self.log))
        if self.capture.replay.rows.keys() != rows.keys():
            raise Violation(f"a dump that has given up has rows {self.capture.replay.rows}, and the source has {rows}")
