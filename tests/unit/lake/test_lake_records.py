"""What mergers leave for each other in the lake's own directory, and read in Delta's log: without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.errors import LakeError, LeaseLost
from dblog_core.lake.lake_status import (
    LakeStatus,
    MergeCounts,
    State,
    TableStatus,
    lake_at,
    own_directory,
    read_status,
)
from dblog_core.lake.merge_plan import Span
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.merging import merge_records
from dblog_core.lake_engine.merging.fence import Fence
from dblog_core.lake_engine.merging.merge_records import Intent, Place, Records
from dblog_core.lake_engine.merging.withheld_keys import Withheld
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.storage.location import Location

T = TableSchema(TableName("s", "t"), (Column("id", "int", pa.int64()),), ("id",))
SPAN = Span(1, 1, 1, 1, "p", None)


@pytest.fixture
def lake(tmp_path: Path) -> Location:
    return lake_at(str(tmp_path))


def _claim_lake(lake: Location) -> Fence:
    fence = Fence(own_directory(lake), "shop")
    fence.claim()
    return fence


def _open_withheld(lake: Location, fence: Fence, check: Callable[[], None] | None = None) -> Withheld:
    withheld = Withheld(Records(own_directory(lake)))
    withheld.load(fence.epoch, check or fence.check)
    return withheld


def test_the_newest_claim_shuts_out_all_before_it(lake: Location) -> None:
    first = _claim_lake(lake)
    second = _claim_lake(lake)
    second.check()
    for number in range(40):  # however many came since
        with pytest.raises(LeaseLost, match="has taken the lake over"):
            first.check()
        newest = _claim_lake(lake)
        assert newest.epoch == number + 3
    newest.check()
    assert len(list((own_directory(lake) / "mergers").names())) < 25


def test_a_lake_is_one_sources_and_another_one_is_refused_by_name(lake: Location) -> None:
    _claim_lake(lake)
    with pytest.raises(
        LakeError, match="the lake is that of source shop, and other cannot be merged into it"
    ) as raised:
        Fence(own_directory(lake), "other").claim()
    assert raised.value.fix and _claim_lake(lake).epoch == 2, "nobody was shut out"


def test_a_merge_has_one_record_and_one_outcome(lake: Location) -> None:
    our_records = Records(own_directory(lake))
    their_records = Records(own_directory(lake))
    assert our_records.begin(Intent(1, SPAN, {}, epoch=1))
    assert not their_records.begin(Intent(1, SPAN, {"s.t": 7}, epoch=2))
    newest = our_records.newest()
    assert newest is not None and (newest.epoch, newest.behind) == (1, {})
    assert our_records.finish(LakeStatus(1, offset=5)) == LakeStatus(1, offset=5)
    assert their_records.finish(LakeStatus(1, offset=9)).offset == 5
    assert read_status(lake) == LakeStatus(1, offset=5)


def test_the_status_is_the_newest_outcome_whatever_status_json_says(lake: Location) -> None:
    records = Records(own_directory(lake))
    for number in (1, 2, 3, 4):
        records.begin(Intent(number, SPAN, {}))
        records.finish(LakeStatus(number, offset=number))
        if number == 2:
            old = (own_directory(lake) / "status.json").read()
    assert old is not None
    (own_directory(lake) / "status.json").replace(old)  # by a merger that woke up
    assert read_status(lake) == LakeStatus(4, offset=4)
    (own_directory(lake) / "status.json").remove()
    assert read_status(lake) == LakeStatus(4, offset=4)


def test_the_status_of_a_newer_version_is_told_from_a_damaged_one(lake: Location) -> None:
    status = LakeStatus(1, 1, 10, tables={"shop.t": TableStatus(State.OK, None, 1, 10)}).to_json()
    status["tables"]["shop.t"]["unheard_of"] = 1
    file = own_directory(lake) / "status.json"
    file.replace(orjson.dumps(status))
    with pytest.raises(LakeError, match=r"status\.json: another version of dblog .*unheard_of"):
        read_status(lake)
    file.replace(b'{"merge": 1')
    with pytest.raises(LakeError, match=r"status\.json: the record of the last merge cannot be read"):
        read_status(lake)


def test_a_record_keeps_what_became_of_late_tables(lake: Location) -> None:
    _claim_lake(lake)
    records = Records(own_directory(lake))
    span = Span(3, 5, 30, 59, "p", None)
    at = TableStatus(State.INCOMPLETE, None, 2, 29, version=4, lacks=0, begun=59)
    intent = Intent(7, span, {"shop.a": 2}, None, 1, {"shop.a": Place(4, 49)}, {"shop.a": at, "shop.b": None})
    assert records.begin(intent) and records.intent(7) == intent and records.intent(8) is None
    assert intent.span_of("shop.a") == Span(3, 4, 30, 49, "p", None) and intent.span_of("shop.c") == span


def test_the_lake_is_as_far_as_its_last_table_but_for_stopped_ones() -> None:
    ok = TableStatus(State.OK, None, 9, 99)
    late = TableStatus(State.OK, None, 5, 59, begun=99)
    stopped = TableStatus(State.STOPPED, "no", 2, 29)
    status = LakeStatus(3, 9, 99, tables={"shop.a": ok, "shop.b": late, "shop.c": stopped})
    assert list(status.late_tables) == ["shop.b"] and status.common_offset == 59
    assert status.places_elsewhere(set()) == {"shop.b": 5} and status.places_elsewhere({"shop.b"}) == {}
    assert LakeStatus.from_json(orjson.loads(orjson.dumps(status.to_json()))) == status


def test_old_records_go_with_their_outcomes(lake: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_records, "KEEP", 3)
    monkeypatch.setattr(merge_records, "DROP_EVERY", 1)
    records = Records(own_directory(lake))
    for number in range(1, 8):
        records.begin(Intent(number, SPAN, {}))
        records.finish(LakeStatus(number))
    assert len(list((own_directory(lake) / "merges").names())) == 2 * 3
    assert read_status(lake) == LakeStatus(7)


@pytest.fixture
def many_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes are written as those of a lake with many tables are."""
    monkeypatch.setattr(merge_records, "WHOLE_BYTES", 0)


def _status(merge: int, **more: TableStatus) -> LakeStatus:
    """After so many merges, each of ten offsets; one table has rows in each of them, and fifty have none."""
    place = (merge, 10 * merge)
    idle = {f"shop.idle{n}": TableStatus(State.OK, None, *place, version=0, schema="f") for n in range(50)}
    busy = TableStatus(State.OK, None, *place, version=merge, schema="f", merged=MergeCounts(merge, rows=10))
    return LakeStatus(merge, *place, f"p{merge}", merge, float(merge), {**idle, "shop.busy": busy, **more})


@pytest.mark.usefixtures("many_tables")
def test_an_outcome_of_many_tables_says_what_has_changed(lake: Location) -> None:
    records = Records(own_directory(lake))
    files = {name: own_directory(lake) / name for name in ("status.json", "merges")}
    whole_merges = set()
    for merge in range(1, 100):
        assert records.finish(_status(merge)) == _status(merge) == read_status(lake)
        outcome = (files["merges"] / f"{merge:012d}.done.json").read()
        assert outcome is not None and (merge == 1 or len(outcome) < len(orjson.dumps(_status(merge))) / 10)
        whole_merges.add(orjson.loads(files["status.json"].read() or b"")["merge"])
    assert whole_merges == {1, 22, 43, 64, 85}
    files["status.json"].remove()
    assert read_status(lake) == _status(99), "from the first outcome on"


@pytest.mark.usefixtures("many_tables")
def test_a_successor_begins_with_a_whole_outcome_and_knows_those_before(lake: Location) -> None:
    Records(own_directory(lake)).finish(_status(1))
    first = Records(own_directory(lake))
    for merge in (2, 3, 4):
        first.finish(_status(merge))
    old = (own_directory(lake) / "status.json").read()
    second = Records(own_directory(lake))
    late = TableStatus(State.OK, None, 2, 20, begun=50)
    assert second.finish(_status(5, late=late)) == read_status(lake)
    second.finish(_status(6, late=late))
    # The first one wakes up, and has the outcome that its successor has created.
    assert first.finish(_status(5)) == _status(6, late=late) == read_status(lake)
    assert old is not None
    (own_directory(lake) / "status.json").replace(old)
    assert read_status(lake) == _status(6, late=late)


@pytest.mark.usefixtures("many_tables")
def test_an_outcome_that_follows_no_known_one_is_whole(lake: Location) -> None:
    records = Records(own_directory(lake))
    records.finish(_status(1))
    Records(own_directory(lake)).finish(_status(2))
    assert records.finish(_status(3)) == _status(3) == read_status(lake)


@pytest.mark.usefixtures("many_tables")
def test_an_outcome_is_whole_where_most_tables_have_changed(lake: Location) -> None:
    records = Records(own_directory(lake))
    records.finish(_status(1))
    all_changed = {name: replace(table, version=2) for name, table in _status(2).tables.items()}
    status = replace(_status(2), tables=all_changed)
    records.finish(status)
    assert records.read("status.json") == orjson.loads(orjson.dumps(status))


def test_an_outcome_of_few_tables_is_whole(lake: Location) -> None:
    records = Records(own_directory(lake))
    for merge in (1, 2):
        records.finish(_status(merge))
    for name in ("status.json", "merges/000000000002.done.json"):
        assert records.read(name) == orjson.loads(orjson.dumps(_status(2)))


@pytest.mark.usefixtures("many_tables")
def test_records_that_status_json_does_not_have_yet_stay(lake: Location) -> None:
    records = Records(own_directory(lake))
    for merge in range(1, 31):
        records.begin(Intent(merge, SPAN, {}))
        records.finish(_status(merge))
    records.drop_before(29)
    assert read_status(lake) == _status(30)
    names = {name for name in (own_directory(lake) / "merges").names() if name.endswith(".done.json")}
    assert names == {f"{merge:012d}.done.json" for merge in range(22, 31)}


@pytest.mark.usefixtures("many_tables")
def test_changes_that_do_not_follow_their_merge_are_refused(lake: Location) -> None:
    records = Records(own_directory(lake))
    records.finish(_status(1))
    records.finish(_status(2))
    (own_directory(lake) / "status.json").remove()
    (own_directory(lake) / "merges/000000000001.done.json").replace(
        (own_directory(lake) / "merges/000000000002.done.json").read() or b""
    )
    with pytest.raises(LakeError, match=r"000000000001\.done\.json: .* it continues merge 1, and follows merge 0"):
        read_status(lake)


_places = st.sampled_from([(1, 10), (2, 20), (3, 30)])
_table_states = st.builds(
    lambda place, state, version, merged: TableStatus(state, None, *place, version=version, merged=merged),
    _places,
    st.sampled_from(State),
    st.sampled_from([None, 0, 1]),
    st.sampled_from([None, MergeCounts(1, rows=1), MergeCounts(1, rows=2)]),
)
_statuses = st.builds(
    lambda merge, place, tables: LakeStatus(merge, *place, tables=tables),
    st.integers(0, 3),
    _places,
    st.dictionaries(st.sampled_from("abcd"), _table_states),
)


def test_the_counts_of_another_version_are_read_as_far_as_they_are_known(lake: Location) -> None:
    table = {"state": "ok", "error": None, "segment": 1, "offset": 10}
    tables = {
        "s.new": {**table, "merged": {"merge": 3, "rows": 5, "seconds": 0.5, "marvels": 7}},
        "s.old": {**table, "merged": {"rows": 5}},
        "s.none": {**table, "merged": None},
        "s.older": table,
    }
    data = orjson.dumps({"merge": 3, "segment": 1, "offset": 10, "tables": tables})
    (own_directory(lake) / "status.json").replace(data)
    status = read_status(lake)
    assert status is not None
    assert {name: table.merged for name, table in status.tables.items()} == {
        "s.new": MergeCounts(3, rows=5, seconds=0.5),
        "s.old": MergeCounts(rows=5),
        "s.none": None,
        "s.older": None,
    }


@given(before=_statuses, after=_statuses)
def test_changes_lead_from_any_status_to_any_other(before: LakeStatus, after: LakeStatus) -> None:
    changes = orjson.loads(orjson.dumps(after.changes_since(before)))
    assert before.with_changes(changes) == after


def test_a_merger_that_wakes_up_overwrites_no_withheld_key(lake: Location) -> None:
    first = _claim_lake(lake)
    sleeper = _open_withheld(lake, first, check=lambda: None)  # it has looked, and writes a moment later
    sleeper.add("s.t", [(1,)])
    second = _open_withheld(lake, _claim_lake(lake))
    second.add("s.t", [(2,)])
    sleeper.add("s.t", [(3,)])
    sleeper.forget("s.t", [(1,)], T)
    third = _open_withheld(lake, _claim_lake(lake))
    assert sorted(third.keys("s.t", T)) == [(1,), (2,)]


def test_a_merger_that_looks_writes_no_withheld_key_after_the_takeover(lake: Location) -> None:
    first = _claim_lake(lake)
    sleeper = _open_withheld(lake, first)
    _claim_lake(lake)
    with pytest.raises(LeaseLost):
        sleeper.add("s.t", [(1,)])


def test_an_empty_file_of_a_successor_counts_as_well(lake: Location) -> None:
    sleeper = _open_withheld(lake, _claim_lake(lake), check=lambda: None)
    _open_withheld(lake, _claim_lake(lake))
    sleeper.add("s.t", [(1,)])
    assert not _open_withheld(lake, _claim_lake(lake)).waits("s.t")


def _commit(table: Location, number: int, *actions: dict[str, Any]) -> None:
    (table / "_delta_log" / f"{number:020d}.json").create(b"\n".join(orjson.dumps(a) for a in actions))


def _info(mark: str | None) -> dict[str, Any]:
    return {"commitInfo": {"operation": "WRITE", **({"userMetadata": mark} if mark else {})}}


ROWS = {"add": {"path": "a", "dataChange": True}}
KEPT = {"remove": {"path": "a", "dataChange": False}}


@pytest.mark.parametrize(
    ("actions", "is_theirs"),
    [
        ((_info(COMMIT_MARK), ROWS), False),
        ((_info("dblogs"), ROWS), True),
        ((_info(None), ROWS), True),
        ((ROWS,), True),
        ((_info(None), {"remove": {"path": "a"}}), True),
        ((_info(None), {"metaData": {"schemaString": '{"fields":[]}'}}), True),
    ],
)
def test_commits_of_others_are_told_from_ours(
    lake: Location, actions: tuple[dict[str, Any], ...], is_theirs: bool
) -> None:
    table = lake / "t"
    _commit(table, 0, _info(COMMIT_MARK), ROWS)
    _commit(table, 1, *actions)
    _commit(table, 2, _info(COMMIT_MARK), ROWS)
    read = log.read_actions(table, 1)
    assert read is not None and log.is_ours(table, 1, read) is not is_theirs


def test_a_version_is_followed_while_its_rows_stay(lake: Location) -> None:
    table = lake / "t"
    _commit(table, 0, _info(COMMIT_MARK), ROWS)
    _commit(table, 1, _info(None), KEPT)
    _commit(table, 2, _info(COMMIT_MARK))
    _commit(table, 3, _info(COMMIT_MARK), ROWS)
    _commit(table, 4, _info(COMMIT_MARK), KEPT)
    sums = [log.commit_sum(table, number) for number in range(5)]
    places = [log.same_rows(table, number, sums[number]) for number in range(5)]
    assert places == [(number, sums[number]) for number in (2, 2, 2, 4, 4)]
    assert log.same_rows(table, 0, 1) == (0, 1), "another table has its place"
    assert log.same_rows(table, 0, None) == (2, sums[2]), "an older dblog has not recorded which it was"


def test_a_number_that_was_used_is_not_used_again(lake: Location) -> None:
    table = lake / "t"
    _commit(table, 0, {"txn": {"appId": "us", "version": 7}})
    log.check_unused(table, "us", 8)
    log.check_unused(table, "them", 1)
    for number in (6, 7):
        with pytest.raises(LakeError, match="merge 7 has committed here already"):
            log.check_unused(table, "us", number)
