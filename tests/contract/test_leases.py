"""One behaviour of the leases of all state stores: one holder, and epochs that grow."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kazoo.client import KazooClient

from dblog_core.errors import StateUnavailable
from dblog_core.interfaces import LeaseInfo, StateStore
from dblog_core.state import zookeeper_lease
from dblog_core.state.zookeeper import ZookeeperState
from dblog_core.state.zookeeper_lease import LeaseBeside, ZookeeperLease
from dblog_core.state.zookeeper_session import Session
from tests.contract.stores import LONG, TTL, Holder, Open, every, real
from tests.waiting import PATIENCE_SECONDS


@every
def test_a_lease_is_one_holders_and_epochs_grow(open_store: Open) -> None:
    first = open_store()
    second = open_store()
    assert second.leader("capture") is None
    lease = first.acquire("capture", "one", ttl=LONG)
    assert lease is not None and lease.valid()
    assert second.leader("capture") == LeaseInfo("one", lease.epoch)
    assert second.acquire("capture", "two", ttl=LONG) is None
    assert second.acquire("capture", "two", ttl=LONG, wait=0.2) is None
    lease.release()
    assert not lease.valid()
    later = second.acquire("capture", "two", ttl=LONG)
    assert later is not None and later.epoch > lease.epoch
    assert first.leader("capture") == LeaseInfo("two", later.epoch)
    later.release()
    later.release()
    assert first.leader("capture") is None


@every
def test_a_lease_beside_another_is_one_holders_and_ends_with_its_release(open_store: Open) -> None:
    first = open_store()
    second = open_store()
    lease = first.acquire("permit", "one", ttl=LONG)
    assert lease is not None
    for epoch in (1, 2):
        beside = first.acquire("task", "one", ttl=LONG, beside=lease)
        assert beside is not None and beside.valid() and beside.epoch == epoch
        assert second.leader("task") == LeaseInfo("one", epoch)
        assert second.acquire("task", "two", ttl=LONG) is None
        assert first.acquire("task", "one", ttl=LONG, wait=0.1, beside=lease) is None, "not even the same holder's"
        beside.release()
        assert not beside.valid() and second.leader("task") is None and lease.valid()
    others = second.acquire("task", "two", ttl=LONG)
    assert others is not None and others.epoch == 3
    others.release()
    lease.release()


@pytest.mark.parametrize("kind", ["zookeeper"])
def test_a_lease_beside_another_costs_three_round_trips(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dump of many small tables takes one for each: a look at the line, our place in it, and the epoch."""
    state = open_store()
    permit = state.acquire("permit", "us", ttl=LONG)
    assert permit is not None
    state.acquire("task-0", "us", ttl=LONG, beside=permit)  # what lies above all leases is there from now on
    commands = 0
    trips = 0
    call = KazooClient._call

    def calling(*arguments: Any) -> Any:
        nonlocal commands
        commands += 1
        return call(*arguments)

    monkeypatch.setattr(KazooClient, "_call", calling)
    for name in ("ask", "begin"):
        plain = getattr(Session, name)

        def noting(*arguments: Any, plain: Any = plain, **more: Any) -> Any:
            nonlocal trips
            before = commands
            try:
                return plain(*arguments, **more)
            finally:
                trips += commands > before  # otherwise it awaited an answer to what was sent before

        monkeypatch.setattr(Session, name, noting)
    lease = state.acquire("task-1", "us", ttl=LONG, beside=permit)
    assert lease is not None and trips == 3
    permit.release()


@every
def test_leases_that_are_forgotten_leave_nothing_and_those_that_are_held_stay(open_store: Open) -> None:
    state = open_store()
    for name in ("task-d-0", "task-d-1", "task-e-0"):
        lease = state.acquire(name, "one", ttl=LONG)
        assert lease is not None
        lease.release()
    state.forget_leases(["task-d-0", "task-d-1", "task-never"])
    for name, epoch in (("task-d-0", 1), ("task-e-0", 2)):
        lease = state.acquire(name, "one", ttl=LONG)
        assert lease is not None and lease.epoch == epoch
        lease.release()


@pytest.mark.parametrize("kind", ["zookeeper"])
def test_a_lease_beside_another_ends_with_that_one_also_where_its_own_release_is_not_heard(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = open_store()
    lease = state.acquire("permit", "one", ttl=LONG)
    assert lease is not None
    beside = state.acquire("task", "one", ttl=LONG, beside=lease)
    assert isinstance(beside, LeaseBeside) and isinstance(lease, ZookeeperLease)

    def deaf(*_: object, **__: object) -> None:
        raise StateUnavailable("it does not answer", where="zk", fix="none")

    monkeypatch.setattr(lease.session, "ask", deaf)
    with pytest.raises(StateUnavailable):
        beside.release()
    assert not lease.valid() and not beside.valid()
    later = state.acquire("task", "two", ttl=LONG, wait=LONG)
    assert later is not None
    later.release()


@every
def test_raised_epochs_are_passed(open_store: Open) -> None:
    state = open_store()
    state.raise_epoch("capture", 41)
    state.raise_epoch("capture", 7)
    lease = state.acquire("capture", "one", ttl=TTL)
    assert lease is not None and lease.epoch == 42
    lease.release()


@every
def test_a_waiting_standby_gets_the_lease_when_it_is_released(open_store: Open) -> None:
    first = open_store()
    second = open_store()
    lease = first.acquire("capture", "one", ttl=LONG)
    assert lease is not None
    threading.Timer(0.3, lease.release).start()
    later = second.acquire("capture", "two", ttl=LONG, wait=2 * LONG / 3)  # it would end by itself after that
    assert later is not None and later.epoch == lease.epoch + 1
    later.release()


@every
def test_a_lease_keeps_itself_alive(open_store: Open) -> None:
    first = open_store()
    second = open_store()
    lease = first.acquire("capture", "one", ttl=TTL)
    assert lease is not None
    assert second.acquire("capture", "two", ttl=TTL, wait=1.5 * TTL) is None
    assert lease.valid()
    lease.release()


@every
def test_many_contenders_hold_it_one_at_a_time(open_store: Open) -> None:
    inside = threading.Lock()
    epochs = []
    clashes = []

    def contend(state: StateStore, number: int) -> None:
        for _ in range(3):
            lease = state.acquire("capture", str(number), ttl=LONG, wait=PATIENCE_SECONDS)
            assert lease is not None
            if not inside.acquire(blocking=False):
                clashes.append(number)
            epochs.append(lease.epoch)
            inside.release()
            lease.release()

    threads = [threading.Thread(target=contend, args=(open_store(), n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes
    assert epochs == list(range(1, 13))


@pytest.fixture
def holder(state_url: str) -> Iterator[Holder]:
    """Starts other processes that hold the lease for a ttl."""
    started: list[subprocess.Popen[str]] = []

    def start(ttl: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.contract.lease_holder", state_url, str(ttl)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@real
def test_a_killed_holder_is_replaced(kind: str, open_store: Open, holder: Holder) -> None:
    # SQLite's looks at the process: nobody waits for its lease to end.
    child = holder(10 * LONG if kind == "sqlite" else TTL)
    epoch = int(_line(child))
    state = open_store()
    assert state.acquire("capture", "us", ttl=TTL) is None
    child.kill()
    child.wait()
    lease = state.acquire("capture", "us", ttl=TTL, wait=LONG)
    assert lease is not None and lease.epoch > epoch
    lease.release()


@real
def test_a_holder_that_was_stopped_for_long_knows_at_once_that_its_lease_is_gone(
    open_store: Open, holder: Holder
) -> None:
    child = holder(TTL)
    epoch = int(_line(child))
    child.send_signal(signal.SIGSTOP)
    lease = open_store().acquire("capture", "us", ttl=LONG, wait=LONG)
    assert lease is not None and lease.epoch > epoch
    assert child.stdin is not None
    child.stdin.write("?\n")
    child.stdin.flush()
    child.send_signal(signal.SIGCONT)
    assert _line(child) == "False"
    assert lease.valid()
    lease.release()


@pytest.mark.parametrize("kind", ["zookeeper"])
def test_who_has_lost_its_session_in_the_queue_raises_no_epoch_beside_the_next_holder(
    open_store: Open, state_url: str
) -> None:
    """Nobody could tell then who holds the lease."""
    state = open_store()
    lease = state.acquire("capture", "us", ttl=LONG)
    assert lease is not None
    assert isinstance(state, ZookeeperState)
    paths = state._lease("capture")
    late = Session(state._servers, seconds=LONG).start()
    with closing(late), pytest.raises(StateUnavailable, match="the session ended while it waited"):
        zookeeper_lease._next_epoch(late, paths, "lock-0000009999", zookeeper_lease._read_epoch(late, paths))
    assert state.leader("capture") == LeaseInfo("us", lease.epoch)
    lease.release()
    later = state.acquire("capture", "we", ttl=LONG)
    assert later is not None and later.epoch == lease.epoch + 1
    later.release()
