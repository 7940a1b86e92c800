"""What the source's writers lose while it is captured and dumped: by us, and by Debezium.

Both do the same work in the same time: the log is read all the while, and a table is dumped once within the time that
the slower of the two needs for it.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.debezium import Debezium
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import DEBEZIUM, NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.writers import Writers

DUMPED = data.ORDERS.with_name("orders_dumped")
CHUNK = 10_000


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["mysql", "postgres"], ids="source_{}".format)
def test_writers(kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path) -> None:
    """Shares of the throughput that the writers have alone, measured anew in each round."""
    database = bench_database(kind)
    data.create(database, data.ORDERS, DUMPED)
    data.fill(database, DUMPED, scale.peer_rows)
    dblog = Ours(database, tmp_path / "ours", dump={"chunk_size": CHUNK})
    peer = Debezium(database, tmp_path / "source", data.ORDERS.name, DUMPED.name)
    dblog.prepare()
    shares: dict[str, list[float]] = {OURS: [], DEBEZIUM: []}
    with Writers(database, data.ORDERS, rate=None) as load:
        for _ in range(scale.rounds):
            alone = load.measure(scale.seconds / 4)
            peer.prepare()  # here: neither is to read what was written in the rounds before
            with peer.streaming(CHUNK) as engine:
                before = load.count
                began = time.monotonic()
                engine.dump(DUMPED.name)
                took = time.monotonic() - began
                shares[DEBEZIUM].append((load.count - before) / took / alone)
            dblog.catch_up()
            with dblog.capturing():
                before = load.count
                began = time.monotonic()
                dblog.dump(DUMPED.name)
                load.measure(max(0.0, took - (time.monotonic() - began)))
                shares[OURS].append((load.count - before) / (time.monotonic() - began) / alone)
    title = f"{NAMES[kind]}: writers' throughput while captured and dumped, of what they have alone"
    results.add(Figure(f"source_{kind}", "Source", title, "×", shares, (Bar(1.0, DEBEZIUM),)))
