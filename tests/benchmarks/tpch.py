"""The tables of TPC-H, with the rows that DuckDB's `tpch` extension generates.

They are those of the specification's own program, and the same for the same scale. Scale 1 has 8,661,245.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import duckdb_extension_tpch
import pyarrow as pa
import pyarrow.compute as pc

from tests import duckdb_extensions

BATCH = 50_000  # rows
STATEMENT = 1_000  # rows of one INSERT

_MONEY = "decimal(15,2)"

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "region": {"r_regionkey": "int", "r_name": "char(25)", "r_comment": "varchar(152)"},
    "nation": {"n_nationkey": "int", "n_name": "char(25)", "n_regionkey": "int", "n_comment": "varchar(152)"},
    "supplier": {
        "s_suppkey": "int",
        "s_name": "char(25)",
        "s_address": "varchar(40)",
        "s_nationkey": "int",
        "s_phone": "char(15)",
        "s_acctbal": _MONEY,
        "s_comment": "varchar(101)",
    },
    "customer": {
        "c_custkey": "int",
        "c_name": "varchar(25)",
        "c_address": "varchar(40)",
        "c_nationkey": "int",
        "c_phone": "char(15)",
        "c_acctbal": _MONEY,
        "c_mktsegment": "char(10)",
        "c_comment": "varchar(117)",
    },
    "part": {
        "p_partkey": "int",
        "p_name": "varchar(55)",
        "p_mfgr": "char(25)",
        "p_brand": "char(10)",
        "p_type": "varchar(25)",
        "p_size": "int",
        "p_container": "char(10)",
        "p_retailprice": _MONEY,
        "p_comment": "varchar(23)",
    },
    "partsupp": {
        "ps_partkey": "int",
        "ps_suppkey": "int",
        "ps_availqty": "int",
        "ps_supplycost": _MONEY,
        "ps_comment": "varchar(199)",
    },
    "orders": {
        "o_orderkey": "bigint",
        "o_custkey": "int",
        "o_orderstatus": "char(1)",
        "o_totalprice": _MONEY,
        "o_orderdate": "date",
        "o_orderpriority": "char(15)",
        "o_clerk": "char(15)",
        "o_shippriority": "int",
        "o_comment": "varchar(79)",
    },
    "lineitem": {
        "l_orderkey": "bigint",
        "l_partkey": "int",
        "l_suppkey": "int",
        "l_linenumber": "int",
        "l_quantity": _MONEY,
        "l_extendedprice": _MONEY,
        "l_discount": _MONEY,
        "l_tax": _MONEY,
        "l_returnflag": "char(1)",
        "l_linestatus": "char(1)",
        "l_shipdate": "date",
        "l_commitdate": "date",
        "l_receiptdate": "date",
        "l_shipinstruct": "char(25)",
        "l_shipmode": "char(10)",
        "l_comment": "varchar(44)",
    },
}
KEYS = {"partsupp": ("ps_partkey", "ps_suppkey"), "lineitem": ("l_orderkey", "l_linenumber")}
"""Of the tables whose key is not their first column."""

Rows = tuple[str, pa.Table]
"""A table's name, and rows of it."""


def create(table: str) -> str:
    """The statement that makes the table; the same for MySQL and PostgreSQL."""
    columns = COLUMNS[table]
    key = KEYS.get(table, (next(iter(columns)),))
    definitions = [f"{name} {kind} NOT NULL" for name, kind in columns.items()]
    return f"CREATE TABLE {table} ({', '.join(definitions)}, PRIMARY KEY ({', '.join(key)}))"


def inserts(table: str, rows: pa.Table) -> Iterator[str]:
    """Statements that insert the rows. No text of theirs has a quote or a backslash."""
    columns = [pc.binary_join_element_wise("'", rows[name].cast(pa.string()), "'", "") for name in rows.column_names]
    texts = pc.binary_join_element_wise(*columns, ",").to_pylist()
    for start in range(0, len(texts), STATEMENT):
        yield f"INSERT INTO {table} VALUES ({'),('.join(texts[start : start + STATEMENT])})"


def generate(scale: float) -> Iterator[Rows]:
    """All rows of all tables, in batches. At 0.002 and below, some parts have the same supplier twice: no key is unique
    there."""
    with duckdb_extensions.connect(duckdb_extension_tpch) as connection:
        connection.execute("CALL dbgen(sf = ?)", [scale])
        for table, columns in COLUMNS.items():
            for batch in connection.execute(f"SELECT {', '.join(columns)} FROM {table}").to_arrow_reader(BATCH):
                yield table, pa.Table.from_batches([batch])
