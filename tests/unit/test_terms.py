"""How a leader's term begins and ends where two captures, or a capture and a worker, meet: found by the simulation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from dblog_core import control, wiring
from dblog_core.capture import run_capture
from dblog_core.clock import SystemClock, spawn_thread
from dblog_core.config import Config
from dblog_core.dumps import TaskProgress
from dblog_core.errors import LeaseLost, LogPositionLost, SegmentTaken, SourceUnavailable, StateError
from dblog_core.leader import CaptureOutcome, CaptureStatus, Leader, Parts
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.state.memory import MemoryLease, MemoryState
from tests.fake_source import FakeDatabase, FakeSource, FakeStream
from tests.unit.staged import manifest

DUMP = "d1"
RECORD = {
    "tables": ["shop.orders"], "options": {"workers": 2, "chunk_size": 10}, "state": "requested", "error": None,
    "requested_at": "", "requested_by": "user",
}  # fmt: skip
TASK = {"table": "shop.orders", "keys": None, "key_from": None, "key_to": None, "attempt": 3}


class Reign:
    """A capture that goes on for ever, but for what its leader raises."""

    fresh_start = False

    def has_gone_on(self, head: Manifest) -> bool:
        return False

    def outcome(self, position: str | None = None, commit_time: int | None = None) -> CaptureOutcome | None:
        return CaptureOutcome.STOPPED if position is not None else None

    def changed(self) -> bool:
        return False

    def healthy(self) -> None:
        return None

    def tell(self, status: CaptureStatus) -> None:
        return None


class Source(FakeSource):
    """`on_open` runs before the log is opened, and may raise."""

    on_open: Callable[[], None] = staticmethod(lambda: None)

    def open_log(self, position: str, *, skip: int = 0) -> FakeStream:
        self.on_open()
        return super().open_log(position, skip=skip)


class Term:
    """All that a term needs."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database, self.state = FakeDatabase(), MemoryState()
        self.source = Source(self.database)
        self.config = Config.model_validate(
            {
                "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
                "staging": {"path": str(path / "staging")},
                "state": {"url": "sqlite:///unused"},
                "lake": {"path": str(path / "lake")},
            }
        )
        monkeypatch.setattr(wiring, "open_source", lambda config: self.source)
        monkeypatch.setattr(wiring, "open_state", lambda config: MemoryState(shared=self.state))
        self.staging: Staging = wiring.open_staging(self.config)
        self.started: list[str] = []

    def spawn(self, name: str, function: Callable[[], None]) -> threading.Thread:
        self.started.append(name)
        return spawn_thread(name, function)

    def lease(self) -> MemoryLease:
        lease = self.state.acquire("capture", "us", ttl=10)
        assert lease is not None
        return lease

    def leader(self, lease: MemoryLease) -> Leader:
        parts = Parts(self.config, self.source, self.staging, self.state, SystemClock(), self.spawn)
        return Leader(Reign(), parts, lease)


@pytest.fixture
def term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Term:
    return Term(tmp_path, monkeypatch)


def empty(segment: int) -> Manifest:
    return replace(manifest(segment, 1, 0), position="0")


def test_a_log_that_cannot_be_opened_leaves_no_thread_behind(term: Term) -> None:
    def away() -> None:
        raise SourceUnavailable("the slot is in use")

    term.source.on_open = away
    with pytest.raises(SourceUnavailable):
        term.leader(term.lease()).run()
    assert term.started == []


def test_log_that_the_last_leader_has_acknowledged_since_is_not_lost(term: Term) -> None:
    """It published once more after we had read the newest manifest: we begin again after that one."""
    term.staging.publish(empty(1))

    def gone() -> None:
        raise LogPositionLost("the slot is confirmed up to 9")

    def published_since() -> None:
        term.staging.publish(empty(2))
        gone()

    term.source.on_open = published_since
    lease = term.lease()
    with pytest.raises(SegmentTaken):
        term.leader(lease).run()
    lease.release()
    term.source.on_open, lease = gone, term.lease()
    with pytest.raises(LogPositionLost):
        term.leader(lease).run()


def test_a_leader_that_was_paused_at_its_start_does_not_call_the_state_store_replaced(term: Term) -> None:
    for number in (1, 2):
        term.staging.publish(replace(empty(number), epoch=7))
    lease = term.lease()
    assert lease.epoch < 7
    lease.expire()
    with pytest.raises(LeaseLost):
        term.leader(lease).run()
    with pytest.raises(StateError, match="replaced"):
        term.leader(term.lease()).run()


def _file(state: MemoryState) -> None:
    state.create(f"dumps/{DUMP}/tasks/0/task", orjson.dumps(TASK))
    state.create(f"dumps/{DUMP}/request", orjson.dumps(RECORD))


@pytest.mark.parametrize("fresh", [False, True])
def test_an_attempt_that_began_before_the_capture_is_broken(term: Term, fresh: bool) -> None:
    """Its watermarks are never read: the worker must not wait for its chunks."""
    if fresh:
        term.staging.publish(empty(1))
    _file(term.state)
    term.database.commit(term.database.put({"id": 1, "name": "n", "big": "b"}))
    run_capture(term.config, stop=threading.Event(), until_current=True, fresh_start=fresh)
    progress = control.progress(term.state, DUMP, 0, "shop.orders")
    assert (progress.attempt, progress.broken, progress.done) == (3, 3, False)


def test_the_mirror_of_progress_never_goes_back(term: Term) -> None:
    _file(term.state)
    newest = TaskProgress("shop.orders", attempt=4, ordinal=5, broken=3)
    control.put_progress(term.state, f"{DUMP}/0", newest)
    for older in (replace(newest, ordinal=4), replace(newest, attempt=3), replace(newest, broken=2)):
        control.put_progress(term.state, f"{DUMP}/0", older)
        assert control.progress(term.state, DUMP, 0, "shop.orders") == newest
    done = replace(newest, ordinal=6, done=True)
    control.put_progress(term.state, f"{DUMP}/0", done)
    control.put_progress(term.state, f"{DUMP}/0", newest)
    assert control.progress(term.state, DUMP, 0, "shop.orders") == done
