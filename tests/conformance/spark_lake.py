"""The real lake as the verdict looks at it: merged by Spark, read as Delta tables."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from dblog_core.config.settings import Config
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import State, TableStatus, read_status, table_location
from dblog_core.lake.task_requests import AcceptRequest
from dblog_core.lake.task_results import AcceptResult
from dblog_core.model.schema import TableName
from dblog_core.model.values import to_json
from dblog_core.wiring import open_lake
from tests.conformance.judge import Row
from tests.conformance.reports import Reports
from tests.conformance.world import World


class SparkLake:
    """The merge job in this process's session. `merge`: all that is sealed, as `dblog merge --once` does it."""

    def __init__(self, world: World, spark: SparkSession, merge: Callable[[Config], int]) -> None:
        self._world = world
        self._spark = spark
        self._merge = merge
        self._removed = set[str]()

    def merge(self) -> None:
        self._merge(self._world.config)  # exits 1 while a table stands still, which `stopped_tables` tells

    def wants(self) -> list[str]:
        return []

    def awaits(self) -> bool:
        return any(t.awaits is not None or t.state is State.INCOMPLETE for t in self._tables().values())

    def rows(self) -> Mapping[str, list[Row]]:
        return {name: self._rows(name) for name, table in self._live_tables().items()}

    def _live_tables(self) -> dict[str, TableStatus]:
        tables = self._tables().items()
        return {n: t for n, t in tables if t.version is not None and n not in self._removed}

    def _rows(self, table: str) -> list[Row]:
        location = table_location(open_lake(self._world.config), TableName.parse(table))
        lake_rows = self._spark.read.format("delta").load(str(location)).toArrow().to_pylist()
        return [{name: to_json(value) for name, value in row.items()} for row in lake_rows]

    def reports(self) -> Reports:
        return {}  # `status` shows them

    def accept(self, table: str) -> None:
        task = lake_tasks.file_task(open_lake(self._world.config), AcceptRequest(table)).id
        self.merge()
        outcome = lake_tasks.read_outcome(open_lake(self._world.config), task, AcceptResult)
        assert outcome is not None and outcome.error is None, f"dblog schema accept {table}: {outcome}"

    def remove(self, table: str) -> None:
        shutil.rmtree(str(table_location(open_lake(self._world.config), TableName.parse(table))))
        self._removed.add(table)

    def _tables(self) -> dict[str, TableStatus]:
        status = read_status(open_lake(self._world.config))
        return {} if status is None else status.tables
