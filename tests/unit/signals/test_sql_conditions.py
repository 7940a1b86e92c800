"""Conditions of signals: what they may say, how they are read, and how values are typed."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.dumps import requests
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.model.filters import Literal
from dblog_core.signals import sql_conditions
from dblog_core.signals.message import Message, translate
from tests.unit.requests_world import World
from tests.unit.signals_world import execute, world

__all__ = ["world"]


def parsed_conditions(text: str, kind: str = "mysql") -> list[tuple[str, str, Any]]:
    def plain(value: Any) -> Any:
        return [plain(part) for part in value] if isinstance(value, tuple) else (value.text, value.quoted)

    return [(column, op, plain(value)) for column, op, value in sql_conditions.parse(text, kind=kind)]


def test_conditions_are_comparisons_joined_by_and() -> None:
    assert parsed_conditions("city = 'Berlin' AND (id > -5 and price<=1.50)") == [
        ("city", "=", ("Berlin", True)),
        ("id", ">", ("-5", False)),
        ("price", "<=", ("1.50", False)),
    ]
    assert parsed_conditions("state IN ('new', 'it''s') AND id BETWEEN 1 AND 9 and paid = true") == [
        ("state", "in", [("new", True), ("it's", True)]),
        ("id", ">=", ("1", False)),
        ("id", "<=", ("9", False)),
        ("paid", "=", ("true", False)),
    ]


def test_names_are_read_as_the_server_reads_them() -> None:
    assert parsed_conditions("`City` = 1") == [("City", "=", ("1", False))]
    assert parsed_conditions("City = 1") == [("City", "=", ("1", False))]
    assert parsed_conditions("City = 1", "postgres") == [("city", "=", ("1", False))]
    assert parsed_conditions('"City" = 1', "postgres") == [("City", "=", ("1", False))]


REFUSED = [
    "", "id", "id =", "= 1", "id = 1 OR id = 2", "NOT id = 1", "id <> 1", "id != 1", "id IS NULL", "id = NULL",
    "id = other",
    "name LIKE 'a%'", "id = 1; DROP TABLE a", "id = 1 -- all", "id = 1 /* x */", "lower(name) = 'a'", "id + 1 = 2",
    "t.id = 1", "id IN ()", "id IN (SELECT 1)", "(id = 1", "id = 1)", "id = 1 AND", "id BETWEEN 1", "id = 'a' 'b'",
    "id = 'a\\'b'", "id = 1e5", "id = 0x10", "id = DATE '2026-01-01'", "SELECT * FROM a WHERE id = 1",
    "1 = 1", "id = ?",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_condition_that_filters_cannot_say_exactly_is_refused(text: str, kind: str) -> None:
    with pytest.raises(RequestError) as refused:
        sql_conditions.parse(text, kind=kind)
    assert "COLUMN" in refused.value.fix


def test_quotes_that_mean_something_else_on_the_server_are_refused() -> None:
    for text, kind in (('city = "Berlin"', "mysql"), ('"city" = 1', "mariadb"), ("`city` = 1", "postgres")):
        with pytest.raises(RequestError):
            sql_conditions.parse(text, kind=kind)


_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=12)
_NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-1000, max_value=1000).map(
        lambda d: f"{d:f}"
    ),
)
_TEXTS = st.text(st.characters(exclude_characters="\\\0", exclude_categories=("Cs",)), max_size=20)
_LITERALS = st.one_of(_NUMBERS.map(lambda n: Literal(n, quoted=False)), _TEXTS.map(lambda t: Literal(t, quoted=True)))
_COMPARISONS = st.lists(
    st.one_of(
        st.tuples(_NAMES, st.sampled_from(["=", "<", "<=", ">", ">="]), _LITERALS),
        st.tuples(_NAMES, st.just("in"), st.lists(_LITERALS, min_size=1, max_size=4).map(tuple)),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


def _sql(comparisons: list[Any], quote: str, space: str) -> str:
    def value(literal: Literal) -> str:
        return "'" + literal.text.replace("'", "''") + "'" if literal.quoted else literal.text

    def one(column: str, op: str, operand: Any) -> str:
        right = f"({f'{space},{space}'.join(map(value, operand))})" if op == "in" else value(operand)
        return f"{quote}{column.replace(quote, quote * 2)}{quote}{space}{op}{space}{right}"

    return f"{space} AND {space}".join(one(*c) for c in comparisons)


@given(_COMPARISONS, st.sampled_from([("mysql", "`"), ("postgres", '"')]), st.sampled_from(["", " ", "\n\t"]))
def test_a_condition_that_is_written_is_read_back_whatever_names_and_texts_hold(
    comparisons: list[Any], dialect: tuple[str, str], space: str
) -> None:
    kind, quote = dialect
    assert list(sql_conditions.parse(_sql(comparisons, quote, space), kind=kind)) == comparisons


@given(st.text(max_size=80), st.sampled_from(["mysql", "mariadb", "postgres"]))
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    with contextlib.suppress(RequestError):
        assert sql_conditions.parse(text, kind=kind)


def filters(world: World, text: str, table_: str = "shop.customers") -> list[Any]:
    data = execute(table_, **{"additional-conditions": [{"data-collection": table_, "filter": text}]})
    request = translate(Message("one", "execute-snapshot", data), kind="mysql")
    assert isinstance(request, DumpRequest)
    resolved_tables, _ = requests.resolve(world.config, request)
    return [(f.column, f.op, *f.values) for f in resolved_tables[0].filters]


def test_values_are_typed_by_their_columns(world: World) -> None:
    assert filters(world, "id >= 5 AND name = '5' AND born < '2026-01-01' AND balance IN (1.50, 2)") == [
        ("id", ">=", 5),
        ("name", "=", "5"),
        ("born", "<", dt.date(2026, 1, 1)),
        ("balance", "in", decimal.Decimal("1.50"), decimal.Decimal(2)),
    ]


@pytest.mark.parametrize(
    "text", ["name = 5", "id = '5'", "balance = '1.5'", "born = 20260101", "id = true", "id = 1.5", "nobody = 1"]
)
def test_a_comparison_whose_meaning_depends_on_the_server_is_refused(world: World, text: str) -> None:
    with pytest.raises(RequestError):
        filters(world, text)
