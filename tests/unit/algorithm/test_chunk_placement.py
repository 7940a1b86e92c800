"""Chunks meet the rows that the log has told of meanwhile, and files that are not there."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from dblog_core.algorithm.chunk_placement import Chunks
from dblog_core.algorithm.eviction import Touch
from dblog_core.algorithm.task_progress import Refused
from dblog_core.algorithm.visibility import LogOrder, Snapshots
from dblog_core.capture.row_changes import ChangeTouches, split_key_changes
from dblog_core.model.schema import TableSchema
from dblog_core.model.task_id import TaskId
from dblog_core.model.values import key_from_json, rows_with
from dblog_core.model.watermark import Heals, High, Low, Mark
from tests.fake_source import changes_batch
from tests.unit.staged import table

NAN = float("nan")


def mark(ordinal: int, schema: TableSchema) -> Mark:
    return Mark("shop", TaskId("d", 0), 1, ordinal, f"w{ordinal}", str(schema.table))


def high(at: Mark) -> High:
    return High(at, file=f"f{at.ordinal}", rows=3, bytes=1, checksum="", schema="s", last_key=1, final=False)


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_row_whose_key_is_nan_is_evicted_by_its_own_event(kind: pa.DataType, identity: str) -> None:
    """PostgreSQL takes NaN for a key, and for equal to itself."""
    schema = table("shop.t", id=kind, v=pa.int64())
    chunks = Chunks(LogOrder())
    at = mark(0, schema)
    chunks.open_window(Low(at), offset=0, segment=1, at=0)
    before = {"id": NAN, "v": 1} if identity == "full" else None
    changes = split_key_changes(changes_batch(schema, [(0, 0, "u", before, {"id": NAN, "v": 2}, ())]))
    assert changes.moved_from is None, "its key is the same"
    chunks.record_rows(schema.table, (1, 1), None, ChangeTouches.of(changes))
    rows = pa.RecordBatch.from_pylist([{"id": k, "v": 1} for k in (1.0, NAN, 2.0)], schema=schema.arrow)
    placed = chunks.place_chunk(
        high(at), at=1, is_ours=lambda: True, rows=lambda keys: rows_with(rows, schema, keys), absent=list
    )
    assert placed.evicted == (1,)


def test_a_key_that_was_asked_for_as_nan_is_the_logs() -> None:
    schema = table("shop.t", id=pa.float64(), v=pa.int64())
    chunks = Chunks(LogOrder())
    at = mark(0, schema)
    chunks.open_window(Low(at), offset=0, segment=1, at=0)
    changes = split_key_changes(changes_batch(schema, [(0, 0, "c", None, {"id": NAN, "v": 2}, ())]))
    chunks.record_rows(schema.table, (1, 1), None, ChangeTouches.of(changes))
    placed = chunks.place_chunk(
        high(at), at=1, is_ours=lambda: True, rows=lambda keys: (), absent=lambda: [key_from_json("NaN", schema)]
    )
    assert placed.deleted == (), "the log has made the row after the SELECT did not find it"


def test_each_file_of_an_attempt_has_to_be_there() -> None:
    """A staging that was put back from a copy may have the first and not the second."""
    schema = table()
    chunks = Chunks(LogOrder())
    for ordinal, is_there in ((0, True), (1, False)):
        at = mark(ordinal, schema)
        chunks.open_window(Low(at), offset=ordinal, segment=1, at=0)
        if is_there:
            chunks.place_chunk(high(at), at=1, is_ours=lambda: True, rows=lambda keys: (), absent=list)
            continue
        with pytest.raises(Refused, match="is not in this staging directory"):
            chunks.place_chunk(high(at), at=1, is_ours=lambda: False, rows=lambda keys: (), absent=list)
    assert chunks.take_progress()[TaskId("d", 0)].broken == 1


def test_a_window_is_given_up_by_our_own_clock_whatever_that_of_the_source_says() -> None:
    """A server whose clock is an hour behind, or a log that is read an hour late: a window is as young as any."""
    schema = table()
    chunks = Chunks(LogOrder())
    chunks.open_window(Low(mark(0, schema)), offset=0, segment=1, at=0)
    for now in (5_000.0, 5_899.0):
        chunks.expire_windows(now, 900.0)
        assert [w.table for w in chunks.open_windows()] == [str(schema.table)]
    chunks.expire_windows(5_900.0, 900.0)
    assert chunks.open_windows() == []
    with pytest.raises(Refused, match="its window was not open"):
        chunks.place_chunk(high(mark(0, schema)), at=1, is_ours=lambda: True, rows=lambda keys: (), absent=list)


def test_a_dump_that_begins_keeps_earlier_moves_to_itself() -> None:
    """PostgreSQL: a dump takes up the moves that its SELECTs may not see. Dumps that run have followed them already,
    and the rows of today may be others than those that had these keys then."""
    schema = table("shop.t", id=pa.int64(), big=pa.string())
    chunks = Chunks(Snapshots("90:90:"))
    first, second = (heals_all(dump, 0, schema) for dump in ("d", "e"))
    chunks.open_window(Low(first), offset=0, segment=1, at=0)
    moved = [Touch((2,), frozenset({"big"}), (0,))]
    chunks.record_rows(schema.table, (1, 1), 95, moved)
    end = replace(high(first), final=True, rows=0, snapshot="100:100:")
    chunks.place_chunk(end, at=1, is_ours=lambda: True, rows=lambda keys: (), absent=list)
    assert chunks.progress()[first.task].arrived == (("0", "2"),), "it has read all, and has a row to look for"
    chunks.open_window(Low(second), offset=1, segment=1, at=0)
    assert chunks.progress()[second.task].arrived == (("0", "2"),)
    assert chunks.progress()[first.task].arrived == (("0", "2"),)


def test_a_later_task_of_a_dump_does_not_follow_again_what_the_first_has_followed() -> None:
    """Else a row that was brought where another one had gone from would count as that one."""
    schema = table("shop.t", id=pa.int64(), big=pa.string())
    chunks = Chunks(Snapshots("90:90:"))
    first, second = (heals_all("d", number, schema, parts=2) for number in (0, 1))
    chunks.open_window(Low(first), offset=0, segment=1, at=0)
    moved = [Touch((1,), frozenset({"big"}), (2,)), Touch((3,), frozenset({"big"}), (1,))]
    chunks.record_rows(schema.table, (1, 2), 95, moved)
    look = replace(high(first), rows=1, arrived=("1",), snapshot="100:100:")
    chunks.place_chunk(look, at=1, is_ours=lambda: True, rows=lambda keys: (), absent=list)
    assert chunks.progress()[first.task].arrived == (("2",),)
    chunks.open_window(Low(second), offset=2, segment=1, at=0)
    assert chunks.progress()[first.task].arrived == (("2",),)


def test_no_window_opens_before_a_horizon_sees_what_was_logged_before_its_table_was_shown() -> None:
    schema = table()
    chunks = Chunks(Snapshots(None))
    chunks.show_table(schema.table, lambda: "101:105:101")
    first = heals_all("d", 0, schema)
    later = replace(first, attempt=2, window="w2")
    with pytest.raises(Refused, match="before its table was shown"):
        chunks.open_window(Low(later), offset=0, segment=1, at=0)
    with pytest.raises(Refused, match="an attempt that is over"):
        chunks.open_window(Low(first), offset=0, segment=1, at=0)
    assert chunks.progress()[first.task].broken == 2, "the older attempt changes nothing"
    chunks.advance_horizon("104:107:104", 0)
    last = replace(first, attempt=3, window="w3")
    with pytest.raises(Refused, match="before its table was shown"):
        chunks.open_window(Low(last), offset=0, segment=1, at=0)
    chunks.advance_horizon("105:107:", 0)
    chunks.open_window(Low(replace(last, attempt=4)), offset=0, segment=1, at=0)
    other = table("shop.other")
    chunks.open_window(Low(heals_all("e", 0, other)), offset=0, segment=1, at=0)


def test_by_the_logs_order_a_window_sees_what_was_logged_before_its_table_was_shown() -> None:
    schema = table()
    chunks = Chunks(LogOrder())
    chunks.show_table(schema.table, lambda: pytest.fail("nobody has to ask"))
    chunks.open_window(Low(heals_all("d", 0, schema)), offset=0, segment=1, at=0)


def heals_all(dump: str, number: int, schema: TableSchema, *, parts: int = 1) -> Mark:
    return Mark("shop", TaskId(dump, number), 1, 0, f"{dump}{number}", str(schema.table), parts, Heals())
