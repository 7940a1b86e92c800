"""When each table was last verified, and what was found: kept in the state store, for `status` and the page in Airflow.

Node `verified`: {table: {"at": µs UTC, "outcome": text, "equal", "rows", "whole", "not_compared"}}; not whole: a sample
or a slice; `not_compared`: how many columns the comparison was not of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import orjson

from dblog_core.interfaces import Json, StateStore
from dblog_core.state import compare_and_set
from dblog_core.verify.report import TableReport

_NODE = "verified"
_MAX_TABLES = 2000  # tables: ZooKeeper takes a million bytes in a node


@dataclass(frozen=True, slots=True)
class LastResult:
    """The last verification of a table, in microseconds UTC; `whole`: it was no sample and no slice; `not_compared`: of
    how many columns it was not."""

    at_us: int
    outcome: str
    equal: bool
    rows: int
    whole: bool
    not_compared: int = 0

    @classmethod
    def of(cls, table: TableReport, *, whole: bool, at_us: int) -> Self:
        """What a report says of a table."""
        outcome = table.outcome if table.repaired is None else f"{table.outcome}, after a repair"
        return cls(at_us, outcome, table.equal, table.rows, whole, len(table.not_compared))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        # A version before this one did not count the columns.
        names = ("outcome", "equal", "rows", "whole", "not_compared")
        return cls(data["at"], **{name: data[name] for name in names if name in data})

    def to_json(self) -> Json:
        data = asdict(self)
        return {"at": data.pop("at_us"), **data}


def read_results(state: StateStore) -> dict[str, LastResult]:
    """The last verification of each table, by its name."""
    entry = state.get(_NODE)
    results = {} if entry is None else orjson.loads(entry.data)
    return {table: LastResult.from_json(result) for table, result in results.items()}


def record_results(state: StateStore, tables: Iterable[TableReport], *, whole: bool, now_seconds: float) -> None:
    """Remembers what was found. `whole`: all rows were compared; `now`: seconds UTC."""
    at = int(now_seconds * 1e6)
    results = {t.table: LastResult.of(t, whole=whole, at_us=at).to_json() for t in tables}

    def newest(results_before: Json | None) -> Json:
        # The oldest results go first once the node is full.
        return dict(
            sorted({**(results_before or {}), **results}.items(), key=lambda item: -item[1]["at"])[:_MAX_TABLES]
        )

    if results:
        compare_and_set.change(state, _NODE, newest)
