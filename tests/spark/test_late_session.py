"""Merges with a session that starts late: what starts it, what does not, and its checkpoints."""

from __future__ import annotations

import datetime as dt
import random
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from dblog_core.lake.lake_status import lake_at
from dblog_core.lake.task_plans import MaintainPlan
from dblog_core.lake_engine.tables import checkpoints, log
from dblog_core.lake_engine.tasks import maintain, registry
from dblog_core.lake_engine.tasks.registry import Kind
from dblog_core.staging import Staging
from tests.duckdb_reader import read_delta
from tests.spark.days import HOUR, Days, config_of
from tests.spark.lakes import TestLake
from tests.spark.segments import table

A = table("a", id=pa.int64(), v=pa.string())


def late_lake(tmp_path: Path) -> TestLake:
    return TestLake(None, Staging(str(tmp_path / "staging"), source="shop"), tmp_path / "lake")


def change(lake: TestLake, rows: dict[int, Any], dice: random.Random, rounds: int) -> None:
    """Merges of random changes."""
    for number in range(rounds):
        for _ in range(dice.randint(1, 6)):
            key = dice.randrange(40)
            row = {"id": key, "v": f'{{"n": {number}}}'}
            if key in rows and dice.random() < 0.4:
                lake.build.delete(A, {"id": key})
                del rows[key]
            elif key in rows and (new := dice.randrange(40)) not in rows:
                lake.build.move(A, {"id": key}, {**row, "id": new})
                rows[new] = {**row, "id": new}
                del rows[key]
            else:
                lake.build.update(A, row)
                rows[key] = row
        if dice.random() < 0.1:
            lake.build.truncate(A)
            rows.clear()
        lake.build.seal()
        lake.merge_well()


def keep_newest_commit(place: Path) -> int:
    """Removes the others, so that readers begin with a checkpoint. The newest version."""
    *older, newest = sorted((place / "_delta_log").glob("*.json"))
    assert older
    for commit in older:
        commit.unlink()
    return int(newest.stem)


def read_values(frame: Any) -> dict[int, str]:
    return {row["id"]: row["v"] for row in frame}


@pytest.mark.parametrize("history", [False, True])
def test_a_lake_is_made_and_changed_without_spark(
    tmp_path: Path, history: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "COMMITS", 7)
    lake = late_lake(tmp_path)
    lake.history = history
    lake.build.chunk(A, [{"id": n, "v": "dumped"} for n in range(20)])
    lake.build.finished(A, "d1", since=0, since_segment=0)
    lake.build.seal()
    lake.merge_well()
    rows: dict[int, Any] = {n: {"id": n, "v": "dumped"} for n in range(20)}
    change(lake, rows, random.Random(7), 20)
    place = Path(str(lake.table(A)))
    assert read_values(read_delta(place).to_pylist()) == {key: row["v"] for key, row in rows.items()}
    with closing(lake.merger(compact_after=3)) as merger:
        for n in range(3):
            lake.build.update(A, {"id": 100 + n, "v": "more"})
            lake.build.seal()
            assert merger.run_round(retry_stopped=False) is not None
        assert merger.compact() == "shop.a"
    assert len(read_delta(place)) == len(rows) + 3
    assert any(name.endswith(".checkpoint.parquet") for name in (lake.table(A) / "_delta_log").names())


@pytest.mark.parametrize("history", [False, True])
def test_columns_change_without_spark(spark: SparkSession, tmp_path: Path, history: bool) -> None:
    """They are added, widened, dropped with their values and renamed, each with its merge; then Spark alters the
    table."""
    lake = late_lake(tmp_path)
    lake.history = history
    lake.drop_columns = True
    build = lake.build
    shape = A
    expected: dict[int, dict[str, Any]] = {}

    def merge_row(key: int, **values: Any) -> None:
        expected[key] = {"id": key, **values}
        build.create(shape, expected[key])
        build.seal()
        lake.merge_well()
        names = [c.name for c in shape.columns]
        rows = read_delta(Path(str(lake.table(A)))).select(names).sort_by("id").to_pylist()
        assert rows == [{name: row.get(name) for name in names} for row in expected.values()]

    merge_row(1, v="first")
    shape = table("a", id=pa.int64(), n=pa.int32(), at=pa.timestamp("us"), v=pa.string())
    if history:  # it leaves constants to a dump
        build.schema(shape, filled={"at": None})
    else:
        build.schema(shape, filled={"n": 5, "at": None})
        expected[1]["n"] = 5
    merge_row(2, v="second", n=2, at=dt.datetime(2024, 2, 29, 1, 2, 3))  # noqa: DTZ001  # as the column has it
    shape = table("a", id=pa.int64(), n=pa.int64(), v=pa.string())
    build.schema(shape)
    merge_row(3, v="third", n=2**40)
    shape = table("a", id=pa.int64(), v=pa.int64(), n=pa.string())
    build.schema(shape, renamed={"v": "n", "n": "v"})
    expected = {key: {"id": key, "v": row.get("n"), "n": row["v"]} for key, row in expected.items()}
    merge_row(4, v=2**41, n="fourth")
    place = str(lake.table(A))
    detail = DeltaTable.forPath(spark, place).detail().collect()[0]
    features = {"deletionVectors", "columnMapping", "timestampNtz", "typeWidening", "appendOnly", "invariants"}
    assert set(detail["tableFeatures"]) == features
    spark.sql(f"ALTER TABLE delta.`{place}` ADD COLUMNS (x STRING)")
    names = [c.name for c in shape.columns]
    rows = spark.read.format("delta").load(place).select(*names).orderBy("id").collect()
    assert [row.asDict() for row in rows] == [{name: row.get(name) for name in names} for row in expected.values()]


def test_a_lake_with_histories_is_maintained_without_spark(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small files are joined, deleted rows purged, cuts, files and log of before removed. Then Spark reads all."""
    lake = late_lake(tmp_path)
    lake.history = True
    days = Days(lake, config_of(tmp_path))
    monkeypatch.setattr(registry, "KINDS", {MaintainPlan.kind: Kind(days.carry_out, maintain.plan)})
    rows: dict[int, str] = {}
    for number in range(12):
        days.now += HOUR / 4
        for key in range(number, number + 3):
            lake.build.update(A, {"id": key, "v": f"round {number}"})
            rows[key] = f"round {number}"
        if number % 3 == 2:
            lake.build.delete(A, {"id": number})
            del rows[number]
        days.merge()
    lines = 3 * 12 + 4
    history = Path(f"{lake.table(A)}__history")
    done = days.maintain()
    assert done["failed"] == [] and {table["table"]: table["done"] for table in done["tables"]} == {
        "shop.a": ["joined"],
        "shop.a__history": ["joined"],
    }
    assert {table["table"]: table["rows"] for table in done["tables"]} == {
        "shop.a": len(rows),
        "shop.a__history": lines,
    }
    assert len(RustTable(str(history)).file_uris()) == 1
    lake.build.update(A, {"id": 0, "v": "after"})
    rows[0] = "after"
    days.now += 30 * HOUR
    days.merge()
    done = days.maintain()
    assert done["failed"] == [] and all(table["removed_files"] for table in done["tables"])
    place = Path(str(lake.table(A)))
    assert read_values(read_delta(place).to_pylist()) == rows
    assert read_values(spark.read.format("delta").load(str(place)).collect()) == rows
    read_lines = spark.read.format("delta").load(str(history)).orderBy("_dblog_offset").collect()
    assert len(read_lines) == lines + 1 and read_lines[-1]["v"] == "after"


def test_rows_of_others_are_disowned_without_spark(tmp_path: Path) -> None:
    lake = late_lake(tmp_path)
    lake.build.create(A, {"id": 1, "v": "ours"})
    lake.build.seal()
    lake.merge_well()
    place = str(lake.table(A))
    offset = pa.array([None, 10**9], pa.int64())
    foreign = pa.table({"id": [1, 2], "v": ["of nobody"] * 2, "_dblog_offset": offset})
    write_deltalake(place, foreign, mode="append", schema_mode="merge")
    lake.build.update(A, {"id": 1, "v": "ours again"})
    lake.build.seal()
    lake.merge_well()
    rows = read_delta(Path(place)).sort_by("id").select(["id", "v", "_dblog_offset"]).to_pylist()
    assert rows == [
        {"id": 1, "v": "ours again", "_dblog_offset": 2},
        {"id": 2, "v": "of nobody", "_dblog_offset": 0},
    ]


def test_spark_goes_on_from_a_checkpoint_that_was_made_without_it(spark: SparkSession, tmp_path: Path) -> None:
    """With the rows, marks and transactions of the commits that it replaces."""
    lake = late_lake(tmp_path)
    rows: dict[int, Any] = {}
    change(lake, rows, random.Random(11), 12)
    place = lake.table(A)
    checkpoints.write(place)
    alone = tmp_path / "alone" / "lake" / "shop" / "a"
    shutil.copytree(str(place), alone)
    newest = keep_newest_commit(alone)
    assert read_values(spark.read.format("delta").load(str(alone)).collect()) == {
        key: row["v"] for key, row in rows.items()
    }
    assert read_values(read_delta(alone).to_pylist()) == {key: row["v"] for key, row in rows.items()}
    spark.sql(f"INSERT INTO delta.`{alone}` (id, v) VALUES (1000, 'by Spark')")
    assert (alone / "_delta_log" / f"{newest + 1:020}.json").exists()
    assert log.newest_transaction(lake_at(str(alone)), "dblog:shop:shop.a") == log.newest_transaction(
        place, "dblog:shop:shop.a"
    )
