"""The benchmark's tables of TPC-H keep to the rules of their specification."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.benchmarks import tpch

SCALE = 0.002


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    parts: dict[str, list[pa.Table]] = {}
    for name, rows in tpch.generate(SCALE):
        parts.setdefault(name, []).append(rows)
    return {name: pa.concat_tables(rows) for name, rows in parts.items()}


def test_every_table_has_the_rows_of_its_scale(tables: dict[str, pa.Table]) -> None:
    counts = {name: len(rows) for name, rows in tables.items()}
    items = counts.pop("lineitem")
    assert counts == {
        "region": 5,
        "nation": 25,
        "supplier": 20,
        "customer": 300,
        "part": 400,
        "partsupp": 1600,
        "orders": 3000,
    }
    assert 3.8 < items / counts["orders"] < 4.2


def test_no_key_stands_twice_and_no_value_is_missing(tables: dict[str, pa.Table]) -> None:
    for name, rows in tables.items():
        key = list(tpch.KEYS.get(name, rows.column_names[:1]))
        assert len(rows.group_by(key).aggregate([])) == len(rows), name
        assert all(column.null_count == 0 for column in rows.columns), name


def test_texts_fit_their_columns_and_need_no_escape(tables: dict[str, pa.Table]) -> None:
    for name, rows in tables.items():
        for column, kind in tpch.COLUMNS[name].items():
            if (length := re.search(r"char\((\d+)\)", kind)) is not None:
                assert pc.max(pc.utf8_length(rows[column])).as_py() <= int(length[1]), column
                assert not pc.any(pc.match_substring_regex(rows[column], r"['\\]")).as_py(), column


def test_rows_refer_to_rows_that_are_there(tables: dict[str, pa.Table]) -> None:
    for child, column, parent, key in (
        ("nation", "n_regionkey", "region", "r_regionkey"),
        ("supplier", "s_nationkey", "nation", "n_nationkey"),
        ("customer", "c_nationkey", "nation", "n_nationkey"),
        ("partsupp", "ps_partkey", "part", "p_partkey"),
        ("partsupp", "ps_suppkey", "supplier", "s_suppkey"),
        ("orders", "o_custkey", "customer", "c_custkey"),
        ("lineitem", "l_orderkey", "orders", "o_orderkey"),
    ):
        assert pc.all(pc.is_in(tables[child][column], tables[parent][key])).as_py(), column
    pairs = {(p, s) for p, s in zip(*(tables["partsupp"][n].to_pylist() for n in tpch.KEYS["partsupp"]), strict=True)}
    items = tables["lineitem"]
    assert set(zip(items["l_partkey"].to_pylist(), items["l_suppkey"].to_pylist(), strict=True)) <= pairs


def test_prices_and_dates_follow_from_each_other(tables: dict[str, pa.Table]) -> None:
    items = tables["lineitem"]
    prices = dict(zip(*(tables["part"][n].to_pylist() for n in ("p_partkey", "p_retailprice")), strict=True))
    rows = items.slice(0, 500).to_pylist()
    assert all(row["l_extendedprice"] == row["l_quantity"] * prices[row["l_partkey"]] for row in rows)
    orders = {row["o_orderkey"]: row for row in tables["orders"].to_pylist()}
    assert all(orders[row["l_orderkey"]]["o_orderdate"] < row["l_shipdate"] < row["l_receiptdate"] for row in rows)
    totals: dict[int, float] = {}
    for row in items.to_pylist():
        due = row["l_extendedprice"] * (1 + row["l_tax"]) * (1 - row["l_discount"])
        totals[row["l_orderkey"]] = totals.get(row["l_orderkey"], 0) + float(due)
    assert all(abs(float(orders[key]["o_totalprice"]) - total) < 0.02 for key, total in totals.items())


def test_the_same_seed_makes_the_same_rows() -> None:
    first, second, other = (list(tpch.generate(0.0005, seed=seed)) for seed in (1, 1, 2))
    assert all(a[1].equals(b[1]) for a, b in zip(first, second, strict=True))
    assert not first[-1][1].equals(other[-1][1])


def test_statements_have_all_rows(tables: dict[str, pa.Table]) -> None:
    statements = list(tpch.inserts("orders", tables["orders"]))
    assert len(statements) == int(np.ceil(3000 / tpch.STATEMENT))
    assert statements[0].startswith("INSERT INTO orders VALUES ('1','")
    assert sum(statement.count("),(") + 1 for statement in statements) == 3000
