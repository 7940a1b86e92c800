"""What makes a merge cheap changes no row: the driver's fold, files left out, appends, compaction."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import functions as F

from dblog_core.lake_engine.events import staged_events
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import TableSchema
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

pytestmark = pytest.mark.one_of(8)

T = table("t", id=pa.int64(), v=pa.string())
ODD = table(
    "odd",
    key=("day", "code"),
    day=pa.date32(),
    code=pa.string(),
    amount=pa.decimal128(30, 4),
    raw=pa.binary(),
    small=pa.int8(),
    flag=pa.bool_(),
    at=pa.timestamp("us"),
    since=pa.timestamp("us", tz="UTC"),
    ratio=pa.float64(),
)
NEWER = TableSchema(ODD.table, (*ODD.columns[:3], *T.columns[1:], *ODD.columns[3:]), ODD.key)


def _operations(lake: TestLake, schema: TableSchema) -> list[str | None]:
    newest = log.version(lake.table(schema))
    assert newest is not None
    return [log.operation(lake.table(schema), number) for number in range(1, newest + 1)]


# Without a zone, as the source has them; the second does not exist in half of Europe.
_WALL = tuple(dt.datetime.fromisoformat(text) for text in ("0001-01-01T00:00:00", "2026-03-29T02:30:00.000001"))


def _odd_rows(dice: random.Random, codes: str) -> Row:
    days = (dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31))
    return {
        "day": dice.choice(days),
        "code": dice.choice(codes),
        "amount": dice.choice((None, decimal.Decimal("-99999999999999999999999999.9999"), decimal.Decimal("0.0001"))),
        "raw": dice.choice((None, b"", b"\x00\xff")),
        "small": dice.choice((None, -128, 127)),
        "flag": dice.choice((None, True, False)),
        "at": dice.choice((None, *_WALL)),
        "since": dice.choice(
            (None, dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 10, 25, 1, tzinfo=dt.UTC))
        ),
        "ratio": dice.choice((None, 0.1, float("inf"), -0.0)),
    }


@contextmanager
def folded_in_parts() -> Iterator[None]:
    with mock.patch.object(staged_events, "is_small", return_value=False):
        yield


@pytest.mark.parametrize("by", ["driver", "parts"])
def test_a_row_that_was_born_again_and_then_set_back_counts_as_born(lake: TestLake, by: str) -> None:
    """Its last event is an update to what the lake has: only its birth tells that no older dump may remove it."""
    build = lake.build
    build.chunk(T, [{"id": 1, "v": "v"}, {"id": 2, "v": "v"}], dump="first")
    build.seal()
    lake.merge_well()
    since = build.offset
    build.delete(T, {"id": 2})
    build.chunk(T, [{"id": 1, "v": "v"}], dump="full")
    build.create(T, {"id": 2, "v": "other"})
    born = build.update(T, {"id": 2, "v": "v"})
    build.finished(T, "full", since=since, since_segment=2)
    build.seal()
    with {"driver": nullcontext, "parts": folded_in_parts}[by]():
        lake.merge_well()
    assert [(r["id"], r["_dblog_offset"]) for r in lake.rows(T, provenance=True)] == [(1, 1), (2, born)]


def test_rows_above_all_others_are_appended_and_none_comes_twice(lake: TestLake) -> None:
    build = lake.build
    merger = lake.merger()

    def merge() -> None:
        merged = merger.run_round(retry_stopped=False)
        assert merged is not None and not [t.error for t in merged.tables if t.error]

    build.chunk(T, [{"id": n, "v": "v"} for n in range(1, 6)])
    build.seal()
    merge()
    build.create(T, {"id": 7, "v": "v"})
    build.chunk(T, [{"id": 8, "v": "v"}, {"id": 9, "v": "v"}])
    build.seal()
    merge()  # all above 5
    build.chunk(T, [{"id": 9, "v": "v"}, {"id": 10, "v": "v"}])  # a refresh of the highest key
    build.seal()
    merge()
    build.delete(T, {"id": 10})
    build.seal()
    merge()
    build.create(T, {"id": 10, "v": "again"})
    build.seal()
    merge()
    build.create(T, {"id": 11, "v": "v"})
    build.update(T, {"id": 11, "v": "w"})
    build.seal()
    merge()  # born in this span, whatever came after
    build.update(T, {"id": 12, "v": "never born"})
    build.seal()
    merge()
    assert _operations(lake, T) == ["MERGE"] * 7
    values = {10: "again", 11: "w", 12: "never born"}
    rows = {r["id"]: r["v"] for r in lake.rows(T)}
    assert rows == {n: values.get(n, "v") for n in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12)}
    assert len(lake.rows(T)) == len(rows)


def test_a_row_that_another_hand_has_written_is_not_appended_a_second_time(lake: TestLake) -> None:
    build = lake.build
    merger = lake.merger()
    build.create(T, {"id": 1, "v": "v"})
    build.seal()
    merger.run_round(retry_stopped=False)
    build.create(T, {"id": 2, "v": "v"})
    build.seal()
    merger.run_round(retry_stopped=False)
    rows = lake.spark.read.format("delta").load(str(lake.table(T))).where("id = 2")
    rows.withColumn("id", F.lit(9).cast("long")).write.format("delta").mode("append").save(str(lake.table(T)))
    build.create(T, {"id": 9, "v": "ours"})
    build.seal()
    merger.run_round(retry_stopped=False)
    assert lake.rows(T) == [{"id": 1, "v": "v"}, {"id": 2, "v": "v"}, {"id": 9, "v": "ours"}]


def test_small_files_are_joined_after_so_many_commits_and_no_row_changes(lake: TestLake) -> None:
    build = lake.build
    merger = lake.merger(compact_after=4)
    for n in range(6):
        build.create(T, {"id": n, "v": "v"})
        build.update(T, {"id": 0, "v": f"v{n}"})
        build.seal()
        merger.run_round(retry_stopped=False)
        before = lake.rows(T, provenance=True)
        compacted = merger.compact()
        assert compacted == (str(T.table) if n == 3 else None)
        assert lake.rows(T, provenance=True) == before
    assert _operations(lake, T).count("OPTIMIZE") == 1
    build.create(T, {"id": 9, "v": "v"})
    build.seal()
    lake.merge_until("applied shop.t")  # and what stood before it does not count as this merge
    (finished,) = lake.merge_well()
    assert finished.tables[0].rows == 1
    assert [r["id"] for r in lake.rows(T)] == [0, 1, 2, 3, 4, 5, 9]
    assert lake.cuts()[-1]["tables"] == {str(T.table): log.version(lake.table(T))}


def test_the_look_for_what_is_to_be_compacted_costs_what_was_merged(lake: TestLake) -> None:
    other, looked = table("other", id=pa.int64(), v=pa.string()), list[str]()
    for schema in (T, other):
        lake.build.create(schema, {"id": 1, "v": "v"})
    lake.build.seal()
    merger, version = lake.merger(compact_after=3), log.version
    merger.run_round(retry_stopped=False)

    def look_up_version(path: Location) -> int | None:
        looked.append(path.path)
        return version(path)

    def look() -> list[str]:
        looked.clear()
        with mock.patch("dblog_core.lake_engine.tasks.upkeep.log.version", look_up_version):
            compacted = merger.compact()
        return [*([compacted] if compacted else []), *dict.fromkeys(looked)]

    assert look() == ["shop/other", "shop/t"], "a new process looks at all"
    assert look() == []
    for n in range(3):
        lake.build.create(T, {"id": 2 + n, "v": f"{n}"})
        lake.build.seal()
        merger.run_round(retry_stopped=False)
        assert look() == (["shop.t", "shop/t"] if n == 1 else []), "its log is looked at once it may be due"
    assert look() == []


def test_a_table_more_in_a_merge_is_six_requests_more(lake: TestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once both tables were merged before, by marking and appending: a MERGE is Spark's, which asks for itself."""
    requests: list[str] = []
    for name in ("create", "exists", "names", "read", "read_part", "remove", "replace"):
        method = getattr(LocalStorage, name)

        def note_request(
            storage: LocalStorage, path: str, *more: Any, name: str = name, method: Callable[..., Any] = method
        ) -> Any:
            requests.append(f"{name} {path}")
            return method(storage, path, *more)

        monkeypatch.setattr(LocalStorage, name, note_request)
    other = table("other", id=pa.int64(), v=pa.string())
    merger = lake.merger()

    def merge(*schemas: TableSchema) -> list[str]:
        for number, schema in enumerate(schemas):
            lake.build.update(schema, {"id": 1, "v": f"{lake.build.offset} {number}"})
        lake.build.seal()
        requests.clear()
        merged = merger.run_round(retry_stopped=False)
        assert merged is not None and [t.applied for t in merged.tables] == [1] * len(schemas)
        return list(requests)

    for schema in (T, other):
        lake.build.create(schema, {"id": 1, "v": "v"})
    lake.build.seal()
    merger.run_round(retry_stopped=False)
    merge(T, other)
    both = merge(T, other)
    single = merge(T)
    assert len(both) - len(single) <= 6, "\n".join(path for path in both if "other" in path or "mergers" in path)


def test_a_table_that_is_compacted_never_stays_as_it_is(lake: TestLake) -> None:
    merger = lake.merger(compact_after=0)
    for n in range(3):
        lake.build.create(T, {"id": n, "v": "v"})
        lake.build.seal()
        merger.run_round(retry_stopped=False)
    assert merger.compact() is None


def test_the_newest_version_is_found_with_and_without_a_checkpoint(lake: TestLake) -> None:
    path = lake.table(T)
    assert log.version(path) is None and log.newest_transaction(path, "a") is None
    for n in range(12):
        frame = lake.spark.range(1).coalesce(1)
        options = {"txnAppId": "a", "txnVersion": str(n)}
        frame.write.format("delta").mode("append").options(**options).save(str(path))
        assert (log.version(path), log.newest_transaction(path, "a")) == (n, n)
    assert (path / "_delta_log" / "_last_checkpoint").exists()
    assert DeltaTable.forPath(lake.spark, str(path)).history(1).collect()[0].version == 11
    (path / "_delta_log" / "_last_checkpoint").remove()
    assert log.version(path) == 11
