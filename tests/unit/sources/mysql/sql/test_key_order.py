"""How MySQL and MariaDB order a key, by their unique indexes, and what a sort of theirs would not tell apart."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dblog_core.errors import RequestError
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.sources.mysql.sql import where_clause
from dblog_core.sources.mysql.sql.key_order import (
    SORTED_OCTETS,
    IndexRows,
    KeyOrder,
    check_sort,
    is_plain,
    of_indexes,
    of_key,
)

TYPES = {
    "n": ("int", pa.int32()),
    "k": ("text", pa.string()),
    "b": ("longblob", pa.binary()),
    "u": ("uuid", pa.string()),
}
TYPES |= {"v": ("varchar(40)", pa.string()), "m": ("mediumtext", pa.string()), "x": ("varbinary(9)", pa.binary())}


def table(*key: str) -> TableSchema:
    return TableSchema(TableName("s", "t"), tuple(Column(name, *TYPES[name]) for name in TYPES), key)


def index(name: str, *parts: str, kind: str = "BTREE", **more: Any) -> list[dict[str, Any]]:
    """The parts as in CREATE TABLE: `k(700)`, `n DESC`."""
    rows = []
    for part in parts:
        text, _, direction = part.partition(" ")
        column, _, length = text.rstrip(")").partition("(")
        row = {"INDEX_NAME": name, "COLUMN_NAME": column, "INDEX_TYPE": kind, "USABLE": 1}
        row |= {"SUB_PART": int(length) if length else None, "COLLATION": "D" if direction else "A"}
        rows.append(row | more)
    return rows


ORDERS: list[tuple[tuple[str, ...], IndexRows, KeyOrder]] = [
    (("v",), index("PRIMARY", "v"), KeyOrder("PRIMARY")),
    (("n", "v"), index("PRIMARY", "n DESC", "v DESC"), KeyOrder("PRIMARY")),
    (("n", "v"), index("PRIMARY", "n", "v DESC"), KeyOrder()),
    (("n", "v"), index("u", "v", "n"), KeyOrder()),
    (("v",), index("u", "v", USABLE=0), KeyOrder()),
    (("k",), index("PRIMARY", "k(700)"), KeyOrder(None, {"k": 700})),
    (("n", "k", "v", "b"), index("PRIMARY", "n", "k(7)", "v", "b(9)"), KeyOrder(None, {"k": 7, "b": 9})),
    (("v",), [*index("PRIMARY", "v(5)"), *index("u", "v")], KeyOrder("u")),
    (("n", "v"), [*index("PRIMARY", "n", "v(5)"), *index("u", "v", "n")], KeyOrder()),
    (("k",), [*index("PRIMARY", "k(7)"), *index("u", "k(9)")], KeyOrder(None, {"k": 7})),
    (("n", "k"), index("u", "n", "k", kind="HASH"), KeyOrder(None, {"k": None})),
    (("v",), index("PRIMARY", "v", kind="HASH"), KeyOrder(None, {"v": None})),
    # Indexes of other columns say nothing, and one over an expression names no column for it.
    (("n", "v"), [*index("PRIMARY", "n"), *index("e", "n", "v", COLUMN_NAME=None)], KeyOrder(None, {"v": None})),
]


@pytest.mark.parametrize(("key", "indexes", "order"), ORDERS)
def test_a_column_that_no_index_holds_whole_is_ordered_by_its_octets(
    key: tuple[str, ...], indexes: IndexRows, order: KeyOrder
) -> None:
    assert of_indexes(indexes, table(*key)) == order


def test_rows_are_bounded_by_what_they_are_ordered_by() -> None:
    schema = table("n", "k")
    order = KeyOrder(None, {"k": 7})
    form = "CAST(CONVERT(LEFT(`k`, 7) USING utf8mb4) AS BINARY)"
    bound = "CAST(CONVERT(LEFT(%s, 7) USING utf8mb4) AS BINARY)"
    assert where_clause.order(schema, order, "DESC") == f"`n` DESC, {form} DESC"
    text, values = where_clause.between(schema, order, (1, "x"), None)
    assert text == f"`n` >= %s AND ((`n` > %s) OR (`n` = %s AND {form} > {bound}))"
    assert values == [1, 1, 1, "x"]
    assert where_clause.between(table("b"), KeyOrder(None, {"b": None}), None, (b"x",)) == (
        "CAST(`b` AS BINARY) <= CAST(%s AS BINARY)",
        [b"x"],
    )
    assert where_clause.between(table("v"), KeyOrder(), ("x",), None) == ("`v` > %s", ["x"])


@pytest.mark.parametrize(
    ("key", "order", "needed"),
    [
        (("k",), KeyOrder(None, {"k": 700}), 2_800),
        (("b",), KeyOrder(None, {"b": 1_700}), 1_700),
        (("n", "v"), KeyOrder(), 40 * 64),
        (("k",), KeyOrder(None, {"k": None}), 4 * 65_535),
        (("x",), KeyOrder(None, {"x": None}), 64),  # the smallest that is ever asked for
    ],
)
def test_a_sort_that_compares_less_than_the_longest_key_is_refused(
    key: tuple[str, ...], order: KeyOrder, needed: int
) -> None:
    assert needed <= SORTED_OCTETS
    check_sort(table(*key, "n"), order, needed)
    with pytest.raises(RequestError, match="cannot put the keys in order: column") as refused:
        check_sort(table(*key, "n"), order, needed - 1)
    assert refused.value.where == "s.t" and "max_sort_length" in refused.value.fix
    check_sort(table(*key), KeyOrder("PRIMARY"), 4)


def test_values_of_any_length_are_never_sorted() -> None:
    for name in ("m", "b"):
        with pytest.raises(RequestError, match="holds values of any length"):
            check_sort(table(name), KeyOrder(None, {name: None}), 8 << 20)


def test_only_numbers_and_binary_strings_of_an_index_are_compared_here() -> None:
    assert is_plain(table("n"), KeyOrder()) and is_plain(table("n", "x"), KeyOrder("PRIMARY"))
    assert not is_plain(table("x"), KeyOrder())
    assert not is_plain(table("b"), KeyOrder(None, {"b": 9}))
    assert not is_plain(table("n", "v"), KeyOrder("PRIMARY"))
    assert not is_plain(table("u"), KeyOrder("PRIMARY")), "which has an order of its own"


def test_the_order_that_a_dump_remembers_tells_what_is_ordered_by_octets() -> None:
    columns = {"k": ("k", "text", "utf8mb4", "utf8mb4_bin"), "n": ("n", "int", None, None)}
    assert of_key(columns, ("n", "k"), KeyOrder()) == [columns["n"], columns["k"]]
    assert of_key(columns, ("n", "k"), KeyOrder(None, {"k": 7})) == [
        columns["n"],
        (*columns["k"], "octets of the first 7"),
    ]
    assert of_key(columns, ("k", "z"), KeyOrder(None, {"k": None})) == [(*columns["k"], "octets of all"), ("z",)]
    assert of_key({}, ("k",), KeyOrder()) == []
