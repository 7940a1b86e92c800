"""What another program does to rows of a lake table is told, and a dump brings them; what harms no row is passed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dblog_core.errors import LakeError
from dblog_core.lake import foreign_commits
from dblog_core.lake.cuts import find_cut
from dblog_core.lake.lake_status import State, TableStatus, read_status
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.tables import log
from dblog_core.staging import Staging
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from spark_jobs.views import LakeAtCut
from tests.spark.lakes import TestLake
from tests.spark.segments import table
from tests.unit.delta_writer.tables import FIELDS, metadata, protocol, schema_string, write_commit

ITEMS = table("items", id=pa.int64(), v=pa.string())
NAME = str(ITEMS.table)
OFFSET = "_dblog_offset"


@pytest.fixture
def lake(tmp_path: Path) -> TestLake:
    """Without vectors, so that delta-rs writes its tables too: it is the other program."""
    made = TestLake(None, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    made.vectors = False
    return made


def _create(lake: TestLake, *numbers: int, value: str = "old") -> None:
    for number in numbers:
        lake.build.create(ITEMS, {"id": number, "v": value})
    lake.build.seal()
    lake.merge_well()


def _update(lake: TestLake, number: int, value: str) -> None:
    lake.build.update(ITEMS, {"id": number, "v": value})
    lake.build.seal()
    lake.merge_well()


def _dump(lake: TestLake, rows: dict[int, str], dump: str, *, since: int | None = None) -> None:
    """A full dump that began at `since` (None: now), with its end, is merged."""
    build = lake.build
    since = build.offset if since is None else since
    build.chunk(ITEMS, [{"id": number, "v": value} for number, value in rows.items()], dump=dump)
    build.finished(ITEMS, dump, since=since, since_segment=build.segment + 1)
    build.seal()
    lake.merge_well()


def _values(lake: TestLake) -> dict[int, str]:
    return {row["id"]: row["v"] for row in lake.rust_rows(ITEMS)}


def _status(lake: TestLake) -> TableStatus:
    status = read_status(lake.location)
    assert status is not None
    return status.tables[NAME]


def _foreign(lake: TestLake) -> DeltaTable:
    return DeltaTable(str(lake.table(ITEMS)))


def _restore(lake: TestLake) -> None:
    _foreign(lake).restore(1)


def _update_by_hand(lake: TestLake) -> None:
    _foreign(lake).update({"v": "'theirs'"}, predicate="id = 3")


def _delete(lake: TestLake) -> None:
    _foreign(lake).delete("id = 4")


def _overwrite(lake: TestLake) -> None:
    rows = _foreign(lake).to_pyarrow_table().slice(0, 1)
    write_deltalake(str(lake.table(ITEMS)), rows, mode="overwrite")


def _append_again(lake: TestLake) -> None:
    """Rows as they were at an earlier version, with offsets of ours."""
    earlier = DeltaTable(str(lake.table(ITEMS)), version=1).to_pyarrow_table()
    write_deltalake(str(lake.table(ITEMS)), earlier, mode="append")


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (_restore, "(RESTORE, 20"),
        (_update_by_hand, "(UPDATE, 20"),
        (_delete, "(DELETE, 20"),
        (_overwrite, "has removed or replaced rows"),
        (_append_again, "may have added rows that the table had before"),
    ],
)
def test_rows_that_another_program_damages_are_dumped_again(lake: TestLake, damage: Any, cause: str) -> None:
    _create(lake, 0, 1, 3, 4)
    lake.build.delete(ITEMS, {"id": 1})
    lake.build.create(ITEMS, {"id": 9, "v": "new"})
    _update(lake, 0, "new")
    damage(lake)
    _create(lake, 5)
    status = _status(lake)
    assert status.state is State.INCOMPLETE and lake.dumps.asked == [(NAME, [])] and status.awaits == "dump1"
    assert status.damage is not None and cause in status.damage
    _create(lake, 6)
    assert _status(lake).state is State.INCOMPLETE and len(lake.dumps.asked) == 1
    cut = find_cut(lake.location).cut
    assert cut.incomplete == {NAME: status.damage}
    view = LakeAtCut(mock.MagicMock(), lake.location, cut)
    with pytest.raises(LakeError, match=r"shop\.items is incomplete in cut 4"):
        view.table(NAME)
    view.table(NAME, accept_incomplete=True)
    ghost = 1
    truth = {0: "new", 3: "old", 4: "old", 5: "old", 6: "old", 9: "new"}
    _dump(lake, truth, "dump1")
    assert {number: value for number, value in _values(lake).items() if number != ghost} == truth
    assert find_cut(lake.location).cut.incomplete == {}
    assert (_status(lake).state, _status(lake).damage, _status(lake).awaits) == (State.OK, None, None)


def test_a_dump_that_began_before_the_damage_heals_nothing(lake: TestLake) -> None:
    _create(lake, 1, 2)
    begun = lake.build.offset
    _create(lake, 3)
    _delete(lake)
    _foreign(lake).delete("id = 2")
    _create(lake, 4)
    _dump(lake, {1: "old", 3: "old", 4: "old"}, "earlier", since=begun)
    assert _status(lake).state is State.INCOMPLETE and _status(lake).awaits == "dump1"


def test_damage_while_its_dump_runs_has_one_more_requested_when_that_ends(lake: TestLake) -> None:
    truth = {1: "old", 2: "old", 3: "old"}
    _create(lake, *truth)
    _foreign(lake).delete("id = 2")
    _create(lake, 4)
    begun = lake.build.offset
    _create(lake, 5)
    _foreign(lake).delete("id = 3")
    _create(lake, 6)
    assert len(lake.dumps.asked) == 1
    truth |= {4: "old", 5: "old", 6: "old"}
    _dump(lake, truth, "dump1", since=begun)
    assert _status(lake).awaits == "dump2" and _status(lake).state is State.INCOMPLETE
    _dump(lake, truth, "dump2")
    assert _status(lake).state is State.OK and _values(lake) == truth


def test_a_truncate_leaves_nothing_to_heal(lake: TestLake) -> None:
    _create(lake, 1, 2)
    _foreign(lake).delete("id = 2")
    lake.build.truncate(ITEMS)
    _create(lake, 3)
    assert _status(lake).state is State.OK and lake.dumps.asked == [] and _values(lake) == {3: "old"}


def test_a_directory_that_is_put_back_is_found_behind_any_number_of_versions(lake: TestLake) -> None:
    """As many versions, or more, follow the copy: a VACUUM by hand makes two."""
    _create(lake, 1)
    place = lake.table(ITEMS).local
    assert place is not None
    shutil.copytree(place, copy := place.with_name("copy"))
    _create(lake, 2)
    _create(lake, 3)
    for vacuums in (2, 3):
        shutil.rmtree(place)
        shutil.copytree(copy, place)
        for _ in range(vacuums):
            version = (log.version(lake.table(ITEMS)) or 0) + 1
            write_commit(place, version, {"commitInfo": {"operation": "VACUUM END"}})
        lake.dumps.asked.clear()
        with mock.patch.object(LakeTable, "prepare"), mock.patch.object(LakeTable, "disown"):
            _create(lake, 10 + vacuums)
        assert "was put back from a copy" in str(_status(lake).damage)
        status = _status(lake)
        assert status.state is State.INCOMPLETE and status.awaits is not None
        truth = {1: "old", 2: "old", 3: "old", 10 + vacuums: "old"}
        _dump(lake, truth, status.awaits)
        assert _status(lake).state is State.OK and _values(lake) == truth


def test_who_commits_all_the_time_stops_the_table_by_name(lake: TestLake) -> None:
    _create(lake, 1)
    place = lake.table(ITEMS).local
    assert place is not None

    def commit(*_: object) -> None:
        write_commit(place, (log.version(lake.table(ITEMS)) or 0) + 1, {"add": _file(nullCount={OFFSET: 1})})

    commit()
    lake.build.create(ITEMS, {"id": 2, "v": "old"})
    lake.build.seal()
    with mock.patch.object(LakeTable, "disown", side_effect=commit) as answers:
        lake.merge()
    assert answers.call_count == 20 and _status(lake).state is State.STOPPED
    assert "has committed to the table 20 times" in str(_status(lake).error)


OTHERS = {"commitInfo": {"operation": "WRITE", "timestamp": 1764000000000}}


def _file(**statistics: Any) -> dict[str, Any]:
    stats = str({"numRecords": 1, **statistics}).replace("'", '"')
    return {"path": "theirs.parquet", "partitionValues": {}, "size": 1, "dataChange": True, "stats": stats}


def _moved(action: dict[str, Any]) -> dict[str, Any]:
    return {**action, "dataChange": False}


SCHEMA = schema_string(FIELDS)


@pytest.mark.parametrize(
    ("actions", "has_rows", "reshaped"),
    [
        ([], False, False),  # VACUUM
        ([{"txn": {"appId": "stream", "version": 1}}], False, False),
        ([{"remove": _moved({"path": "a"})}, {"add": _moved(_file())}], False, False),  # OPTIMIZE
        ([{"add": _file(nullCount={OFFSET: 1})}], True, False),
        ([{"add": _file(minValues={OFFSET: 8}, maxValues={OFFSET: 9}, nullCount={OFFSET: 0})}], True, False),
        ([protocol("rowTracking")], False, True),
        ([metadata(SCHEMA, **{"delta.logRetentionDuration": "interval 9 days"})], False, True),
        ([metadata(SCHEMA, team="sales")], False, True),
        ([{"domainMetadata": {"domain": "delta.clustering", "configuration": "{}"}}], False, False),
    ],
)
def test_what_harms_no_row_is_listed(tmp_path: Path, actions: list[Any], has_rows: bool, reshaped: bool) -> None:
    judged = _judge(tmp_path, [OTHERS, *actions])
    assert (judged.damage, judged.has_rows, judged.reshaped) == (None, has_rows, reshaped)


@pytest.mark.parametrize(
    ("actions", "cause"),
    [
        ([{"remove": {"path": "a"}}], "has removed or replaced rows"),
        ([{"add": _file()}], "may have added rows that the table had before"),
        (
            [{"add": _file(minValues={OFFSET: 7}, nullCount={OFFSET: 0})}],
            "may have added rows that the table had before",
        ),
        ([{"add": {**_file(nullCount={OFFSET: 1}), "deletionVector": {}}}], "marked rows as deleted"),
        ([{"add": {"path": "b", "dataChange": True}}], "may have added rows that the table had before"),
        ([metadata(schema_string({**FIELDS, "more": "string"}))], "has changed columns"),
        ([metadata(SCHEMA, **{"delta.somethingNew": "1"})], "property delta.somethingNew"),
        ([metadata(SCHEMA, **{"dblog.dropped": "[]"})], "property dblog.dropped"),
        ([{"domainMetadata": {"domain": "other.rows"}}], "the action domainMetadata"),
        ([{"rowsElsewhere": {}}], "the action rowsElsewhere"),
        ([{"commitInfo": {"operation": "RESTORE"}}], "commit 1 of another program (RESTORE) has brought back"),
        (None, "commit 1 of another program is no longer in the log"),
    ],
)
def test_all_else_is_damage(tmp_path: Path, actions: list[Any] | None, cause: str) -> None:
    damage = _judge(tmp_path, actions).damage
    assert damage is not None and cause in damage


def test_damage_names_commit_operation_and_time(tmp_path: Path) -> None:
    judged = _judge(tmp_path, [OTHERS, {"remove": {"path": "a"}}])
    assert judged.damage == "commit 1 of another program (WRITE, 2025-11-24T16:00:00Z) has removed or replaced rows"


def _judge(tmp_path: Path, actions: list[Any] | None) -> foreign_commits.Judged:
    """The judgement of these actions as version 1 of a table whose rows of ours have offsets up to 7."""
    path = tmp_path / "table"
    first = metadata(SCHEMA)
    write_commit(path, 0, protocol(), first)
    for action in actions or ():
        if "metaData" in action:
            action["metaData"]["id"] = first["metaData"]["id"]
    if actions is not None:
        write_commit(path, 1, *actions)
    place = Location(LocalStorage(tmp_path, temporary="_dblog/tmp"), "table")
    return foreign_commits.judge(place, after=0, commit=log.commit_sum(place, 0), newest=1, merged=7)
