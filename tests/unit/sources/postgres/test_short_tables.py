"""Tables with few rows, decoded together: the same rows as of each table alone, and faults that stay with theirs."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog_core.config.source import SourceConfig
from dblog_core.model.events import LogBatch, Unreadable
from dblog_core.sources.postgres.logical import short_tables, tuples
from dblog_core.sources.postgres.logical.batch import Assembly
from dblog_core.sources.postgres.logical.message_buffer import Messages
from dblog_core.sources.postgres.logical.pgoutput import PgoutputDecoder
from dblog_core.sources.postgres.logical.relations import Forms, Types
from dblog_core.sources.postgres.position import Lsn
from tests.unit.pgoutput_messages import begin, binary, change, commit, relation, row

NAMES = {20: "bigint", 25: "text", 23: "integer", 1114: "timestamp without time zone"}
SHOP = SourceConfig.model_validate({"name": "shop", "kind": "postgres", "database": "shop", "tables": ["public.t*"]})
TABLES = {
    1: ("t1", [(1, "id", 20), (0, "v", 25)]),
    2: ("t2", [(1, "id", 20), (0, "n", 23), (0, "big", 20), (0, "w", 25)]),
    3: ("t3", [(1, "id", 25), (0, "v", 25), (0, "at", 1114)]),
}


def decode(*messages: bytes) -> LogBatch:
    types = Types(lambda oid, typmod: NAMES[oid], lambda table: ("id",))
    decoder = PgoutputDecoder(SHOP, Assembly(Lsn(1)), types, forms=Forms())
    relations = [relation(name, columns, oid=oid) for oid, (name, columns) in TABLES.items()]
    assert decoder.feed(Messages.of([begin(), *relations, *messages, commit()]))
    return decoder.take()


def value(kind: int, number: int) -> bytes:
    match kind:
        case 25:
            return binary(f"text {number}".encode())
        case 23:
            return binary(struct.pack(">i", number))
        case _:
            return binary(struct.pack(">q", number))


@st.composite
def changes(draw: st.DrawFn) -> bytes:
    """An INSERT, UPDATE or DELETE of one of the tables; unkeyed values may be NULL, or kept by an update."""
    oid = draw(st.sampled_from(sorted(TABLES)))
    columns = TABLES[oid][1]
    kind = draw(st.sampled_from([b"I", b"U", b"D"]))

    def image(*, others: Sequence[bytes | None]) -> bytes:
        values = [value(code, draw(st.integers(0, 99))) for _, _, code in columns]
        return row(*values[:1], *(draw(st.sampled_from([*others, v])) for v in values[1:]))

    if kind == b"D":
        return change(kind, (b"K", image(others=[None])), oid=oid)
    old = [(b"K", image(others=[None]))] if kind == b"U" and draw(st.booleans()) else []
    return change(kind, *old, (b"N", image(others=[None, b"u"] if kind == b"U" else [None])), oid=oid)


def batches(batch: LogBatch) -> dict[str, pa.RecordBatch]:
    return {str(c.schema.table): c.batch for c in batch.changes}


@pytest.mark.parametrize("cells", [1, 30, 500_000])
@settings(max_examples=100, deadline=None)
@given(st.lists(changes(), max_size=20))
def test_rows_are_those_of_each_table_alone(cells: int, messages: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(short_tables, "_CELLS", cells)
        together = batches(decode(*messages))
        patch.setattr(short_tables, "decode_together", lambda tables, raw: {})
        alone = batches(decode(*messages))
    assert together.keys() == alone.keys()
    for table, rows in together.items():
        rows.validate(full=True)
        assert rows.equals(alone[table])


@pytest.mark.parametrize("cells", [1, 500_000], ids=["no room", "room"])
def test_what_a_type_costs_it_costs_once_for_all_tables(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    to_arrow = tuples.to_arrow

    def count(*arguments: object) -> pa.Array:
        array = to_arrow(*arguments)  # type: ignore[arg-type]
        calls.append(len(array))
        return array

    monkeypatch.setattr(short_tables, "_CELLS", cells)
    monkeypatch.setattr(tuples, "to_arrow", count)
    inserts = [
        change(b"I", (b"N", row(*(value(code, 7) for _, _, code in columns))), oid=oid)
        for oid, (_, columns) in TABLES.items()
    ]
    assert len(decode(*inserts, *inserts).changes) == 3
    # Two keys of bigint and one of text; the other texts, the integers, the other bigint, the timestamps.
    assert sorted(calls) == ([2] * 9 if cells == 1 else [2, 2, 2, 2, 4, 6])


def test_a_value_that_nobody_can_read_makes_its_own_table_unreadable_alone() -> None:
    good = {
        oid: change(b"I", (b"N", row(*(value(code, 7) for _, _, code in columns))), oid=oid)
        for oid, (_, columns) in TABLES.items()
    }
    bad = change(b"I", (b"N", row(value(20, 1), binary(b"ab\xff"))), oid=1)
    batch = decode(good[1], good[2], bad, good[3], good[1], good[2])
    (signal,) = (s for s in batch.signals if isinstance(s, Unreadable))
    assert str(signal.table) == "public.t1"
    assert {name: len(rows) for name, rows in batches(batch).items()} == {
        "public.t1": 1,
        "public.t2": 2,
        "public.t3": 1,
    }


@pytest.mark.parametrize(("rows", "size"), [(1_001, 1), (5, 60_000)], ids=["rows", "bytes"])
def test_a_table_with_many_rows_or_bytes_has_arrays_of_its_own(
    rows: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []
    decode_together = short_tables.decode_together

    def note(*arguments: object) -> dict[int, pa.RecordBatch]:
        decoded = decode_together(*arguments)  # type: ignore[arg-type]
        numbers.extend(decoded)
        return decoded

    monkeypatch.setattr(short_tables, "decode_together", note)
    small = [
        change(b"I", (b"N", row(value(20, 1), None, None, None)), oid=2),
        change(b"I", (b"N", row(value(25, 1), None, None)), oid=3),
    ]
    long = change(b"I", (b"N", row(value(20, 1), binary(b"x" * size))), oid=1)
    assert len(decode(*small, *([long] * rows)).changes) == 3
    assert len(numbers) == 2
