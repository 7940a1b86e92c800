"""A dump through watermarks into the super-changelog, log idle and log busy, beside Debezium's incremental snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.benchmarks import data, tools
from tests.benchmarks.data import NewDatabase, Table
from tests.benchmarks.debezium import Debezium
from tests.benchmarks.ours import Captured, Dumped, Ours, stop_capture
from tests.benchmarks.results import DEBEZIUM, NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.writers import FIRST, Writers
from tests.fix_servers import Database

CHUNK = 10_000
BUSY = 500  # transactions a second into the table that is dumped
TOOLS = {"mysql": "mysql --quick", "mariadb": "mariadb --quick", "postgres": "psql COPY"}
CPU_BARS = {"mysql": 3.0, "mariadb": 3.0, "postgres": 1.7}  # µs a row
PEERS = data.ORDERS.with_name("orders_for_peers")
"""The same rows, fewer of them: a peer needs minutes for as many as we read."""


class Busy:
    """A log that is busy while entered; each time with keys of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._times = 0

    @contextmanager
    def writing(self, table: Table) -> Iterator[None]:
        self._times += 1
        with Writers(self._database, table, rate=BUSY, first=self._times * FIRST):
            yield


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("load", "kind"), [(load, kind) for load in ("idle", "busy") for kind in ("mysql", "mariadb", "postgres")]
)
def test_dump(
    load: str, kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path
) -> None:
    database = bench_database(kind)
    data.create(database, data.ORDERS, PEERS)
    data.fill(database, data.ORDERS, scale.rows)
    debezium = kind != "mariadb"  # its connector is not in the wheel
    if debezium:
        data.fill(database, PEERS, scale.peer_rows)
    dblog = Ours(database, tmp_path / "ours", dump={"chunk_size": CHUNK})
    dblog.prepare()
    peer = Debezium(database, tmp_path / "dump", PEERS.name)
    if debezium:
        peer.prepare()
    busy = Busy(database)

    def start_load(table: Table) -> AbstractContextManager[None]:
        return busy.writing(table) if load == "busy" else nullcontext()

    series: dict[str, list[float]] = {OURS: [], **({DEBEZIUM: []} if debezium else {}), TOOLS[kind]: []}
    for number in range(-1, scale.rounds):  # round -1 warms the server's pages
        dumped, _ = dump(dblog, data.ORDERS, lambda: start_load(data.ORDERS))
        if number < 0:
            continue
        series[OURS].append(dumped.rate)
        if debezium:
            rows = count(database, PEERS)
            with peer.streaming(CHUNK) as engine, start_load(PEERS):
                series[DEBEZIUM].append(rows / engine.dump(PEERS.name))
        rows = count(database, data.ORDERS)
        with start_load(data.ORDERS):
            series[TOOLS[kind]].append(rows / tools.read_table(database, data.ORDERS.name).seconds)
    if load == "idle":
        with dblog.capturing():
            results.add_profile(f"{NAMES[kind]}, dump (workers)", dblog.profile_dump(data.ORDERS.name))
    title = f"{NAMES[kind]}: dump, log {load}" + (f" ({BUSY} transactions a second)" if load == "busy" else "")
    bars = (Bar(10, DEBEZIUM), Bar(0.8, TOOLS[kind]))
    figure = Figure(f"dump_{load}_{kind}", "Dump", title, "rows/s", series, bars)
    results.add(results.with_debezium_of(figure, f"dump_{load}_mysql") if kind == "mariadb" else figure)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["mysql", "postgres"], ids="taxi_{}".format)
def test_client_cpu(kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path) -> None:
    """Of all our processes, workers and capture, for both tables in the proportion of the published figures."""
    database = bench_database(kind)
    trips = scale.rows * 86 // 100
    fares = scale.rows * 14 // 100
    data.create(database, data.TRIPS, data.FARES)
    data.fill(database, data.TRIPS, trips, per_transaction=10_000)
    data.fill(database, data.FARES, fares, per_transaction=10_000)
    dblog = Ours(database, tmp_path / "ours", dump={"chunk_size": CHUNK})
    dblog.prepare()
    costs = []
    rates = []
    for _ in range(scale.rounds):
        dumped, captured = dump(dblog, data.TRIPS, nullcontext, data.FARES)
        costs.append(dumped.cpu_per_row + captured.timeline.cpu_per_row())
        rates.append(dumped.rate)
    name = f"{NAMES[kind]}: two taxi tables"
    bar = Bar(CPU_BARS[kind], at_most=True)
    results.add(Figure(f"taxi_{kind}", "Dump", f"{name}, CPU a dumped row", "µs", {OURS: costs}, (bar,)))
    results.add(Figure(f"taxi_rate_{kind}", "Dump", f"{name}, dump", "rows/s", {OURS: rates}))


def dump(
    dblog: Ours, table: Table, loaded: Callable[[], AbstractContextManager[None]], *more: Table
) -> tuple[Dumped, Captured]:
    """A dump of tables by our workers, and what the capture did meanwhile."""
    with dblog.capturing() as capture, loaded():
        dumped = dblog.dump(table.name, *(t.name for t in more))
        return dumped, stop_capture(capture)


def count(database: Database, table: Table) -> int:
    return int(database.query(f"SELECT count(*) FROM {table.name}")[0][0])
