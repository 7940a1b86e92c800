"""The compiled decoder of row events against the plain one: generated rows of every type, and bytes gone wrong."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog_core.model.events import (
    CREATE,
    DELETE,
    UPDATE,
    LogBatch,
    Transaction,
    Truncated,
    Unreadable,
)
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.row_events import row_decoder
from dblog_core.sources.mysql.row_events.change_batch import BatchBuilder
from dblog_core.sources.mysql.row_events.row_decoder import ColumnFault, EventFault, RowEvents
from dblog_core.sources.mysql.row_events.table_map import TableVersion
from dblog_core.sources.mysql.values import types
from dblog_core.sources.mysql.values.types import ColumnType, Kind
from tests.unit import mysql_reference, mysql_rows

OPS = (CREATE, UPDATE, DELETE)
PLAIN_FAULTS = (ValueError, IndexError, KeyError, struct.error, OverflowError, RecursionError)
"""What the plain decoder raises where bytes make no sense."""


def event(r: random.Random, samples: Sequence[mysql_rows.Sample], op: str, rows: int, nulls: float) -> bytes:
    columns = [sample.column for sample in samples]
    images = rows * (2 if op == UPDATE else 1)
    return b"".join(
        mysql_rows.image(columns, [None if r.random() < nulls else sample.make(r) for sample in samples])
        for _ in range(images)
    )


def take_row_events(version: TableVersion, events: Sequence[tuple[str, bytes]]) -> RowEvents:
    row_events = RowEvents(version)
    for op, rows in events:
        row_events.add(op, memoryview(rows))
    row_events.count()
    return row_events


def image_texts(images: pa.StructArray) -> list[str]:
    """Rows as text, so that NaN equals NaN and -0.0 differs from 0.0; dates as numbers, since Python's end in 9999."""
    images.validate(full=True)
    columns = [_as_numbers(column).to_pylist() for column in images.flatten()]
    return [
        repr(row) if is_valid else "None"
        for is_valid, row in zip(images.is_valid().to_pylist(), zip(*columns, strict=True), strict=True)
    ]


def _as_numbers(column: pa.Array) -> pa.Array:
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def plainly(version: TableVersion, events: Sequence[tuple[str, bytes]]) -> tuple[list[str], list[str]]:
    """The images before and after, by the plain decoder."""
    rows: tuple[list[str], list[str]] = [], []
    for op, data in events:
        for side, arrays in zip(rows, mysql_reference.decode(version.columns, op, data, "null"), strict=True):
            names = [column.name for column in version.schema.columns]
            side += [] if arrays is None else image_texts(pa.StructArray.from_arrays(arrays, names))
    for side, without in zip(rows, (CREATE, DELETE), strict=True):
        present = iter(list(side))
        counts = take_row_events(version, events).counts
        side[:] = [
            "None" if op == without else next(present)
            for (op, _), count in zip(events, counts, strict=True)
            for _ in range(count)
        ]
    return rows


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 20), st.sampled_from((0.0, 0.1, 0.6)))
def test_rows_of_any_types_are_those_of_the_plain_decoder(seed: int, width: int, nulls: float) -> None:
    r = random.Random(seed)
    samples = r.choices(mysql_rows.SAMPLES, k=width)
    version = mysql_rows.version([sample.column for sample in samples], key=())
    ops = r.choice(((CREATE,), (UPDATE,), (DELETE,), OPS))
    events = [(op, event(r, samples, op, r.randrange(4), nulls)) for op in r.choices(ops, k=r.randrange(1, 6))]
    row_events = take_row_events(version, events)
    assert (image_texts(row_events.before("null")), image_texts(row_events.after("null"))) == plainly(version, events)


@pytest.mark.parametrize(
    "sample", mysql_rows.SAMPLES, ids=lambda s: f"{s.column.kind.name}-{s.column.text}-{s.column.prefix}"
)
def test_each_type_alone(sample: mysql_rows.Sample) -> None:
    r = random.Random(sample.column.text)
    version = mysql_rows.version([sample.column], key=())
    events = [(CREATE, event(r, [sample], CREATE, 300, 0.1))]
    assert image_texts(take_row_events(version, events).after("null")) == plainly(version, events)[1]


def image_of(columns: Sequence[ColumnType], values: Sequence[bytes | None], present: Sequence[bool]) -> bytes:
    """An image that holds these columns alone."""
    shown = [pair for pair, is_there in zip(zip(columns, values, strict=True), present, strict=True) if is_there]
    return mysql_rows.image([column for column, _ in shown], [value for _, value in shown])


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 20), st.sampled_from((0.0, 0.1, 0.6)))
def test_images_that_lack_columns_become_whole_with_nulls(seed: int, width: int, nulls: float) -> None:
    r = random.Random(seed)
    samples = r.choices(mysql_rows.SAMPLES, k=width)
    columns = [sample.column for sample in samples]
    version = mysql_rows.version(columns, key=())
    op = r.choice(OPS)
    before, after = ([n == 0 or r.random() < 0.5 for n in range(width)] for _ in range(2))
    partial = whole = b""
    for _ in range(r.randrange(5)):
        for present in [*([before] if op != CREATE else []), *([after] if op != DELETE else [])]:
            values = [None if r.random() < nulls else sample.make(r) for sample in samples]
            partial += image_of(columns, values, present)
            whole += mysql_rows.image(columns, [v if p else None for v, p in zip(values, present, strict=True)])
    masks = (np.array(before), np.array(after))
    assert bytes(row_decoder.complete_images(version, op, memoryview(partial), *masks)) == whole


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_of_wrong_bytes_no_image_becomes_whole_that_leads_out_of_its_event(seed: int, width: int) -> None:
    r = random.Random(seed)
    samples = r.choices(mysql_rows.SAMPLES, k=width)
    version = mysql_rows.version([sample.column for sample in samples], key=())
    op = r.choice(OPS)
    present = [np.array([n == 0 or r.random() < 0.5 for n in range(width)]) for _ in range(2)]
    data = break_bytes(r, event(r, samples, op, 3, 0.1) or b"\0")
    whole = b""
    with suppress(ValueError):
        whole = row_decoder.complete_images(version, op, memoryview(data), *present)
    assert len(whole) <= len(data) * (1 + (width + 7) // 8)


def break_bytes(r: random.Random, data: bytes) -> bytes:
    """The bytes with something wrong: some changed, cut off, left out or put in."""
    at = r.randrange(len(data))
    match r.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[at + r.randrange(1, 9) :]
        case 2:
            return data[:at] + r.randbytes(r.randrange(1, 9)) + data[at:]
        case 3:
            return data[:at] + b"\xff" * 4 + data[at + 4 :]
        case _:
            changed = bytearray(data)
            for _ in range(r.randrange(1, 4)):
                changed[r.randrange(len(data))] = r.choice((0, 0x7F, 0x80, 0xFF, r.randrange(256)))
            return bytes(changed)


def check_wrong_bytes(seed: int) -> None:
    """One stretch with wrong bytes: rows are found if and only if the plain decoder finds them, and as many; and where
    they are decoded at all, each value is the plain decoder's."""
    r = random.Random(seed)
    samples = r.choices(mysql_rows.SAMPLES, k=r.randrange(1, 7))
    version = mysql_rows.version([sample.column for sample in samples], key=())
    op = r.choice(OPS)
    data = break_bytes(r, event(r, samples, op, r.randrange(1, 4), 0.1) or b"\0")
    images = mysql_reference.Images(version.columns)
    try:
        at = 0
        while at < len(data):
            at = images.read(data, at)
        rows = images.rows // (2 if op == UPDATE else 1) if at == len(data) else None
        rows = None if op == UPDATE and images.rows % 2 else rows
    except PLAIN_FAULTS:
        rows = None
    if rows is None:
        with pytest.raises(EventFault):
            take_row_events(version, [(op, data)])
        return
    row_events = take_row_events(version, [(op, data)])
    assert row_events.rows == rows
    try:
        got = image_texts(row_events.before("null")), image_texts(row_events.after("null"))
    except ColumnFault:
        return
    assert got == plainly(version, [(op, data)])


@pytest.mark.parametrize("block", range(8))
def test_wrong_bytes_are_an_error_or_the_plain_decoders_rows(block: int) -> None:
    for seed in range(500 * block, 500 * block + 500):
        check_wrong_bytes(seed)


def test_events_may_come_in_any_kind_of_buffer() -> None:
    version = mysql_rows.version([types.integer(4, False)])
    rows = b"\0\1\0\0\0" + b"\0\2\0\0\0"
    whole = b"before" + rows + b"after"
    builder = BatchBuilder("error")
    transaction = Transaction("x", "b:4", 1)
    for body in (whole, bytearray(whole), memoryview(whole), np.frombuffer(whole, dtype=np.uint8)):
        assert builder.rows_event(version, CREATE, transaction, body, 6, 0, 6 + len(rows)) == 0
    assert builder.rows_event(version, CREATE, transaction, rows, 0, 0) == 0
    reused = np.frombuffer(bytearray(rows), dtype=np.uint8)
    builder.rows_event(version, CREATE, transaction, reused, 0, 0)
    reused[:] = 0xFF  # the bytes were taken when they came
    (table,) = builder.build("p", 0).changes
    assert [row["c0"] for row in table.batch.column("after").to_pylist()] == [1, 2] * 6


INT = types.integer(4, False)


def rows(*numbers: int) -> bytes:
    return b"".join(b"\0" + struct.pack("<i", n) for n in numbers)


def test_sequence_orders_rows_of_tables_and_signals() -> None:
    int_version = mysql_rows.version([INT])
    other = mysql_rows.version([INT])
    first = Transaction("1", "b:4", 1)
    second = Transaction("2", "b:9", 2)
    builder = BatchBuilder("error")
    builder.rows_event(int_version, CREATE, first, rows(1, 2), 0, 0)
    builder.rows_event(other, UPDATE, first, rows(3, 4), 0, 0)
    signal = Truncated(builder.next_sequence, builder.transaction(second), TableName("shop", "t"))
    builder.signal(signal)
    builder.rows_event(int_version, DELETE, second, rows(5), 0, 0)
    batch = builder.build("p", 0)
    entries = [
        (row["sequence"], row["op"], row["transaction"], row["before"], row["after"])
        for table in batch.changes
        for row in table.batch.to_pylist()
    ]
    assert [entry[1:] for entry in sorted(entries)] == [
        ("c", 0, None, {"c0": 1}),
        ("c", 0, None, {"c0": 2}),
        ("u", 0, {"c0": 3}, {"c0": 4}),
        ("d", 1, {"c0": 5}, None),
    ]
    assert sorted(entries)[2][0] < signal.sequence < sorted(entries)[3][0]
    assert len({entry[0] for entry in entries}) == 4


@pytest.mark.parametrize("op", OPS)
def test_rows_that_are_staged_already_are_left_out(op: str) -> None:
    version = mysql_rows.version([INT])
    transaction = Transaction("x", "b:4", 1)
    events = rows(1, 2, 3, 4) if op == UPDATE else rows(1, 2)
    builder = BatchBuilder("error")
    assert builder.rows_event(version, op, transaction, events, 0, 3) == 2
    assert builder.empty and builder.count_rows_of(transaction) == 0
    assert builder.rows_event(version, op, transaction, events, 0, 1) == 1
    assert builder.rows_event(version, op, transaction, events, 0, 0) == 0
    assert builder.count_rows_of(transaction) == 3
    side = "before" if op == DELETE else "after"
    left_values = [row[side]["c0"] for table in builder.build("p", 0).changes for row in table.batch.to_pylist()]
    assert left_values == ([4, 2, 4] if op == UPDATE else [2, 1, 2])


def test_only_the_last_transaction_is_asked_for() -> None:
    version = mysql_rows.version([INT])
    builder = BatchBuilder("error")
    first = Transaction("1", "b:4", 1)
    second = Transaction("2", "b:9", 2)
    builder.rows_event(version, CREATE, first, rows(1, 2), 0, 0)
    builder.rows_event(version, CREATE, second, rows(3), 0, 0)
    builder.rows_event(mysql_rows.version([INT]), CREATE, second, rows(3, 4), 0, 0)
    assert builder.count_rows_of(second) == 3 and builder.count_rows_of(Transaction("3", "b:12", 3)) == 0


def test_a_batch_of_short_rows_is_full_by_their_number() -> None:
    version = mysql_rows.version([types.integer(1, False)])
    builder = BatchBuilder("error")
    transaction = Transaction("x", "b:4", 1)
    while not builder.full:
        builder.rows_event(version, CREATE, transaction, b"\0\1" * 4000, 0, 0)
    batch = builder.build("p", 0)
    assert 40_000 <= len(batch.changes[0].batch) <= 40_000 + 140_000


def test_rows_that_do_not_end_with_their_event_are_told_with_their_transaction() -> None:
    version = mysql_rows.version([INT])
    builder = BatchBuilder("error")
    builder.rows_event(version, CREATE, Transaction("1", "binlog.000001:4", 1), rows(1, 2), 0, 0)
    builder.rows_event(version, CREATE, Transaction("2", "binlog.000001:99", 1), rows(1) + b"\0", 0, 0)
    builder.rows_event(version, CREATE, Transaction("3", "binlog.000001:120", 1), rows(1), 0, 0)
    batch = builder.build("p", 0)
    (signal,) = batch.signals
    assert isinstance(signal, Unreadable) and "do not end where" in signal.why and signal.fix
    assert "shop.t at binlog.000001:99 (transaction 2)" in signal.why
    sequences = batch.changes[0].batch.column("sequence").to_pylist()
    assert [sequence < signal.sequence for sequence in sequences] == [True, True, False], "the event has no row"
    with pytest.raises(ValueError, match="do not end"):
        BatchBuilder("error").rows_event(version, CREATE, Transaction("1", "b:4", 1), rows(1)[:-1], 0, 1)


def test_rows_before_a_value_out_of_range_stay_and_it_is_told_with_its_transaction_and_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_decoder, "_CELLS", 4)  # so that rows are split in parts
    version = mysql_rows.version([INT, ColumnType(Kind.DATE, pa.date32(), "date", width=3)])
    good = b"\0" + bytes(4) + struct.pack("<I", 2024 << 9 | 1 << 5 | 1)[:3]
    zero = b"\0" + bytes(7)
    events = [("1", CREATE, good * 3), ("2", DELETE, good), ("3", CREATE, good * 2 + zero), ("4", CREATE, good)]

    def build_batch(zero_dates: str) -> LogBatch:
        builder = BatchBuilder(zero_dates)
        for number, op, data in events:
            builder.rows_event(version, op, Transaction(number, f"b:{number}", 1), data, 0, 0)
        assert builder.count_rows_of(Transaction("4", "b:4", 1)) == 0
        return builder.build("p", 0)

    def values(batch: LogBatch) -> list[object]:
        return [row["after"] and row["after"]["c1"] for row in batch.changes[0].batch.to_pylist()]

    batch = build_batch("error")
    (signal,) = batch.signals
    assert isinstance(signal, Unreadable) and batch.transactions[signal.transaction].id == "3"
    assert signal.why.startswith("shop.t at b:3 (transaction 3): column c1: a value is a date that does not exist")
    assert "zero_dates" in signal.fix
    assert [value is None for value in values(batch)] == [False] * 3 + [True] + [False] * 2
    assert batch.changes[0].batch.column("sequence").to_pylist()[-1] == signal.sequence - 1
    assert [value is None for value in values(build_batch("null"))] == [False] * 3 + [True] + [False] * 2 + [True] + [
        False
    ]


def test_of_several_columns_with_a_value_out_of_range_the_first_row_counts() -> None:
    day = ColumnType(Kind.DATE, pa.date32(), "date", width=3)
    version = mysql_rows.version([INT, day, day])
    good = struct.pack("<I", 2024 << 9 | 1 << 5 | 1)[:3]
    row = [b"\0" + bytes(4) + first + second for first, second in [(good, good), (good, bytes(3)), (bytes(3), good)]]
    builder = BatchBuilder("error")
    builder.rows_event(version, CREATE, Transaction("1", "b:1", 1), b"".join(row), 0, 0)
    batch = builder.build("p", 0)
    (signal,) = batch.signals
    assert isinstance(signal, Unreadable) and "column c2" in signal.why and signal.sequence == 1
    assert [changes.batch.num_rows for changes in batch.changes] == [1]


def test_a_zero_date_in_a_key_is_never_null() -> None:
    """Rows whose keys differ in it alone would be one row."""
    day = ColumnType(Kind.DATE, pa.date32(), "date", width=3)
    version = mysql_rows.version([INT, day], key=("c0", "c1"))
    builder = BatchBuilder("null")
    builder.rows_event(version, CREATE, Transaction("1", "b:1", 1), b"\0" + bytes(7), 0, 0)
    batch = builder.build("p", 0)
    (signal,) = batch.signals
    assert isinstance(signal, Unreadable) and "a key cannot be NULL" in signal.fix and "zero_dates" not in signal.fix
    assert [changes.batch.num_rows for changes in batch.changes] == [0]
