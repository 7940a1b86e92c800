"""The capture's memory where it could grow: one transaction of all rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"], ids="memory_{}".format)
def test_one_transaction(
    kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path
) -> None:
    database = bench_database(kind)
    data.create(database, data.ORDERS)
    dblog = Ours(database, tmp_path / "ours")
    dblog.prepare()
    rows = min(scale.rows, 1_000_000)
    data.fill(database, data.ORDERS, rows, per_transaction=rows)
    captured = [dblog.capture(rows) for _ in range(scale.rounds)]
    title = f"{NAMES[kind]}: most memory of the capture, {rows:,} rows in one transaction"
    peaks = [c.peak / 1e6 for c in captured]
    bars = (Bar(400, at_most=True),)
    results.add(Figure(f"memory_transaction_{kind}", "Memory", title, "MB", {OURS: peaks}, bars))
    rates = {OURS: [c.timeline.rate() for c in captured]}
    results.add(
        Figure(f"transaction_{kind}", "Log", f"{NAMES[kind]}: one transaction of {rows:,} rows", "rows/s", rates)
    )
