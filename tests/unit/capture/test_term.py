"""How a leader's term begins and ends where two captures, or a capture and a worker, meet: found by the simulation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from dblog_core import wiring
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.capture.run_capture import run_capture
from dblog_core.capture.term import CaptureOutcome, run_term
from dblog_core.capture.term_parts import Parts
from dblog_core.clock import SystemClock, spawn_thread
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, task_store, work_loop
from dblog_core.errors import LeaseLost, LogPositionLost, SegmentTaken, SourceUnavailable, StateError
from dblog_core.interfaces import KeyOf
from dblog_core.model.schema_changes import Step
from dblog_core.model.task_id import TaskId
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.state.capture_status import CaptureStatus
from dblog_core.state.memory import MemoryLease, MemoryState
from tests.fake_source import ORDERS, FakeDatabase, FakeSource, FakeStream
from tests.unit.staged import manifest
from tests.waiting import wait_until

DUMP = "d1"
RECORD = {
    "tables": ["shop.orders"],
    "options": {"workers": 2, "chunk_size": 10, "delay": 0, "rate": 0, "in_flight": 4},
    "state": "requested", "error": None, "requested_at": "", "requested_by": "user",
}  # fmt: skip
TASK = {"table": "shop.orders", "keys": None, "key_from": None, "key_to": None, "attempt": 3}


class Reign:
    """A capture that goes on for ever, but for what its leader raises."""

    fresh_start = False

    def has_gone_on(self, head: Manifest) -> bool:
        return False

    def look_first_at(self, head: Manifest) -> None:
        return None

    def outcome(self, position: str | None = None, commit_time: int | None = None) -> CaptureOutcome | None:
        return CaptureOutcome.STOPPED if position is not None else None

    def has_new_configuration(self) -> bool:
        return False

    def take_new_tables(self) -> None:
        return None

    def healthy(self) -> None:
        return None

    def tell(self, status: CaptureStatus) -> None:
        return None


class Source(FakeSource):
    """`on_open` runs before the log is opened, and may raise."""

    on_open: Callable[[], None] = staticmethod(lambda: None)

    def open_log(self, position: str, *, skip: int = 0, keys: KeyOf | None = None) -> FakeStream:
        self.on_open()
        return super().open_log(position, skip=skip)


class Term:
    """All that a term needs."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = FakeDatabase()
        self.state = MemoryState()
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

    def run(self, lease: MemoryLease) -> None:
        parts = Parts(self.config, self.source, self.staging, self.state, SystemClock(), self.spawn)
        run_term(Reign(), parts, lease)


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
        term.run(term.lease())
    assert term.started == []


def test_log_that_the_last_leader_has_acknowledged_since_is_not_lost(term: Term) -> None:
    """It published once more after we had read the newest manifest: we begin again after that one."""
    term.staging.publish(empty(1))

    def raise_lost() -> None:
        raise LogPositionLost("the slot is confirmed up to 9")

    def published_since() -> None:
        term.staging.publish(empty(2))
        raise_lost()

    term.source.on_open = published_since
    lease = term.lease()
    with pytest.raises(SegmentTaken):
        term.run(lease)
    lease.release()
    term.source.on_open = raise_lost
    lease = term.lease()
    with pytest.raises(LogPositionLost):
        term.run(lease)


def test_a_leader_that_was_paused_at_its_start_does_not_call_the_state_store_replaced(term: Term) -> None:
    for number in (1, 2):
        term.staging.publish(replace(empty(number), epoch=7))
    lease = term.lease()
    assert lease.epoch < 7
    lease.expire()
    with pytest.raises(LeaseLost):
        term.run(lease)
    with pytest.raises(StateError, match="replaced"):
        term.run(term.lease())


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
    progress = task_store.read_progress(term.state, TaskId(DUMP, 0), "shop.orders")
    assert (progress.attempt, progress.broken, progress.done) == (3, 3, False)


def test_the_mirror_of_progress_never_goes_back(term: Term) -> None:
    _file(term.state)
    newest = TaskProgress("shop.orders", attempt=4, ordinal=5, broken=3)
    task_store.put_progress(term.state, TaskId(DUMP, 0), newest)
    for older in (replace(newest, ordinal=4), replace(newest, attempt=3), replace(newest, broken=2)):
        task_store.put_progress(term.state, TaskId(DUMP, 0), older)
        assert task_store.read_progress(term.state, TaskId(DUMP, 0), "shop.orders") == newest
    done = replace(newest, ordinal=6, done=True)
    task_store.put_progress(term.state, TaskId(DUMP, 0), done)
    task_store.put_progress(term.state, TaskId(DUMP, 0), newest)
    assert task_store.read_progress(term.state, TaskId(DUMP, 0), "shop.orders") == done


def _record_attempt(term: Term, ordinal: int) -> TaskProgress:
    """A worker's attempt of which the state store tells so many chunks, in a directory that is not there any more."""
    _file(term.state)
    term.state.raise_epoch("capture", 3)
    progress = TaskProgress("shop.orders", attempt=3, ordinal=ordinal, key=10 * ordinal)
    assert task_store.put_progress(term.state, TaskId(DUMP, 0), progress, of=(3, 50))
    return progress


@pytest.mark.parametrize("placed", [None, 2])
def test_a_dump_ends_whose_staging_directory_was_replaced_or_put_back(term: Term, placed: int | None) -> None:
    """`placed`: chunks that a copy of the directory holds; None: there is none, and another directory begins."""
    _record_attempt(term, ordinal=5)
    if placed is not None:
        copied = TaskProgress("shop.orders", attempt=1, ordinal=placed, key=10 * placed)
        term.staging.publish(replace(empty(1), tasks={f"{DUMP}/0": copied.to_json()}))
    keys = range(1, 61)
    term.database.rows[ORDERS.table] = {(k,): {"id": k, "name": "n", "big": "b"} for k in keys}
    stop = threading.Event()
    capture = spawn_thread("capture", lambda: run_capture(term.config, stop=stop))
    worker = spawn_thread("worker", lambda: work_loop.work(term.config, stop=stop, dump_id=DUMP))
    try:
        wait_until(lambda: dump_store.read_dump(term.state, DUMP).state == "done", "the dump ends")
    finally:
        stop.set()
        worker.join()
        capture.join()
    staged = [chunk for m in term.staging.manifests() for chunk in m.chunks]
    assert sum(chunk.rows for chunk in staged) == len(keys) - 10 * (placed or 0)


def test_the_mirror_is_replaced_by_a_manifest_of_a_later_epoch_alone(term: Term) -> None:
    progress = _record_attempt(term, ordinal=5)
    less = replace(progress, ordinal=2)
    for earlier in ((3, 49), (2, 90)):
        assert not task_store.put_progress(term.state, TaskId(DUMP, 0), less, of=earlier)
        assert task_store.read_progress(term.state, TaskId(DUMP, 0), "shop.orders") == progress
    assert task_store.put_progress(term.state, TaskId(DUMP, 0), less, of=(4, 31))
    assert task_store.read_progress(term.state, TaskId(DUMP, 0), "shop.orders") == less


def test_a_mirror_of_an_earlier_version_is_replaced_by_any_manifest(term: Term) -> None:
    _file(term.state)
    progress = TaskProgress("shop.orders", attempt=3, ordinal=5)
    term.state.create(f"dumps/{DUMP}/tasks/0/progress", orjson.dumps(progress.to_json()))
    assert task_store.read_progress(term.state, TaskId(DUMP, 0), "shop.orders") == progress
    assert task_store.put_progress(term.state, TaskId(DUMP, 0), replace(progress, ordinal=2), of=(1, 1))
    assert task_store.read_progress(term.state, TaskId(DUMP, 0), "shop.orders").ordinal == 2


def test_a_leader_whose_dumps_are_told_of_a_later_segment_gives_its_lease_up(term: Term) -> None:
    """A directory that is put back under a leader: only another epoch can tell that what it holds counts again."""
    _record_attempt(term, ordinal=5)
    lease = term.lease()
    copied = TaskProgress("shop.orders", attempt=1, ordinal=2)
    term.staging.publish(replace(empty(1), epoch=lease.epoch, tasks={f"{DUMP}/0": copied.to_json()}))
    progress = TaskProgress("shop.orders", attempt=3, ordinal=6)
    assert task_store.put_progress(term.state, TaskId(DUMP, 0), progress, of=(lease.epoch, 50))
    with pytest.raises(LeaseLost, match=r"progress of a segment after \d"):
        term.run(lease)


def test_statements_before_a_log_that_is_given_up_prove_nothing(term: Term) -> None:
    """Others may stand in it: half of what a table has had would pass for all."""
    renamed = Step(renamed={"name": "title"}).to_json()
    term.staging.publish(replace(empty(1), altered={"shop.orders": [renamed]}))
    term.database.commit(term.database.put({"id": 1, "name": "n", "big": "b"}))
    run_capture(term.config, stop=threading.Event(), until_current=True, fresh_start=True)
    head = term.staging.head()
    assert head is not None and head.segment > 1
    assert head.altered == {"shop.orders": None}


def test_a_transaction_in_parts_is_captured_to_its_end_without_a_look_at_each_part(
    term: Term, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many tables a manifest is large, and whoever leads has published it."""
    config = term.config.model_copy(update={"staging": term.config.staging.model_copy(update={"max_bytes": 1})})
    run_capture(config, stop=threading.Event(), until_current=True)
    rows = [{"id": n, "name": "n", "big": "b"} for n in range(40)]
    term.database.commit(*(term.database.put(row) for row in rows))
    monkeypatch.setattr(term.source, "_batch", 5)
    looks: list[int] = []
    head = Staging.head

    def count(self: Staging) -> Manifest | None:
        looks.append(1)
        return head(self)

    monkeypatch.setattr(Staging, "head", count)
    assert run_capture(config, stop=threading.Event(), until_current=True) is CaptureOutcome.CURRENT
    parts = [manifest for manifest in term.staging.manifests() if manifest.partial]
    assert len(parts) > 2 > len(looks) - len(parts), (len(parts), len(looks))
