"""Any cut of the lake is one moment of the source: what transactions keep over two tables holds in every join."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.errors import LakeError, RequestError
from dblog_core.lake import cuts
from dblog_core.lake.lake_status import LakeStatus, lake_at, read_status, table_location
from dblog_core.model.schema import TableName
from dblog_core.wiring import open_staging
from spark_jobs.views import at_cut
from tests.fix_servers import Database
from tests.spark.lakes import TestLake
from tests.spark.segments import table
from tests.waiting import PATIENCE_SECONDS

DEADLINE = 400.0
ACCOUNTS = 400
MOMENTS = 50
MERGES = 8
SEED = 20261121


@contextmanager
def capturing(config: Config) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run_capture, args=(config,), kwargs={"stop": stop})
    thread.start()
    try:
        yield
    finally:  # a thread that goes on would keep the whole run from ending
        stop.set()
        thread.join(timeout=PATIENCE_SECONDS)
    assert not thread.is_alive()


@contextmanager
def money_moves(database: Database, *, until: Callable[[], bool]) -> Iterator[None]:
    """Each transaction takes from one table what it gives to the other; now and then from every account at once."""
    over = threading.Event()
    chance = random.Random(SEED)

    def move() -> None:
        connection = database.connect()
        connection.autocommit(False) if database.kind != "postgres" else setattr(connection, "autocommit", False)
        with contextlib.closing(connection), connection.cursor() as cursor:
            while not over.wait(0.01) and not until():
                giver, taker = chance.sample(["here", "there"], 2)
                where = "1 = 1"
                count = ACCOUNTS
                if chance.random() > 0.05:
                    where = f"id = {chance.randrange(ACCOUNTS)}"
                    count = 1
                cursor.execute(f"UPDATE {giver} SET amount = amount - 3 WHERE {where}")
                cursor.execute(f"UPDATE {taker} SET amount = amount + 3 WHERE {where}")
                assert cursor.rowcount == count
                connection.commit()

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=PATIENCE_SECONDS)
    assert not thread.is_alive()


def total(left: DataFrame, right: DataFrame) -> int:
    """What both hold, joined account by account."""
    joined = left.alias("h").join(right.alias("t"), "id", "full")
    return int(joined.agg(F.sum(F.col("h.amount") + F.col("t.amount"))).collect()[0][0])


@pytest.fixture
def bank(database: Database) -> Database:
    for name in ("here", "there"):
        database.execute(f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, amount BIGINT NOT NULL)")
    return database


@pytest.mark.one_of(6)
@pytest.mark.in_turn
def test_the_sum_is_the_same_at_any_moment(
    bank: Database, spark: SparkSession, merge_here: Callable[[Config], None], tmp_path: Path
) -> None:
    config = bank.config(tmp_path, lake={"path": str(tmp_path / "lake"), "compact_after": 3})
    accounts = ", ".join(f"({n}, 1000)" for n in range(ACCOUNTS))
    staging = open_staging(config)
    lake = lake_at(config.lake.path)
    pause = threading.Event()
    with capturing(config):
        deadline = time.monotonic() + DEADLINE
        while staging.head() is None:
            assert time.monotonic() < deadline
            pause.wait(0.05)
        # In one transaction: else the sum would be there in part at first.
        connection = bank.connect()
        connection.autocommit(False) if bank.kind != "postgres" else setattr(connection, "autocommit", False)
        with contextlib.closing(connection), connection.cursor() as cursor:
            for name in ("here", "there"):
                cursor.execute(f"INSERT INTO {name} VALUES {accounts}")
            connection.commit()
        while (head := staging.head()) is None or head.last_offset < 2 * ACCOUNTS:
            assert time.monotonic() < deadline
            pause.wait(0.05)
        # A merge goes on for as long as there is news: so money moves until there are cuts enough.
        with money_moves(bank, until=lambda: (read_status(lake) or LakeStatus()).merge >= MERGES):
            while (read_status(lake) or LakeStatus()).merge < MERGES:
                assert time.monotonic() < deadline
                merge_here(config)
    chance = random.Random(SEED)
    # with the first accounts in it
    newest = cuts.find_cut(lake).cut
    first = cuts.cut_of(lake, 2)
    totals: dict[int, int] = {}
    for _ in range(MOMENTS):
        moment = chance.randrange(first.offset, newest.offset + 100)
        view = at_cut(spark, lake, at=moment)
        assert view.cut.offset <= moment
        names = [f"{bank.schema}.{name}" for name in ("here", "there")]
        if view.cut.number not in totals:
            totals[view.cut.number] = total(*(view.table(name, accept_incomplete=True) for name in names))
        assert totals[view.cut.number] == 2 * 1000 * ACCOUNTS, f"seed {SEED}, moment {moment}, {view.cut}"
    assert len(totals) > 2, "the moments fell into one cut"

    # A view that is put together of two merges is found: the test would see one.
    views = [at_cut(spark, lake, cut=number) for number in sorted(totals)]
    mixed = (
        total(a.table(names[0], accept_incomplete=True), b.table(names[1], accept_incomplete=True))
        for a, b in itertools.permutations(views, 2)
    )
    assert any(total_read != 2 * 1000 * ACCOUNTS for total_read in mixed)


@pytest.mark.one_of(2)
def test_a_view_says_what_it_cannot_show(spark: SparkSession, lake: TestLake) -> None:
    first_shape = table("one", id=pa.int64(), v=pa.string())
    lake.build.create(first_shape, {"id": 1, "v": "a"})
    lake.build.seal()
    lake.build.update(first_shape, {"id": 1, "v": "b"})
    lake.build.seal()
    lake.merge_well(max_rows=1)
    assert [r.v for r in at_cut(spark, lake.location, at=1).table("shop.one", accept_incomplete=True).collect()] == [
        "a"
    ]
    assert [r.v for r in at_cut(spark, str(lake.path)).table("shop.one", accept_incomplete=True).collect()] == ["b"]
    with pytest.raises(LakeError, match=r"shop\.one is incomplete in cut 2: no full dump of it is merged"):
        at_cut(spark, lake.location).table("shop.one")
    with pytest.raises(LakeError, match=r"shop\.two is not in cut 2"):
        at_cut(spark, lake.location, cut=2).table("shop.two")
    with pytest.raises(RequestError, match="both a cut and a moment"):
        at_cut(spark, lake.location, cut=2, at=1)
    for file in Path(str(table_location(lake.location, TableName("shop", "one")))).glob("*.bin"):
        file.unlink()  # as VACUUM removes them: deletion vectors, without which rows come back
    for file in Path(str(table_location(lake.location, TableName("shop", "one")))).glob("part-*.parquet"):
        file.unlink()
    with pytest.raises(LakeError, match="cut 2 is no longer whole"):
        at_cut(spark, lake.location)
