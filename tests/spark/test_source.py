"""The super-changelog as a DataFrame and as a stream: the lines of `dblog log`, each once."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, LessThanOrEqual, StringContains
from pyspark.sql.types import StructType

from dblog_core.config import loader
from dblog_core.staging import Staging
from dblog_core.staging.log_start import Beginning
from dblog_core.staging.reader import Line, lines
from dblog_core.wiring import open_staging
from spark_jobs import source
from spark_jobs.source import COLUMNS, DblogSource, Lines
from tests.spark.segments import SegmentBuilder, table

ORDERS = table("orders", id=pa.int64(), note=pa.string(), at=pa.timestamp("us"))
NAMES = table("names", id=pa.int64(), name=pa.string())
_TOML = """
[source]
name = "shop"
kind = "mysql"
database = "shop"
tables = ["shop.*"]
[staging]
path = "{root}/staging"
[state]
url = "sqlite:///{root}/state.db"
[lake]
path = "{root}/lake"
"""


@dataclass(frozen=True, slots=True)
class Shop:
    """Staging of a source, with what reads it."""

    spark: SparkSession
    config: Path
    staging: Staging
    build: SegmentBuilder

    def read(self, **options: Any) -> DataFrame:
        return self.spark.read.format("dblog").option("config", str(self.config)).options(**options).load()

    def lines(self, **options: Any) -> list[Line]:
        return list(lines(self.staging, **options))


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> Iterator[Shop]:
    spark.dataSource.register(DblogSource)
    file = tmp_path / "shop.toml"
    file.write_text(_TOML.format(root=tmp_path))
    staging = open_staging(loader.load(file))
    pushed = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(pushed, "true")
    yield Shop(spark, file, staging, SegmentBuilder(staging))
    spark.conf.unset(pushed)


def history(build: SegmentBuilder) -> None:
    """Lines of every kind, in several segments."""
    build.schema(ORDERS)
    for number in range(1, 20):
        build.create(ORDERS, {"id": number, "note": f"note {number}", "at": None})
    build.seal()
    build.update(ORDERS, {"id": 1, "note": None, "at": None}, unchanged=["note"])
    build.move(ORDERS, {"id": 2, "note": None, "at": None}, {"id": 102, "note": "moved", "at": None})
    build.create(NAMES, {"id": 1, "name": "é 😀"})
    build.seal()
    build.delete(ORDERS, {"id": 3, "note": None, "at": None})
    build.chunk(ORDERS, [{"id": n, "note": "dumped", "at": None} for n in range(200, 210)], evicted=[3, 4])
    build.finished(ORDERS, "d1", since=1, since_segment=1)
    build.truncate(NAMES)
    build.seal()


def as_line(row: dict[str, Any]) -> Line:
    """A row in the words of `dblog log`."""
    parsed = {name: json.loads(row[name]) if row[name] else None for name in ("key", "before", "after")}
    line = {name: row[name] for name in COLUMNS if name not in (*parsed, "moved_from", "mark", "commit_time")} | parsed
    if row["moved_from"]:
        line["moved_from"] = json.loads(row["moved_from"])
    return line | (json.loads(row["mark"]) if row["mark"] else {})


def without_time(line: Line) -> Line:
    return {name: value for name, value in line.items() if name != "commit_time"}


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in frame.orderBy("offset").collect()]


def test_rows_are_the_lines_of_the_log(shop: Shop) -> None:
    history(shop.build)
    read_rows = rows(shop.read())
    expected = shop.lines()
    assert {line["op"] for line in expected} == {"s", "c", "u", "d", "r", "f", "t"}
    assert [as_line(row) for row in read_rows] == [without_time(line) for line in expected]
    times = [f"{row['commit_time']:%Y-%m-%dT%H:%M:%S}Z" for row in read_rows]
    assert times == [line["commit_time"] for line in expected]


@pytest.mark.one_of(2)
def test_what_is_asked_for_is_what_is_read(shop: Shop) -> None:
    history(shop.build)
    every = [line["offset"] for line in shop.lines()]
    assert [r["offset"] for r in rows(shop.read(**{"from": "5", "to": "21"}))] == [o for o in every if 5 <= o <= 21]
    names = [line["offset"] for line in shop.lines(tables={"shop.names"})]
    assert [r["offset"] for r in rows(shop.read(tables="shop.names, shop.nothing"))] == names
    for condition in (
        "offset > 20 and table = 'shop.names'",
        "op = 'c' and offset < 9",
        "table in ('shop.names', 'x')",
    ):
        where = rows(shop.read().where(condition))
        staged_frame = shop.spark.createDataFrame(
            [(line["offset"], line["op"], line["table"]) for line in shop.lines()],
            "offset long, op string, table string",
        ).where(condition)
        assert [r["offset"] for r in where] == sorted(r["offset"] for r in staged_frame.collect()) != []
    some = shop.spark.read.format("dblog").option("config", str(shop.config)).schema("op string, offset long").load()
    assert some.columns == ["op", "offset"] and some.count() == len(every)


def test_filters_leave_segments_unread(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    history(shop.build)
    monkeypatch.setattr(source, "_ROWS", 1)  # each segment is a task of its own
    schema = StructType.fromDDL(DblogSource({}).schema())

    def plan_filters(*filters: Any) -> tuple[list[Any], list[Any]]:
        reader = DblogSource({"config": str(shop.config)}).reader(schema)
        left = list(reader.pushFilters(list(filters)))
        return left, list(reader.partitions())

    every = plan_filters()[1]
    assert len(every) == 3 and [part.first for part in every[1:]] == [part.last + 1 for part in every[:-1]]
    second = every[1]
    within = [GreaterThan(("offset",), second.first - 1), LessThan(("offset",), second.last + 1)]
    assert plan_filters(*within) == ([], [second])
    other = StringContains(("op",), "c")
    assert plan_filters(LessThanOrEqual(("offset",), 2), other) == ([other], [Lines(0, 2)])
    assert plan_filters(EqualTo(("offset",), 10**6)) == ([], [Lines(0, -1)])
    assert plan_filters(In(("table",), ("shop.names",)), EqualTo(("table",), "shop.names"))[0] == []


def test_a_transaction_that_goes_on_is_left_for_later(shop: Shop) -> None:
    shop.build.create(NAMES, {"id": 1, "name": "whole"})
    shop.build.seal()
    shop.build.create(NAMES, {"id": 2, "name": "half"})
    shop.build.seal(partial=1)
    assert [r["offset"] for r in rows(shop.read())] == [1]
    shop.build.create(NAMES, {"id": 3, "name": "the rest"})
    shop.build.seal()
    assert [r["offset"] for r in rows(shop.read())] == [1, 2, 3]


def test_a_stream_reads_each_line_once_over_restarts(shop: Shop, tmp_path: Path) -> None:
    batches: list[list[int]] = []

    def take(batch: DataFrame, _: int) -> None:
        batches.append([row["offset"] for row in batch.select("offset").orderBy("offset").collect()])

    def run(**options: str) -> list[int]:
        """All offsets that have come so far, after what there is now."""
        stream = shop.spark.readStream.format("dblog").option("config", str(shop.config)).options(**options).load()
        writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        return list(itertools.chain.from_iterable(batches))

    history(shop.build)
    assert run() == [line["offset"] for line in shop.lines()]
    shop.build.create(NAMES, {"id": 8, "name": "half"})
    shop.build.seal(partial=1)
    assert run() == [line["offset"] for line in shop.lines()][:-1], "half a transaction is no batch"
    for number in range(9, 14):
        shop.build.create(NAMES, {"id": number, "name": "the rest, and more"})
        shop.build.seal()
    begun = len(batches)
    assert run(rowsPerTrigger="2") == [line["offset"] for line in shop.lines()]
    assert [len(batch) for batch in batches[begun:]] == [2, 2, 2]


def test_the_documented_example_works(shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    history(shop.build)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {"spark": shop.spark}
    exec(example.replace('"shop.toml"', repr(str(shop.config))).replace('"deleted', f'"{tmp_path}/deleted'), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    deleted = shop.spark.read.parquet(str(tmp_path / "deleted"))
    assert {row["offset"] for row in deleted.collect()} == {x["offset"] for x in shop.lines() if x["op"] == "d"}


def begun_at(shop: Shop, offset: int) -> None:
    shop.staging.begin_at(Beginning(segment=2, offset=offset, sealed_at=1))


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("options", "expected_text"),
    [
        ({"confg": "x"}, "unknown option confg"),
        ({"from": "soon"}, "'soon' is no whole number"),
        ({"from": "-1"}, "'-1' is no whole number"),
    ],
)
def test_wrong_options_are_told(shop: Shop, options: dict[str, str], expected_text: str) -> None:
    with pytest.raises(PySparkException, match=expected_text):
        shop.read(**options).collect()


def test_what_retention_has_removed_is_refused_by_name(shop: Shop) -> None:
    history(shop.build)
    begun_at(shop, 21)
    with pytest.raises(PySparkException, match="removed"):
        shop.read(**{"from": "3"}).collect()
    assert rows(shop.read(**{"from": "21"}))[0]["offset"] == 21
