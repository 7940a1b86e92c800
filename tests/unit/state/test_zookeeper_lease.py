"""A lease on ZooKeeper is proven by writes: what a server answers that is cut off from the others proves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from dblog_core.errors import StateUnavailable
from dblog_core.state import zookeeper_lease
from dblog_core.state.zookeeper_lease import ZookeeperLease
from tests.waiting import wait_until


class Client:
    """Notes what is asked; reads are always answered."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.write: Callable[[], Any] = lambda: None

    def exists_async(self, node: str) -> Callable[[], Any]:
        self.asked.append("read")
        return object

    def set_async(self, node: str, data: bytes) -> Callable[[], Any]:
        self.asked.append(f"{data.decode()} into {node}")
        return self.write


class Session:
    """One that a lease rests on."""

    seconds = 2.0
    id = 7

    def __init__(self) -> None:
        self.client = Client()
        self.closed = False

    def ask(self, request: Callable[[Client], Any], *, timeout: float = 0) -> Any:
        return request(self.client)()

    def on_lost(self, call: Callable[[], None]) -> None:
        return None

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(zookeeper_lease, "boottime", lambda: clock[0])
    return clock


@pytest.fixture
def session() -> Session:
    return Session()


@pytest.fixture
def lease(session: Session, now: list[float]) -> Iterator[ZookeeperLease]:
    new_lease = ZookeeperLease(session, "/locks/lock-1", "us", 5, alive=now[0])  # type: ignore[arg-type]
    yield new_lease
    new_lease.release()


def test_a_beat_is_a_write_of_the_lock_node_as_it_is(session: Session, lease: ZookeeperLease, now: list[float]) -> None:
    wait_until(lambda: len(session.client.asked) >= 2, "two beats")
    assert set(session.client.asked) == {"us into /locks/lock-1"}
    now[0] += 1.5
    beats = len(session.client.asked)
    wait_until(lambda: len(session.client.asked) >= beats + 2, "a beat that was sent after that")
    now[0] += 1.5
    assert lease.valid(), "by its last beat"


def test_a_server_that_answers_reads_alone_keeps_no_lease(
    session: Session, lease: ZookeeperLease, now: list[float]
) -> None:
    def cut_off() -> None:
        raise StateUnavailable("most of the servers do not answer it", where="zk", fix="none")

    session.client.write = cut_off
    beats = len(session.client.asked)
    wait_until(lambda: len(session.client.asked) > beats + 1, "beats without an answer")
    now[0] += session.seconds
    assert not lease.valid()


def test_a_lease_whose_node_is_gone_is_over_at_once(session: Session, lease: ZookeeperLease) -> None:
    def raise_no_node() -> None:
        raise NoNodeError

    session.client.write = raise_no_node
    wait_until(lambda: not lease.valid(), "the end of the lease")
    wait_until(lambda: session.closed, "the end of its session")
