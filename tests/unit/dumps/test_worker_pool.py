"""The crew of workers of one process."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from dblog_core.clock import SystemClock
from dblog_core.dumps import control, dump_records, work_loop
from dblog_core.dumps.status import DumpStatus
from dblog_core.dumps.worker import FAULTY_ATTEMPTS
from dblog_core.errors import (
    RequestError,
    SourceUnavailable,
)
from tests.unit.workers_world import DUMP, World, world
from tests.waiting import PATIENCE_SECONDS

__all__ = ["world"]


class Running:
    """`work` in a thread, beside a capture in another."""

    def __init__(self, world: World, **more: Any) -> None:
        self.world = world
        self.error = None
        self.stop = threading.Event()
        world.clock = SystemClock()  # type: ignore[assignment]
        self._quit = threading.Event()
        self._capture = threading.Thread(target=self._place)
        self._work = threading.Thread(target=self._run, kwargs=more)
        self._capture.start()
        self._work.start()

    def _place(self) -> None:
        while not self._quit.wait(0.02):
            self.world.place()

    def _run(self, **more: Any) -> None:
        try:
            work_loop.work(self.world.config, stop=self.stop, **more)
        except Exception as error:  # noqa: BLE001  whatever ends the work is looked at by the test
            self.error = error

    def end(self, *, stop: bool = False) -> None:
        """Waits until the work is over; `stop`: tells it to."""
        if stop:
            self.stop.set()
        self._work.join(timeout=PATIENCE_SECONDS)
        ended = not self._work.is_alive()
        self.stop.set()
        self._quit.set()
        self._capture.join(timeout=PATIENCE_SECONDS)
        self._work.join(timeout=PATIENCE_SECONDS)
        assert ended, "the work goes on"


def test_a_crew_grows_to_the_number_that_is_set_while_it_works(world: World) -> None:
    world.fill(*range(1, 101))
    world.request(*({"after": k * 20, "key_to": k * 20 + 20} for k in range(5)), workers=1)
    together = threading.Barrier(3, timeout=PATIENCE_SECONDS)
    workers_met = threading.Event()

    def meet() -> None:
        if not workers_met.is_set():
            together.wait()  # three workers read at the same time, or this breaks
            workers_met.set()

    world.source.on_read = meet
    running = Running(world)
    control.retune(world.state, DUMP, workers=3)
    running.end()
    assert running.error is None and workers_met.is_set()
    assert sorted(world.placed_keys()) == list(range(1, 101))


def test_a_crew_has_no_more_members_than_it_is_told(world: World) -> None:
    world.fill(*range(1, 101))
    world.request(*({"after": k * 20, "key_to": k * 20 + 20} for k in range(5)), workers=5)
    at_work: set[str] = set()
    most: list[int] = []

    def count() -> None:
        at_work.add(threading.current_thread().name)
        most.append(len([n for n in world.held_leases() if n.startswith("permit-")]))

    world.source.on_read = count
    running = Running(world, workers=2)
    running.end()
    assert running.error is None
    assert len(at_work) <= 2 and max(most) <= 2
    assert sorted(world.placed_keys()) == list(range(1, 101))


def test_a_crew_tells_its_progress_to_the_end(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({}, {"keys": [3]})
    expected_texts: list[str] = []
    running = Running(world, on_progress=lambda status: expected_texts.append(status.state))
    running.end()
    assert running.error is None
    assert expected_texts[-1] == "done" and expected_texts.count("done") == 1


def test_a_crew_raises_the_fault_of_a_task_after_all_others_are_done(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({"table": "shop.nothing"}, {})
    running = Running(world)
    running.end()
    assert isinstance(running.error, RequestError)
    assert world.placed_keys() == list(range(1, 101))


@pytest.mark.thorough
def test_a_service_survives_faulty_tasks_and_lost_connections_and_waits_for_more(world: World) -> None:
    world.fill(*range(1, 101))
    world.request({"table": "shop.nothing"}, {})
    over = {DUMP: threading.Event(), "d2": threading.Event()}
    strikes = itertools.count()

    def sometimes() -> None:
        if next(strikes) < FAULTY_ATTEMPTS:
            raise SourceUnavailable("the connection broke")

    def note_end(status: DumpStatus) -> None:
        if status.state in dump_records.OVER:
            over[status.id].set()

    world.source.on_read = sometimes
    running = Running(world, once=False, on_progress=note_end)
    assert over[DUMP].wait(PATIENCE_SECONDS)
    assert world.status().state == "failed"
    assert world.placed_keys() == list(range(1, 101))
    world.request({"key_to": 5}, dump_id="d2")
    assert over["d2"].wait(PATIENCE_SECONDS)
    running.end(stop=True)
    assert running.error is None
    assert world.placed_keys()[100:] == [1, 2, 3, 4, 5]


def test_an_interrupt_of_the_crew_ends_its_workers_too(world: World) -> None:
    """Nobody places the chunks here, so a worker that is not stopped waits for ever, and the process with it."""
    world.fill(*range(1, 101))
    world.request({"after": 0, "key_to": 100}, workers=1)
    stop = threading.Event()

    def interrupt(_: Any) -> None:
        if world.source.begun:  # a worker is at work
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work_loop.work(world.config, stop=stop, on_progress=interrupt)
    assert stop.is_set()
