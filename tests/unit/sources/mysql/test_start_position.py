"""Where a first capture begins, and where one ends that is to go up to a place, over a database in memory."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from dblog_core.capture.run_capture import CaptureOutcome, run_capture
from dblog_core.capture.stop_condition import AtTime
from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.errors import ConfigError, SourceRefused, SourceUnavailable
from dblog_core.model import position_spec
from dblog_core.model.position_spec import Place
from tests.fake_source import FakeDatabase, FakeSource
from tests.unit.engine_world import World
from tests.waiting import PATIENCE_SECONDS

SECOND = 1_000_000


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def starting(world: World, start: str) -> None:
    source = {**world.config.source.model_dump(), "start": start}
    world.config = Config.model_validate({**world.config.model_dump(), "source": source})


def until(world: World, place: str, stop: threading.Event | None = None) -> CaptureOutcome:
    return run_capture(world.config, stop=stop or threading.Event(), until=position_spec.parse(place, "mysql"))


def ids(world: World) -> list[int]:
    return [line["key"]["id"] for line in world.lines() if line["op"] in "cud"]


def test_a_first_capture_begins_where_it_is_told_and_later_ones_go_on(world: World) -> None:
    for key in range(4):
        world.put(key)
    starting(world, "log.1:2")
    world.capture()
    assert ids(world) == [2, 3]
    starting(world, "log.1:0")
    world.put(9)
    world.capture()
    assert ids(world) == [2, 3, 9]
    assert dump_store.list_dumps(world.state) == []


def test_a_place_that_is_refused_records_and_makes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slots_made: list[str] = []

    def refuse(place: Place) -> str:
        raise SourceRefused("it is purged", fix="earliest")

    monkeypatch.setattr(world.source, "begin", refuse)
    monkeypatch.setattr(world.source, "prepare", lambda: slots_made.append("slot"))
    starting(world, "log.1:2")
    with pytest.raises(SourceRefused, match="purged"):
        world.capture()
    assert world.staging.head() is None and slots_made == []


def test_a_source_that_is_away_while_the_place_is_looked_for_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = world.source.begin
    calls = 0

    def begin(place: Place) -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise SourceUnavailable("the connection broke")
        return real(place)

    monkeypatch.setattr(world.source, "begin", begin)
    world.put(1)
    world.put(2)
    starting(world, "log.1:1")
    world.capture()
    assert ids(world) == [2] and calls == 2


def test_a_start_that_is_no_place_of_the_source_is_told(world: World) -> None:
    starting(world, "0/16B3748")
    with pytest.raises(ConfigError, match=r"\[source\] start: start is no place in the log of mysql"):
        world.capture()


def test_a_capture_ends_with_all_up_to_a_position_and_acknowledges_it(world: World) -> None:
    world.capture()
    for key in range(5):
        world.put(key)
    assert until(world, "log.1:3") is CaptureOutcome.REACHED
    assert set(ids(world)) >= {0, 1, 2}
    head = world.staging.head()
    assert head is not None and world.source.acknowledged == int(head.position) >= 3


def test_a_position_that_is_staged_already_ends_it_at_once(world: World) -> None:
    world.capture()
    world.put(1)
    world.capture()
    world.put(2)
    assert until(world, "log.1:1") is CaptureOutcome.REACHED
    assert ids(world) == [1]


def test_a_capture_waits_for_a_position_that_is_still_to_come(world: World) -> None:
    world.capture()
    waiting = _Beside(world, "log.1:2")
    world.put(1)
    waiting.wait_until_led()
    assert waiting.outcome is None
    world.put(2)
    waiting.join()
    assert waiting.outcome is CaptureOutcome.REACHED and ids(world) == [1, 2]


def test_a_standby_ends_when_the_leader_has_staged_all(world: World) -> None:
    world.capture()
    lease = world.state.acquire("capture", "leader", ttl=60)
    assert lease is not None
    standby = _Beside(world, "log.1:1")
    world.put(1)
    standby.stood_by()
    assert standby.outcome is None
    lease.release()
    standby.join()
    assert standby.outcome is CaptureOutcome.REACHED


def test_a_capture_that_is_stopped_before_the_place_says_so(world: World) -> None:
    stop = threading.Event()
    stop.set()
    assert until(world, "log.1:99", stop) is CaptureOutcome.STOPPED


def test_a_time_ends_it_with_the_first_commit_that_is_later(world: World) -> None:
    world.capture()
    for key in range(3):
        world.put(key)
    now = world.database.times[-1]
    world.database.times[:] = [now - 20 * SECOND, now - 10 * SECOND, now]
    assert until(world, position_spec.in_words(now - 15 * SECOND)) is CaptureOutcome.REACHED
    assert 0 in ids(world)


def test_a_time_ends_it_on_a_source_that_nothing_happens_on(world: World) -> None:
    world.capture()
    world.put(1)
    world.source.ahead = 60 * SECOND  # the server's clock counts, not ours
    assert until(world, position_spec.in_words(world.source.time() - 5 * SECOND)) is CaptureOutcome.REACHED
    assert ids(world) == [1]


class _Clock(SystemClock):
    now = 0.0

    def monotonic(self) -> float:
        return self.now


class _Timed(FakeSource):
    """Counts how often its clock is asked for; its commits wait between their time and their place in the log."""

    def __init__(self) -> None:
        super().__init__(FakeDatabase())
        self.clock = 0
        self.asked = 0

    def time(self) -> int:
        self.asked += 1
        return self.clock


def test_a_time_is_over_once_a_commit_or_the_log_with_the_servers_clock_lies_behind_it() -> None:
    source = _Timed()
    clock = _Clock()
    goal = AtTime(source, clock, 100 * SECOND)
    assert not goal.is_reached("0", 100 * SECOND) and not goal.is_reached(
        "0", 101 * SECOND
    )  # as old, and hardly younger
    assert goal.is_reached("0", 101 * SECOND + 1)
    source.clock = 100 * SECOND + 5
    clock.now = 1000.0
    assert not goal.is_reached("0", None)
    source.clock = 102 * SECOND
    clock.now = 1002.0
    source.database.commit()
    assert not goal.is_reached("0", None) and goal.is_reached("1", None)


def test_the_servers_clock_is_asked_again_when_the_time_can_have_come() -> None:
    source = _Timed()
    clock = _Clock()
    goal = AtTime(source, clock, 100 * SECOND)
    for clock.now in (0.0, 1.0, 50.0, 100.9):
        assert not goal.is_reached("0", None)
    assert source.asked == 1
    source.clock = 102 * SECOND
    clock.now = 101.0
    assert goal.is_reached("0", None) and source.asked == 2


class _Beside:
    """A capture that goes up to a place, in a thread."""

    def __init__(self, world: World, place: str) -> None:
        self.outcome: CaptureOutcome | None = None
        self._world = world
        self._said = threading.Event()
        self._led = threading.Event()

        def run() -> None:
            self.outcome = run_capture(
                world.config,
                stop=threading.Event(),
                until=position_spec.parse(place, "mysql"),
                on_status=lambda status: self._said.set() if not status.leading else self._led.set(),
            )

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def wait_until_led(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ids(self._world):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def stood_by(self) -> None:
        assert self._said.wait(PATIENCE_SECONDS)

    def join(self) -> None:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
