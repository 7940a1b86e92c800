"""The last verification of each table, as the state store keeps it."""

from __future__ import annotations

from dblog_core.state.memory import MemoryState
from dblog_core.verify import last_results
from dblog_core.verify.last_results import LastResult
from dblog_core.verify.report import Differences, Repair, TableReport


def test_the_last_verification_of_each_table_stays() -> None:
    state = MemoryState()
    last_results.record_results(
        state, [TableReport("s.a", rows=5), TableReport("s.b", rows=2, missing=(1,))], whole=True, now_seconds=10.0
    )
    last_results.record_results(
        state, [TableReport("s.b", rows=3, repaired=Repair("d", Differences()))], whole=False, now_seconds=20.0
    )
    assert last_results.read_results(state) == {
        "s.a": LastResult(10_000_000, "equal", equal=True, rows=5, whole=True),
        "s.b": LastResult(20_000_000, "equal, after a repair", equal=True, rows=3, whole=False),
    }


def test_one_that_found_a_difference_or_failed_is_not_equal() -> None:
    state = MemoryState()
    tables = [TableReport("s.a", missing=(1, 2)), TableReport("s.b", error="no snapshot")]
    last_results.record_results(state, tables, whole=True, now_seconds=1.0)
    results = last_results.read_results(state)
    assert [results[name].equal for name in ("s.a", "s.b")] == [False, False]
    assert results["s.a"].outcome == "2 keys differ" and results["s.b"].outcome == "cannot be compared"
