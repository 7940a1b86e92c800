"""Binary values without a server: numerics against exact arithmetic, and an error for bytes that are no such value."""

from __future__ import annotations

import decimal
import struct
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dblog_core.errors import UnknownLogEvent, ValueOutOfRange
from dblog_core.model.schema import TableName
from dblog_core.sources.postgres.values.binary_values import is_supported, to_arrow
from dblog_core.sources.postgres.values.types import column

TABLE = TableName("public", "t")
DECIMALS = decimal.Context(prec=200_000, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)
SIGNS = {0: "", 0x4000: "-"}
NAMES = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}

VALUES: dict[str, bytes] = {
    "boolean": b"\1",
    "smallint": struct.pack(">h", -2),
    "integer": struct.pack(">i", -2),
    "bigint": struct.pack(">q", -2),
    "real": struct.pack(">f", 1.5),
    "double precision": struct.pack(">d", 1.5),
    "numeric": struct.pack(">hhHHhh", 2, 0, 0x4000, 3, 12, 3400),
    "numeric(12,2)": struct.pack(">hhHHhh", 2, 0, 0, 2, 12, 3400),
    "date": struct.pack(">i", 1),
    "timestamp without time zone": struct.pack(">q", 1),
    "timestamp(3) with time zone": struct.pack(">q", -1),
    "time without time zone": struct.pack(">q", 1),
    "time(0) with time zone": struct.pack(">qi", 1, -3600),
    "text": b"text",
    "character varying(9)": "é".encode(),
    "character(3)": b"a  ",
    "json": b"{}",
    "jsonb": b"\1{}",
    "bytea": b"\0\xff",
    "uuid": uuid.UUID(int=7).bytes,
    "macaddr": bytes(range(6)),
    "macaddr8": bytes(range(8)),
    "oid": struct.pack(">I", 2**32 - 1),
}


def convert_values(kind: str, values: list[bytes | None]) -> pa.Array:
    """As many bytes as the values have lie before and behind them: what is read too far is seen."""
    data = bytearray(b"\x01" * 16)
    starts = []
    lengths = []
    for value in values:
        starts.append(len(data))
        lengths.append(-1 if value is None else len(value))
        data += value or b""
    raw = np.frombuffer(bytes(data) + b"\x01" * 16, dtype=np.uint8)
    return at(kind, raw, starts, lengths)


def at(kind: str, raw: Any, starts: list[int], lengths: list[int]) -> pa.Array:
    array = to_arrow(raw, np.array(starts, np.int64), np.array(lengths, np.int64), column("c", kind), TABLE)
    array.validate(full=True)
    assert array.type == column("c", kind).type
    return array


def numeric(digits: list[int], weight: int, sign: int, scale: int) -> bytes:
    return struct.pack(f">HhHH{len(digits)}H", len(digits), weight, sign, scale, *digits)


def numeric_text(digits: list[int], weight: int, sign: int, scale: int) -> str | None:
    """As the server prints it; None for what is no numeric."""
    if sign in NAMES and not digits:
        return NAMES[sign]
    if sign not in SIGNS or scale > 16_383 or any(digit > 9999 for digit in digits):
        return None
    with decimal.localcontext(DECIMALS):
        parts = (decimal.Decimal(digit).scaleb(4 * (weight - place)) for place, digit in enumerate(digits))
        exact = sum(parts, decimal.Decimal(0))
        cut = exact.quantize(decimal.Decimal((0, (1,), -scale)), rounding=decimal.ROUND_DOWN)
    return SIGNS[sign] + format(cut, "f")


digit_lists = st.lists(st.sampled_from([0, 1, 9, 10, 100, 999, 1000, 9999]) | st.integers(0, 9999), max_size=12)
numerics = st.tuples(
    digit_lists, st.integers(-14, 14), st.sampled_from([0, 0x4000]), st.integers(0, 45) | st.just(16_383)
).filter(lambda n: n[0][0] > 0 if n[0] else n[1] == 0)  # servers send no zeros in front


@given(st.lists(st.none() | numerics, max_size=5))
def test_a_numeric_is_printed_as_the_server_does(values: list[tuple[list[int], int, int, int] | None]) -> None:
    array = convert_values("numeric", [None if value is None else numeric(*value) for value in values])
    assert array.to_pylist() == [None if value is None else numeric_text(*value) for value in values]


@given(numerics, st.integers(1, 38), st.integers(0, 38))
@example(([9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9900], 9, 0, 0), 38, 0)
@example(([99, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999], 9, 0, 0), 38, 0)
@example(([1], 9, 0x4000, 0), 37, 0)
@example(([1], 9, 0x4000, 0), 36, 0)
@example(([9999] * 9 + [9900], -1, 0x4000, 38), 38, 38)
@example(([], 0, 0, 2), 2, 2)
@example(([1, 1], 0, 0, 4), 10, 2)
@example(([1, 1], 0, 0, 4), 10, 4)
@example(([1, 1, 1], 0, 0, 8), 10, 4)
def test_a_decimal_is_exact_or_refused(value: tuple[list[int], int, int, int], precision: int, scale: int) -> None:
    digits, weight, sign, _ = value
    scale = min(scale, precision)
    text = numeric_text(digits, weight, sign, 200)
    assert text is not None
    with decimal.localcontext(DECIMALS):
        exact = decimal.Decimal(text)
        shifted = exact.scaleb(scale)
        fits = shifted == shifted.to_integral_value() and abs(shifted) < decimal.Decimal(1).scaleb(precision)
    kind = f"numeric({precision},{scale})"
    if fits:
        assert convert_values(kind, [numeric(*value), None])[0].as_py() == exact
    else:
        with pytest.raises(ValueOutOfRange, match=r"public\.t\.c"):
            convert_values(kind, [numeric([], 0, 0, scale), None, numeric(*value)])


@pytest.mark.parametrize("name", NAMES.values())
def test_what_is_no_number_is_a_text_and_no_decimal(name: str) -> None:
    sign = next(sign for sign, printed in NAMES.items() if printed == name)
    number_one = numeric([1], 0, 0, 0)
    assert convert_values("numeric", [number_one, numeric([], 0, sign, 32), None, number_one]).to_pylist() == [
        "1",
        name,
        None,
        "1",
    ]
    with pytest.raises(ValueOutOfRange, match=f"'{name}'"):
        convert_values("numeric(5,2)", [number_one, numeric([], 0, sign, 0)])


@given(
    st.lists(st.integers(0, 65_535), max_size=3),
    st.integers(-32_768, 32_767),
    st.sampled_from([0, 0x4000, *NAMES, 0x8000, 1]),
    st.integers(0, 65_535),
    st.integers(-3, 3),
)
def test_bytes_that_are_no_numeric_are_refused(
    digits: list[int], weight: int, sign: int, scale: int, more: int
) -> None:
    value = numeric(digits, weight, sign, scale)
    value = value[:more] if more < 0 else value + bytes(more)
    wrong = more != 0 or numeric_text(digits, 0, sign, scale) is None
    if wrong:
        for kind in ("numeric", "numeric(38,10)"):
            if kind == "numeric(38,10)" and more == 0 and sign in SIGNS and all(digit <= 9999 for digit in digits):
                continue  # its scale alone is too large, which a decimal does not ask for
            with pytest.raises((UnknownLogEvent, ValueOutOfRange), match=r"public\.t\.c"):
                convert_values(kind, [value])


@given(st.sampled_from(sorted(VALUES)), st.data())
def test_altered_bytes_give_a_valid_array_or_a_clear_error(kind: str, data: st.DataObject) -> None:
    value = bytearray(VALUES[kind])
    for _ in range(data.draw(st.integers(0, 3))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    value = value[: data.draw(st.integers(0, len(value)))] + data.draw(st.binary(max_size=3))
    try:
        array = convert_values(kind, [VALUES[kind], bytes(value), None])
    except (UnknownLogEvent, ValueOutOfRange):
        return
    assert array.null_count == 1
    assert array[0].as_py() == convert_values(kind, [VALUES[kind]])[0].as_py()
    fixed = len(VALUES[kind]) if kind not in {"text", "json", "jsonb", "bytea"} and "(" not in kind else None
    assert fixed is None or kind == "numeric" or len(value) == fixed


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("wrong", [(-1, 0), (0, 1), (10**9, 0), (2**63 - 1, 0), (-(2**63), 0), (0, 10**9)])
def test_places_that_lie_are_refused(kind: str, wrong: tuple[int, int]) -> None:
    raw = np.frombuffer(VALUES[kind], dtype=np.uint8)
    start, more = wrong
    with pytest.raises(UnknownLogEvent):
        at(kind, raw, [0, start], [len(raw), len(raw) + more])


@pytest.mark.parametrize("kind", VALUES)
def test_nulls_take_no_value(kind: str) -> None:
    assert convert_values(kind, [None, VALUES[kind], None]).is_null().to_pylist() == [True, False, True]
    assert convert_values(kind, [None]).to_pylist() == [None]
    assert len(convert_values(kind, [])) == 0


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("date", struct.pack(">i", 2**31 - 1), "infinity"),
        ("date", struct.pack(">i", -(2**31)), "-infinity"),
        ("date", struct.pack(">i", -730_120), "0001-12-31 BC"),
        ("date", struct.pack(">i", 2_921_940), "10000-01-01"),
        ("timestamp without time zone", struct.pack(">q", 2**63 - 1), "infinity"),
        ("timestamp with time zone", struct.pack(">q", -(2**63)), "-infinity"),
        ("timestamp with time zone", struct.pack(">q", -730_120 * 86_400_000_000 + 500_000), "0001-12-31 00:00:00.5"),
    ],
)
def test_a_moment_outside_of_the_lake_is_refused_as_the_server_prints_it(kind: str, value: bytes, text: str) -> None:
    with pytest.raises(ValueOutOfRange, match=text):
        convert_values(kind, [None, value])


@pytest.mark.parametrize("kind", ["text", "jsonb"])
def test_text_that_is_not_utf8_is_refused(kind: str) -> None:
    head = b"\1" if kind == "jsonb" else b""
    with pytest.raises(ValueOutOfRange, match="encoding"):
        convert_values(kind, [head + b"good", None, head + b"bad\xff"])


@pytest.mark.parametrize(
    "kind",
    ["integer[]", "interval", "public.mood", "inet", "cidr", "money", "bit(3)", '"char"', "regclass", "point",
     "int4range", "character varying(3)[]", "public.text", "xid", "???"],
)  # fmt: skip
def test_a_type_of_another_form_is_not_supported(kind: str) -> None:
    assert not is_supported(kind)
