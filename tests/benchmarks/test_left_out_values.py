"""Large values that the log leaves out: of rows that a dump reads meanwhile, and of many."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dblog_core.staging import Staging
from dblog_core.wiring import open_staging
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import OURS, Bar, Figure, Results
from tests.benchmarks.test_tpch import catch_up
from tests.fix_servers import Database
from tests.spark.lakes import TestLake
from tests.spark.segments import table

ROUNDS = 3
DOCS = 3_000
CHUNK = 10
MOVES = 50  # updates for each change of a key
MANY = table("many", id=pa.int64(), n=pa.int64(), body=pa.string())
MANY_ROWS = 300_000
_SEGMENT = 20_000


def fill(database: Database) -> None:
    """Texts of 20 kB that no compression makes smaller than a page: the log leaves them out where they stay."""
    database.execute(
        "CREATE TABLE docs (id bigint PRIMARY KEY, n bigint NOT NULL, body text NOT NULL)",
        "ALTER TABLE docs ALTER COLUMN body SET STORAGE EXTERNAL",
        "INSERT INTO docs SELECT i, 0, (SELECT string_agg(md5(i || '/' || j), '') FROM generate_series(1, 625) j) "
        f"FROM generate_series(1, {DOCS}) i",
    )


@contextmanager
def changes(database: Database) -> Iterator[None]:
    """While entered, one session changes rows as fast as the server answers."""
    stop = threading.Event()
    dice = random.Random(1)
    keys = list(range(1, DOCS + 1))

    def write() -> None:
        connection = database.connect()
        with connection, connection.cursor() as cursor:
            number = 0
            while not stop.is_set():
                number += 1
                place = dice.randrange(DOCS)
                if number % MOVES:
                    cursor.execute("UPDATE docs SET n = %s WHERE id = %s", (number, keys[place]))
                else:
                    cursor.execute(
                        "UPDATE docs SET n = %s, id = %s WHERE id = %s", (number, DOCS + number, keys[place])
                    )
                    keys[place] = DOCS + number
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()


class Lakes:
    """Lakes of one staging, one for each round."""

    def __init__(self, spark: SparkSession, staging: Staging, path: Path) -> None:
        self.all = [TestLake(spark, staging, path / f"{number}" / "lake") for number in range(ROUNDS)]

    def merge(self) -> dict[str, list[float]]:
        """Seconds that the merge of all that is staged takes each of them."""
        seconds = []
        for lake in self.all:
            began = time.monotonic()
            lake.merge_well()
            seconds.append(time.monotonic() - began)
        return {OURS: seconds}


@pytest.mark.timeout(3600)
def test_rows_that_a_dump_reads_meanwhile(
    spark: SparkSession, bench_database: NewDatabase, tmp_path: Path, results: Results
) -> None:
    database = bench_database("postgres")
    fill(database)
    dblog = Ours(database, tmp_path / "ours", dump={"chunk_size": CHUNK})
    dblog.catch_up()
    with dblog.capturing():
        dblog.dump("docs")
    lakes = Lakes(spark, open_staging(dblog.config), tmp_path)
    lakes.merge()
    with dblog.capturing():
        with changes(database):
            dblog.dump("docs")
        catch_up(dblog)
    series = lakes.merge()
    source = {key: (n, body) for key, n, body in database.query("SELECT id, n, md5(body) FROM docs")}
    shape = next(iter(open_staging(dblog.config).manifests())).schemas
    schema = open_staging(dblog.config).schema(shape[f"{database.schema}.docs"])
    for lake in lakes.all:
        rows = spark.read.format("delta").load(str(lake.table(schema))).select("id", "n", F.md5("body").alias("body"))
        assert {row.id: (row.n, row.body) for row in rows.collect()} == source
    title = f"PostgreSQL: merge of {DOCS:,} rows of 20 kB, chunks of {CHUNK}, and updates and changes of key meanwhile"
    results.add(Figure("left_out_dump", "Lake", title, "s", series, (Bar(20, at_most=True),)))


@pytest.mark.timeout(3600)
def test_many_rows(spark: SparkSession, tmp_path: Path, results: Results) -> None:
    dice = random.Random(1)
    lakes = Lakes(spark, Staging(str(tmp_path / "staging"), source="shop"), tmp_path)
    build = lakes.all[0].build

    def stage(row: dict[str, Any], op: str) -> None:
        build.line(MANY, op, after=row, unchanged=None if op == "c" else ["body"])
        if build.offset % _SEGMENT == 0:
            build.seal()

    for key in range(MANY_ROWS):
        stage({"id": key, "n": 0, "body": dice.randbytes(1_000).hex()}, "c")
    build.seal()
    lakes.merge()
    for key in range(MANY_ROWS):
        stage({"id": key, "n": 1, "body": None}, "u")
    build.seal()
    series = lakes.merge()
    for lake in lakes.all:
        rows = spark.read.format("delta").load(str(lake.table(MANY)))
        assert rows.where("n = 1 AND length(body) = 2000").count() == rows.count() == MANY_ROWS
    title = f"merge of updates of {MANY_ROWS:,} rows that leave 2 kB out"
    results.add(Figure("left_out_many", "Lake", title, "s", series, (Bar(20, at_most=True),)))
