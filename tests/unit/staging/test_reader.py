"""The lines of `log`: what each op shows, their order, and that nothing altered is read."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from dblog_core.errors import CorruptSegment
from dblog_core.model.values import to_json
from dblog_core.staging import Staging, segment
from dblog_core.staging.manifest import LogMark
from dblog_core.staging.reader import _json, lines
from tests.unit.staged import MICROSECONDS, chunk, creates, log_rows, publish, root_of, table

ORDERS = table()
ROW = {"id": 5, "name": "a", "big": "x" * 10}
PLACE = {"position": "p1", "transaction": "tx1", "commit_time": "2026-11-21T09:30:00Z", "origin": "log"}


@pytest.fixture(params=[0, segment.INLINE_BYTES], ids=["files", "inline"])
def staging(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staging:
    """Rows of a segment lie in Parquet files, or in its manifest."""
    monkeypatch.setattr(segment, "INLINE_BYTES", request.param)
    return Staging(str(tmp_path), source="shop")


def test_nothing_is_there_before_the_first_segment(staging: Staging) -> None:
    assert list(lines(staging)) == []


def test_inserts_updates_and_deletes(staging: Staging) -> None:
    rows = log_rows(
        ORDERS,
        {"offset": 1, "op": "c", "after": ROW},
        {"offset": 2, "op": "u", "before": ROW, "after": {**ROW, "name": None}},
        {"offset": 3, "op": "d", "before": ROW},
    )
    publish(staging, 1, 1, 3, (ORDERS, rows))
    usual = {"table": "shop.orders", "key": {"id": 5}, "unchanged": [], **PLACE}
    assert list(lines(staging)) == [
        {"offset": 1, "op": "c", "before": None, "after": ROW, **usual},
        {"offset": 2, "op": "u", "before": ROW, "after": {**ROW, "name": None}, **usual},
        {"offset": 3, "op": "d", "before": ROW, "after": None, **usual},
    ]


def test_unchanged_columns_are_named_and_not_in_after(staging: Staging) -> None:
    row = {"offset": 1, "op": "u", "unchanged": ["big"], "after": {"id": 5, "name": "b", "big": None}}
    publish(staging, 1, 1, 1, (ORDERS, log_rows(ORDERS, row)))
    (line,) = lines(staging)
    assert (line["unchanged"], line["after"], line["before"]) == (["big"], {"id": 5, "name": "b"}, None)


def test_a_before_image_of_the_key_alone_shows_the_key_alone(staging: Staging) -> None:
    row = {"offset": 1, "op": "d", "key_only": True, "before": {"id": 5, "name": None, "big": None}}
    publish(staging, 1, 1, 1, (ORDERS, log_rows(ORDERS, row)))
    (line,) = lines(staging)
    assert line["before"] == line["key"] == {"id": 5}


def test_a_change_of_key_tells_where_the_row_comes_from(staging: Staging) -> None:
    rows = log_rows(
        ORDERS,
        {"offset": 1, "op": "d", "before": ROW},
        {"offset": 2, "op": "c", "after": {**ROW, "id": 6}, "moved_from": {"id": 5}},
    )
    publish(staging, 1, 1, 2, (ORDERS, rows))
    delete_line, come = lines(staging)
    assert "moved_from" not in delete_line
    assert (come["key"], come["moved_from"]) == ({"id": 6}, {"id": 5})


def test_composite_keys_stand_in_key_order_and_tables_without_one_have_none(staging: Staging) -> None:
    pair = table("shop.pair", key=("b", "a"), a=pa.int64(), b=pa.string())
    bare = table("shop.bare", key=(), a=pa.int64())
    publish(
        staging,
        1,
        1,
        2,
        (pair, log_rows(pair, {"offset": 1, "op": "c", "after": {"a": 1, "b": "x"}})),
        (bare, log_rows(bare, {"offset": 2, "op": "c", "after": {"a": 1}})),
    )
    first, second = lines(staging)
    assert list(first["key"].items()) == [("b", "x"), ("a", 1)]
    assert second["key"] is None


def test_rows_of_the_dump_in_log_files(staging: Staging) -> None:
    rows = log_rows(
        ORDERS,
        {"offset": 1, "op": "r", "origin": "dump", "unchanged": ["name"], "after": {"id": 5, "big": "x"}},
        {"offset": 2, "op": "d", "origin": "dump", "key_only": True, "before": {"id": 7}, "transaction": None},
    )
    publish(staging, 1, 1, 2, (ORDERS, rows))
    refreshed, absent = lines(staging)
    assert (refreshed["transaction"], refreshed["after"]) == (None, {"id": 5, "big": "x"})
    assert (absent["op"], absent["origin"], absent["key"]) == ("d", "dump", {"id": 7})


def test_a_chunk_stands_between_log_rows_without_what_was_evicted(staging: Staging) -> None:
    placed = chunk(staging, ORDERS, 2, *({**ROW, "id": n} for n in range(4)), evicted=(0, 2))
    log = log_rows(ORDERS, {"offset": 1, "op": "c", "after": ROW}, {"offset": 6, "op": "c", "after": {**ROW, "id": 6}})
    publish(staging, 1, 1, 6, (ORDERS, log), chunks=(placed,))
    staged_lines = list(lines(staging))
    assert [(line["offset"], line["op"], line["key"]["id"]) for line in staged_lines] == [
        (1, "c", 5), (3, "r", 1), (5, "r", 3), (6, "c", 6),
    ]  # fmt: skip
    assert staged_lines[1] == {
        "offset": 3, "op": "r", "table": "shop.orders", "key": {"id": 1}, "before": None, "after": {**ROW, "id": 1},
        "unchanged": [], "position": "p9", "transaction": None, "commit_time": "2026-11-21T09:30:00Z", "origin": "dump",
    }  # fmt: skip


def test_truncates_schemas_and_finished_dumps(staging: Staging) -> None:
    staging.put_schema(ORDERS)
    marks = (
        LogMark(3, "f", "shop.orders", "p", MICROSECONDS, dump="d1", since=0, since_segment=1),
        LogMark(1, "s", "shop.orders", "p", MICROSECONDS, transaction="tx", schema=ORDERS.fingerprint),
        LogMark(2, "t", "shop.orders", "p", MICROSECONDS, transaction="tx"),
    )
    publish(staging, 1, 1, 3, marks=marks)
    schema, truncate, finished = lines(staging)
    assert (schema["op"], schema["transaction"], schema["origin"]) == ("s", None, "log")
    assert [c["name"] for c in schema["schema"]] == ["id", "name", "big"]
    assert (truncate["op"], truncate["transaction"], truncate["origin"]) == ("t", "tx", "log")
    assert (truncate["key"], truncate["before"], truncate["after"]) == (None, None, None)
    assert (finished["op"], finished["dump"], finished["since"], finished["origin"]) == ("f", "d1", 0, "dump")
    assert finished["transaction"] is None


def test_values_have_their_json_forms(staging: Staging) -> None:
    kinds = table(
        "shop.kinds", id=pa.int64(), amount=pa.decimal128(12, 2), day=pa.date32(), at=pa.timestamp("us"),
        utc=pa.timestamp("us", tz="UTC"), raw=pa.binary(), real=pa.float64(), flag=pa.bool_(),
    )  # fmt: skip
    at = dt.datetime.fromisoformat("2026-01-02T03:04:05.000600")
    values = {
        "id": 2**62, "amount": decimal.Decimal("10.50"), "day": at.date(), "at": at, "utc": at.replace(tzinfo=dt.UTC),
        "raw": b"\x00\xff", "real": math.inf, "flag": True,
    }  # fmt: skip
    expected = {
        "id": 2**62, "amount": "10.50", "day": "2026-01-02", "at": "2026-01-02T03:04:05.000600",
        "utc": "2026-01-02T03:04:05.000600Z", "raw": "AP8=", "real": "Infinity", "flag": True,
    }  # fmt: skip
    placed = chunk(staging, kinds, 2, values, {"id": 1})
    publish(staging, 1, 1, 3, (kinds, log_rows(kinds, {"offset": 1, "op": "c", "after": values})), chunks=(placed,))
    logged, dumped, nulls = lines(staging)
    assert logged["after"] == dumped["after"] == expected
    assert nulls["after"] == {**dict.fromkeys(expected), "id": 1}


JSON_TYPES = {
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(dt.UTC)),
    pa.date32(): st.dates(),
    pa.decimal128(38, 9): st.decimals(-(10**28), 10**28, places=9),
    pa.float64(): st.floats(),
    pa.binary(): st.binary(),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", JSON_TYPES, ids=str)
def test_whole_columns_have_the_json_form_of_single_values(kind: pa.DataType) -> None:
    @given(st.lists(st.none() | JSON_TYPES[kind]))
    def check(values: list[object]) -> None:
        assert _json(pa.array(values, kind)) == [to_json(v) for v in pa.array(values, kind).to_pylist()]

    check()


def test_tables_and_versions_of_a_table_merge_by_offset(staging: Staging) -> None:
    other = table("shop.other")
    wider = table(id=pa.int64(), name=pa.string(), big=pa.string(), more=pa.int32())
    publish(
        staging,
        1,
        1,
        6,
        (ORDERS, creates(ORDERS, 1, 2)),
        (other, creates(other, 3, 1)),
        (wider, creates(wider, 4, 1)),
        (other, creates(other, 5, 2)),
    )
    assert [(line["offset"], line["table"], len(line["after"])) for line in lines(staging)] == [
        (1, "shop.orders", 3), (2, "shop.orders", 3), (3, "shop.other", 3), (4, "shop.orders", 4),
        (5, "shop.other", 3), (6, "shop.other", 3),
    ]  # fmt: skip
    assert [line["offset"] for line in lines(staging, tables={"shop.other"})] == [3, 5, 6]


@pytest.mark.thorough
@pytest.mark.parametrize("start", range(1, 33))
def test_reading_from_an_offset_gives_the_rest_of_the_same_lines(staging: Staging, start: int) -> None:
    _several_segments(staging)
    every = list(lines(staging))
    assert [line["offset"] for line in every] == [o for o in range(1, 31) if o != 22]
    assert list(lines(staging, from_offset=start)) == [line for line in every if line["offset"] >= start]


def _several_segments(staging: Staging) -> None:
    publish(staging, 1, 1, 5, (ORDERS, creates(ORDERS, 1, 5)))
    publish(staging, 2, 6, 5)
    publish(staging, 3, 6, 20, (ORDERS, creates(ORDERS, 6, 15)))
    placed = chunk(staging, ORDERS, 21, *({"id": n} for n in range(6)), evicted=(1,))
    publish(staging, 4, 21, 29, (ORDERS, creates(ORDERS, 27, 3)), chunks=(placed,))
    publish(staging, 5, 30, 30, marks=(LogMark(30, "t", "shop.orders", "p", MICROSECONDS),))


def test_what_is_sealed_later_follows_without_a_repeat(staging: Staging) -> None:
    publish(staging, 1, 1, 5, (ORDERS, creates(ORDERS, 1, 5)))
    assert [line["offset"] for line in lines(staging)][-1] == 5
    assert list(lines(staging, from_offset=6)) == []
    publish(staging, 2, 6, 8, (ORDERS, creates(ORDERS, 6, 3)))
    assert [line["offset"] for line in lines(staging, from_offset=6)] == [6, 7, 8]


def test_after_retention_the_lines_begin_at_the_oldest_segment_left(staging: Staging) -> None:
    _several_segments(staging)
    for number in (1, 2):
        (root_of(staging) / f"manifests/{number:020d}.json").unlink()
    fresh = Staging(str(root_of(staging).parent), source="shop")
    assert [line["offset"] for line in lines(fresh)][:2] == [6, 7]


def test_rows_of_many_batches_keep_their_offsets(staging: Staging) -> None:
    placed = chunk(staging, ORDERS, 1, *({"id": n} for n in range(20_000)), evicted=(9_000, 19_999))
    publish(staging, 1, 1, 40_000, (ORDERS, creates(ORDERS, 20_001, 20_000)), chunks=(placed,))
    staged_lines = list(lines(staging))
    assert [line["offset"] for line in staged_lines] == [o for o in range(1, 40_001) if o not in (9_001, 20_000)]
    assert all(line["key"]["id"] == line["offset"] - (1 if line["op"] == "r" else 0) for line in staged_lines)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink])
@pytest.mark.parametrize("pattern", ["log/*/*.parquet", "chunks/*/*/*.parquet", "schemas/*.json", "manifests/*1.json"])
def test_damage_is_found_and_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], pattern: str
) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", 0)
    staging = Staging(str(tmp_path), source="shop")
    placed = chunk(staging, ORDERS, 1, ROW)
    publish(staging, 1, 1, 2, (ORDERS, creates(ORDERS, 2, 1)), chunks=(placed,))
    publish(staging, 2, 3, 3, (ORDERS, creates(ORDERS, 3, 1)))
    (file,) = list(root_of(staging).glob(pattern))[:1]
    damage(file)
    fresh = Staging(str(root_of(staging).parent), source="shop")
    with pytest.raises(CorruptSegment) as caught:
        list(lines(fresh) if "manifests" not in pattern else fresh.manifests())
    assert str(file) in str(caught.value)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(owners=st.lists(st.sampled_from(["a", "b", "c", "end"]), max_size=40))
def test_any_interleaving_of_tables_and_segments_comes_out_in_order(
    tmp_path_factory: pytest.TempPathFactory, owners: list[str]
) -> None:
    staging = Staging(str(tmp_path_factory.mktemp("staging")), source="shop")
    schemas = {name: table(f"shop.{name}") for name in "abc"}
    number = 1
    first = 1
    pending = []
    offset = 1
    for owner in [*owners, "end"]:
        if owner == "end":
            publish(staging, number, first, offset - 1, *((schemas[t], creates(schemas[t], o, 1)) for t, o in pending))
            number += 1
            first = offset
            pending = []
        else:
            pending.append((owner, offset))
            offset += 1
    expected = [(n, f"shop.{o}") for n, o in enumerate((o for o in owners if o != "end"), 1)]
    assert [(line["offset"], line["table"]) for line in lines(staging)] == expected
