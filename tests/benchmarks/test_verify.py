"""A verification beside a dump of the same table: its reading of the source beside that of a dump, and the whole of it
beside a dump that is merged, since both go through source and lake."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale

CHUNK = 10_000
DUMP = "its dump"
MERGED = "its dump, merged"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"], ids="verify_{}".format)
def test_verify(kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path) -> None:
    """In each round a dump, the merge of it, and the verification; the dump in the first round fills the lake."""
    database = bench_database(kind)
    data.create(database, data.ORDERS)
    data.fill(database, data.ORDERS, scale.rows)
    dblog = Ours(database, tmp_path / "ours", dump={"chunk_size": CHUNK})
    dblog.prepare()
    whole: dict[str, list[float]] = {OURS: [], MERGED: []}
    source: dict[str, list[float]] = {OURS: [], DUMP: []}
    with dblog.capturing():
        for number in range(-1, scale.rounds):  # round -1 warms the server's pages
            dumped = dblog.dump(data.ORDERS.name)
            began = time.monotonic()
            dblog.merge()
            merged = time.monotonic() - began
            verified = dblog.verify(data.ORDERS.name)
            assert verified.rows == scale.rows
            if number < 0:
                continue
            whole[MERGED].append(scale.rows / (dumped.seconds + merged))
            whole[OURS].append(verified.rate)
            source[DUMP].append(dumped.rate)
            source[OURS].append(verified.read_rate)
    title = f"{NAMES[kind]}: verify, {scale.rows:,} rows"
    both = "source and lake, Spark's start included"
    alone = "the source's part"
    results.add(Figure(f"verify_{kind}", "Verify", f"{title}, {both}", "rows/s", whole, (Bar(0.5, MERGED),)))
    results.add(Figure(f"verify_source_{kind}", "Verify", f"{title}, {alone}", "rows/s", source, (Bar(0.5, DUMP),)))
