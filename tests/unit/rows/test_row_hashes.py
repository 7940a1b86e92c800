"""The definition of row hashes: canonical texts that no two different rows share, and floats that lose nothing."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dblog_core.config.source import ColumnRules
from dblog_core.errors import ValueOutOfRange
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows.column_rules import Rules, mask_of
from dblog_core.rows.row_hashes import HASH, LONGEST, UNIT, check_hashed, float_field
from tests.fake_source import ORDERS, FakeDatabase, FakeReader
from tests.plain_hashes import row_hash, row_text

TABLE = TableName("shop", "t")


def schema(*columns: tuple[str, pa.DataType]) -> TableSchema:
    listed = tuple(Column(f"c{n}", source, kind) for n, (source, kind) in enumerate(columns))
    return TableSchema(TABLE, listed, ("c0",))


def text(kind: pa.DataType, value: Any, source: str = "") -> str:
    return row_text(schema((source, kind)), {"c0": value})


@pytest.mark.parametrize(
    ("kind", "value", "canonical"),
    [
        (pa.bool_(), True, "t"),
        (pa.bool_(), False, "f"),
        (pa.int64(), -(2**63), "-9223372036854775808"),
        (pa.decimal128(20, 0), Decimal(2**64 - 1), "18446744073709551615"),
        (pa.decimal128(38, 38), Decimal("0E-38"), "0." + "0" * 38),
        (pa.decimal128(10, 2), Decimal("-1.50"), "-1.50"),
        (pa.float64(), 1.5, "1 2305843009213693952"),
        (pa.float64(), -0.0, "0 0"),
        (pa.float64(), 2.0**80, "256 0 1"),
        (pa.float64(), math.nan, "NaN"),
        (pa.float64(), -math.inf, "-Infinity"),
        (pa.string(), "é,", "3,é,"),
        (pa.binary(), b"\x00\xff", "2,00ff"),
        (pa.date32(), dt.date(1, 1, 1), "0001-01-01"),
        (pa.timestamp("us"), dt.datetime.fromisoformat("0001-02-03"), "0001-02-03 00:00:00"),
        (pa.timestamp("us"), dt.datetime.fromisoformat("2024-01-01 00:00:10.000120"), "2024-01-01 00:00:10.00012"),
        (pa.timestamp("us", tz="UTC"), dt.datetime(2024, 1, 1, 10, tzinfo=dt.UTC), "2024-01-01 10:00:00"),
    ],
)
def test_each_type_has_one_canonical_text(kind: pa.DataType, value: Any, canonical: str) -> None:
    """Written down: certificates of earlier versions hold hashes of these texts."""
    assert text(kind, value) == canonical


def test_the_hash_is_the_beginning_of_the_sha256_with_a_sign() -> None:
    digests = {n: hashlib.sha256(str(n).encode()).hexdigest()[:16] for n in range(20)}
    assert {n: row_hash(schema(("", pa.int64())), {"c0": n}) % 2**64 for n in digests} == {
        n: int(digest, 16) for n, digest in digests.items()
    }
    assert min(row_hash(schema(("", pa.int64())), {"c0": n}) for n in digests) < 0


def test_what_is_longer_than_fits_stands_there_as_its_digest() -> None:
    assert text(pa.string(), "x" * LONGEST) == f"{LONGEST},{'x' * LONGEST}"
    digest = hashlib.sha256(b"x" * (LONGEST + 1)).hexdigest()
    assert (
        text(pa.string(), "x" * (LONGEST + 1)) == text(pa.binary(), b"x" * (LONGEST + 1)) == f"{LONGEST + 1},{digest}"
    )
    assert text(pa.string(), "é" * LONGEST).startswith(f"{2 * LONGEST},")


def test_json_is_its_digest() -> None:
    assert text(pa.string(), "{}", "json") == hashlib.sha256(b"{}").hexdigest()
    assert text(pa.string(), None, "json") == ""
    assert text(pa.string(), "{}", "jsonb") == "2,{}"


MIXED = schema(("", pa.string()), ("", pa.binary()), ("", pa.int64()), ("", pa.string()), ("json", pa.string()))
texts = st.none() | st.text("0123456789,:-ab", max_size=6)
rows = st.tuples(texts, st.none() | st.binary(max_size=2), st.none() | st.integers(-20, 20), texts, texts)


@given(rows, rows)
@example(("", None, None, None, None), (None, None, None, None, None))
@example(("a", None, None, "b", None), ("a,,,1,b", None, None, None, None))
@example(("1,a", b"", 1, "", None), ("1", b"a", 1, "", None))
@example((None, None, None, None, ""), (None, None, None, None, None))
def test_no_two_rows_share_a_text(left: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    row_texts = [row_text(MIXED, {f"c{n}": value for n, value in enumerate(row)}) for row in (left, other)]
    assert (row_texts[0] == row_texts[1]) == (left == other)


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(finite | st.integers(-1074, 1023).map(lambda n: math.nextafter(2.0**n, 0)))
@example(5e-324)
@example(1.7976931348623157e308)
@example(2.0**-10)
@example(math.nextafter(2.0**-10, 0))
@example(math.nextafter(2.0**62, 0))
@example(-(2.0**62))
def test_a_float_is_read_back_from_its_field_exactly(value: float) -> None:
    whole, fraction, *window = map(int, float_field(value).split(" "))
    assert max(abs(whole), abs(fraction)) < UNIT
    read = (whole + Fraction(fraction, int(UNIT))) * Fraction(2) ** (72 * sum(window))
    assert read == Fraction(value)


@pytest.mark.parametrize("source_type", ["float", "double(10,2)", "double unsigned", "real", "double precision"])
def test_a_float_under_the_rule_hash_is_only_told_from_null(source_type: str) -> None:
    number = Column("x", source_type, pa.float64())
    note = Column("n", "text", pa.string())
    plain = TableSchema(TABLE, (Column("id", "int", pa.int32()), number, note), ("id",))
    staged = Rules({str(TABLE): ColumnRules(hash=("x", "n"))}).schema(plain)
    assert row_text(staged, {"id": 1, "x": "ab", "n": "cd"}) == "1,t,2,cd"
    assert row_text(staged, {"id": 1, "x": None, "n": "cd"}) == "1,,2,cd"
    assert row_text(plain, {"id": 1, "x": 1.0, "n": "cd"}) == "1,1 0,2,cd"


def test_decimals_of_few_digits_are_masked_as_well() -> None:
    assert mask_of(pa.decimal128(5, 2)).as_py() == Decimal("0.00")


def test_the_fake_source_hashes_rows_as_they_are_staged() -> None:
    database = FakeDatabase(rules={str(ORDERS.table): ColumnRules(mask=("name",), exclude=("big",))})
    database.commit(*(database.put({"id": n, "name": f"n{n}", "big": "x"}) for n in range(5)))
    reader = FakeReader(database)
    staged = Rules(database.rules).schema(ORDERS)
    expected = [row_hash(staged, {"id": n, "name": "*****"}) for n in range(5)]
    assert reader.hashes(ORDERS, after=(0,), upto=(3,), limit=9).rows.column(HASH).to_pylist() == expected[1:4]
    assert reader.hashes_of(ORDERS, [(4,), (9,)]).rows.to_pydict() == {"id": [4], HASH: expected[4:]}
    range_hash = reader.range_hash(ORDERS, after=None, upto=None, limit=2)
    assert (range_hash.rows, range_hash.hash, range_hash.last) == (2, sum(expected[:2]), (1,))


def test_a_row_without_a_hash_is_an_error() -> None:
    with pytest.raises(ValueOutOfRange, match="no hash"):
        check_hashed(pa.RecordBatch.from_pydict({HASH: pa.array([1, None], pa.int64())}), ORDERS)
