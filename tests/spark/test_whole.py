"""A table of the lake says what it lacks: rows of before its log began here, and rows that no log line tells of."""

from __future__ import annotations

import threading
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import State, TableStatus, read_status
from dblog_core.lake_engine.lake_job import Caller
from dblog_core.lake_engine.merge_job import Job
from tests.spark.asked import ask_well, replay
from tests.spark.lakes import TestLake
from tests.spark.segments import table

pytestmark = pytest.mark.one_of(4)

T, U = (table(name, id=pa.int64(), v=pa.string()) for name in ("t", "u"))
KEYLESS = table("log", key=(), id=pa.int64(), v=pa.string())
WIDER = table("t", id=pa.int64(), v=pa.string(), more=pa.int32())


def row(key: int, v: str = "a") -> dict[str, Any]:
    return {"id": key, "v": v}


def state(lake: TestLake, name: str = "t") -> TableStatus:
    status = read_status(lake.location)
    assert status is not None
    return status.tables[f"shop.{name}"]


def merge_dump(lake: TestLake, *keys: int) -> None:
    """A full dump of T, merged."""
    since = lake.build.offset
    lake.build.chunk(T, [row(key) for key in keys], dump="full")
    lake.build.finished(T, "full", since=since, since_segment=lake.build.segment + 1)
    lake.build.seal()
    lake.merge_well()


def test_a_table_is_incomplete_until_a_full_dump_of_it_is_merged(
    lake: TestLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless it had no row when its log began here; merges go on, and succeed, whatever is done with it meanwhile."""
    build = lake.build
    lake.history = True
    build.create(T, row(1))
    build.schema(U, whole=True)
    build.create(U, row(1))
    build.create(KEYLESS, row(1))
    build.seal()
    merger = lake.merger()
    assert lake.withheld is not None
    dumps: Any = lake.dumps
    said: list[str] = []
    assert Job(merger, lake.withheld, dumps, Caller(threading.Event(), said.append)).once() == 0
    assert "incomplete tables: shop.t; `dblog status` tells why" in "\n".join(said)
    assert (state(lake).state, state(lake).lacks, state(lake).waits) == (State.INCOMPLETE, 0, False)
    assert {state(lake, name).state for name in ("u", "log")} == {State.OK}
    replay(lake, 1, build.offset)
    assert state(lake).state is State.INCOMPLETE
    ask_well(lake, "rebuild", {"table": "shop.t"})
    assert state(lake).state is State.INCOMPLETE
    build.delete(U, {"id": 1})
    build.seal()
    lake.merge_well()
    assert state(lake).state is State.INCOMPLETE
    merge_dump(lake, 1, 2)
    assert (state(lake).state, state(lake).lacks) == (State.OK, None)


def test_a_table_that_has_no_row_yet_is_not_forgotten(lake: TestLake) -> None:
    """Its first rows come and go within one merge: there is no lake table, and it lacks what was there before."""
    lake.build.create(T, row(1))
    lake.build.delete(T, {"id": 1})
    lake.build.schema(U, whole=True)
    lake.build.create(U, row(1))
    lake.build.delete(U, {"id": 1})
    lake.build.seal()
    lake.merge_well()
    for _ in range(2):
        assert (state(lake).state, state(lake, "u").state) == (State.INCOMPLETE, State.OK)
        lake.build.create(T, row(2))
        lake.build.create(U, row(2))
        lake.build.seal()
        lake.merge_well()


def test_rows_that_may_be_lost_make_it_incomplete_until_a_later_dump_or_a_truncate(lake: TestLake) -> None:
    build = lake.build
    for schema in (T, U):
        build.schema(schema, whole=True)
        build.create(schema, row(1))
    build.seal()
    lake.merge_well()
    since = build.offset
    for schema in (T, U):
        build.schema(schema, whole=False)
    build.finished(T, "earlier", since=since, since_segment=1)
    build.seal()
    lake.merge_well()
    assert (state(lake).state, state(lake, "u").state) == (State.INCOMPLETE, State.INCOMPLETE)
    build.truncate(U)
    merge_dump(lake, 1)
    assert (state(lake).state, state(lake, "u").state) == (State.OK, State.OK)


def test_what_an_older_version_has_called_ok_stays_so(lake: TestLake) -> None:
    lake.build.create(T, row(1))
    lake.build.seal()
    lake.merge_well()
    merger = lake.merger()
    status_json = merger.status.to_json()
    del status_json["tables"]["shop.t"]["lacks"], status_json["tables"]["shop.t"]["withheld"]
    status_json["tables"]["shop.t"]["state"] = "ok"
    status_json["merge"] += 1
    merger._records.finish(type(merger.status).from_json(status_json))
    lake.build.update(T, row(1, "b"))
    lake.build.seal()
    lake.merge_well()
    assert state(lake).state is State.OK


def test_a_shape_that_no_row_follows_gives_the_lake_its_columns(lake: TestLake) -> None:
    """Also one whose constant the log has told, and one of a table that has no row at all."""
    build = lake.build
    build.create(T, row(1))
    build.seal()
    lake.merge_well()
    build.schema(WIDER, filled={"more": 5})
    build.schema(U, whole=True)
    build.seal()
    lake.merge_well()
    assert lake.rows(WIDER) == [{**row(1), "more": 5}] and not lake.dumps.asked
    assert lake.rows(U) == [] and state(lake, "u").state is State.OK
    widest = table("t", id=pa.int64(), v=pa.string(), more=pa.int32(), last=pa.string())
    build.schema(widest)
    build.seal()
    lake.merge_well()
    assert lake.rows(widest) == [{**row(1), "more": 5, "last": None}]
    assert lake.dumps.asked == [("shop.t", [])] and state(lake).awaits == "dump1"
