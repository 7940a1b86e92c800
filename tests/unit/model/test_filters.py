"""Filters: what is one, what is refused, and their way through the state store."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.errors import RequestError
from dblog_core.model import filters
from dblog_core.model.filters import FiledFilter, Filter
from dblog_core.model.schema import Column, TableName, TableSchema

TYPES = {
    "i": pa.int32(),
    "d": pa.decimal128(10, 2),
    "f": pa.float32(),
    "g": pa.float64(),
    "t": pa.string(),
    "b": pa.binary(),
    "o": pa.bool_(),
    "da": pa.date32(),
    "m": pa.timestamp("us"),
    "z": pa.timestamp("us", tz="UTC"),
}
SCHEMA = TableSchema(TableName("shop", "a"), tuple(Column(n, str(t), t) for n, t in TYPES.items()), ("i",))
MORNING = dt.datetime(2024, 1, 1, 9)  # noqa: DTZ001  # a column without a zone


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        (("i", "=", 5), (5,)),
        (("i", "in", [5, -1]), (5, -1)),
        (("d", "<", "1.5"), (decimal.Decimal("1.50"),)),
        (("f", ">=", 0.1), (0.10000000149011612,)),
        (("g", "=", 0.1), (0.1,)),
        (("g", "<", "Infinity"), (float("inf"),)),
        (("t", "=", "it's"), ("it's",)),
        (("b", "=", "AP8="), (b"\x00\xff",)),
        (("o", "=", True), (True,)),
        (("da", ">", "2024-02-29"), (dt.date(2024, 2, 29),)),
        (("m", "<=", "2024-01-01T09:00:00"), (MORNING,)),
        (("z", "<=", "2024-01-01T10:00:00+01:00"), (MORNING.replace(tzinfo=dt.UTC),)),
        (("z", "<=", "2024-01-01T09:00:00"), (MORNING.replace(tzinfo=dt.UTC),)),
    ],
)
def test_a_filter_is_typed_and_comes_back_from_the_state_store(
    condition: tuple[str, str, Any], values: tuple[Any, ...]
) -> None:
    parsed = filters.parse([condition], SCHEMA)
    assert parsed == (Filter(condition[0], condition[1], values),)
    stored = json.loads(json.dumps([FiledFilter.of(each).to_json() for each in parsed]))
    assert filters.parse_filed(map(FiledFilter.from_json, stored), SCHEMA) == parsed


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (("nope", "=", 5), "shop.a has no column nope"),
        (("i", "!=", 5), "'!=' is no operator"),
        (("i", "like", 5), "'like' is no operator"),
        (("i", "=", None), "null passes no comparison"),
        (("i", "in", [1, None]), "null passes no comparison"),
        (("i", "in", []), "`in` needs values"),
        (("i", "in", 1), "`in` needs values"),
        (("t", "in", "abc"), "`in` needs values"),
        (("i", "=", [1]), "not a value of int32"),
        (("i", "=", "1 OR 1=1"), "not a value of int32"),
        (("i", "=", True), "not a value of int32"),
        (("i", "=", 2**31), "not a value of int32"),
        (("i", "=", 1.0), "not a value of int32"),
        (("d", "=", "1.555"), "not a value of decimal"),
        (("d", "=", "NaN"), "not a value of decimal"),
        (("f", "=", 1e300), "not a value of float"),
        (("g", "=", "NaN"), "NaN is not comparable"),
        (("t", "=", 5), "not a value of string"),
        (("t", "=", "\ud83d"), "half a character"),
        (("b", "=", "%"), "not a value of binary"),
        (("o", "=", 1), "not a value of bool"),
        (("da", "=", "yesterday"), "not a value of date"),
        (("m", "=", "2024-01-01T09:00:00Z"), "not a value of timestamp"),
    ],
)
def test_what_is_no_filter_is_refused_by_name(condition: tuple[str, str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message.replace("[", r"\[")) as refused:
        filters.parse([condition], SCHEMA)
    assert refused.value.fix


def test_a_filter_of_a_column_that_is_gone_is_refused() -> None:
    filed = map(FiledFilter.of, filters.parse([("d", "<", "1.5")], SCHEMA))
    without = TableSchema(SCHEMA.table, tuple(c for c in SCHEMA.columns if c.name != "d"), SCHEMA.key)
    with pytest.raises(RequestError, match="no column d"):
        filters.parse_filed(filed, without)
