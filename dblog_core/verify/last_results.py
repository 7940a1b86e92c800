"""When each table was last verified, and what was found: kept in the state store, for `status` and the page in Airflow.

Node `verified`: {table: {"at": µs UTC, "outcome": text, "equal", "rows", "whole"}}; not whole: a sample or a slice.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from dblog_core.interfaces import Json, StateStore
from dblog_core.state import compare_and_set
from dblog_core.verify.report import TableReport

_NODE = "verified"
_MAX_TABLES = 2000  # tables: ZooKeeper takes a million bytes in a node


def read_results(state: StateStore) -> Json:
    """The last verification of each table, by its name."""
    entry = state.get(_NODE)
    return {} if entry is None else orjson.loads(entry.data)


def record_results(state: StateStore, tables: Iterable[TableReport], *, whole: bool, now_seconds: float) -> None:
    """Remembers what was found. `whole`: all rows were compared; `now`: seconds UTC."""
    at = int(now_seconds * 1e6)
    results = {t.table: _result_json(t, whole=whole, at_us=at) for t in tables}

    def newest(results_before: Json | None) -> Json:
        # The oldest results go first once the node is full.
        return dict(
            sorted({**(results_before or {}), **results}.items(), key=lambda item: -item[1]["at"])[:_MAX_TABLES]
        )

    if results:
        compare_and_set.change(state, _NODE, newest)


def _result_json(table: TableReport, *, whole: bool, at_us: int) -> Json:
    outcome = table.outcome if table.repaired is None else f"{table.outcome}, after a repair"
    return {"at": at_us, "outcome": outcome, "equal": table.equal, "rows": table.rows, "whole": whole}
