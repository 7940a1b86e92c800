"""Tables with few rows, decoded together: the same images as of each table alone, and faults that stay with theirs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog_core.model.events import CREATE, DELETE, UPDATE, LogBatch, Transaction, Unreadable
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.row_events import change_batch, short_tables
from dblog_core.sources.mysql.row_events.change_batch import BatchBuilder
from dblog_core.sources.mysql.row_events.row_decoder import RowEvents
from dblog_core.sources.mysql.row_events.table_map import TableVersion
from dblog_core.sources.mysql.values import binary_values, types
from tests.unit import mysql_rows
from tests.unit.sources.mysql.row_events.test_row_decoder import event, image_texts, take_row_events

NUMBER = types.integer(4, False)
TEXT = next(s.column for s in mysql_rows.SAMPLES if s.column.kind is types.Kind.TEXT and s.column.decode is None)


def some_tables(r: random.Random, count: int) -> list[RowEvents]:
    """Tables with columns of some types, which several share, and with all kinds of changes."""
    samples = r.choices(mysql_rows.SAMPLES, k=6)
    tables = []
    for _ in range(count):
        of_table = r.choices(samples, k=r.randrange(1, 7))
        version = mysql_rows.version([sample.column for sample in of_table], key=r.choice([(), ("c0",)]))
        ops = [r.choice((CREATE, UPDATE, DELETE)) for _ in range(r.randrange(4))]
        nulls = r.choice((0.0, 0.3))
        tables.append(take_row_events(version, [(op, event(r, of_table, op, r.randrange(5), nulls)) for op in ops]))
    return tables


@pytest.mark.parametrize("cells", [1, 40, 500_000])
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_images_are_those_of_each_table_alone(cells: int, seed: int) -> None:
    r = random.Random(seed)
    tables = some_tables(r, r.randrange(1, 12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(short_tables, "_CELLS", cells)
        together = short_tables.decode_together(tables, "null")
    assert cells > 1 or not together  # so little room that each table is alone
    for number, (before, after) in together.items():
        assert before.type == tables[number].before("null").type
        assert image_texts(before) == image_texts(tables[number].before("null"))
        assert image_texts(after) == image_texts(tables[number].after("null"))


def test_more_types_and_tables_than_are_remembered_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_types", "_type"):
        monkeypatch.setattr(short_tables, name, lru_cache(maxsize=1)(getattr(short_tables, name).__wrapped__))
    tables = some_tables(random.Random(5), 12)
    together = short_tables.decode_together(tables, "null")
    assert len(together) > 5
    for number, images in together.items():
        alone = tables[number].before("null"), tables[number].after("null")
        assert list(map(image_texts, images)) == list(map(image_texts, alone))


def named_version(name: str, columns: Sequence[types.ColumnType]) -> TableVersion:
    version = mysql_rows.version(columns)
    return replace(version, schema=replace(version.schema, table=TableName("shop", name)))


def batch_of(rows: dict[str, list[list[bytes | None]]], columns: Sequence[types.ColumnType]) -> LogBatch:
    builder = BatchBuilder("error")
    transaction = Transaction("uuid:7", "binlog.000003:4711", 1)
    for name, values in rows.items():
        data = b"".join(mysql_rows.image(columns, row) for row in values)
        builder.rows_event(named_version(name, columns), CREATE, transaction, data, 0, 0)
    return builder.build("p", 0)


def test_what_a_type_costs_it_costs_once_for_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    to_arrow = binary_values.to_arrow

    def count(column: types.ColumnType, values: binary_values.Values, **more: object) -> pa.Array:
        calls.append(len(values))
        return to_arrow(column, values, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(binary_values, "to_arrow", count)
    columns = [NUMBER, NUMBER, NUMBER, TEXT]
    row: list[bytes | None] = [bytes(4), bytes(4), None, b"abc"]
    batch = batch_of({f"t{n}": [row, row] for n in range(30)}, columns)
    assert [changes.batch.num_rows for changes in batch.changes] == [2] * 30
    # The keys, the other numbers, the texts.
    assert sorted(calls) == [60, 60, 120]


def test_a_value_that_nobody_can_read_makes_its_own_table_unreadable_alone() -> None:
    good: list[bytes | None] = [bytes(4), b"good"]
    batch = batch_of({"a": [good, good], "b": [good, [bytes(4), b"ab\xff"], good], "c": [good]}, [NUMBER, TEXT])
    (signal,) = batch.signals
    assert isinstance(signal, Unreadable)
    assert signal.why.startswith("shop.b at binlog.000003:4711 (transaction uuid:7): column c1: a value ")
    assert {c.schema.table.name: c.batch.num_rows for c in batch.changes} == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize(("rows", "size"), [(1_001, 1), (5, 60_000)], ids=["rows", "bytes"])
def test_a_table_with_many_rows_or_bytes_has_arrays_of_its_own(rows: int, size: int) -> None:
    columns = [NUMBER, replace(TEXT, prefix=4)]
    tables = [
        take_row_events(named_version(name, columns), [(CREATE, count * mysql_rows.image(columns, [bytes(4), value]))])
        for name, count, value in (("a", 1, b"x"), ("long", rows, b"x" * size), ("b", 1, b"x"))
    ]
    assert sorted(short_tables.decode_together(tables, "error")) == [0, 2]


@pytest.mark.parametrize(("tables", "times"), [(1, 1), (49, 1), (50, 2), (120, 3), (1_000, 8)])
def test_a_batch_of_many_tables_is_larger_and_bounded(tables: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_batch, "EVENTS", 2_000)
    versions = [named_version(f"t{number}", [NUMBER]) for number in range(tables)]
    builder = BatchBuilder("null")
    transaction = Transaction("x", "p", 0)
    taken = 0
    while not builder.full:
        version = versions[taken % tables]
        builder.rows_event(version, CREATE, transaction, mysql_rows.image([NUMBER], [None]), 0, 0)
        taken += 1
    assert taken == times * 2_000
