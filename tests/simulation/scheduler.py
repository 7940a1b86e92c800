"""One thread, one clock, one source of chance: processes are greenlets that give way at every call of a fake.

A *process* is one incarnation of a program: a capture with its background worker, a dump worker, a writer. What it does
outside itself goes through `Simulation.step`, where the scheduler may let others run first, let time pass, pause the
process for so long that its leases run out, or kill it. A killed process raises `Killed` at this and every later step,
so its `finally` blocks change nothing outside, just as those of a process that is gone.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import greenlet

EPOCH = 1_700_000_000.0  # what the drawn clock shows at the beginning, seconds since 1970 UTC
_STEP_SECONDS = 0.0002  # what a step takes at least, so that time never stands still
_LONGEST_RUN = 2_000_000  # steps: beyond it something runs in a circle


class Killed(BaseException):
    """The process is gone; only the scheduler's loop catches this."""


class Stuck(AssertionError):
    """Nothing can run any more, or the run does not end."""


@dataclass(slots=True)
class Chances:
    """How often things go wrong, per step that may; all 0: the network is healed."""

    error: float = 0.0  # the call fails, with no effect
    lost: float = 0.0  # the call has its effect, and fails
    kill: float = 0.0
    pause: float = 0.0


class Signal:
    """Something that tasks wait for; also in the place of a `threading.Event`, as far as the engine uses one."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._set = False
        self.waiting: list[tuple[Task, int]] = []

    def fire(self) -> None:
        """Wakes all that wait now."""
        waiting = self.waiting
        self.waiting = []
        for task, turn in waiting:
            if task.turn == turn:
                self._simulation.wake(task)

    def set(self) -> None:
        self._set = True
        self.fire()

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or (self._simulation.wait(timeout, self) and self._set)


@dataclass(eq=False, slots=True)
class Task:
    """A thread of a process. `turn` tells an old alarm from the one that it waits for now."""

    name: str
    process: Process
    greenlet: Any = None
    turn: int = 0
    woken: bool = False
    ready: bool = False
    over: bool = False
    ended: Any = None

    def join(self, timeout: float | None = None) -> None:
        if not self.over:
            self.ended.wait(timeout)


@dataclass(eq=False, slots=True)
class Process:
    """One incarnation. `paused_from`, `paused_until`: its last pause; `died`: when it was killed."""

    name: str
    mortal: bool
    tasks: list[Task] = field(default_factory=list)
    dead: bool = False
    paused_until: float = 0.0
    on_stop: list[Callable[[float | None], None]] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def over(self) -> bool:
        return all(task.over for task in self.tasks)


class Simulation:
    """The clock and the scheduler. `trace` names every step, in order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.processes: list[Process] = []
        self.fatal = False  # a process has ended by what cannot pass: the run stops there
        self.chances = Chances()
        self.trace: list[str] = []
        self.counts: dict[str, int] = {}
        self.current: Task | None = None
        self._hub = greenlet.getcurrent()
        self._ready: list[Task] = []
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.pauses = (0.2, 6.0)

    # Processes ------------------------------------------------------------------------------------------------------

    def start(self, name: str, function: Callable[[], None], *, mortal: bool = True) -> Process:
        """A new process, to run when its turn comes."""
        process = Process(name, mortal)
        self.processes.append(process)
        self._add(process, name, function)
        return process

    def spawn(self, name: str, function: Callable[[], None]) -> Task:
        """A further thread of the process that runs now: `interfaces.Spawn`."""
        assert self.current is not None
        return self._add(self.current.process, f"{self.current.process.name}.{name}", function)

    def _add(self, process: Process, name: str, function: Callable[[], None]) -> Task:
        task = Task(name, process, ended=Signal(self))

        def run() -> None:
            try:
                if not process.dead:
                    function()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 - a process may end by anything; who started it tells
                process.error = process.error or error
                self.fatal = self.fatal or not getattr(error, "transient", False)
                self.trace.append(f"{name} ended by {type(error).__name__}: {error}")
            finally:
                task.over = True
                task.ended.set()

        task.greenlet = greenlet.greenlet(run, self._hub)
        process.tasks.append(task)
        self.wake(task)
        return task

    def kill(self, process: Process) -> None:
        """From now on the process changes nothing."""
        if not process.dead and not process.over:
            process.dead = True
            self.count("kills")
            self.trace.append(f"kill {process.name}")
            for hook in process.on_stop:
                hook(None)
            for task in process.tasks:
                self.wake(task)

    def pause(self, process: Process, seconds: float) -> None:
        """The process does nothing for a while, and does not know it."""
        process.paused_until = self.now + seconds
        self.count("pauses")
        self.trace.append(f"pause {process.name} for {seconds:.1f}")
        for hook in process.on_stop:
            hook(process.paused_until)

    # Steps ----------------------------------------------------------------------------------------------------------

    def step(self, what: str, failure: Callable[[], BaseException] | None = None) -> None:
        """A call of a fake, before its effect. Raises Killed, or `failure()` where the call is to fail."""
        task = self._alive()
        self.trace.append(f"{task.name} {what}")
        dice = self.dice
        chances = self.chances
        chance = dice.random()
        if task.process.mortal:
            if chance < chances.kill:
                self.kill(task.process)
                raise Killed
            if chance < chances.kill + chances.pause:
                self.pause(task.process, dice.uniform(*self.pauses))
        if chance > 0.9:
            self._sleep(dice.uniform(0.001, 0.03))
        elif chance > 0.5 or task.process.paused_until > self.now:
            self._yield()
        if failure is not None and chances.error and dice.random() < chances.error:
            self.count("errors")
            self.trace.append(f"{task.name} {what}: fails")
            raise failure()

    def after(self, what: str, failure: Callable[[], BaseException] | None = None) -> None:
        """The same call, after its effect: it may yet fail, or never return."""
        task = self._alive()
        dice = self.dice
        chances = self.chances
        if not (chances.lost or chances.kill or chances.pause):
            return
        chance = dice.random()
        if task.process.mortal and chance < chances.kill:
            self.kill(task.process)
            raise Killed
        if task.process.mortal and chance < chances.kill + chances.pause:
            self.pause(task.process, dice.uniform(*self.pauses))
            self._yield()
        elif failure is not None and chance > 1 - chances.lost:
            self.count("lost")
            self.trace.append(f"{task.name} {what}: its answer is lost")
            raise failure()

    def stall(self) -> None:
        """A place where a pause is likelier than elsewhere."""
        process = self._alive().process
        if process.mortal and self.dice.random() < 30 * self.chances.pause:
            self.pause(process, self.dice.uniform(*self.pauses))
            self._yield()

    def wait(self, seconds: float | None, signal: Signal | None = None) -> bool:
        """Waits for the signal, `seconds` at most; whether it came."""
        task = self._alive()
        task.turn += 1
        task.woken = False
        turn = task.turn
        if signal is not None:
            signal.waiting.append((task, turn))
        if seconds is not None:
            self.at(self.now + seconds, lambda: self._alarm(task, turn))
        self._switch()
        return task.woken

    def _alarm(self, task: Task, turn: int) -> None:
        if task.turn == turn and not task.ready:
            self._make_ready(task)

    def wake(self, task: Task) -> None:
        """The task goes on at its next turn."""
        if not task.ready and not task.over:
            task.woken = True
            self._make_ready(task)

    def at(self, when: float, function: Callable[[], None]) -> None:
        """Calls the function at a time of the drawn clock."""
        self._number += 1
        heapq.heappush(self._alarms, (when, self._number, function))

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def _alive(self) -> Task:
        task = self.current
        assert task is not None, "only processes call fakes"
        if task.process.dead:
            raise Killed
        return task

    def _sleep(self, seconds: float) -> None:
        self.wait(seconds)

    def _yield(self) -> None:
        assert self.current is not None
        self._make_ready(self.current)
        self._switch()

    def _make_ready(self, task: Task) -> None:
        task.ready = True
        self._ready.append(task)

    def _switch(self) -> None:
        self._hub.switch()
        if self.current is not None and self.current.process.dead:
            raise Killed

    # The loop -------------------------------------------------------------------------------------------------------

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Runs processes until a time, or until `done()` (looked at once in a while); whether it was done."""
        for number in range(_LONGEST_RUN):
            if done is not None and number % 64 == 0 and done():
                return True
            if self.fatal or self.now >= until:
                return done is not None and done()
            self._due()
            if self._ready:
                self.now += _STEP_SECONDS
                self._turn()
            elif self._alarms:
                self.now = max(self.now, self._alarms[0][0])
            elif done is not None and done():
                return True
            else:
                raise Stuck("every process waits for another")
        raise Stuck(f"the run did not end within {_LONGEST_RUN} turns")

    def _due(self) -> None:
        while self._alarms and self._alarms[0][0] <= self.now:
            heapq.heappop(self._alarms)[2]()

    def _turn(self) -> None:
        ready = self._ready
        index = self.dice.randrange(len(ready)) if len(ready) > 1 else 0
        ready[index], ready[-1] = ready[-1], ready[index]
        task = ready.pop()
        task.ready = False
        if task.over:
            return
        if task.process.paused_until > self.now and not task.process.dead:
            self.at(task.process.paused_until, lambda: None if task.ready else self._make_ready(task))
            return
        self.current = task
        try:
            task.greenlet.switch()
        finally:
            self.current = None

    def end(self) -> None:
        """Every process ends here, so that none is left to the garbage collector."""
        self.chances = Chances()
        for process in self.processes:
            process.dead = True
            for task in process.tasks:
                self.wake(task)
        while self._ready:
            self._turn()
