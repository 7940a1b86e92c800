"""The log's value forms, on hand-made bytes."""

from __future__ import annotations

import datetime as dt
import decimal
import ipaddress
import struct

import numpy as np
import pyarrow as pa
import pytest

from dblog_core.sources.mysql.values import decimals, json_text, types
from dblog_core.sources.mysql.values.binary_values import ValueFault, Values, to_arrow
from dblog_core.sources.mysql.values.types import ColumnType, Kind
from tests.unit import mysql_json, mysql_reference


def values(column: ColumnType, *raw: bytes | None, zero_dates: str = "error") -> list[object]:
    lengths = np.array([-1 if value is None else len(value) for value in raw], dtype=np.int64)
    starts = np.cumsum(np.maximum(lengths, 0)) - np.maximum(lengths, 0)
    starts[lengths < 0] = -1
    joined = np.frombuffer(b"".join(value or b"" for value in raw), dtype=np.uint8)
    array = to_arrow(column, Values(joined, starts, lengths, lengths >= 0), zero_dates=zero_dates)
    array.validate(full=True)
    python_values: list[object] = array.to_pylist()
    return python_values


def test_integers_of_every_width_and_sign() -> None:
    assert values(types.integer(1, False), b"\x80", None) == [-128, None]
    assert values(types.integer(1, True), b"\xff") == [255]
    assert values(types.integer(3, False), b"\x00\x00\x80", b"\xff\xff\xff", b"\xff\xff\x7f") == [-8388608, -1, 8388607]
    assert values(types.integer(3, True), b"\xff\xff\xff") == [16777215]
    assert values(types.integer(8, True), b"\xff" * 8, None) == [decimal.Decimal(2**64 - 1), None]


def test_packed_decimals() -> None:
    packed = bytes.fromhex("810dfb38d204d2")  # 1234567890.1234 in DECIMAL(14,4), from the server's manual
    assert decimals.to_text(packed, precision=14, scale=4) == "1234567890.1234"
    negative = bytes(b ^ 0xFF for b in packed)
    assert values(types.decimal(14, 4), packed, negative, None) == [
        decimal.Decimal("1234567890.1234"),
        decimal.Decimal("-1234567890.1234"),
        None,
    ]


@pytest.mark.parametrize(
    ("number", "scale", "text"), [(0, 3, "0.000"), (-5, 3, "-0.005"), (12, 0, "12"), (-1234, 2, "-12.34")]
)
def test_decimal_text_keeps_every_digit(number: int, scale: int, text: str) -> None:
    assert decimals.text(number, scale) == text


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("::", "::"),
        ("::1", "::1"),
        ("::5c:27", "::0.92.0.39"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
        ("::fffe:10.0.0.1", "::fffe:a00:1"),
        ("1:0:2:0:0:3:0:0", "1:0:2::3:0:0"),
        ("1:0:2:3:4:5:6:7", "1::2:3:4:5:6:7"),
        ("0:1:2:3:4:5:6:7", "::1:2:3:4:5:6:7"),
        ("1:2:3:4:5:6:7:0", "1:2:3:4:5:6:7::"),
        ("fe80::abcd:ef01:203:4050", "fe80::abcd:ef01:203:4050"),
        ("0:0:0:0:0:0:1:0", "::0.1.0.0"),
    ],
)
def test_inet6_is_printed_as_mariadb_prints_it(address: str, text: str) -> None:
    """By SELECT CAST('…' AS INET6) on 10.11; the log leaves zero bytes at the end out."""
    column = ColumnType(Kind.INET6, pa.string(), "inet6", prefix=1, width=16)
    packed = ipaddress.IPv6Address(address).packed
    assert values(column, packed, packed.rstrip(b"\0"), None) == [text, text, None]
    with pytest.raises(ValueFault, match="longer than its column"):
        values(column, bytes(17))


def test_a_set_has_64_labels_at_most_whatever_its_definition_says() -> None:
    labels = (*(f"l{n}" for n in range(1, 65)), "l1")
    column = ColumnType(Kind.SET, pa.string(), "set", width=8, labels=labels)
    assert values(column, b"\0" * 7 + b"\x80", b"\1" + bytes(7)) == ["l64", "l1"]
    assert values(column, b"\xff" * 8) == [",".join(labels[:64])]


DATE = ColumnType(Kind.DATE, pa.date32(), "date", width=3)


def packed_date(year: int, month: int, day: int) -> bytes:
    return (year << 9 | month << 5 | day).to_bytes(3, "little")


def test_dates() -> None:
    assert values(DATE, packed_date(2024, 2, 29), packed_date(1, 1, 1), packed_date(9999, 12, 31), None) == [
        dt.date(2024, 2, 29),
        dt.date(1, 1, 1),
        dt.date(9999, 12, 31),
        None,
    ]


@pytest.mark.parametrize("parts", [(0, 0, 0), (2024, 0, 5), (2024, 5, 0), (2023, 2, 29), (2024, 4, 31)])
def test_dates_that_do_not_exist_are_faults_or_null(parts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueFault) as raised:
        values(DATE, packed_date(2024, 1, 1), packed_date(*parts))
    assert raised.value.row == 1
    assert values(DATE, packed_date(*parts), zero_dates="null") == [None]


@pytest.mark.parametrize(
    ("raw", "fsp", "text"),
    [
        ("800000", 0, "00:00:00"),
        ("80c8b8", 0, "12:34:56"),
        ("b46efb", 0, "838:59:59"),
        ("4b9105", 0, "-838:59:59"),
        ("7ffffff6", 1, "-00:00:00.1"),
        ("7fffffffffff", 6, "-00:00:00.000001"),
        ("800000000001", 6, "00:00:00.000001"),
    ],
)
def test_times_print_as_the_server_prints_them(raw: str, fsp: int, text: str) -> None:
    assert mysql_reference.time_text(bytes.fromhex(raw), fsp) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.1, "0.1"),
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (1e15, "1e15"),
        (1e14, "100000000000000.0"),
        (1e100, "1e100"),
        (1.5e-7, "0.00000015"),
    ],
)
def test_json_doubles(number: float, text: str) -> None:
    assert json_text.double(number) == text


def test_json_document() -> None:
    # {"a": [1, "x\n"]}: an object of one key, its value an array of an inline number and a string.
    array = struct.pack("<HH", 2, 13) + b"\x05" + struct.pack("<h", 1) + b"\x0c" + struct.pack("<H", 10) + b"\x02x\n"
    head = struct.pack("<HH", 1, 12 + len(array)) + struct.pack("<HH", 11, 1) + b"\x02" + struct.pack("<H", 12) + b"a"
    assert mysql_json.to_text(b"\x00" + head + array) == '{"a": [1, "x\\n"]}'
    assert mysql_json.to_text(b"") == "null" and mysql_json.to_text(b"\x04\x01") == "true"


def test_json_strings_escape_as_the_server_does() -> None:
    assert json_text.quote('"\\/\b\f\n\r\t\x01\x7fé😀') == '"\\"\\\\/\\b\\f\\n\\r\\t\\u0001\x7fé😀"'


def test_a_year_is_counted_from_1900_and_zero_stays_zero() -> None:
    column = ColumnType(Kind.YEAR, pa.int16(), "year", width=1)
    assert values(column, b"\x01", b"\x7e", b"\xff", b"\x00", None) == [1901, 2026, 2155, 0, None]
