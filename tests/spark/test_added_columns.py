"""Columns that are added with a constant: what rows from before hold, by the merge or by a dump."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from dblog_core.lake.lake_status import State
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.tables import log
from tests.spark.asked import ask_well, replay
from tests.spark.lakes import Crash, TestLake
from tests.spark.segments import table
from tests.spark.shapes import NEW, OLD, at_the_end, drop_column, new, old, status

pytestmark = pytest.mark.one_of(8)


def test_what_added_columns_hold_in_old_rows_comes_by_a_dump_that_is_requested_by_itself(lake: TestLake) -> None:
    build = lake.build
    for key in (1, 2):
        build.create(NEW, new(key))
    build.seal()
    lake.merge_well()
    began = build.offset  # a dump that begins here sees no new column
    build.chunk(NEW, [new(1), new(2)], dump="another")
    build.schema(OLD)
    build.create(OLD, old(3))
    build.seal()
    lake.merge_until("requested shop.t")
    lake.merge_well()
    assert lake.rows(OLD) == [old(1, gone=None), old(2, gone=None), old(3)]
    assert lake.dumps.asked == [("shop.t", [])] * 2  # the crash has forgotten the first one
    build.finished(OLD, "another", since=began, since_segment=2)
    build.create(OLD, old(4))
    build.seal()
    lake.merge_well()
    assert (status(lake).state, status(lake).awaits, status(lake).reset_at) == (State.INCOMPLETE, "dump2", None)
    since = build.offset
    build.chunk(OLD, [old(1, gone="default"), old(2, gone="default"), old(3), old(4)], dump="dump2")
    build.finished(OLD, "dump2", since=since, since_segment=build.segment + 1)
    build.seal()
    lake.merge_well()
    assert lake.rows(OLD) == [old(1, gone="default"), old(2, gone="default"), old(3), old(4)]
    assert (status(lake).state, status(lake).awaits) == (State.OK, None)
    assert len(lake.dumps.asked) == 2


FEW = table("t", id=pa.int64(), v=pa.string())


MORE = table(
    "t",
    id=pa.int64(),
    v=pa.string(),
    n=pa.int32(),
    word=pa.string(),
    d=pa.decimal128(9, 2),
    day=pa.date32(),
    at=pa.timestamp("us"),
    moment=pa.timestamp("us", tz="UTC"),
    flag=pa.bool_(),
    f=pa.float32(),
    nothing=pa.string(),
)


FILLED = {
    "n": -5,
    "word": "it's",
    "d": "1.50",
    "day": "2024-02-29",
    "at": "2024-02-29T01:02:03.500000",
    "moment": "2024-02-29T23:02:03Z",
    "flag": False,
    "f": 0.10000000149011612,
    "nothing": None,
}


HELD = {
    "n": -5,
    "word": "it's",
    "d": Decimal("1.50"),
    "day": dt.date(2024, 2, 29),
    "at": dt.datetime.fromisoformat("2024-02-29T01:02:03.500000"),
    "moment": dt.datetime.fromisoformat("2024-02-29T23:02:03"),
    "flag": False,
    "f": 0.10000000149011612,
    "nothing": None,
}


OTHERS = {**HELD, "n": 7, "word": None, "moment": dt.datetime(2000, 1, 1, tzinfo=dt.UTC)}


def fill_columns(lake: TestLake, *, partial: bool) -> tuple[int, int]:
    """Columns come with constants: 1 is not written again, 2 and 3 are written before, by log and dump, 4 and 5 after
    it, and 6, where it is `partial`, by a change that leaves all but `v` out."""
    build = lake.build
    for key in (1, 2, 3, 4, 6):
        build.create(FEW, new(key))
    build.seal()
    lake.merge_well()
    before = (log.version(lake.table(FEW)) or 0, build.offset)
    build.update(FEW, new(2, "b"))
    build.chunk(FEW, [new(3, "c")])
    build.schema(MORE, filled=FILLED)
    build.update(MORE, {**new(4, "d"), **OTHERS})
    build.create(MORE, {**new(5), **OTHERS})
    if partial:
        build.update(MORE, {**new(6, "e"), **dict.fromkeys(HELD)}, unchanged=list(HELD))
    build.seal()
    return before


@pytest.mark.in_turn("dies")
@pytest.mark.parametrize(
    ("dies", "partial"), [((), True), (("_fill",), False), (("commit",), True)], ids=["none", "fill", "write"]
)
def test_an_added_column_has_its_constant_in_rows_from_before_by_the_merge_alone(
    lake: TestLake, monkeypatch: pytest.MonkeyPatch, dies: tuple[str, ...], partial: bool
) -> None:
    def die(*_: object, **__: object) -> None:
        raise Crash

    before = fill_columns(lake, partial=partial)
    others = {**OTHERS, "moment": dt.datetime.fromisoformat("2000-01-01T00:00:00")}
    right = [{**new(key, v), **HELD} for key, v in ((1, "a"), (2, "b"), (3, "c"))]
    right += [{**new(key, v), **others} for key, v in ((4, "d"), (5, "a"))]
    right.append({**new(6, "e" if partial else "a"), **HELD})
    if dies:
        with monkeypatch.context() as patch:
            for step in dies:
                patch.setattr(LakeTable, step, die)
            with pytest.raises(Crash):
                lake.merge()
    assert at_the_end(lake, MORE, before) == right
    lake.merge_well()
    assert lake.rows(MORE) == right and not lake.dumps.asked
    assert not status(lake).waits
    version = log.version(lake.table(MORE))
    assert at_the_end(lake, MORE, (version or 0, lake.build.offset)) == right
    if not dies:
        harm = f"UPDATE delta.`{lake.table(MORE)}` SET n = 0, day = NULL"
        lake.spark.sql(harm)
        replay(lake, 1, lake.build.offset)
        assert lake.rows(MORE) == right
        lake.spark.sql(harm)
        ask_well(lake, "rebuild", {"table": "shop.t"})
        assert lake.rows(MORE) == right


def test_a_constant_is_followed_through_what_becomes_of_its_column(lake: TestLake) -> None:
    """It is widened and renamed within the same merge; one of its name that was dropped before is another column."""
    drop_column(lake)
    build = lake.build
    back = table("t", id=pa.int64(), v=pa.string(), gone=pa.int32())
    build.schema(back, filled={"gone": 5})
    build.update(back, {**new(5), "gone": 6})
    wide = table("t", id=pa.int64(), v=pa.string(), came=pa.int64())
    build.schema(wide, renamed={"came": "gone"})
    build.create(wide, {**new(7), "came": 8})
    build.seal()
    lake.merge_well()
    values = [(1, "a", 5), (2, "b", 5), (3, "b", 5), (4, "a", 5), (5, "a", 6), (7, "a", 8)]
    assert [(row["id"], row["v"], row["came"]) for row in lake.rows(wide)] == values
    assert not lake.dumps.asked


def test_a_history_has_the_values_of_an_added_column_by_a_dump(lake: TestLake) -> None:
    """Which tells them as lines; the history's own, from before the column, are not written anew."""
    lake.history = True
    fill_columns(lake, partial=False)
    lake.merge_well()
    assert lake.dumps.asked == [("shop.t", [])]
    assert status(lake).state is State.INCOMPLETE
    assert [row["n"] for row in lake.rows(MORE)] == [None, None, None, 7, 7, None]
