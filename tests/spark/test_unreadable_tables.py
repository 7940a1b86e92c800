"""A damaged log of a lake table holds no other table up, and what the error advises builds the table again."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import State, read_status
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.maintenance.maintain_result import MaintainResult
from tests.spark.asked import ask, ask_well
from tests.spark.days import config_of
from tests.spark.lakes import Dumps, TestLake
from tests.spark.segments import table

pytestmark = pytest.mark.one_of(2)

TABLES = [table(name, id=pa.int64(), v=pa.string()) for name in ("a", "b", "c")]
BROKEN = TABLES[1]


def _create(lake: TestLake, number: int) -> None:
    for schema in TABLES:
        lake.build.create(schema, {"id": number, "v": "x"})
    lake.build.seal()


@pytest.mark.parametrize("commit", [b'{"commitInfo":{"opera', b'{"metaData":{"id":"x"}}\n'], ids=["torn", "no_columns"])
def test_a_damaged_log_holds_no_other_table_up_and_is_built_again_as_the_error_says(
    lake: TestLake, tmp_path: Path, commit: bytes
) -> None:
    for number in range(3):
        _create(lake, number)
        lake.merge_well()
    place = lake.table(BROKEN).local
    assert place is not None
    newest = max(int(path.stem) for path in (place / "_delta_log").glob("*.json"))
    (place / "_delta_log" / f"{newest + 1:020d}.json").write_bytes(commit)

    task = lake_tasks.file_task(lake.location, MaintainRequest())
    lake.merger(config=config_of(tmp_path)).run_task()
    outcome = lake_tasks.read_outcome(lake.location, task.id, MaintainResult)
    assert outcome is not None and outcome.result is not None
    assert [each.size.table for each in outcome.result.tables] == ["shop.a", "shop.c"]
    assert {each.name for each in outcome.result.failed} == {"shop.b"}

    _create(lake, 3)
    lake.merge()
    status = read_status(lake.location)
    assert status is not None
    assert [name for name, each in status.tables.items() if each.state is State.STOPPED] == ["shop.b"]
    assert "move the table's directory away, and run `dblog reset`" in str(status.tables["shop.b"].error)
    assert [row["id"] for row in lake.rows(TABLES[0])] == [0, 1, 2, 3]

    outcome_of_reset = ask(lake, "reset", {"table": "shop.b"}, dumps=Dumps())
    assert outcome_of_reset.error is not None, "Delta does not read this log either"
    place.rename(tmp_path / "away")
    assert ask_well(lake, "reset", {"table": "shop.b"}, dumps=Dumps())["dump"] == "dump1"
    since = lake.build.offset
    lake.build.chunk(BROKEN, [{"id": number, "v": "x"} for number in range(4)], dump="dump1")
    lake.build.finished(BROKEN, "dump1", since=since, since_segment=lake.build.segment + 1)
    _create(lake, 4)
    lake.merge_well()
    assert [row["id"] for row in lake.rows(BROKEN)] == [0, 1, 2, 3, 4]
    now = read_status(lake.location)
    assert now is not None and now.tables["shop.b"].state is State.OK
