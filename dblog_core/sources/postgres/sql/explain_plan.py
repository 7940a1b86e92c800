"""Which index a chunk is read by, and what the server says of it (EXPLAIN)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from psycopg2 import sql

from dblog_core.model.schema import TableSchema
from dblog_core.sources.postgres.sql.connection import Connection, execute, rows, value

# A range in key order is always an index scan: with poor statistics the planner would sort the rest of the table.
BY_INDEX = "SET LOCAL enable_sort = off; SET LOCAL enable_incremental_sort = off; SET LOCAL enable_bitmapscan = off"
# Where nothing is ordered, a small table, or one without statistics, would be read whole.
IN_RANGE = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off"
# Listed keys are found one by one in the index: a join would read the whole table, or the whole index.
BY_LOOKUP = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"

Node = dict[str, Any]
_SCANS = {"Index Scan", "Index Only Scan"}


def explain(connection: Connection, query: sql.Composable, *, settings: str = "") -> Node:
    """The top node of the server's plan for a query, under the settings that it is run with."""
    rows(connection, f"BEGIN READ ONLY; {settings + '; ' if settings else ''}SELECT 1")
    try:
        plan = value(connection, sql.SQL("EXPLAIN (FORMAT JSON) {}").format(query))
    except BaseException:
        execute(connection, "ROLLBACK")
        raise
    execute(connection, "COMMIT")
    top: Node = plan[0]["Plan"]
    return top


def comes_by_index(connection: Connection, schema: TableSchema, query: sql.Composable) -> bool:
    """Whether the rows of a query come in order by an index, under the settings of the transaction that is open."""
    keys = sql.SQL(", ").join(sql.SQL("t.{}").format(sql.Identifier(name)) for name in schema.key)
    plan = value(connection, sql.SQL("EXPLAIN (FORMAT JSON) SELECT {} {}").format(keys, query))
    return index_used(plan[0]["Plan"], bounded=False) is not None


def index_used(plan: Node, *, bounded: bool) -> str | None:
    """The index by which rows come in key order, none outside of the bounds; None if the server sorts or scans.

    Of a partitioned table, that of its first partition.
    """
    nodes = list(_nodes(plan))
    scans = [n for n in nodes if n["Node Type"].endswith("Scan")]
    if any("Sort" in n["Node Type"] for n in nodes) or not scans:
        return None
    if all(n["Node Type"] in _SCANS and ("Index Cond" in n or not bounded) for n in scans):
        return str(scans[0]["Index Name"])
    return None


def _nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
