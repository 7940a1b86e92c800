"""A verification beside a dump of the same table: both read all of it, and one of them hashes it on either side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale

CHUNK = 10_000
DUMP = "its dump"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"], ids="verify_{}".format)
def test_verify(kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path) -> None:
    """In each round a dump, the merge of it, and the verification; the dump in the first round fills the lake."""
    database = bench_database(kind)
    data.create(database, data.ORDERS)
    data.fill(database, data.ORDERS, scale.rows)
    ours = Ours(database, tmp_path / "ours", dump={"chunk_size": CHUNK})
    ours.prepare()
    whole: dict[str, list[float]] = {OURS: [], DUMP: []}
    source: dict[str, list[float]] = {OURS: [], DUMP: whole[DUMP]}
    with ours.capturing():
        for number in range(-1, scale.rounds):  # round -1 warms the server's pages
            dumped = ours.dump(data.ORDERS.name)
            ours.merge()
            verified = ours.verify(data.ORDERS.name)
            assert verified.rows == scale.rows
            if number < 0:
                continue
            whole[DUMP].append(dumped.rate)
            whole[OURS].append(verified.rate)
            source[OURS].append(verified.read_rate)
    title = f"{NAMES[kind]}: verify, {scale.rows:,} rows"
    bar = Bar(0.5, DUMP)
    results.add(Figure(f"verify_{kind}", "Verify", f"{title}, start of Spark included", "rows/s", whole, (bar,)))
    results.add(Figure(f"verify_source_{kind}", "Verify", f"{title}, the source's part", "rows/s", source, (bar,)))
