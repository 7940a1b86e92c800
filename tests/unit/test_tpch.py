"""The benchmark's tables of TPC-H take the rows that DuckDB generates."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.benchmarks import tpch

SCALE = 0.01


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    parts: dict[str, list[pa.Table]] = {}
    for name, rows in tpch.generate(SCALE):
        parts.setdefault(name, []).append(rows)
    return {name: pa.concat_tables(rows) for name, rows in parts.items()}


def test_every_table_has_the_rows_of_its_scale(tables: dict[str, pa.Table]) -> None:
    """Those of the specification's own program: only its items are not a round number."""
    assert {name: len(rows) for name, rows in tables.items()} == {
        "region": 5,
        "nation": 25,
        "supplier": 100,
        "customer": 1_500,
        "part": 2_000,
        "partsupp": 8_000,
        "orders": 15_000,
        "lineitem": 60_175,
    }


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


def test_statements_have_all_rows(tables: dict[str, pa.Table]) -> None:
    rows = tables["orders"]
    statements = list(tpch.inserts("orders", rows))
    assert len(statements) == int(np.ceil(len(rows) / tpch.STATEMENT))
    assert statements[0].startswith("INSERT INTO orders VALUES ('1','370','O',")
    assert sum(statement.count("'),('") + 1 for statement in statements) == len(rows)
