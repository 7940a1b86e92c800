"""A table whose log nobody can read stops alone: merges and maintenance of the others go on, and one word names it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from dblog_core.errors import LakeError, StagingUnavailable
from dblog_core.lake.cuts import cuts_location, find_cut
from dblog_core.lake.lake_status import State, TableStatus, history_location, read_status
from dblog_core.lake_engine.merging.table_states import read_lake
from dblog_core.lake_engine.tables import log
from dblog_core.lake_engine.tasks import maintain
from dblog_core.lake_engine.tasks.context import Tools
from dblog_core.staging import Staging
from tests.spark.lakes import TestLake
from tests.spark.segments import table

TABLES = [table(name, id=pa.int64()) for name in ("a", "b", "c")]
BROKEN = TABLES[1]


@pytest.fixture
def lake(tmp_path: Path) -> TestLake:
    made = TestLake(None, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")
    made.history = True
    _create(made, 1)
    made.merge_well()
    return made


def _create(lake: TestLake, number: int) -> None:
    for schema in TABLES:
        lake.build.create(schema, {"id": number})
    lake.build.seal()


def _cut_short(place: Path) -> None:
    """A commit of which a crash has left the beginning."""
    (place / "_delta_log" / f"{_version(place) + 1:020d}.json").write_bytes(b'{"commitInfo":{"opera')


def _hold_no_object(place: Path) -> None:
    (place / "_delta_log" / f"{_version(place) + 1:020d}.json").write_bytes(b"5\n")


def _describe_no_columns(place: Path) -> None:
    (place / "_delta_log" / f"{_version(place) + 1:020d}.json").write_bytes(b'{"metaData":{"id":"x"}}\n')


def _forbid(place: Path) -> None:
    """A directory that cannot be read: here, since there is a file in its place."""
    shutil.rmtree(place / "_delta_log")
    (place / "_delta_log").write_bytes(b"")


def _version(place: Path) -> int:
    return max(int(path.stem) for path in (place / "_delta_log").glob("*.json"))


def _states(lake: TestLake) -> dict[str, TableStatus]:
    status = read_status(lake.location)
    assert status is not None
    return status.tables


@pytest.mark.parametrize("damage", [_cut_short, _hold_no_object, _describe_no_columns, _forbid])
@pytest.mark.parametrize("of_history", [False, True])
def test_a_log_that_cannot_be_read_stops_its_table_alone(
    lake: TestLake, tmp_path: Path, damage: Callable[[Path], None], of_history: bool
) -> None:
    place = (history_location(lake.location, BROKEN.table) if of_history else lake.table(BROKEN)).local
    assert place is not None
    shutil.copytree(place, tmp_path / "copy")
    damage(place)
    for number in (2, 3):  # the second tries the stopped table again
        _create(lake, number)
        lake.merge()
        states = _states(lake)
        assert {name for name, each in states.items() if each.state is State.STOPPED} == {"shop.b"}
        assert str(place) in str(states["shop.b"].error) and "fix: " in str(states["shop.b"].error)
        assert "defect" not in str(states["shop.b"].error)
        assert [row["id"] for row in lake.rust_rows(TABLES[0])] == list(range(1, number + 1))
    assert [place.name for place in maintain.places(_tools(lake))] == [
        name for schema in TABLES for name in (str(schema.table), f"{schema.table}__history")
    ], "a maintenance says what is wrong with it"
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "copy", place)
    lake.merge_well()
    assert [row["id"] for row in lake.rust_rows(BROKEN)] == [1, 2, 3]


def _tools(lake: TestLake) -> Tools:
    return lake.merger()._tools(9)


def test_a_merger_that_begins_leaves_storage_that_is_away_to_be_tried_again(lake: TestLake) -> None:
    merger = lake.merger()
    with mock.patch.object(log, "same_rows", side_effect=StagingUnavailable("away")), pytest.raises(StagingUnavailable):
        read_lake(lake.location, merger._records, lake.staging)


def test_a_table_of_cuts_whose_log_is_damaged_is_begun_again_as_the_error_says(lake: TestLake, tmp_path: Path) -> None:
    place = cuts_location(lake.location).local
    assert place is not None
    _cut_short(place)
    _create(lake, 2)
    for _ in range(2):
        with pytest.raises(LakeError, match="the cut of merge 2 cannot be written") as caught:
            lake.merge()
    assert "move this directory away" in caught.value.fix and caught.value.where == str(place)
    place.rename(tmp_path / "away")
    lake.merge_well()
    assert [row["id"] for row in lake.rust_rows(BROKEN)] == [1, 2] and find_cut(lake.location).cut.number == 2


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_cut_names_what_a_table_lacked_before_it_stopped(lake: TestLake, is_whole: bool) -> None:
    """Up to the offset at which it stopped it does not hold all changes either."""
    place = lake.table(BROKEN).local
    assert place is not None
    if is_whole:  # nothing has proven before that the tables began empty
        for schema in TABLES:
            lake.build.truncate(schema)
        _create(lake, 2)
        lake.merge_well()
    _cut_short(place)
    _create(lake, 3)
    lake.merge()
    cut = find_cut(lake.location).cut
    assert set(cut.behind) == {"shop.b"} and ("shop.b" in cut.incomplete) == (not is_whole)
