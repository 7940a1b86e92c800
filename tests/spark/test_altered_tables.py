"""Our changes of columns are those that Delta's own ALTER makes: the same metadata, the same rows, for every reader."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable
from deltalake import QueryBuilder
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.altering.alterations import (
    FIRST,
    AddColumn,
    Change,
    DropColumns,
    RenameColumn,
    SetProperties,
    UnsetProperties,
    WidenColumn,
)
from dblog_core.delta_writer.altering.altered_table import AlteredTable
from dblog_core.delta_writer.features import reader_features, writer_features
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.lake.lake_status import lake_at
from tests.duckdb_reader import read_delta
from tests.spark.alter_statements import statements

KEY = {"type": "struct", "fields": [{"name": "k", "type": "integer", "nullable": True, "metadata": {}}]}
MAPPING = SetProperties({"delta.columnMapping.mode": "name"})
WIDENING = SetProperties({"delta.enableTypeWidening": "true"})
STEPS: Sequence[Sequence[Change]] = (
    [AddColumn("note", "string", "id"), AddColumn("zero", "long", FIRST)],
    [AddColumn("at", "timestamp_ntz", "small"), AddColumn("moved", KEY)],
    [WIDENING, WidenColumn(("small",), "integer"), WidenColumn(("price",), "decimal(20,4)")],
    [WidenColumn(("small",), "long"), WidenColumn(("day",), "timestamp_ntz"), WidenColumn(("inner", "n"), "long")],
    [MAPPING, RenameColumn(("small",), "large"), RenameColumn(("inner", "n"), "m")],
    [DropColumns(("note", "zero")), AddColumn("note", "integer", "id"), AddColumn("new", KEY)],
    [SetProperties({"dblog.key": "['id']"}), UnsetProperties(("delta.dataSkippingStatsColumns",))],
)
"""Each is one commit of ours, and a statement of Spark for each change."""


def snapshot_of(place: Path) -> Snapshot:
    return snapshot.newest(TableFiles.at(lake_at(str(place))))


def describe_log(place: Path) -> dict[str, Any]:
    """What the log says of the table, without names that are drawn by lot."""
    found = snapshot_of(place)
    text = found.metadata["schemaString"]
    for number, name in enumerate(drawn_names(json.loads(text)["fields"])):
        text = text.replace(name, f"drawn {number}")
    configuration = dict(found.metadata["configuration"])
    named = configuration.get("delta.dataSkippingStatsColumns", "").replace("`", "")
    return {
        "schema": json.loads(text),
        "configuration": {**configuration, "delta.dataSkippingStatsColumns": named},
        "features": (set(reader_features(found.protocol)), set(writer_features(found.protocol))),
        "versions": (found.protocol["minReaderVersion"], found.protocol["minWriterVersion"]),
    }


def drawn_names(fields: list[dict[str, Any]]) -> Iterator[str]:
    for field in fields:
        if (name := field["metadata"].get("delta.columnMapping.physicalName", "")).startswith("col-"):
            yield name
        if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
            yield from drawn_names(field["type"]["fields"])


def literal(kind: DataType, number: int) -> str:
    days = {"date": "DATE '2024-02-29'", "timestamp_ntz": "TIMESTAMP_NTZ '2024-02-29 01:02:03'"}
    return days.get(kind.simpleString(), f"CAST({number} AS {kind.simpleString()})")


def add_row(spark: SparkSession, place: Path, number: int) -> None:
    """A row with a value in each column, in a file of its own."""
    values = []
    for field in spark.read.format("delta").load(str(place)).schema:
        kind = field.dataType
        if isinstance(kind, StructType):
            (inner,) = kind
            values.append(f"named_struct('{inner.name}', {literal(inner.dataType, number)}) AS `{field.name}`")
        else:
            values.append(f"{literal(kind, number)} AS `{field.name}`")
    spark.sql(f"SELECT {', '.join(values)}").write.format("delta").mode("append").save(str(place))


def rows_of(spark: SparkSession, place: Path) -> list[dict[str, Any]]:
    return sorted(
        (row.asDict(recursive=True) for row in spark.read.format("delta").load(str(place)).collect()),
        key=lambda row: int(row["id"]),
    )


def check_readers(spark: SparkSession, place: Path) -> None:
    """DuckDB, and delta-rs where it knows the table's features, read what Spark reads."""
    expected = rows_of(spark, place)
    seen = sorted(read_delta(place).to_pylist(), key=lambda row: int(row["id"]))
    assert seen == expected
    if "typeWidening" not in reader_features(snapshot_of(place).protocol):
        table = QueryBuilder().register("t", RustTable(str(place)))
        rows = pa.table(table.execute("SELECT * FROM t")).to_pylist()
        assert sorted(rows, key=lambda row: int(row["id"])) == expected


@pytest.mark.parametrize("vectors", [False, True])
def test_a_table_that_we_alter_is_one_that_spark_alters(spark: SparkSession, tmp_path: Path, vectors: bool) -> None:
    ours = tmp_path / "ours"
    sparks = tmp_path / "sparks"
    properties = f"'delta.enableDeletionVectors' = '{str(vectors).lower()}'"
    spark.sql(
        f"CREATE TABLE delta.`{ours}` (id BIGINT, small SMALLINT, price DECIMAL(10, 2), day DATE, inner STRUCT<n: INT>)"
        f" USING delta TBLPROPERTIES ({properties}, 'delta.dataSkippingStatsColumns' = 'id,`small`,inner.n')"
    )
    add_row(spark, ours, 1)
    shutil.copytree(ours, sparks)
    table = AlteredTable(lake_at(str(ours)), mark="dblog")
    for number, changes in enumerate(STEPS, start=2):
        version = snapshot_of(ours).version
        assert table.alter(lambda _, changes=changes: changes)  # type: ignore[misc]
        assert snapshot_of(ours).version == version + 1
        for statement in statements(f"delta.`{sparks}`", changes):
            spark.sql(statement)
        assert describe_log(ours) == describe_log(sparks)
        for place in (ours, sparks):
            add_row(spark, place, number)
        assert rows_of(spark, ours) == rows_of(spark, sparks)
        check_readers(spark, ours)
    detail = DeltaTable.forPath(spark, str(ours)).detail().collect()[0]
    assert set(detail["tableFeatures"]) == {*describe_log(sparks)["features"][1]}
    # Delta goes on from what we have made.
    for place in (ours, sparks):
        spark.sql(f"ALTER TABLE delta.`{place}` RENAME COLUMN large TO huge")
        spark.sql(f"ALTER TABLE delta.`{place}` ADD COLUMNS (last STRING)")
        spark.sql(f"ALTER TABLE delta.`{place}` DROP COLUMN price")
        spark.sql(f"UPDATE delta.`{place}` SET last = 'x' WHERE id > 3")
    assert describe_log(ours) == describe_log(sparks)
    assert rows_of(spark, ours) == rows_of(spark, sparks)
    check_readers(spark, ours)
    history = spark.sql(f"DESCRIBE HISTORY delta.`{ours}`").collect()
    assert {"UPDATE SCHEMA", "SET TBLPROPERTIES"} <= {line["operation"] for line in history}
