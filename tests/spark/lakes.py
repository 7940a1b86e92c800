"""A lake under test: its staging, merges of it, and what is in its tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyspark.sql import SparkSession

from dblog_core.config.lake import JsonAs, SchemaChanges
from dblog_core.lake import carrier_choice
from dblog_core.lake.carrier_choice import Means
from dblog_core.lake.lake_status import lake_at, own_directory, table_location
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.lake_engine.merging.merge_results import Merged
from dblog_core.lake_engine.merging.spreading.tasks import Opener, SpreadWork
from dblog_core.lake_engine.merging.spreading.write_spread import Spread
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.merging.withheld_keys import DumpEnd, Withheld
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from spark_jobs.spread import run_tasks
from tests.spark.segments import Row, SegmentBuilder


class Crash(BaseException):
    """The process died here. Not an Exception: nothing may handle it."""


class Dumps:
    """Takes requests for dumps, and never ends one."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[Any]]] = []

    def submit(self, table: str, keys: list[Any]) -> str:
        self.asked.append((table, keys))
        return f"dump{len(self.asked)}"

    def await_plan(self, dump: str, check: Callable[[], None]) -> None:
        check()

    def find_end(self, dump: str) -> DumpEnd | None:
        return None


def open_places(staging: Staging, path: Path) -> tuple[Staging, Location]:
    """What an executor opens of a lake that is spread."""
    return staging, lake_at(str(path))


class TestLake:
    __test__ = False

    def __init__(self, spark: SparkSession | None, staging: Staging, path: Path) -> None:
        """`spark`: reads the tables; None: something else does."""
        self._spark, self.staging, self.path, self.location = spark, staging, path, lake_at(str(path))
        self.build = SegmentBuilder(staging)
        self.withheld: Withheld | None = None
        self.history = False
        self.drop_columns = False
        self.changes: SchemaChanges = "evolve"
        self.json_as: JsonAs = "text"
        self.vectors = True
        self.spreads = False
        self.run_tasks: Callable[[Opener, SpreadWork], list[tuple[str, bytes]]] | None = None
        self.dumps = Dumps()

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None, "this lake is read without Spark"
        return self._spark

    def let_spread(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """All works are spread over executors from now on."""
        self.spreads = True
        monkeypatch.setattr(carrier_choice, "WORTH_ROWS", 1)

    def _spread(self) -> Spread:
        opener = partial(open_places, self.staging, self.path)
        if self.run_tasks is not None:
            return Spread(partial(self.run_tasks, opener), Means(1, 4))
        return Spread(partial(run_tasks, self.spark, opener, 4), Means(1, 4))

    def merger(self, **options: Any) -> Merger:
        """A merger as a new process would make it."""
        records = Records(own_directory(self.location))
        self.withheld = Withheld(records)
        lake = Lake(
            self.location,
            "dblog:shop",
            history=self.history,
            drop_columns=self.drop_columns,
            changes=lambda table: self.changes,
            json_as=lambda table: self.json_as,
            vectors=self.vectors,
            open_tables=OpenTables(self.path.parent / "index"),
            spread=self._spread() if self.spreads else None,
        )
        options["dumps"] = options.get("dumps") or self.dumps
        merger = Merger(self.staging, lake, records, self.withheld, **options)
        merger.load()
        return merger

    def merge(self, **options: Any) -> list[Merged]:
        """All rounds until nothing is left, retrying stopped tables once, as `merge --once`."""
        merger, done, retry = self.merger(**options), [], True
        while (merged := merger.run_round(retry_stopped=retry)) is not None:
            done.append(merged)
            retry = False
        return done

    def merge_well(self, **options: Any) -> list[Merged]:
        """As `merge`, and no table may fail."""
        done = self.merge(**options)
        errors = [f"{table.table}: {table.error}" for merged in done for table in merged.tables if table.error]
        assert not errors, errors
        return done

    def merge_until(self, step: str) -> None:
        """A merge that dies right after the step."""

        def die(name: str) -> None:
            if name == step:
                raise Crash

        try:
            self.merge(step=die)
        except Crash:
            return
        raise AssertionError(f"no step was named {step}")

    def die_at(self, step: str) -> None:
        """The next lake task dies right after the step."""

        def die(name: str) -> None:
            if name == step:
                raise Crash

        try:
            self.merger(step=die).run_task()
        except Crash:
            return
        raise AssertionError(f"no step was named {step}")

    def rows(self, schema: TableSchema, *, provenance: bool = False) -> list[Row]:
        """The table's rows as the source has them, by key."""
        frame = self.spark.read.format("delta").load(str(self.table(schema)))
        rows = [row.asDict() for row in frame.collect()]
        if not provenance:
            rows = [{k: v for k, v in row.items() if not k.startswith("_dblog_")} for row in rows]
        return sorted(rows, key=lambda row: [str(row[k]) for k in schema.key])

    def rust_rows(self, schema: TableSchema) -> list[Row]:
        """As `rows` with provenance, but as delta-rs reads them."""
        table = RustTable(str(self.table(schema).local))
        rows: list[Row] = pa.table(QueryBuilder().register("t", table).execute("select * from t")).to_pylist()
        return sorted(rows, key=lambda row: [str(row[name]) for name in schema.key])

    def rust_files(self, schema: TableSchema) -> list[str]:
        """The files of the table's newest version, as delta-rs lists them."""
        return RustTable(str(self.table(schema).local)).file_uris()

    def newest_commit(self, schema: TableSchema) -> Any:
        """The table's newest line of Delta's history."""
        return DeltaTable.forPath(self.spark, str(self.table(schema))).history(1).collect()[0]

    def table(self, schema: TableSchema) -> Location:
        return table_location(self.location, schema.table)

    def cuts(self) -> list[Row]:
        frame = self.spark.read.format("delta").load(str(own_directory(self.location) / "cuts"))
        return [row.asDict() for row in frame.orderBy("cut").collect()]
