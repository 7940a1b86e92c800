"""The lake of the live Airflow: filled once for all tests, and read and damaged by another writer than ours."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from dblog_core.lake.lake_status import lake_at, table_location
from dblog_core.model.schema import TableName
from tests.fix_airflow import DUMP, Live
from tests.fix_servers import Database

Row = dict[str, Any]

HOUR = dt.timedelta(hours=1)
PARCELS = 40
"""Rows of `parcels` in each of its two hours."""
MOVED = 3
GONE = 5
"""Of the first hour's parcels, one that was updated and one that was deleted within it."""
_SECOND_HOUR = 100  # what the keys of the second hour's parcels begin at


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A lake table with an integer key `id` and a text `note`, by delta-rs."""

    path: Path

    def rows(self) -> dict[int, Row]:
        """All columns of every row, by its key."""
        query = QueryBuilder().register("lake", DeltaTable(self.path))
        table = pa.table(query.execute("SELECT * FROM lake").read_all())
        rows = table.to_pylist()
        by_key = {int(row["id"]): row for row in rows}
        assert len(by_key) == len(rows), "the lake has a key twice"
        return by_key

    def update(self, key: int, note: str) -> None:
        DeltaTable(self.path).update(updates={"note": f"'{note}'"}, predicate=f"id = {key}")

    def delete(self, key: int) -> None:
        DeltaTable(self.path).delete(f"id = {key}")

    def add(self, rows: Iterable[Row]) -> None:
        table = DeltaTable(self.path)
        write_deltalake(
            table, pa.Table.from_pylist(list(rows), schema=pa.schema(table.schema().to_arrow())), mode="append"
        )


@dataclass(frozen=True, slots=True)
class Dumped:
    """A run that has dumped `orders` and `countries` whole, and what it says of its dump."""

    run: str
    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Merged:
    """A lake with every table, up to date when it was made; the parcels were committed in two hours that are over."""

    orders: LakeTable
    parcels: LakeTable
    first_hour: dt.datetime
    second_hour: dt.datetime

    @property
    def first_keys(self) -> frozenset[int]:
        """Those of all parcels that changed in the first hour."""
        return frozenset(range(1, PARCELS + 1))


@pytest.fixture(scope="package")
def finished_dump(live: Live) -> Dumped:
    live.capturing()
    tables = [live.table("orders"), live.table("countries"), ""]
    run = live.client.trigger(DUMP, {"tables": tables, "chunk_size": 100, "workers": 2})
    assert live.end_of(DUMP, run) == "success"
    return Dumped(run, live.client.xcom(DUMP, run, "complete"))


@pytest.fixture(scope="package")
def merged_lake(live: Live, finished_dump: Dumped) -> Merged:
    this_hour = dt.datetime.now(dt.UTC).replace(minute=0, second=0, microsecond=0)
    first = this_hour - 5 * HOUR
    second = this_hour - 7 * HOUR
    _commit_at(live.database, second + HOUR / 2, _parcels(_SECOND_HOUR))
    in_first = (
        _parcels(0),
        f"UPDATE parcels SET note = 'moved' WHERE id = {MOVED}",
        f"DELETE FROM parcels WHERE id = {GONE}",
    )
    _commit_at(live.database, first + HOUR / 2, *in_first)
    live.write_and_wait("orders", 60001, "after the parcels")
    live.merge()
    return Merged(lake_table(live, "orders"), lake_table(live, "parcels"), first, second)


def lake_table(live: Live, name: str) -> LakeTable:
    place = table_location(lake_at(live.config.lake.path), TableName.parse(live.table(name))).local
    assert place is not None
    return LakeTable(place)


def _parcels(above: int) -> str:
    values = ", ".join(f"({above + number}, 'parcel {above + number}')" for number in range(1, PARCELS + 1))
    return f"INSERT INTO parcels VALUES {values}"


def _commit_at(database: Database, moment: dt.datetime, *statements: str) -> None:
    """Transactions that the log says were committed at `moment`: as a replica's log says when its source did."""
    connection = database.connect()
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(f"SET SESSION original_commit_timestamp = {int(moment.timestamp() * 1_000_000)}")
                cursor.execute(statement)
    finally:
        connection.close()
