"""Checkpoints of ours beside those that Spark makes: the same actions, the same rows for every reader, the same VACUUM.

Tables have each feature that a merge keeps to. A copy of the table keeps our checkpoint and the commits behind it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.files import TableFiles
from dblog_core.lake.lake_status import lake_at
from dblog_core.lake_engine.tables import checkpoints
from tests.duckdb_reader import read_delta
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, json_in, table
from tests.spark.spark_tables import make_checkpoint

pytestmark = [pytest.mark.one_of(4)]

SHAPE = json_in(table("t", id=pa.int64(), v=pa.string(), n=pa.int64(), j=pa.string()), j="json")
_SET = "ALTER TABLE {{}} SET TBLPROPERTIES ({})"
FEATURES: dict[str, tuple[str, ...]] = {
    "vectors": (),
    "no vectors": (),
    "partitions": (),
    "VARIANT": (),
    "row tracking": (_SET.format("'delta.enableRowTracking' = 'true'"),),
    "a change data feed": (_SET.format("'delta.enableChangeDataFeed' = 'true'"),),
    "times in commits": (_SET.format("'delta.enableInCommitTimestamps' = 'true'"),),
    "clustering": ("ALTER TABLE {} CLUSTER BY (v)",),
    "v2 checkpoints": (_SET.format("'delta.checkpointPolicy' = 'v2'"),),
    "mapped columns": (
        _SET.format("'delta.columnMapping.mode' = 'name'"),
        "ALTER TABLE {} RENAME COLUMN n TO m",
        "ALTER TABLE {} RENAME COLUMN m TO n",
    ),
    "a wider type": (
        _SET.format("'delta.enableTypeWidening' = 'true'"),
        "ALTER TABLE {} ADD COLUMN (more INT)",
        "ALTER TABLE {} ALTER COLUMN more TYPE BIGINT",
    ),
    "a default": (
        _SET.format("'delta.feature.allowColumnDefaults' = 'supported'"),
        "ALTER TABLE {} ALTER COLUMN v SET DEFAULT 'standard'",
    ),
    "a dropped feature": ("ALTER TABLE {} DROP FEATURE deletionVectors",),
    "statistics as text alone": (_SET.format("'delta.checkpoint.writeStatsAsStruct' = 'false'"),),
}
FEATURES["all together"] = tuple(
    statement
    for name in ("row tracking", "a change data feed", "times in commits", "clustering", "v2 checkpoints")
    for statement in FEATURES[name]
)
UNKNOWN_TO_RUST = {"VARIANT", "a wider type"}
UNKNOWN_TO_DUCKDB = {"VARIANT"}


class Model:
    """The lake table, and what its rows should be."""

    def __init__(self, lake: TestLake, feature: str) -> None:
        self.lake = lake
        self.feature = feature
        lake.vectors = feature != "no vectors"
        lake.json_as = "variant" if feature == "VARIANT" else "text"
        self.rows: dict[int, Row] = {}
        self.merge(dict.fromkeys(range(1, 9), "a"))
        if feature == "partitions":
            writing = lake.spark.read.format("delta").load(str(self.path)).write.format("delta").mode("overwrite")
            writing.option("overwriteSchema", "true").partitionBy("v").save(str(self.path))
        if feature == "a dropped feature":
            lake.vectors = False
            self.merge({2: "b"}, 1)
        for statement in FEATURES[feature]:
            self.sql(statement)

    @property
    def path(self) -> Path:
        return Path(str(self.lake.table(SHAPE)))

    def sql(self, statement: str) -> None:
        self.lake.spark.newSession().sql(statement.format(f"delta.`{self.path}`")).collect()

    def merge(self, puts: dict[int, str], *deletes: int) -> None:
        build = self.lake.build
        for number, v in puts.items():
            row = {"id": number, "v": v, "n": build.offset, "j": f'{{"n": {number}}}'}
            (build.update if number in self.rows else build.create)(SHAPE, row)
            self.rows[number] = row
        for number in deletes:
            build.delete(SHAPE, {"id": number})
            del self.rows[number]
        build.seal()
        self.lake.merge_well()

    def expected_rows(self) -> list[Row]:
        return [self.rows[n] for n in sorted(self.rows)]


@pytest.fixture(params=FEATURES)
def model(lake: TestLake, request: pytest.FixtureRequest) -> Model:
    return Model(lake, str(request.param))


def test_spark_makes_the_same_and_every_reader_goes_on_from_ours(model: Model, tmp_path: Path) -> None:
    """Of commits alone, and of a checkpoint that Spark has made and later commits."""
    lake = model.lake
    for number in range(2):
        model.merge({2: "b", 5: "c", 10 + number: "new"}, 3 + number)
        model.merge({2: "d e/%ü"}, 7 + number)
        our_copy, spark_copy = tmp_path / f"ours-{number}", tmp_path / f"theirs-{number}"
        for copy in (our_copy, spark_copy):
            shutil.copytree(model.path, copy)
        made_before = checkpoint_files(our_copy)
        checkpoints.write(lake_at(str(our_copy)))
        make_checkpoint(lake.spark, spark_copy)
        new_files = [
            [copy / "_delta_log" / name for name in checkpoint_files(copy) - made_before]
            for copy in (our_copy, spark_copy)
        ]
        our_actions = actions_of(new_files[0])
        assert our_actions == actions_of(new_files[1])
        assert sum('"add"' in action for action in our_actions), our_actions
        keep_newest_commit(our_copy)
        check_readers(model, our_copy)
        check_vacuum(model, our_copy)
        check_goes_on(model, our_copy)
        make_checkpoint(lake.spark, model.path)


def checkpoint_files(path: Path) -> set[Path]:
    """By their paths below the log."""
    log = path / "_delta_log"
    files = [*log.glob("*.checkpoint.*"), *log.glob("_sidecars/*")]
    return {file.relative_to(log) for file in files if file.suffix != ".crc"}


def actions_of(files: Any) -> set[str]:
    """The actions of a checkpoint, without the forms of text that some writers repeat, and without NULLs."""
    rows: list[dict[str, Any]] = []
    for file in files:
        if file.suffix == ".json":
            rows += [json.loads(line) for line in file.read_text().splitlines()]
        else:
            rows += pq.read_table(file).to_pylist()
    actions = [(kind, fields) for row in rows for kind, fields in row.items() if fields is not None]
    v2 = ("checkpointMetadata", "sidecar")
    texts = [dump({kind: plain(fields)}) for kind, fields in actions if kind not in v2]
    assert len(set(texts)) == len(texts)
    return set(texts)


def dump(action: Row) -> str:
    return orjson.dumps(action, option=orjson.OPT_SORT_KEYS).decode()


def plain(value: Any) -> Any:
    if isinstance(value, list):
        is_map = bool(value) and all(isinstance(pair, tuple) for pair in value)
        return plain(dict(value)) if is_map else [plain(part) for part in value] or None
    if not isinstance(value, dict):
        return value
    parts = {k: plain(v) for k, v in value.items() if not k.endswith("_parsed")}
    return {k: v for k, v in parts.items() if v is not None} or None


def keep_newest_commit(path: Path) -> None:
    """Removes what a cleaning of the log removes."""
    log = path / "_delta_log"
    newest = snapshot.newest(TableFiles.at(lake_at(str(path)))).version
    for file in log.iterdir():
        number = file.name.lstrip(".")[:20]
        if number.isdecimal() and int(number) < newest:
            file.unlink()


def check_readers(model: Model, path: Path) -> None:
    spark = model.lake.spark
    names = list(model.expected_rows()[0])
    read = spark.read.format("delta").load(str(path)).select(*names).orderBy("id")
    assert [row.asDict() for row in read.collect()] == model.expected_rows()
    if model.feature not in UNKNOWN_TO_DUCKDB:
        assert read_delta(path).select(names).sort_by("id").to_pylist() == model.expected_rows(), "as DuckDB reads it"
    if model.feature not in UNKNOWN_TO_RUST:
        rust = pa.table(QueryBuilder().register("t", RustTable(str(path))).execute("select * from t"))
        by_rust = sorted(rust.select(names).to_pylist(), key=lambda row: int(row["id"]))
        assert by_rust == model.expected_rows(), "as delta-rs reads it"
    about, was = (DeltaTable.forPath(spark, str(place)).detail().collect()[0] for place in (path, model.path))
    for name in ("id", "partitionColumns", "clusteringColumns", "properties", "tableFeatures", "numFiles"):
        assert about[name] == was[name]
    txns = [snapshot.newest(TableFiles.at(lake_at(str(place)))).txns for place in (path, model.path)]
    assert txns[0] == txns[1] and txns[0]


def check_vacuum(model: Model, path: Path) -> None:
    """Files that were removed lately are left to their readers, by the tombstones of the checkpoint."""
    stray = path / "stray.parquet"
    stray.write_bytes(b"")
    for file in path.rglob("*"):
        os.utime(file, (1_000_000_000, 1_000_000_000))
    files = {file for file in path.rglob("*") if file.is_file() and "_delta_log" not in file.parts}
    spark = model.lake.spark.newSession()
    spark.sql(f"VACUUM delta.`{path}`").collect()
    data = {file for file in files if file.suffix in (".parquet", ".bin") and not file.name.startswith(".")}
    is_change = {file for file in data if "_change_data" in file.parts}
    assert {file for file in data - is_change if not file.exists()} == {stray}
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS").collect()
    live = {path / name for name in snapshot.newest(TableFiles.at(lake_at(str(path)))).files}
    assert {file for file in data if file.exists() and file.suffix == ".parquet"} == live < data
    check_readers(model, path)


def check_goes_on(model: Model, path: Path) -> None:
    """Spark writes the table, with row ids that no other row has."""
    spark = model.lake.spark
    table_name = f"delta.`{path}`"
    newest = snapshot.newest(TableFiles.at(lake_at(str(path))))
    spark.sql(f"INSERT INTO {table_name} (id, v, n, j) VALUES (1000, 'by Spark', 0, '1')").collect()
    spark.sql(f"UPDATE {table_name} SET v = 'by Spark' WHERE id = 2").collect()
    read = spark.read.format("delta").load(str(path))
    changed = {row.id: row.v for row in read.select("id", "v").collect()}
    assert changed == {n: row["v"] for n, row in model.rows.items()} | {1000: "by Spark", 2: "by Spark"}
    assert (path / "_delta_log" / f"{newest.version + 1:020d}.json").exists()
    if model.feature in ("row tracking", "all together"):
        ids = [row.row_id for row in read.select("_metadata.row_id").collect()]
        assert len(set(ids)) == len(changed)
