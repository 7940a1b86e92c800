"""Rows of a segment: encoded while more come in, in few bytes, whole and in order wherever they come to lie."""

from __future__ import annotations

import datetime as dt
import decimal
import threading
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

from dblog_core.errors import CorruptSegment
from dblog_core.staging import Staging, inline_rows, parquet, segment
from dblog_core.staging.ordered_thread import Background
from dblog_core.staging.reader import lines
from dblog_core.staging.row_format import LOG_COLUMNS, log_schema
from dblog_core.staging.spilled_rows import remove_spilled, spill
from tests.unit.staged import TIME, creates, log_rows, manifest, publish, root_of, table

ORDERS = table()
TYPES = (
    pa.int64(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.decimal128(9, 2), pa.decimal128(18, 0),
    pa.decimal128(38, 10),
)  # fmt: skip
ODD = table("shop.odd", **{f"c{n}": kind for n, kind in enumerate(TYPES)}, key=("c0",))
VALUES = (
    1, True, -8, -16, -32, 0.5, -0.25, "é", b"\0\xff", dt.date(1, 1, 1),
    dt.datetime.fromisoformat("9999-12-31 23:59:59"), TIME, decimal.Decimal("1234567.89"),
    decimal.Decimal(-987654321987654321), decimal.Decimal("1e27"),
)  # fmt: skip
ROW = {f"c{n}": value for n, value in enumerate(VALUES)}


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path), source="shop")


def _updates(first: int, count: int) -> pa.RecordBatch:
    rows = ({"offset": o, "op": "u", "before": {"id": o}, "after": {"id": o}} for o in range(first, first + count))
    return log_rows(ORDERS, *rows)


def test_row_groups_are_encoded_beside_the_loop_and_come_out_in_order(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", 0)
    monkeypatch.setattr(segment, "_ROW_GROUP_BYTES", 10_000)
    threads: set[str] = set()
    real = parquet.Encoder.add

    def add(self: parquet.Encoder, batches: Any) -> None:
        threads.add(threading.current_thread().name)
        real(self, batches)

    monkeypatch.setattr(parquet.Encoder, "add", add)
    writer = staging.open_segment(1, 1)
    staging.put_schema(ORDERS)
    for first in range(1, 1001, 100):
        writer.add(ORDERS, creates(ORDERS, first, 100))
    (file,) = writer.write()
    assert "encoder-1" in threads
    assert pq.ParquetFile(root_of(staging) / file.path).num_row_groups > 1
    staging.publish(manifest(1, 1, 1000, files=(file,)))
    assert [line["offset"] for line in lines(staging)] == list(range(1, 1001))
    assert not [t for t in threading.enumerate() if t.name == "encoder-1"], "no thread is left"


@pytest.mark.parametrize("row_group", [1, 1 << 20])
def test_a_file_leaves_out_what_no_row_has_and_the_next_begins_where_one_does(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, row_group: int
) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", 0)
    monkeypatch.setattr(segment, "_ROW_GROUP_BYTES", row_group)
    batches = [creates(ORDERS, 1, 10), _updates(11, 10), creates(ORDERS, 21, 10)]
    new_manifest = publish(staging, 1, 1, 30, *((ORDERS, batch) for batch in batches))
    columns = [set(pq.ParquetFile(root_of(staging) / f.path).schema_arrow.names) for f in new_manifest.files]
    assert ["before" in c for c in columns] == ([False, True] if row_group == 1 else [True])
    assert not any("unchanged" in c or "moved_from" in c for c in columns)
    staged_lines = list(lines(staging))
    assert [line["offset"] for line in staged_lines] == list(range(1, 31))
    assert [line["before"] is not None for line in staged_lines] == [False] * 10 + [True] * 10 + [False] * 10


def test_an_encoder_that_fails_fails_the_write(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "_ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(parquet.Encoder, "add", lambda *_: 1 / 0)
    writer = staging.open_segment(1, 1)
    writer.add(ORDERS, creates(ORDERS, 1, 5))
    with pytest.raises(ZeroDivisionError):
        writer.write()


def test_no_row_follows_a_segment_that_was_written_to_files(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", 0)
    writer = staging.open_segment(1, 1)
    writer.add(ORDERS, creates(ORDERS, 1, 5))
    writer.write()
    with pytest.raises(ValueError, match="no row can follow"):
        writer.add(ORDERS, creates(ORDERS, 6, 5))


def test_tasks_run_in_order_and_none_after_one_that_failed() -> None:
    done: list[int] = []
    work = Background("test")
    for number in range(100):
        work.do(lambda n=number: done.append(n))  # type: ignore[misc]
    work.wait()
    assert done == list(range(100))
    work.do(lambda: done.append(1 // 0))
    work.do(lambda: done.append(-1))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            work.wait()
    assert done == list(range(100))


@pytest.mark.parametrize("limit", [0, segment.INLINE_BYTES])
@pytest.mark.parametrize("schema", [ORDERS, ODD, table("shop.bare", key=(), a=pa.int64())])
def test_dictionaries_become_plain_and_every_type_stays_what_it_is(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, limit: int, schema: Any
) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", limit)
    name = schema.columns[0].name
    rest = ROW if schema is ODD else {}
    rows = log_rows(schema, *({"offset": n, "op": "c", "after": {**rest, name: n}} for n in range(1, 9)))
    named = rows
    for column in ("op", "origin", "transaction", "position"):
        at = named.schema.get_field_index(column)
        named = named.set_column(at, column, named.column(at).dictionary_encode())
    new_manifest = publish(staging, 1, 1, 8, (schema, named))
    assert [bool(f.path) for f in new_manifest.files] == [limit == 0]
    (fresh,) = (staging.handle().rows(f) for f in new_manifest.files)
    assert fresh.schema.equals(log_schema(schema)) and fresh.combine_chunks().to_batches() == [rows]


_ROW = st.fixed_dictionaries(
    {"op": st.just("u")},
    optional={
        "unchanged": st.lists(st.sampled_from(["name", "big"]), max_size=2),
        "moved_from": st.fixed_dictionaries({"id": st.integers(0, 9)}),
        "before": st.fixed_dictionaries({"id": st.integers(0, 9), "name": st.text(max_size=3)}),
        "after": st.fixed_dictionaries({"id": st.integers(0, 9), "name": st.none() | st.text(max_size=3)}),
        "transaction": st.none() | st.text(max_size=3),
    },
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(st.lists(_ROW, min_size=1, max_size=4), min_size=1, max_size=4),
    with_dictionary=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_rows_in_a_manifest_are_the_rows_that_were_given(
    pieces: list[list[dict[str, Any]]], with_dictionary: list[bool]
) -> None:
    offset = 0
    batches = []
    for piece in pieces:
        batches.append(log_rows(ORDERS, *({**row, "offset": offset + n} for n, row in enumerate(piece))))
        offset += len(piece)
    place = batches[0].schema.get_field_index("transaction")
    staged = [
        b.set_column(place, "transaction", b.column(place).dictionary_encode()) if encoded else b
        for b, encoded in zip(batches, with_dictionary, strict=False)
    ]
    empty = frozenset(inline_rows.OPTIONAL).intersection(*map(inline_rows.empty_columns, staged))
    data = inline_rows.encode(staged, empty)
    decoded = inline_rows.decode(data, log_schema(ORDERS), where="here")
    assert decoded.to_pylist() == pa.Table.from_batches(batches).to_pylist()


def test_the_names_of_a_files_columns_are_those_of_its_schema() -> None:
    assert log_schema(ORDERS).names == [*LOG_COLUMNS]


def test_rows_of_a_manifest_that_were_altered_are_refused() -> None:
    data = inline_rows.encode([creates(ORDERS, 1, 3)], frozenset())
    for damaged in (data[:-1], data[:20] + bytes([data[20] ^ 1]) + data[21:]):
        with pytest.raises(CorruptSegment):
            inline_rows.decode(damaged, log_schema(ORDERS), where="here")


def test_what_knows_only_paths_gets_the_same_rows(staging: Staging) -> None:
    manifests = [publish(staging, n, 3 * n - 2, 3 * n, (ORDERS, creates(ORDERS, 3 * n - 2, 3))) for n in (1, 2, 3)]
    files = [f for m in manifests for f in m.files]
    (spilled,) = spill(staging, files)
    assert (spilled.first_offset, spilled.last_offset, spilled.rows) == (1, 9, 9)
    table = pq.read_table(root_of(staging) / spilled.path)
    assert table.column("offset").to_pylist() == list(range(1, 10))
    (cut,) = spill(staging, [files[1].cut(5, 5)])
    assert pq.read_table(root_of(staging) / cut.path).column("offset").to_pylist() == [5]
    remove_spilled(staging, files)
    remove_spilled(staging, [files[1].cut(5, 5)])
    assert not list((root_of(staging) / "tmp").iterdir())


@pytest.mark.parametrize("limit", [0, segment.INLINE_BYTES])
def test_rows_of_a_dump_stand_among_rows_of_the_log(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The former come with plain columns, the latter with dictionaries, each batch with its own."""
    monkeypatch.setattr(segment, "INLINE_BYTES", limit)
    batches = []
    for number in range(4):
        rows = log_rows(ORDERS, {"offset": number, "op": "c", "after": {"id": 1}, "transaction": f"t{number}"})
        at = rows.schema.get_field_index("transaction")
        batches.append(rows if number == 2 else rows.set_column(at, "transaction", rows.column(at).dictionary_encode()))
    publish(staging, 1, 0, 3, *((ORDERS, batch) for batch in batches))
    assert [line["transaction"] for line in lines(staging)] == ["t0", "t1", "t2", "t3"]
