"""Every change of a table's shape at every moment of a dump, merged by Spark: the lake ends as the source, or the table
stops with an error that says why, and the others never notice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog_core.config.settings import Config
from dblog_core.lake.lake_status import State, TableStatus, read_status, table_location
from dblog_core.model.schema import TableName
from dblog_core.model.values import to_json
from dblog_core.wiring import open_lake
from tests.fix_servers import Database
from tests.integration.schema_matrix import Matrix, Moment

_CHANGES = 8  # of those that the database has: a table's first merge takes seconds
_ROUNDS = 4  # of merges and the dumps that these request, at most


class SparkLake:
    """The merge job, and what its tables hold."""

    def __init__(self, spark: SparkSession, merge: Callable[[Config], int], config: Config) -> None:
        self._spark = spark
        self._merge = merge
        self._config = config

    def merge(self) -> None:
        """All that is staged by now."""
        self._merge(self._config)

    def awaiting(self) -> list[str]:
        """Tables that a dump is on its way for."""
        return [name for name, table in self._tables().items() if table.awaits is not None]

    def stopped_tables(self) -> dict[str, str]:
        """Tables that stand still, with the reason."""
        return {name: table.error or "" for name, table in self._tables().items() if table.state is State.STOPPED}

    def rows(self, table: str) -> list[dict[str, Any]]:
        location = table_location(open_lake(self._config), TableName.parse(table))
        read_rows = self._spark.read.format("delta").load(str(location)).toArrow().to_pylist()
        return [{name: to_json(value) for name, value in row.items()} for row in read_rows]

    def _tables(self) -> dict[str, TableStatus]:
        status = read_status(open_lake(self._config))
        assert status is not None
        return status.tables


@pytest.mark.soak
@pytest.mark.parametrize("moment", list(Moment), ids=lambda m: m.value)
def test_the_lake_ends_as_the_source_or_says_why_not(
    database: Database,
    moment: Moment,
    pytestconfig: pytest.Config,
    spark: SparkSession,
    merged_here: Callable[[Config], int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = Matrix(database, tmp_path, moment, pytestconfig.option.soak_first, count=_CHANGES)
    lake = SparkLake(spark, merged_here, matrix.config)
    faults = matrix.faults
    for _ in matrix.run(monkeypatch, lake.merge):
        for _ in range(_ROUNDS):
            lake.merge()
            if not lake.awaiting():
                break
            matrix.wait_until_dumped()
            matrix.wait_until_staged()
        stopped = lake.stopped_tables()
        for name, change in matrix.changes.items():
            if change.stops or name in stopped:
                faults += stops_as_told(name, change.stops, stopped.get(name))
            else:
                faults += matrix.differences(name, lake.rows(name))
    assert not faults, "\n".join(faults)


def stops_as_told(table: str, names: str, error: str | None) -> list[str]:
    """What is wrong with how a table stops, or does not."""
    if not error or not names or names not in error or f"dblog schema accept {table}" not in error:
        return [f"{table}: stops with {error!r}, expected {names!r} and the way on"]
    return []
