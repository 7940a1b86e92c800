"""The pure parts of a verification: which keys are read again, what a sample tells, what is written and read back."""

from __future__ import annotations

import math
import os
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from dblog_core.commands.verify import text
from dblog_core.dumps.dump_records import Refusal
from dblog_core.errors import RequestError
from dblog_core.interfaces import Hashes
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, lake_at, own_directory
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.rows.arrow_hashes import sum_exactly
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.verify import certificate, source_reader
from dblog_core.verify.judge.comparison import Verdict
from dblog_core.verify.pinned_version import columns_left_out
from dblog_core.verify.report import Repair, Report, TableReport
from dblog_core.verify.sample import at_most
from dblog_core.verify.suspects import Kind, Suspects
from tests.fake_source import ORDERS
from tests.unit.staged import table


def test_a_key_has_to_differ_twice_before_it_is_told() -> None:
    suspects = Suspects()
    suspects.record_verdict(Verdict(missing=(1, 2), extra=(3,), different=(4,)))
    assert suspects.open_keys == [1, 2, 3, 4] and not suspects.keys_of_kind(Kind.MISSING)
    suspects.record_verdict(Verdict(missing=(1,), different=(3,)))
    assert suspects.keys_of_kind(Kind.MISSING) == [1] and suspects.keys_of_kind(Kind.DIFFERENT) == [3], (
        "what the last reading says"
    )
    assert suspects.open_keys == [] and suspects.keys_of_kind(Kind.EXTRA) == [], "2 and 4 are equal"


def test_an_undecided_reading_counts_neither_way() -> None:
    suspects = Suspects()
    suspects.record_verdict(Verdict(undecided=(1, 2), different=(3,)))
    suspects.record_verdict(Verdict(undecided=(1, 3), missing=(2,)))
    assert suspects.keys_of_kind(Kind.MISSING) == [] and sorted(suspects.open_keys) == [1, 2, 3]
    suspects.record_verdict(Verdict(different=(3,), undecided=(1,)))
    assert suspects.keys_of_kind(Kind.DIFFERENT) == [3] and suspects.keys_of_kind(Kind.UNDECIDED) == [1]


def test_readings_that_were_whole_twice_tell_what_they_have_found_once() -> None:
    suspects = Suspects()
    suspects.record_verdict(Verdict(missing=(1, 2)))
    suspects.record_verdict(Verdict(missing=(2, 3), undecided=(4,)))
    suspects.decide_open_differences()
    assert suspects.keys_of_kind(Kind.MISSING) == [2, 3] and suspects.keys_of_kind(Kind.UNDECIDED) == [4]


@pytest.mark.parametrize(("rows", "confidence"), [(1, 0.5), (300, 0.95), (10_000, 0.99)])
def test_where_nothing_differs_it_is_the_rule_of_three(rows: int, confidence: float) -> None:
    assert at_most(0, rows, confidence) == pytest.approx(1 - (1 - confidence) ** (1 / rows))


@given(rows=st.integers(1, 400), differing=st.integers(0, 20), confidence=st.floats(0.5, 0.999))
def test_a_larger_share_would_have_shown_more(rows: int, differing: int, confidence: float) -> None:
    bound = at_most(differing, rows, confidence)
    if differing >= rows:
        assert bound == 1.0
        return
    probability = sum(math.comb(rows, k) * bound**k * (1 - bound) ** (rows - k) for k in range(differing + 1))
    assert differing / rows < bound <= 1 and probability == pytest.approx(1 - confidence, rel=1e-6)


def test_a_confidence_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="not between"):
        at_most(0, 10, 1.0)


def test_asked_keys_that_the_source_lacks_have_no_hash() -> None:
    class Reader:
        @staticmethod
        def hashes_of(*_: object) -> Hashes:
            return Hashes(ORDERS, pa.record_batch({"id": pa.array([2], pa.int64()), HASH: [7]}), None)

    hashed = source_reader._hash_keys(Reader(), ORDERS, [(1,), (2,)])  # type: ignore[arg-type]
    assert hashed.rows.to_pylist() == [{"id": 2, HASH: 7}, {"id": 1, HASH: None}]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_sums_of_hashes_are_exact(hashes: list[int]) -> None:
    assert sum_exactly(pa.array(hashes, pa.int64()).to_numpy()) == sum(hashes)


@pytest.mark.parametrize(
    "table",
    [
        TableReport("t", missing=(1,)),
        TableReport("t", extra=(1,)),
        TableReport("t", different=((1, ()),)),
        TableReport("t", undecided=(1,)),
        TableReport("t", more=True),
        TableReport("t", error="it broke"),
    ],
)
def test_what_is_not_certain_to_be_equal_is_not(table: TableReport) -> None:
    assert not table.equal and not Report((TableReport("u"), table)).equal


def test_a_table_that_was_left_out_is_named_and_counts_unless_it_is_passed_over() -> None:
    refused = Refusal("shop.v", "shop.v: it is system-versioned", "leave it out")
    keyless = Refusal("shop.k", "shop.k has no primary key", "give it one", keyless=True)
    same = (TableReport("shop.t"),)
    report = Report(same, (refused, keyless))
    assert not report.equal and report.missing_tables == (refused,) and not report.to_json()["equal"]
    assert [left["table"] for left in report.to_json()["left_out"]] == ["shop.v", "shop.k"]
    assert Report(same, (keyless,)).equal and Report(same, (refused,), passed_over=True).equal
    assert not Report((TableReport("shop.t", missing=(1,)),), (refused,), passed_over=True).equal
    assert "NOT COMPARED shop.v: it is system-versioned\n  fix: leave it out" in text(report)


@pytest.mark.parametrize(
    ("table", "outcome"),
    [
        (TableReport("shop.t", rows=2), "equal"),
        (TableReport("shop.t", undecided=(1,)), "1 keys undecided"),
        (TableReport("shop.t", missing=(1,), undecided=(2,), more=True), "1 and more keys differ"),
        (TableReport("shop.t", missing=(1,), error="gone"), "cannot be compared"),
    ],
)
def test_each_table_is_told_in_a_few_words(table: TableReport, outcome: str) -> None:
    assert table.outcome == outcome


def test_the_json_is_the_contracts() -> None:
    table = TableReport("shop.t", 3, missing=(1,), extra=([2, "b"],), different=((3, ("v",)),))
    (table_json,) = Report((table,)).to_json()["tables"]
    assert {name: table_json[name] for name in ("table", "rows", "missing", "extra", "different")} == {
        "table": "shop.t",
        "rows": 3,
        "missing": [1],
        "extra": [[2, "b"]],
        "different": [{"key": 3, "columns": ["v"]}],
    }


def test_the_json_of_a_repair_names_its_dump_and_what_differed_before() -> None:
    before = TableReport("shop.t", missing=(1,), different=((3, ("v",)),))
    (table_json,) = Report((TableReport("shop.t", repaired=Repair("d1", before.differences)),)).to_json()["tables"]
    assert table_json["repaired"] == {
        "dump": "d1",
        "missing": [1],
        "extra": [],
        "different": [{"key": 3, "columns": ["v"]}],
    }
    assert table_json["missing"] == [] and "repaired" not in before.to_json()


def test_nobody_else_may_read_a_certificate(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        certificate.write(tmp_path / "c.json", certificate.certificate("shop", "2026-01-01", [], []))
    finally:
        os.umask(before)
    assert (tmp_path / "c.json").stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_no_certificate_of_the_source_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(certificate.certificate("shop", "2026-01-01", [], []))
    assert certificate.read_certificate(file, source="shop").claims == ()
    for broken in ({"source": "other"}, {"source": "shop"}):
        with pytest.raises(RequestError, match="no certificate"):
            certificate.read_certificate(
                file if broken["source"] == "other" else tmp_path / "none", source=broken["source"]
            )


@pytest.mark.parametrize(
    ("ignored", "left"),
    [(None, ("more",)), (["b"], ("b", "more")), ([], ("more",))],
)
def test_columns_that_the_lake_has_not_taken_are_left_out_of_a_comparison(
    tmp_path: Path, ignored: list[str] | None, left: tuple[str, ...]
) -> None:
    """By the shape that was merged last: what came since is not in the lake either."""
    staging = Staging(str(tmp_path / "staging"), source="shop")
    lake = lake_at(str(tmp_path / "lake"))
    merged = table("shop.orders", id=pa.int64(), a=pa.string(), b=pa.string())
    now = table("shop.orders", id=pa.int64(), b=pa.string(), more=pa.string())
    assert columns_left_out(lake, staging, now) == ()
    staging.put_schema(merged)
    status = TableStatus(State.OK, None, 1, 9, 1, schema=merged.fingerprint, ignored=ignored)
    Records(own_directory(lake)).finish(LakeStatus(merge=1, tables={"shop.orders": status}))
    assert columns_left_out(lake, staging, now) == left
