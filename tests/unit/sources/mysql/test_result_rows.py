"""Text result sets: the compiled reader beside one that makes an object of every value, over any cut of the bytes."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dblog_core.errors import SourceUnavailable
from dblog_core.interfaces import VALUE_BYTES
from dblog_core.model.schema import Column
from dblog_core.rows import arrow_buffers
from dblog_core.sources.mysql.sql import result_numbers, result_values
from dblog_core.sources.mysql.sql.result_rows import Rows, TextRows, TooLarge
from dblog_core.sources.mysql.values.binary_values import ValueFault

LARGEST = 0xFFFFFF
END = b"\xfe\x00\x00\x02\x00"
FAULT = b"\xff\x15\x04#28000gone"
Row = Sequence[bytes | None]

# The server's side ----------------------------------------------------------------------------------------------------


def length_encoded(value: bytes | None) -> bytes:
    if value is None:
        return b"\xfb"
    for limit, mark, width in ((251, b"", 1), (1 << 16, b"\xfc", 2), (1 << 24, b"\xfd", 3), (1 << 64, b"\xfe", 8)):
        if len(value) < limit:
            return mark + len(value).to_bytes(width, "little") + value
    raise AssertionError("longer than any")


def pack_packets(payload: bytes, sequence: int) -> tuple[bytes, int]:
    """The packets of a payload, and the number after them."""
    packets = []
    for at in range(0, len(payload) + 1, LARGEST):
        piece = payload[at : at + LARGEST]
        packets.append(len(piece).to_bytes(3, "little") + bytes([sequence & 255]) + piece)
        sequence += 1
    return b"".join(packets), sequence


def result(rows: Sequence[Row], *, end: bytes = END, sequence: int = 1) -> bytes:
    parts = []
    for payload in (*(b"".join(map(length_encoded, row)) for row in rows), end):
        packets, sequence = pack_packets(payload, sequence)
        parts.append(packets)
    return b"".join(parts)


def sender(data: bytes, size: int) -> Callable[[memoryview], int]:
    """Gives at most `size` bytes at a time, and then the end of the connection."""
    left = memoryview(data)

    def receive(buffer: memoryview) -> int:
        nonlocal left
        count = min(size, len(buffer), len(left))
        buffer[:count] = left[:count]
        left = left[count:]
        return count

    return receive


# The reference --------------------------------------------------------------------------------------------------------


def reference(data: bytes, width: int, sequence: int = 1) -> list[list[bytes | None]] | bytes:
    """Rows with a Python object for every value; the payload of an error packet."""
    rows: list[list[bytes | None]] = []
    at = 0
    payload = b""
    while True:
        length = int.from_bytes(data[at : at + 3], "little")
        assert data[at + 3] == sequence & 255
        payload += data[at + 4 : at + 4 + length]
        at = at + 4 + length
        sequence += 1
        if length == LARGEST:
            continue
        if payload[0] == 0xFF:
            return payload
        if payload[0] == 0xFE and len(payload) < 9:
            return rows
        rows.append(values_of(payload, width))
        payload = b""


def values_of(payload: bytes, width: int) -> list[bytes | None]:
    read_values: list[bytes | None] = []
    at = 0
    for _ in range(width):
        size = payload[at]
        at += 1
        if size == 251:
            read_values.append(None)
            continue
        if size > 251:
            digits = (2, 3, 8)[size - 252]
            size = int.from_bytes(payload[at : at + digits], "little")
            at += digits
        read_values.append(payload[at : at + size])
        at += size
    assert at == len(payload)
    return read_values


def read(
    data: bytes, width: int, *, size: int = 1 << 16, ahead: int = 0, expected: int | None = None, sequence: int = 1
) -> list[list[bytes | None]] | bytes:
    """As the reference, by the compiled reader."""
    parsed = TextRows().read(
        sender(data[ahead:], size), width, sequence=sequence, ahead=data[:ahead], expected=expected
    )
    return parsed if isinstance(parsed, bytes) else objects(parsed)


def objects(rows: Rows) -> list[list[bytes | None]]:
    columns = [
        arrow_buffers.gather(rows.raw, starts, lengths).to_pylist()
        for starts, lengths in zip(rows.starts, rows.lengths, strict=True)
    ]
    return [list(row) for row in zip(*columns, strict=True)]


VALUES = st.none() | st.binary(max_size=8) | st.integers(245, 260).map(bytes) | st.just(b"\xfe" * 300)
RESULTS = st.integers(1, 5).flatmap(
    lambda width: st.tuples(st.just(width), st.lists(st.lists(VALUES, min_size=width, max_size=width), max_size=40))
)


@given(RESULTS, st.integers(1, 900), st.integers(0, 200), st.integers(1, 50), st.integers(0, 300), st.booleans())
def test_rows_come_as_they_were_sent_however_the_bytes_arrive(
    width_and_rows: tuple[int, list[Row]], size: int, ahead: int, expected: int, sequence: int, faulty: bool
) -> None:
    width, rows = width_and_rows
    data = result(rows, end=FAULT if faulty else END, sequence=sequence)
    expected_rows = reference(data, width, sequence)
    assert expected_rows == (FAULT if faulty else [list(row) for row in rows])
    assert read(data, width, size=size, ahead=ahead, expected=expected, sequence=sequence) == expected_rows


@pytest.mark.parametrize("length", [65_535, 65_536, LARGEST - 6, LARGEST - 5, LARGEST - 4, LARGEST, 2 * LARGEST + 77])
def test_a_packet_of_16_mib_goes_on_in_the_next(length: int) -> None:
    """Also where a piece has just that length, so that an empty one comes behind it."""
    rows: list[Row] = [(b"before", b"x"), (bytes(range(256)) * (length // 256 + 1), None), (b"behind", b"y")]
    rows[1] = (rows[1][0][:length], None)  # type: ignore[index]
    data = result(rows)
    for size in (4 << 20, 1_000_003):
        assert read(data, 2, size=size) == [list(row) for row in rows]


def test_values_that_begin_like_an_end_or_an_error_are_values() -> None:
    long = b"z" * (1 << 24)  # its length begins with the byte that also begins the end
    rows: list[Row] = [(long, b"\xff"), (b"\xfe", None), (None, b"")]
    assert read(result(rows), 2, size=1 << 22) == [list(row) for row in rows]


def test_one_reader_reads_result_after_result() -> None:
    reader = TextRows()
    for number in (3, 2000, 1):
        rows: list[Row] = [(b"%d" % n, b"v" * n) for n in range(number)]
        chunk = reader.read(sender(result(rows), 10_000), 2, sequence=1)
        assert isinstance(chunk, Rows)
        assert objects(chunk) == [list(row) for row in rows]


@pytest.mark.parametrize("size", [1_000, 1 << 20])
def test_rows_that_count_for_more_than_they_may_are_given_up_however_few_bytes_they_have(size: int) -> None:
    """NULLs are a byte each, and take a place each: these fill the memory long before their bytes do."""
    width = 500
    row_bytes = 4 + width * (1 + VALUE_BYTES)  # with the packet's header
    rows: list[Row] = [(None,) * width] * 1_000
    fitting = TextRows().read(sender(result(rows), size), width, sequence=1, most=1_000 * row_bytes)
    assert isinstance(fitting, Rows)
    assert fitting.counted_bytes == 1_000 * row_bytes + len(END) + 4
    with pytest.raises(TooLarge) as large:
        TextRows().read(sender(result(rows), size), width, sequence=1, most=200 * row_bytes)
    assert 190 <= large.value.rows <= 200


def test_a_row_that_does_not_fit_leaves_those_before_it() -> None:
    rows: list[Row] = [(b"x" * 1_000,)] * 50 + [(b"y" * 2_000_000,)]
    with pytest.raises(TooLarge) as large:
        TextRows().read(sender(result(rows), 10_000), 1, sequence=1, most=100_000)
    assert large.value.rows == 50


def test_a_result_that_is_too_large_is_not_received_to_its_end() -> None:
    data = result([(b"x" * 1_000,)] * 5_000)
    calls = list[int]()
    receive = sender(data, 10_000)

    def counted(buffer: memoryview) -> int:
        calls.append(receive(buffer))
        return calls[-1]

    with pytest.raises(TooLarge):
        TextRows().read(counted, 1, sequence=1, most=100_000)
    assert sum(calls) < 250_000 < len(data)


@given(RESULTS, st.data())
def test_bytes_that_are_cut_end_in_an_error(width_and_rows: tuple[int, list[Row]], data: st.DataObject) -> None:
    width, rows = width_and_rows
    whole = result(rows)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(SourceUnavailable):
        read(whole[:cut], width)


@given(RESULTS, st.data())
def test_bytes_that_are_changed_end_in_an_error_or_in_what_they_say(
    width_and_rows: tuple[int, list[Row]], data: st.DataObject
) -> None:
    """Nothing outside of the bytes is ever read: what is returned is what the reference makes of them."""
    width, rows = width_and_rows
    changed = bytearray(result(rows))
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        chunk = read(bytes(changed), width)
    except SourceUnavailable:
        return
    assert chunk == reference(bytes(changed), width)


def test_a_length_beyond_all_bytes_is_out_of_step() -> None:
    for size in (b"\xfe" + b"\xff" * 8, b"\xfe" + (2**63 - 1).to_bytes(8, "little"), b"\xfd\xff\xff\xff", b"\xff", b""):
        data, _ = pack_packets(b"\x01a" + size, 1)
        with pytest.raises(SourceUnavailable, match="out of step"):
            read(data + result([]), 2)


# Values ---------------------------------------------------------------------------------------------------------------


def both(kind: pa.DataType, source_type: str, texts: Sequence[bytes | None], zero_dates: str = "error") -> pa.Array:
    """The column by the compiled way and by Arrow's casts alone; a fault is the same for both."""
    column = Column("c", source_type, kind)
    rows = TextRows().read(sender(result([(text,) for text in texts]), 1 << 16), 1, sequence=1)
    assert isinstance(rows, Rows)
    slow = fast = None
    slow_fault = fast_fault = None
    try:
        slow = result_values.to_arrow(column, pa.array(texts, pa.binary()), zero_dates=zero_dates)
    except (ValueFault, pa.ArrowInvalid) as fault:
        slow_fault = (getattr(fault, "row", None), str(fault))
    try:
        fast = result_values.read(column, rows.raw, rows.starts[0], rows.lengths[0], zero_dates=zero_dates)
    except (ValueFault, pa.ArrowInvalid) as fault:
        fast_fault = (getattr(fault, "row", None), str(fault))
    assert fast_fault == slow_fault
    if slow is not None:
        assert fast is not None
        fast.validate(full=True)
        assert fast.type == kind and fast.equals(slow)
    return fast


def quick(kind: pa.DataType, texts: Sequence[bytes | None]) -> bool:
    """Whether the compiled way alone reads them."""
    lengths = np.array([-1 if text is None else len(text) for text in texts], dtype=np.int64)
    starts = np.cumsum(lengths.clip(0)) - lengths.clip(0)
    raw = np.frombuffer(b"".join(text or b"" for text in texts) or b" ", dtype=np.uint8)
    return result_numbers.to_arrow(kind, raw, starts, lengths) is not None


def optional(strategy: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes | None]]:
    return st.lists(st.none() | strategy, max_size=30)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@given(data=st.data())
def test_integers(bits: int, data: st.DataObject) -> None:
    kind = pa.int64() if bits == 64 else pa.type_for_alias(f"int{bits}")
    least = -(2 ** (bits - 1))
    most = 2 ** (bits - 1)
    numbers = st.integers(least, most - 1) | st.sampled_from([least, most - 1, 0, -1])
    texts = data.draw(optional(st.tuples(numbers, st.integers(0, 25)).map(lambda n: f"{n[0]:0{n[1]}d}".encode())))
    parsed = both(kind, "int", texts)
    assert parsed.to_pylist() == [None if text is None else int(text) for text in texts]
    both(kind, "int", [*texts, str(most).encode()])


def test_integers_are_read_the_compiled_way_up_to_their_ends() -> None:
    assert quick(
        pa.int64(), [b"9223372036854775807", b"-9223372036854775807", b"00000000000000000000000000000001", None]
    )
    assert quick(pa.int8(), [b"127", b"-128"])
    for text in (b"", b"-", b"1.5", b" 1", b"9223372036854775808", b"+1", b"1e3", b"--1"):
        assert not quick(pa.int64(), [text])
    assert not quick(pa.int8(), [b"128"])


@given(st.integers(1, 38), st.data())
def test_decimals(precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, min(precision, 30)))
    numbers = st.integers(-(10**precision) + 1, 10**precision - 1) | st.integers(-99, 99).filter(
        lambda n: abs(n) < 10**precision
    )
    drawn = data.draw(st.lists(st.none() | numbers, max_size=20))
    exact = [None if n is None else decimal.Decimal(n).scaleb(-scale, decimal.Context(prec=60)) for n in drawn]
    texts = [None if value is None else format(value, "f").encode() for value in exact]
    parsed = both(pa.decimal128(precision, scale), f"decimal({precision},{scale})", texts)
    assert parsed.to_pylist() == exact
    assert quick(pa.decimal128(precision, scale), texts)


@pytest.mark.parametrize("text", [b"1", b"1.2", b"1.234", b"12345.67", b".12", b"1,23", b"1.2x", b"", b"-", b"-.12"])
def test_decimals_of_another_form_are_left_to_the_slow_way(text: bytes) -> None:
    assert not quick(pa.decimal128(6, 2), [b"1234.56", text])
    assert quick(pa.decimal128(6, 2), [b"1234.56", b"0000001.00", b"-0.00"])


MOMENTS = st.datetimes(dt.datetime.fromisoformat("0001-01-01"), dt.datetime.fromisoformat("9999-12-31T23:59:59.999999"))
EXTREMES = ["0001-01-01", "9999-12-31T23:59:59.999999", "2000-02-29", "1969-12-31T23:59:59.999999", "1970-01-01"]


@given(st.lists(st.none() | MOMENTS, max_size=20), st.integers(0, 6), st.booleans())
@example([dt.datetime.fromisoformat(text) for text in EXTREMES], 6, False)
def test_times(moments: list[dt.datetime | None], digits: int, zoned: bool) -> None:
    texts = [
        None if m is None else m.isoformat(" ", "microseconds")[: 19 + (digits and digits + 1)].encode()
        for m in moments
    ]
    kind = pa.timestamp("us", tz="UTC") if zoned else pa.timestamp("us")
    both(kind, "timestamp", texts)
    both(pa.date32(), "date", [text and text[:10] for text in texts])
    assert quick(kind, texts)


DATES = st.tuples(st.sampled_from((0, 1, 1900, 2000, 2023, 2024, 9999)), st.integers(0, 13), st.integers(0, 32)).map(
    lambda parts: b"%04d-%02d-%02d" % parts
)


@pytest.mark.parametrize("zero_dates", ["error", "null"])
@given(texts=optional(DATES), times=st.sampled_from([b"", b" 00:00:00", b" 23:59:59.999999"]))
def test_dates_that_do_not_exist_are_judged_alike(zero_dates: str, texts: list[bytes | None], times: bytes) -> None:
    kind = pa.timestamp("us") if times else pa.date32()
    both(kind, "datetime", [None if text is None else text + times for text in texts], zero_dates)


@pytest.mark.parametrize(
    "text",
    [b"2024-01-01 24:00:00", b"2024-01-01 00:60:00", b"2024-01-01T00:00:00", b"2024-01-01 00:00:00.", b"2024-1-1"],
)
def test_times_of_another_form_are_left_to_the_slow_way(text: bytes) -> None:
    assert not quick(pa.timestamp("us"), [b"2024-01-01 00:00:00", text])


@given(optional(st.text().map(str.encode) | st.binary(max_size=6)))
def test_text_is_checked_and_binary_is_not(texts: list[bytes | None]) -> None:
    both(pa.string(), "text", texts)
    assert both(pa.binary(), "blob", texts).to_pylist() == texts


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=20))
def test_doubles_are_exact(numbers: list[float | None]) -> None:
    texts = [None if number is None else repr(number).encode() for number in numbers]
    assert both(pa.float64(), "double", texts).to_pylist() == numbers


def test_a_long_decimal_loses_the_zeros_in_front() -> None:
    assert both(pa.string(), "decimal(65,2)", [b"0001.50", b"0.00", b"-0.10", None]).to_pylist() == [
        "1.50", "0.00", "-0.10", None,
    ]  # fmt: skip
