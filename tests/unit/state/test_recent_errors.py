"""The errors of late that the state store keeps."""

from __future__ import annotations

import pytest

from dblog_core.errors import DblogError, SourceUnavailable, StateUnavailable
from dblog_core.state import recent_errors
from dblog_core.state.memory import MemoryState


def test_the_newest_comes_first_and_one_that_comes_again_is_counted() -> None:
    state = MemoryState()
    error = SourceUnavailable("no route", where="db:3306", fix="start it")
    recent_errors.record(state, "capture", error, 100.0)
    recent_errors.record(state, "merge", DblogError("no room"), 101.0)
    recent_errors.record(state, "capture", error, 102.5)
    first, second = recent_errors.read(state)
    assert first.to_json() == {
        "at": 102_500_000,
        "first": 100_000_000,
        "times": 2,
        "part": "capture",
        "error": "db:3306: no route",
        "fix": "start it",
    }
    assert (second.part, second.error, second.times) == ("merge", "no room", 1)


def test_it_does_not_grow() -> None:
    state = MemoryState()
    for number in range(3 * recent_errors.KEPT):
        recent_errors.record(state, "capture", DblogError(f"{number} " + "x" * 10_000), float(number))
    entries = recent_errors.read(state)
    assert len(entries) == recent_errors.KEPT and entries[0].error.startswith(f"{3 * recent_errors.KEPT - 1} ")
    assert all(len(entry.error) < 3000 for entry in entries)


def test_a_state_store_that_does_not_answer_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    state = MemoryState()

    def unavailable(path: str) -> None:
        raise StateUnavailable("no answer")

    monkeypatch.setattr(state, "get", unavailable)
    recent_errors.record(state, "capture", DblogError("what matters"), 1.0)
