"""A lake that is merged and maintained at times that a test draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from dblog_core.config.settings import Config
from dblog_core.interfaces import Json
from dblog_core.lake import cuts, lake_tasks
from dblog_core.lake.task_plans import MaintainPlan
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.lake_engine.tasks import maintain
from dblog_core.maintenance.maintain_result import MaintainResult
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

ONE = table("one", id=pa.int64(), v=pa.string())
HOUR = 3600.0


def config_of(directory: Path) -> Config:
    """Of a lake that keeps cuts for an hour."""
    return Config.model_validate(
        {
            "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(directory / "staging"), "keep": "7d"},
            "state": {"url": f"sqlite:///{directory / 'state.db'}"},
            "lake": {"path": str(directory / "lake"), "keep": "1h"},
        }
    )


class Days:
    """A lake that is merged once in a while, at times that the test draws; its segments are sealed in 1970."""

    def __init__(self, lake: TestLake, config: Config) -> None:
        self.lake = lake
        self.config = config
        self.now = 1_800_000_000.0

    def options(self, **more: Any) -> Any:
        return {"config": self.config, "now": lambda: self.now, **more}

    def merge(self) -> int:
        """A merge of what was gathered; its cut."""
        self.lake.build.seal()
        return self.lake.merge_well(**self.options())[-1].number

    def maintain(self) -> Json:
        task = lake_tasks.file_task(self.lake.location, MaintainRequest())
        self.lake.merger(**self.options()).run_task()
        outcome = lake_tasks.read_outcome(self.lake.location, task.id, MaintainResult)
        assert outcome is not None and outcome.error is None, outcome
        assert outcome.result is not None
        return outcome.result.to_json()

    def rows(self, cut: int) -> list[Row]:
        version = cuts.cut_of(self.lake.location, cut).tables[str(ONE.table)]
        frame = self.lake.spark.read.format("delta").option("versionAsOf", version).load(str(self.lake.table(ONE)))
        return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])

    def carry_out(self, tools: Any, plan: MaintainPlan) -> Any:
        """A maintenance at that time."""
        return maintain.carry_out(tools, plan, now=lambda: self.now)
