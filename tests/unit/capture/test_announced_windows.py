"""Announced windows: what a capture answers, what it believes, and when it forgets."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from dblog_core import wiring
from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.announced_windows import Openings
from dblog_core.capture.sequencer import Sequencer
from dblog_core.config.settings import Config
from dblog_core.dumps import read_only_windows
from dblog_core.dumps.dump_records import TaskRecord
from dblog_core.dumps.read_only_windows import AnnouncedWindows, NotOpened
from dblog_core.errors import ServerNotSafe
from dblog_core.model import watermark
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import High, Low, Mark
from dblog_core.rows.column_rules import Rules
from dblog_core.state import capture_status, lease_holder
from dblog_core.state.capture_status import LeaderReport
from dblog_core.state.memory import MemoryState
from tests.fake_source import FakeDatabase, FakeSource
from tests.unit.staged import manifest
from tests.unit.workers_world import DrawnClock

TASK = TaskId("d", 0)


def mark(window: str = "w", ordinal: int = 0) -> Mark:
    return Mark("shop", TASK, 1, ordinal, window, "shop.orders")


def high(of: Mark, end: str) -> High:
    return High(of, None, 0, 0, "", "", None, final=False, end=end)


class Term:
    """A capture's term over a state store that others use too."""

    def __init__(self, path: Path, state: MemoryState) -> None:
        self.state, self.clock, self.source = state, DrawnClock(), FakeSource(FakeDatabase())
        config = Config.model_validate(
            {
                "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
                "staging": {"path": str(path / "staging")},
                "state": {"url": "sqlite:///unused"},
                "lake": {"path": str(path / "lake")},
            }
        )
        self.sequencer = Sequencer(
            wiring.open_staging(config),
            source="shop",
            epoch=1,
            head=replace(manifest(1, 1, 0), position="3"),
            visibility=LogOrder(),
            rules=Rules({}),
        )
        self.openings = Openings(state, self.source, self.clock)

    def look(self) -> None:
        self.clock.now += 1
        self.openings.look(self.sequencer)

    def announce(self, of: Mark) -> None:
        self.state.create(read_only_windows.announcement(of.window), watermark.encode(Low(of)).encode())

    def conclude(self, of: Mark, *, by: str, end: str = "0") -> None:
        text = f"{by}\n{watermark.encode(high(of, end))}"
        self.state.create(read_only_windows.conclusion(of.window), text.encode())

    def read_answer(self, of: Mark) -> str | None:
        entry = self.state.get(read_only_windows.answer(of.window))
        return None if entry is None else entry.data.decode()

    @property
    def broken_count(self) -> int:
        progress = self.sequencer.dumps.progress()
        return progress[TASK].broken if TASK in progress else 0


@pytest.fixture
def term(tmp_path: Path) -> Term:
    return Term(tmp_path, MemoryState())


def test_an_answer_tells_the_place_from_which_is_collected(term: Term) -> None:
    term.announce(mark())
    term.look()
    assert term.read_answer(mark()) == term.sequencer.position
    assert len(term.sequencer.dumps.open_windows()) == 1


def test_a_chunk_whose_end_is_not_read_yet_waits(term: Term) -> None:
    term.announce(mark())
    term.look()
    term.conclude(mark(), by=term.sequencer.position, end="7")
    term.look()
    assert len(term.sequencer.dumps.open_windows()) == 1 and term.broken_count == 0


def test_a_window_that_another_term_has_answered_is_void(term: Term) -> None:
    term.announce(mark())
    term.state.create(read_only_windows.answer("w"), b"another place")
    term.look()
    assert term.sequencer.dumps.open_windows() == []
    term.conclude(mark(), by="another place")
    term.look()
    assert term.broken_count == 1, "its worker hears that it has to read the chunk again"


def test_a_worker_that_went_by_another_answer_has_no_window_of_ours(term: Term) -> None:
    """The nodes were removed, and made again, between the two answers."""
    term.announce(mark())
    term.look()
    term.conclude(mark(), by="another place")
    term.look()
    assert term.broken_count == 1 and term.sequencer.dumps.open_windows() == []


def test_what_is_left_of_a_removed_window_breaks_its_attempt(term: Term) -> None:
    term.conclude(mark(), by="0")
    term.look()
    assert term.broken_count == 1


def test_a_window_of_a_table_that_is_left_out_ends_its_attempt_at_once(term: Term) -> None:
    """Its dump is ended where the table stays so; where somebody repairs it before, its worker must not wait."""
    term.sequencer.tables.stop(["shop.orders"])
    term.announce(mark())
    term.look()
    assert (term.broken_count, term.read_answer(mark())) == (1, None)
    term.openings.forget_judged()
    assert term.state.children(read_only_windows.ROOT) == []


def test_nodes_go_when_what_became_of_them_is_published(term: Term) -> None:
    term.announce(mark())
    term.look()
    term.conclude(mark(), by="another place")
    term.look()
    assert term.state.children(read_only_windows.ROOT) == ["w"], "a restart must find it"
    term.openings.forget_judged()
    assert term.state.children(read_only_windows.ROOT) == []


@pytest.mark.parametrize(("state", "is_left_over"), [("done", True), ("failed", True), ("requested", False)])
def test_a_window_of_a_dump_that_is_over_is_no_beginning_of_its_task(
    term: Term, state: str, is_left_over: bool
) -> None:
    """Its worker has died. The dump would look like one of which staging lacks chunks, and would be done again."""
    record = {
        "tables": ["shop.orders"],
        "options": {},
        "state": state,
        "error": None,
        "requested_at": "2026-11-21T09:30:00+00:00",
        "requested_by": "system",
    }
    term.state.create("dumps/d/tasks/0/task", orjson.dumps(TaskRecord("shop.orders").to_json()))
    term.state.create("dumps/d/request", orjson.dumps(record))
    term.announce(mark())
    term.state.create(read_only_windows.answer("w"), b"another place")
    term.look()
    assert (TASK not in term.sequencer.dumps.progress()) is is_left_over
    term.openings.forget_judged()
    assert (term.state.children(read_only_windows.ROOT) == []) is is_left_over


def test_a_worker_beside_a_capture_that_looks_for_no_announcement_is_told_so(term: Term) -> None:
    def announce() -> None:
        AnnouncedWindows(term.state, term.source.open_reader(), term.clock, threading.Event(), goes_on).write(low)

    low, answers = watermark.encode(Low(mark())), iter([True] * 3)
    goes_on = lambda: next(answers, False)  # noqa: E731
    old = term.state.acquire(lease_holder.CAPTURE, "before", ttl=60)
    assert old is not None
    capture_status.put_status(term.state, LeaderReport.from_json({"epoch": old.epoch, "answers": False}))
    old.release()
    lease = term.state.acquire(lease_holder.CAPTURE, "host-1", ttl=60)
    assert lease is not None
    with pytest.raises(NotOpened):
        announce()  # who leads now has not told yet
    capture_status.put_status(term.state, LeaderReport.from_json({"epoch": lease.epoch, "answers": False}))
    with pytest.raises(ServerNotSafe, match="capture host-1: this worker has read_only = true"):
        announce()
    answers = iter([True] * 3)
    capture_status.put_status(term.state, LeaderReport.from_json({"epoch": lease.epoch, "answers": True}))
    with pytest.raises(NotOpened):
        announce()


def test_a_worker_that_nobody_wants_any_more_does_not_wait_for_an_answer(term: Term) -> None:
    reader = term.source.open_reader()
    windows = AnnouncedWindows(term.state, reader, term.clock, threading.Event(), lambda: False)
    with pytest.raises(NotOpened):
        windows.write(watermark.encode(Low(mark())))


@pytest.mark.parametrize("payload", [b'{"dblog": 99, "kind": "low"}', b"no watermark", b"\xff"])
def test_what_a_newer_worker_announces_ends_no_capture(payload: bytes) -> None:
    assert read_only_windows.parse_announcement(payload) is None
    assert read_only_windows.parse_conclusion(b"3\n" + payload) is None
