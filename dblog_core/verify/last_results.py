"""When each table was last verified, and what was found: kept in the state store, for `status` and the page in Airflow.

Node `verified`: {table: {"at": µs UTC, "outcome": text, "equal", "rows", "whole", "not_compared", "proven_at"}}; not
whole: a sample or a slice; `not_compared`: how many columns the comparison was not of; `proven_at`: when a whole
comparison last found the table equal (µs UTC), unless a later one of any kind did not; null otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
    how many columns it was not; `proven_at_us`: as in the node."""

    at_us: int
    outcome: str
    equal: bool
    rows: int
    whole: bool
    not_compared: int = 0
    proven_at_us: int | None = None

    @classmethod
    def of(cls, table: TableReport, *, whole: bool, at_us: int, proven_before_us: int | None) -> Self:
        """What a report says of a table; `proven_before_us`: when it was last proven before that."""
        outcome = table.outcome if table.repaired is None else f"{table.outcome}, after a repair"
        proven_at_us = (at_us if whole else proven_before_us) if table.equal else None
        return cls(at_us, outcome, table.equal, table.rows, whole, len(table.not_compared), proven_at_us)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        # A version before this one did not count the columns.
        not_compared = data.get("not_compared", 0)
        # Nor did it record when the table was proven: its own result may be a proof.
        proven_at = data.get("proven_at", data["at"] if data["equal"] and data["whole"] else None)
        return cls(data["at"], data["outcome"], data["equal"], data["rows"], data["whole"], not_compared, proven_at)

    def to_json(self) -> Json:
        return {
            "at": self.at_us,
            "outcome": self.outcome,
            "equal": self.equal,
            "rows": self.rows,
            "whole": self.whole,
            "not_compared": self.not_compared,
            "proven_at": self.proven_at_us,
        }


def read_results(state: StateStore) -> dict[str, LastResult]:
    """The last verification of each table, by its name."""
    entry = state.get(_NODE)
    results = {} if entry is None else orjson.loads(entry.data)
    return {table: LastResult.from_json(result) for table, result in results.items()}


def record_results(state: StateStore, tables: Iterable[TableReport], *, whole: bool, now_seconds: float) -> None:
    """Remembers what was found. `whole`: all rows were compared; `now`: seconds UTC."""
    at = int(now_seconds * 1e6)
    reports = list(tables)

    def newest(data: Json | None) -> Json:
        results = dict(data or {})
        for report in reports:
            before = results.get(report.table)
            proven_before_us = None if before is None else LastResult.from_json(before).proven_at_us
            result = LastResult.of(report, whole=whole, at_us=at, proven_before_us=proven_before_us)
            results[report.table] = result.to_json()
        # The oldest results go first once the node is full.
        return dict(sorted(results.items(), key=lambda item: -item[1]["at"])[:_MAX_TABLES])

    if reports:
        compare_and_set.change(state, _NODE, newest)
