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
        "s.a": LastResult(10_000_000, "equal", equal=True, rows=5, whole=True, proven_at_us=10_000_000),
        "s.b": LastResult(20_000_000, "equal, after a repair", equal=True, rows=3, whole=False),
    }


def test_one_that_found_a_difference_or_failed_is_not_equal() -> None:
    state = MemoryState()
    tables = [TableReport("s.a", missing=(1, 2)), TableReport("s.b", error="no snapshot")]
    last_results.record_results(state, tables, whole=True, now_seconds=1.0)
    results = last_results.read_results(state)
    assert [results[name].equal for name in ("s.a", "s.b")] == [False, False]
    assert results["s.a"].outcome == "2 keys differ" and results["s.b"].outcome == "cannot be compared"


def test_a_table_stays_proven_until_a_comparison_of_any_kind_finds_it_different() -> None:
    state = MemoryState()

    def record(at: float, report: TableReport, *, whole: bool) -> int | None:
        last_results.record_results(state, [report], whole=whole, now_seconds=at)
        return last_results.read_results(state)["s.a"].proven_at_us

    equal, different = TableReport("s.a"), TableReport("s.a", missing=(1,))
    assert record(1.0, equal, whole=False) is None, "a slice or a sample proves nothing of the table"
    assert record(2.0, equal, whole=True) == 2_000_000
    assert record(3.0, equal, whole=False) == 2_000_000
    assert record(4.0, different, whole=False) is None
    assert record(5.0, equal, whole=False) is None


def test_a_result_of_an_earlier_version_is_a_proof_if_it_was_of_the_whole_table() -> None:
    data = {"at": 5, "outcome": "equal", "equal": True, "rows": 1, "whole": True}
    assert LastResult.from_json(data).proven_at_us == 5
    assert LastResult.from_json({**data, "whole": False}).proven_at_us is None
    assert LastResult.from_json({**data, "equal": False}).proven_at_us is None
