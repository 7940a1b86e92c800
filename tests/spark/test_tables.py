"""What is special about a table: rows it waits for, ghosts, shapes that change, files that are damaged."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import TableStatus, read_status
from dblog_core.lake_engine.merging.withheld_keys import DumpEnd
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import TableSchema
from tests.spark.lakes import Dumps, TestLake
from tests.spark.segments import table
from tests.unit.staged import root_of

pytestmark = pytest.mark.one_of(4)

NOTES = table("notes", id=pa.int64(), v=pa.string(), big=pa.string())


class FakeDumps(Dumps):
    """Dumps that end at once, and bring nothing."""

    def find_end(self, dump: str) -> DumpEnd | None:
        return DumpEnd(failed=False, requested_at=None)


def _status(lake: TestLake, schema: TableSchema) -> TableStatus:
    status = read_status(lake.location)
    assert status is not None
    return status.tables[str(schema.table)]


def test_a_row_with_an_unknown_value_waits_for_a_dump_of_its_key(lake: TestLake) -> None:
    build = lake.build
    dumps = FakeDumps()
    build.create(NOTES, {"id": 1, "v": "a", "big": "x"})
    build.update(NOTES, {"id": 7, "v": "b", "big": None}, unchanged=["big"])
    build.seal()
    lake.merge_well()
    assert [r["id"] for r in lake.rows(NOTES)] == [1]
    assert (_status(lake, NOTES).state, _status(lake, NOTES).withheld) == ("incomplete", 1)
    assert lake.withheld is not None
    for _ in range(2):  # asked for once
        lake.withheld.request_dumps(dumps, ended={})
        assert dumps.asked == [("shop.notes", [7])]
    build.chunk(NOTES, [{"id": 7, "v": "b", "big": "big"}])
    build.seal()
    lake.merge_well()
    assert lake.rows(NOTES)[1] == {"id": 7, "v": "b", "big": "big"}
    assert (_status(lake, NOTES).waits, _status(lake, NOTES).withheld) == (False, 0)


def test_a_dump_that_ended_without_the_row_is_asked_for_again(lake: TestLake) -> None:
    dumps = FakeDumps()
    lake.build.update(NOTES, {"id": 7, "v": "b", "big": None}, unchanged=["big"])
    lake.build.seal()
    lake.merge_well()
    assert lake.withheld is not None
    lake.withheld.request_dumps(dumps, ended={})
    lake.merger()  # another process: it knows the file alone
    lake.withheld.request_dumps(dumps, ended=lake.withheld.find_ended(dumps))
    assert [keys for _, keys in dumps.asked] == [[7], [7]]


def test_rows_of_dumps_that_are_equal_are_not_written_again(lake: TestLake) -> None:
    """Those of the log are, whatever they change: to compare them costs more than it saves."""
    build = lake.build
    rows = [{"id": i, "v": None if i % 2 else "v", "big": "b"} for i in range(6)]
    build.chunk(NOTES, rows)
    build.seal()
    lake.merge_well()
    build.chunk(NOTES, rows)
    build.update(NOTES, rows[3])
    build.update(NOTES, {**rows[4], "v": "new"})
    build.seal()
    (merged,) = lake.merge_well()
    assert (merged.tables[0].rows, merged.tables[0].applied) == (8, 2)
    assert [r["_dblog_offset"] for r in lake.rows(NOTES, provenance=True)] == [1, 2, 3, 13, 14, 6]


def test_ghosts_go_and_rows_that_live_stay(lake: TestLake) -> None:
    build = lake.build
    rows = [{"id": i, "v": "v", "big": "b"} for i in range(6)]
    build.chunk(NOTES, rows, dump="first")
    build.seal()
    lake.merge_well()
    since = build.offset
    build.delete(NOTES, {"id": 1})  # unseen by the SELECT, and born again with the same values
    build.create(NOTES, rows[1])
    build.chunk(NOTES, [rows[0], rows[2], rows[3]], evicted=[1], dump="full")
    build.seal()
    build.finished(NOTES, "full", since=since, since_segment=2)
    build.seal()
    lake.merge_well(max_rows=1)
    assert [r["id"] for r in lake.rows(NOTES)] == [0, 1, 2, 3]


def test_a_row_that_was_born_again_as_it_was_is_no_ghost(lake: TestLake) -> None:
    build = lake.build
    rows = [{"id": i, "v": "v", "big": "b"} for i in range(4)]
    build.chunk(NOTES, rows, dump="first")
    build.seal()
    lake.merge_well()
    since = build.offset
    build.delete(NOTES, {"id": 1})
    build.delete(NOTES, {"id": 2})
    build.chunk(NOTES, [rows[0]], dump="full")  # its SELECT saw the deletes, and not what follows
    build.create(NOTES, rows[1])
    build.create(NOTES, {**rows[2], "v": "other"})
    build.update(NOTES, rows[2])
    build.finished(NOTES, "full", since=since, since_segment=2)
    build.seal()
    lake.merge_well()
    assert [r["id"] for r in lake.rows(NOTES)] == [0, 1, 2]


def test_a_row_that_a_later_dump_brings_as_it_was_is_no_ghost_of_an_earlier_one(lake: TestLake) -> None:
    """Rows that go and come back while no log says so (`sql_log_bin = 0`): two dumps tell of them, in one merge."""
    build = lake.build
    rows = [{"id": i, "v": "v", "big": "b"} for i in range(4)]
    build.chunk(NOTES, rows, dump="first")
    build.seal()
    lake.merge_well()
    since = build.offset
    build.chunk(NOTES, [rows[0], rows[3]], dump="second")  # 1 and 2 are gone
    build.finished(NOTES, "second", since=since, since_segment=2)
    build.seal()
    since = build.offset
    build.chunk(NOTES, [rows[0], rows[1]], dump="third")  # 1 is back as it was, and 3 is gone
    build.finished(NOTES, "third", since=since, since_segment=3)
    build.seal()
    lake.merge_well()
    assert [r["id"] for r in lake.rows(NOTES)] == [0, 1]


@pytest.mark.parametrize("shape", ["number", "pair"])
def test_a_dump_of_a_range_removes_ghosts_of_that_range_alone(lake: TestLake, shape: str) -> None:
    build = lake.build
    pairs = table(f"ghosts_{shape}", key=("day", "n") if shape == "pair" else ("n",), day=pa.date32(), n=pa.int64())
    days = (dt.date(2026, 1, 31), dt.date(2026, 2, 1))
    rows = [{"day": days[n // 5], "n": n} for n in range(10)]
    build.chunk(pairs, rows, dump="first")
    build.seal()
    lake.merge_well()
    since = build.offset
    build.chunk(pairs, [rows[3]], dump="some")
    ends = (["2026-01-31", 2], ["2026-02-01", 6]) if shape == "pair" else (2, 6)
    build.finished(pairs, "some", since=since, since_segment=2, key_from=ends[0], key_to=ends[1])
    build.seal()
    lake.merge_well()
    assert [r["n"] for r in lake.rows(pairs)] == [0, 1, 3, 7, 8, 9]


def test_a_truncate_takes_all_that_came_before_it(lake: TestLake) -> None:
    build = lake.build
    build.create(NOTES, {"id": 1, "v": "a", "big": "x"})
    build.create(NOTES, {"id": 2, "v": "a", "big": "x"})
    build.seal()
    lake.merge_well()
    build.update(NOTES, {"id": 1, "v": "b", "big": None}, unchanged=["big"])
    build.truncate(NOTES)
    build.create(NOTES, {"id": 2, "v": "a", "big": "y"})
    build.seal()
    lake.merge_well()
    assert lake.rows(NOTES) == [{"id": 2, "v": "a", "big": "y"}]
    assert [r["big"] for r in lake.rust_rows(NOTES)] == ["y"]
    build.truncate(NOTES)
    build.seal()
    lake.merge_well()
    assert lake.rows(NOTES) == []


def test_added_columns_are_followed_in_their_place(lake: TestLake) -> None:
    build = lake.build
    wider = table(
        "notes", id=pa.int64(), new=pa.timestamp("us"), v=pa.string(), big=pa.string(), last=pa.decimal128(5, 2)
    )
    build.create(NOTES, {"id": 1, "v": "a", "big": "x"})
    build.seal()
    lake.merge_well()
    build.create(NOTES, {"id": 2, "v": "b", "big": "x"})
    build.schema(wider)
    build.create(wider, {"id": 3, "new": None, "v": "c", "big": None, "last": None})
    build.seal()
    lake.merge_well()
    assert list(lake.rows(wider)[0]) == ["id", "new", "v", "big", "last"]
    assert [(r["id"], r["v"], r["last"]) for r in lake.rows(wider)] == [(1, "a", None), (2, "b", None), (3, "c", None)]


def test_a_shape_that_cannot_be_followed_stops_that_table_alone_until_it_is_built_anew(lake: TestLake) -> None:
    build = lake.build
    other = table("other", id=pa.int64())
    narrower = table("notes", id=pa.int64(), v=pa.int32())  # big is gone, too, which is no fault
    build.create(NOTES, {"id": 1, "v": "a", "big": "x"})
    build.seal()
    lake.merge_well()
    build.update(NOTES, {"id": 1, "v": "b", "big": "x"})
    build.schema(narrower)
    build.create(narrower, {"id": 2, "v": 2})
    build.create(other, {"id": 5})
    build.seal()
    lake.merge()
    status = _status(lake, NOTES)
    assert status.state == "stopped" and "column v was string and is int32" in str(status.error)
    assert "big" not in str(status.error) and "dblog reset" in str(status.error)
    assert (status.offset, _status(lake, other).offset) == (1, build.offset)
    assert lake.rows(other) == [{"id": 5}] and len(lake.rows(NOTES)) == 1
    (lake.path / lake.table(NOTES).path).rename(lake.path / "moved away")
    since = build.offset
    build.chunk(narrower, [{"id": 1, "v": 1}, {"id": 2, "v": 2}], dump="full")
    build.finished(narrower, "full", since=since, since_segment=3)
    build.seal()
    lake.merge()
    assert _status(lake, NOTES).state == "ok"
    assert lake.rows(narrower) == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]


def test_a_damaged_file_stops_its_table_by_name_and_is_caught_up_on_when_it_is_back(lake: TestLake) -> None:
    build = lake.build
    other = table("other", id=pa.int64())
    build.create(other, {"id": 1})
    build.chunk(NOTES, [{"id": 1, "v": "a", "big": "x"}])
    manifest = build.seal()
    path = root_of(lake.staging) / manifest.chunks[0].path
    good = path.read_bytes()
    path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    lake.merge()
    status = _status(lake, NOTES)
    assert status.state == "stopped" and str(path) in str(status.error)
    assert lake.rows(other) == [{"id": 1}] and log.version(lake.table(NOTES)) is None
    path.write_bytes(good)
    build.update(NOTES, {"id": 1, "v": "b", "big": "x"})
    build.seal()
    lake.merge()
    assert _status(lake, NOTES).state != "stopped" and lake.rows(NOTES)[0]["v"] == "b"


def test_names_and_keys_of_every_kind(lake: TestLake) -> None:
    odd = table(
        "odd table",
        key=("the key", "k`2"),
        **{"the key": pa.string(), "k`2": pa.date32(), "a.b": pa.int8(), "=;": pa.bool_()},
    )
    twins = table("twins", id=pa.int64(), Id=pa.int64())
    build = lake.build
    build.create(odd, {"the key": "Ä", "k`2": None, "a.b": 1, "=;": True} | {"k`2": _date("0001-01-01")})
    build.create(odd, {"the key": "ä", "k`2": _date("1582-10-10"), "a.b": None, "=;": None})
    build.create(twins, {"id": 1, "Id": 2})
    build.seal()
    lake.merge()
    assert "upper and lower case" in str(_status(lake, twins).error)
    build.update(odd, {"the key": "Ä", "k`2": _date("0001-01-01"), "a.b": None, "=;": True}, unchanged=["a.b"])
    build.seal()
    lake.merge()
    assert lake.rows(odd) == [
        {"the key": "Ä", "k`2": _date("0001-01-01"), "a.b": 1, "=;": True},
        {"the key": "ä", "k`2": _date("1582-10-10"), "a.b": None, "=;": None},
    ]
    detail = lake.spark.sql(f"DESCRIBE DETAIL delta.`{lake.table(odd)}`").collect()[0]
    assert json.loads(detail.properties["dblog.key"]) == ["the key", "k`2"]


def _date(text: str) -> Any:
    import datetime as dt

    return dt.date.fromisoformat(text)
