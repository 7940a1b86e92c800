"""What `check` says of a lake's places: tables that want the same one, and a store whose commits are not exclusive."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.config.settings import Config
from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import (
    LakeStatus,
    State,
    TableStatus,
    history_location,
    lake_at,
    shares_history,
    table_location,
)
from dblog_core.model.schema import TableName
from dblog_core.monitoring import preflight
from dblog_core.monitoring.storage_usage import _places
from tests.unit.engine_world import World


def config(world: World, **lake: object) -> Config:
    return world.config.model_copy(update={"lake": world.config.lake.model_copy(update=lake)})


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    (tmp_path / "lake").mkdir()
    return World(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("names", "history", "folds", "expected_texts"),
    [
        (["shop.a", "shop.a__history"], True, False, ["shop.a__history and the history of shop.a"]),
        (["shop.a", "shop.a__history"], False, False, []),
        (["shop.b", "shop.a__history", "other.a"], True, False, []),
        (["shop.a", "shop.A"], True, False, []),
        (["shop.a", "shop.A", "Shop.b"], False, True, ["shop.A and shop.a have the same place"]),
        (["_dblog.a", "_DBLOG.b"], False, False, ["_dblog.a has no place", "_DBLOG.b has no place"]),
    ],
)
def test_tables_that_want_the_same_place_are_told_each_alone(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    history: bool,
    folds: bool,
    expected_texts: list[str],
) -> None:
    monkeypatch.setattr(preflight, "folds_case", lambda _: folds)
    problems = list(preflight._meeting(config(world, history=history), [TableName.parse(name) for name in names]))
    assert [problem.what[: len(text)] for problem, text in zip(problems, expected_texts, strict=True)] == expected_texts
    assert all(not p.fatal and p.table in names and "leave one of the two out" in p.fix for p in problems)


def test_the_file_systems_of_our_servers_tell_upper_and_lower_case_apart(tmp_path: Path) -> None:
    assert not preflight.folds_case(tmp_path) and not preflight.folds_case(tmp_path / "not there")


def test_places_are_the_same_for_a_history_alone(tmp_path: Path) -> None:
    lake = lake_at(str(tmp_path))
    base = TableName("shop", "a")
    other = TableName("shop", "a__history")
    assert history_location(lake, base) == table_location(lake, other)
    assert shares_history(other, {"shop.a"}) == "shop.a" and shares_history(base, {"shop.a"}) is None
    with pytest.raises(LakeError, match="no place in the lake"):
        table_location(lake, TableName("_Dblog", "a"))


def test_a_table_without_a_place_keeps_no_other_from_being_measured(tmp_path: Path) -> None:
    tables = {"_dblog.a": TableStatus(State.STOPPED, "no place", 0, 0), "shop.a": TableStatus(State.OK, None, 1, 1, 1)}
    places = _places(lake_at(str(tmp_path)), LakeStatus(merge=1, tables=tables))
    assert [name for name, _ in places] == ["shop.a", "shop.a__history"]


def test_a_lake_whose_place_is_good_has_no_problem(world: World) -> None:
    assert list(preflight._lake(world.config)) == []
