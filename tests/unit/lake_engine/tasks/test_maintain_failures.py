"""A table that cannot be maintained holds up no other, nor the retention of staging, and everybody who asks hears of
it."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from dblog_core.commands.maintain import as_text
from dblog_core.config.settings import Config
from dblog_core.delta_writer.features import refusal
from dblog_core.errors import LakeError
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import TableStatus, read_status
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.lake_engine.lake_job import Caller
from dblog_core.lake_engine.merge_job import Job
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.tasks import file_upkeep, kept_log, maintain, registry
from dblog_core.maintenance import schedule
from dblog_core.maintenance.maintain_result import MaintainedTable, MaintainResult
from dblog_core.maintenance.schedule import TableSize
from dblog_core.staging import Staging
from dblog_core.state import recent_errors
from dblog_core.wiring import open_state
from tests.spark.lakes import TestLake
from tests.spark.segments import table
from tests.unit.delta_writer.tables import commit_of, newest, write_commit

MAINTAIN_PLACE = maintain._maintain
TABLES = [table(name, id=pa.int64()) for name in ("a", "b", "c")]


class World:
    """Three tables, of which those in `broken` cannot be maintained."""

    def __init__(self, path: Path) -> None:
        self.config = Config.model_validate(
            {
                "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
                "staging": {"path": str(path / "staging"), "keep": "0s"},
                "state": {"url": f"sqlite:///{path / 'state.db'}"},
                "lake": {"path": str(path / "lake")},
            }
        )
        self.lake = TestLake(None, Staging(str(path / "staging"), source="shop"), path / "lake")
        self.broken = {"shop.b"}
        for _ in range(3):
            for schema in TABLES:
                self.lake.build.create(schema, {"id": self.lake.build.offset})
            self.lake.build.seal()
            self.lake.merge_well()

    def maintain(self, place: maintain.Place, *_: Any, **__: Any) -> MaintainedTable:
        if place.name in self.broken:
            raise LakeError("a data file of the table is missing", where=place.name, fix="`dblog reset`")
        return MaintainedTable(TableSize(place.name, 1, 1, 1, 0, 1, 1), (), 0)

    def run(self) -> tuple[MaintainResult, str]:
        """A maintenance as `merge --tasks` does it: its result, and what the merge has said."""
        task = lake_tasks.file_task(self.lake.location, MaintainRequest())
        said: list[str] = []
        assert self._job(self.lake.merger(config=self.config), said).tasks() == 0
        outcome = lake_tasks.read_outcome(self.lake.location, task.id, MaintainResult)
        assert outcome is not None and outcome.result is not None
        return outcome.result, "\n".join(said)

    def _job(self, merger: Merger, said: list[str]) -> Job:
        def remember(part: str, error: LakeError) -> None:
            with closing(open_state(self.config)) as state:
                recent_errors.record(state, part, error, 1.0)

        assert self.lake.withheld is not None
        return Job(
            merger, self.lake.withheld, self.lake.dumps, Caller(threading.Event(), said.append), remember=remember
        )

    def tables(self) -> dict[str, TableStatus]:
        status = read_status(self.lake.location)
        assert status is not None
        return status.tables


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path)
    monkeypatch.setattr(maintain, "_maintain", world.maintain)
    return world


def test_a_table_that_fails_is_named_everywhere_and_holds_nothing_up(world: World) -> None:
    result, said = world.run()
    assert [each.size.table for each in result.tables] == ["shop.a", "shop.c"]
    assert result.staging is not None and result.staging.segment > 1, "old segments are removed"
    (failed,) = result.failed
    assert (failed.name, failed.error) == ("shop.b", "a data file of the table is missing")
    assert "maintain failed after" in said and "a data file of the table is missing" in said and "done" not in said
    errors = {name: each.unmaintained for name, each in world.tables().items()}
    assert errors == {"shop.a": None, "shop.b": str(failed), "shop.c": None}
    with closing(open_state(world.config)) as state:
        (error,) = recent_errors.read(state)
    assert error.part == "maintenance" and "shop.b" in error.error and error.fix == "`dblog reset`"
    with pytest.raises(LakeError, match=r"maintenance has failed for shop\.b"):
        result.check()
    world.broken.clear()
    result, said = world.run()
    assert not result.failed and "maintain done" in said
    assert all(each.unmaintained is None for each in world.tables().values())


@pytest.mark.parametrize("fault", [KeyError("schemaString"), pa.ArrowNotImplementedError("codec"), ValueError()])
def test_a_fault_that_nobody_has_thought_of_holds_nothing_up_either(
    world: World, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(place: maintain.Place, *more: Any, **named: Any) -> MaintainedTable:
        if place.name == "shop.b":
            raise fault
        return world.maintain(place, *more, **named)

    world.broken.clear()
    monkeypatch.setattr(maintain, "_maintain", fail)
    result, _ = world.run()
    assert [each.size.table for each in result.tables] == ["shop.a", "shop.c"]
    assert result.staging is not None and result.staging.segment > 1
    (failed,) = result.failed
    assert failed.name == "shop.b" and failed.error


@pytest.mark.parametrize("part", ["plan", "carry_out"])
def test_a_lake_task_that_meets_a_defect_ends_and_the_next_merge_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    monkeypatch.setattr(registry, part, mock.Mock(side_effect=KeyError("schemaString")))
    task = lake_tasks.file_task(world.lake.location, MaintainRequest())
    world.lake.merger(config=world.config).run_task()
    outcome = lake_tasks.read_outcome(world.lake.location, task.id, MaintainResult)
    assert outcome is not None and outcome.error is not None and "this is a defect" in outcome.error
    for schema in TABLES:
        world.lake.build.create(schema, {"id": world.lake.build.offset})
    world.lake.build.seal()
    assert len(world.lake.merge_well()) == 1


def test_a_table_that_fails_keeps_the_size_that_was_noted_last(world: World) -> None:
    world.broken.clear()
    world.run()
    world.broken = {"shop.b"}
    world.run()
    noted = schedule.read_maintained(world.lake.location)
    assert noted is not None and {size.table for size in noted.sizes} == {"shop.a", "shop.b", "shop.c"}


def test_a_retention_that_fails_lets_tables_be_maintained(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.broken.clear()
    monkeypatch.setattr(maintain, "_retain", mock.Mock(side_effect=LakeError("no room", where="staging")))
    result, _ = world.run()
    assert result.staging is None and [place.name for place in result.failed] == ["staging"]
    assert len(result.tables) == 3


def test_a_table_of_cuts_that_cannot_be_read_lets_tables_be_maintained_and_no_file_be_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def size_of(place: maintain.Place) -> TableSize:
        return TableSize(place.name, 1, 1, 1, 0, 1, 1)

    monkeypatch.setattr(maintain, "_maintain", MAINTAIN_PLACE)
    monkeypatch.setattr(maintain, "_improve", lambda place, tools, marks, done: done.append("joined"))
    monkeypatch.setattr(maintain, "_size", size_of)
    remove = mock.Mock(return_value=1)
    monkeypatch.setattr(maintain, "_remove_unneeded", remove)
    clean_log = mock.Mock()
    monkeypatch.setattr(kept_log, "clean_log", clean_log)
    cut_files = list((world.lake.path / "_dblog/cuts").glob("*.parquet"))
    for file in cut_files:
        file.rename(file.with_suffix(".gone"))
    result, said = world.run()
    (failed,) = result.failed
    assert failed.name == "cuts" and "old cuts cannot be removed" in failed.error and "maintain failed after" in said
    assert result.cuts is None and "cuts: " not in as_text(result)
    assert [(each.size.table, each.did) for each in result.tables] == [(f"shop.{t}", ("joined",)) for t in "abc"]
    assert not remove.called and not clean_log.called
    assert all(each.unmaintained is None for each in world.tables().values())
    assert MaintainResult.from_json(result.to_json()) == result
    for file in cut_files:
        file.with_suffix(".gone").rename(file)
    result, _ = world.run()
    assert not result.failed and result.cuts is not None and remove.call_count == clean_log.call_count == 3


def test_a_table_that_we_do_not_write_is_named_and_its_old_files_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintain, "_maintain", MAINTAIN_PLACE)
    monkeypatch.setattr(kept_log, "clean_log", mock.Mock())
    monkeypatch.setattr(maintain, "_answer_others", lambda place, tools: tools.status.tables[place.table])
    remove = mock.Mock(return_value=1)
    monkeypatch.setattr(maintain, "_remove_unneeded", remove)
    place = world.lake.path / "shop" / "b"
    about = next(action for action in commit_of(place, 0) if "metaData" in action)
    about["metaData"]["configuration"]["delta.constraints.few"] = "id < 1000"
    write_commit(place, newest(place) + 1, about)
    result, _ = world.run()
    (failed,) = result.failed
    assert (failed.name, failed.error) == ("shop.b", "its files are not joined: it has the constraint few")
    assert [(each.size.table, each.size.rows, each.did) for each in result.tables] == [
        ("shop.a", 3, ("joined",)),
        ("shop.b", 3, ()),
        ("shop.c", 3, ("joined",)),
    ]
    assert remove.call_count == 3 and world.tables()["shop.b"].unmaintained == str(failed)


def test_a_file_that_is_not_read_ends_one_step_of_its_table(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted rows leave the other files."""
    monkeypatch.setattr(maintain, "_maintain", MAINTAIN_PLACE)
    monkeypatch.setattr(kept_log, "clean_log", mock.Mock())
    error = refusal("part-1.parquet", "its times are of another calendar")
    monkeypatch.setattr(file_upkeep, "join_small_files", mock.Mock(side_effect=error))
    purge = mock.Mock()
    monkeypatch.setattr(file_upkeep, "purge_deleted", purge)
    result, _ = world.run()
    assert [failed.error for failed in result.failed] == [f"its files are not joined: {error.feature}"] * 3
    assert purge.call_count == 3
