"""One behaviour of all state stores: memory, SQLite, ZooKeeper."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from dblog_core.errors import StateError, StateUnavailable, VersionConflict
from dblog_core.interfaces import Entry, LeaseInfo, StateStore
from dblog_core.state import zookeeper_lease
from dblog_core.state.memory import MemoryState
from dblog_core.state.zookeeper import ZookeeperState
from dblog_core.state.zookeeper_lease import LeaseBeside, ZookeeperLease
from dblog_core.state.zookeeper_session import Session
from tests.contract.lease_holder import store

TTL = 3.0
LONG = 30.0  # so long that nothing in a test waits for its end
REAL = ["sqlite", "zookeeper"]

Open = Callable[..., StateStore]
Holder = Callable[[float], subprocess.Popen[str]]


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    if kind == "zookeeper":
        return str(request.getfixturevalue("zookeeper_url"))
    return f"sqlite://{tmp_path / 'state' / 'state.db'}"


@pytest.fixture
def open_store(kind: str, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens clients of one store."""
    opened: list[StateStore] = []
    memory = MemoryState()

    def open_one(prefix: str = "shop") -> StateStore:
        opened.append(MemoryState(shared=memory) if kind == "memory" else store(request.getfixturevalue("url"), prefix))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


every = pytest.mark.parametrize("kind", ["memory", *REAL])
real = pytest.mark.parametrize("kind", REAL)


@every
def test_what_one_client_creates_another_reads(open_store: Open) -> None:
    open_store().create("dumps/d1/tasks/0", b"data")
    assert open_store().get("dumps/d1/tasks/0") == Entry(b"data", 0)
    assert open_store().get("dumps/d1") == Entry(b"", 0)
    assert open_store().get("dumps/d2") is None


@every
def test_a_node_is_created_once(open_store: Open) -> None:
    state = open_store()
    state.create("a/b", b"first")
    with pytest.raises(VersionConflict):
        state.create("a/b", b"second")
    assert state.get("a/b") == Entry(b"first", 0)


@every
def test_many_nodes_are_read_at_once_as_each_alone(open_store: Open) -> None:
    state = open_store()
    for number in range(30):
        state.create(f"many/{number}", b"%d" % number)
    state.update("many/3", b"three", 0)
    asked = [f"many/{number % 40}" for number in range(1_300)]
    assert state.get_all(asked) == [state.get(path) for path in asked[:40]] * 32 + [state.get(p) for p in asked[:20]]
    assert state.get_all(["many/3", "none", "many/3"]) == [Entry(b"three", 1), None, Entry(b"three", 1)]
    assert state.get_all([]) == []
    with pytest.raises(StateError, match="not a path"):
        state.get_all(["many/3", "/a"])


@every
def test_many_nodes_are_created_at_once_and_each_once(open_store: Open) -> None:
    state = open_store()
    nodes = {f"deep/{number}/below": b"%d" % number for number in range(450)}
    state.create_all(nodes)
    assert state.get_all(list(nodes)) == [Entry(data, 0) for data in nodes.values()]
    assert len(state.children("deep")) == 450 and state.children("deep/7") == ["below"]
    with pytest.raises(VersionConflict):
        state.create_all({"deep/x/below": b"", "deep/7/below": b"another"})
    assert state.get("deep/7/below") == Entry(b"7", 0)
    state.create_all({})


@every
def test_an_update_needs_the_present_version(open_store: Open) -> None:
    state = open_store()
    state.create("a", b"0")
    assert state.update("a", b"1", 0) == 1
    with pytest.raises(VersionConflict):
        state.update("a", b"2", 0)
    with pytest.raises(VersionConflict):
        state.update("missing", b"2", 0)
    assert state.get("a") == Entry(b"1", 1)


@every
def test_delete_takes_all_below_and_nothing_beside(open_store: Open) -> None:
    state = open_store()
    for path in ("d/1", "d/1/tasks/0", "d/10", "d/1-x"):
        state.create(path, b"")
    state.delete("d/1")
    state.delete("d/1")
    assert state.children("d") == ["1-x", "10"]
    assert state.get("d/1/tasks/0") is None


@every
def test_children_are_sorted_names_right_below(open_store: Open) -> None:
    state = open_store()
    for path in ("t/b/deep/er", "t/a", "t/ü", "tt/c"):
        state.create(path, b"")
    assert state.children("t") == ["a", "b", "ü"]
    assert state.children("t/a") == [] == state.children("none")


@real
def test_sources_do_not_see_each_other(open_store: Open) -> None:
    open_store("shop").create("a", b"")
    assert open_store("shop2").get("a") is None
    first = open_store("shop")
    second = open_store("shop2")
    one = first.acquire("capture", "x", ttl=TTL)
    two = second.acquire("capture", "y", ttl=TTL)
    assert one is not None and two is not None
    one.release()
    two.release()


@every
def test_what_does_not_fit_or_is_no_path_is_refused_clearly(open_store: Open) -> None:
    state = open_store()
    with pytest.raises(StateError, match="do not fit") as caught:
        state.create("big", bytes(1_000_000))
    assert not caught.value.transient
    for path in ("", "/a", "a/", "a//b", "a/../b"):
        with pytest.raises(StateError, match="not a path"):
            state.get(path)


@every
def test_concurrent_updates_lose_nothing(open_store: Open) -> None:
    open_store().create("counter", b"0")

    def count(state: StateStore) -> None:
        done = 0
        while done < 20:
            entry = state.get("counter")
            assert entry is not None
            try:
                state.update("counter", str(int(entry.data) + 1).encode(), entry.version)
            except VersionConflict:
                continue
            done += 1

    threads = [threading.Thread(target=count, args=(open_store(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert open_store().get("counter") == Entry(b"80", 80)


@every
def test_a_lease_is_one_holders_and_epochs_grow(open_store: Open) -> None:
    first = open_store()
    second = open_store()
    assert second.leader("capture") is None
    lease = first.acquire("capture", "one", ttl=TTL)
    assert lease is not None and lease.valid()
    assert second.leader("capture") == LeaseInfo("one", lease.epoch)
    assert second.acquire("capture", "two", ttl=TTL) is None
    assert second.acquire("capture", "two", ttl=TTL, wait=0.2) is None
    lease.release()
    assert not lease.valid()
    later = second.acquire("capture", "two", ttl=TTL)
    assert later is not None and later.epoch > lease.epoch
    assert first.leader("capture") == LeaseInfo("two", later.epoch)
    later.release()
    later.release()
    assert first.leader("capture") is None


@every
def test_a_lease_beside_another_is_one_holders_and_ends_with_its_release(open_store: Open) -> None:
    first = open_store()
    second = open_store()
    own = first.acquire("permit", "one", ttl=LONG)
    assert own is not None
    for epoch in (1, 2):
        beside = first.acquire("task", "one", ttl=LONG, beside=own)
        assert beside is not None and beside.valid() and beside.epoch == epoch
        assert second.leader("task") == LeaseInfo("one", epoch)
        assert second.acquire("task", "two", ttl=LONG) is None
        assert first.acquire("task", "one", ttl=LONG, wait=0.1, beside=own) is None, "not even the same holder's"
        beside.release()
        assert not beside.valid() and second.leader("task") is None and own.valid()
    others = second.acquire("task", "two", ttl=LONG)
    assert others is not None and others.epoch == 3
    others.release()
    own.release()


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
    own = state.acquire("permit", "one", ttl=LONG)
    assert own is not None
    beside = state.acquire("task", "one", ttl=LONG, beside=own)
    assert isinstance(beside, LeaseBeside) and isinstance(own, ZookeeperLease)

    def deaf(*_: object, **__: object) -> None:
        raise StateUnavailable("it does not answer", where="zk", fix="none")

    monkeypatch.setattr(own.session, "ask", deaf)
    with pytest.raises(StateUnavailable):
        beside.release()
    assert not own.valid() and not beside.valid()
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
    began = time.monotonic()
    later = second.acquire("capture", "two", ttl=LONG, wait=LONG)
    assert later is not None and later.epoch == lease.epoch + 1
    assert time.monotonic() - began < LONG / 3
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
            lease = state.acquire("capture", str(number), ttl=TTL, wait=30)
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


def test_a_new_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    for attempt in range(100):  # SQLite fails one of two that switch a file to WAL: 3 of 100 met, once
        stores = [store(f"sqlite://{tmp_path / str(attempt)}.db", "shop") for _ in range(6)]
        together = threading.Barrier(len(stores))

        def first_use(state: StateStore, together: threading.Barrier = together) -> None:
            together.wait()
            assert state.leader("capture") is None
            state.close()

        with ThreadPoolExecutor(len(stores)) as pool:
            list(pool.map(first_use, stores))


@pytest.fixture
def holder(url: str) -> Iterator[Holder]:
    """Starts other processes that hold the lease for a ttl."""
    started: list[subprocess.Popen[str]] = []

    def start(ttl: float) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.contract.lease_holder", url, str(ttl)]
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
    child = holder(
        LONG if kind == "sqlite" else TTL
    )  # SQLite's looks at the process: nobody waits for its lease to end
    epoch = int(_line(child))
    state = open_store()
    assert state.acquire("capture", "us", ttl=TTL) is None
    child.kill()
    child.wait()
    began = time.monotonic()
    lease = state.acquire("capture", "us", ttl=TTL, wait=30)
    assert lease is not None and lease.epoch > epoch
    assert time.monotonic() - began < (LONG / 3 if kind == "sqlite" else TTL + 10)
    lease.release()


@real
def test_a_holder_that_was_stopped_for_long_knows_at_once_that_its_lease_is_gone(
    open_store: Open, holder: Holder
) -> None:
    child = holder(TTL)
    epoch = int(_line(child))
    child.send_signal(signal.SIGSTOP)
    lease = open_store().acquire("capture", "us", ttl=TTL, wait=30)
    assert lease is not None and lease.epoch > epoch
    assert child.stdin is not None
    child.stdin.write("?\n")
    child.stdin.flush()
    child.send_signal(signal.SIGCONT)
    assert _line(child) == "False"
    assert lease.valid()
    lease.release()


@real
def test_a_store_that_cannot_be_reached_is_a_transient_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dblog_core.state.zookeeper_session.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("dblog_core.state.zookeeper._PATIENCE", 1.0)
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    state = store({"zookeeper": "zookeeper://127.0.0.1:1/x", "sqlite": f"sqlite://{blocked}/state.db"}[kind], "shop")
    with pytest.raises(StateUnavailable if kind == "zookeeper" else StateError) as caught:
        state.get("a")
    assert caught.value.where and caught.value.fix
    state.close()


@pytest.mark.parametrize("kind", ["zookeeper"])
def test_who_has_lost_its_session_in_the_queue_raises_no_epoch_beside_the_next_holder(
    open_store: Open, url: str
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
