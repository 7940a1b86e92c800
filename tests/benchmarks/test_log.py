"""The log to durable staged Parquet, beside Debezium (records dropped) and the server's own reader."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.benchmarks import data, tools
from tests.benchmarks.data import NewDatabase, Table
from tests.benchmarks.debezium import Arrivals, Debezium
from tests.benchmarks.ours import Captured, Ours, Profile
from tests.benchmarks.results import DEBEZIUM, NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.fix_servers import Database

WARM = 0.3  # of Debezium's rows come before its rate is taken: its JVM compiles meanwhile
LIMITED = ("long", "many")  # shapes of which the server's own tool tells what the server can send
TIMES = {"tiny": 3.0, "wide": 1.0, "long": 5.0, "many": 5.0}  # Debezium's rate that a shape has to reach
TOOLS = {"mysql": "mysqlbinlog", "mariadb": "mariadb-binlog", "postgres": "pg_recvlogical"}
Fill = Callable[[Database, int], None]


class Rounds:
    """Rounds of one log: captured by us, read by Debezium and by the server's tool, in turn."""

    def __init__(self, database: Database, directory: Path, tables: Sequence[Table], *, debezium: bool = True) -> None:
        data.create(database, *tables)
        self._database = database
        self._ours = Ours(database, directory / "ours")
        self._ours.prepare()
        self._peer = Debezium(database, directory / "log", *(t.name for t in tables)) if debezium else None
        if self._peer is not None:
            self._peer.prepare()
        self._place = tools.mark(database, "bench_log")
        self.captured: list[Captured] = []
        self.arrived: list[Arrivals] = []
        self.read: list[tools.Spent] = []

    def run(self, rounds: int, *, rows: int, peer_rows: int, tool: bool = True) -> None:
        self._ours.capture(rows)  # warm: the server's pages, our compiled code
        for _ in range(rounds):
            self.captured.append(self._ours.capture(rows))
            if self._peer is not None:
                self.arrived.append(self._peer.run(peer_rows))
            if tool:
                self.read.append(tools.read_log(self._database, self._place))

    def rates(self) -> dict[str, list[float]]:
        dblog_rates = [c.timeline.rate() for c in self.captured]
        return {OURS: dblog_rates, **self._debezium(lambda a: a.timeline.warm(WARM).rate())}

    def costs(self) -> dict[str, list[float]]:
        dblog_cpu_per_row = [c.timeline.cpu_per_row() for c in self.captured]
        return {OURS: dblog_cpu_per_row, **self._debezium(lambda a: a.timeline.warm(WARM).cpu_per_row())}

    def memory(self) -> dict[str, list[float]]:
        return {OURS: [c.peak / 1e6 for c in self.captured], **self._debezium(lambda a: a.peak / 1e6)}

    def profile(self) -> Profile:
        return self._ours.profile_capture()

    def _debezium(self, what: Callable[[Arrivals], float]) -> dict[str, list[float]]:
        return {DEBEZIUM: [what(a) for a in self.arrived]} if self._peer is not None else {}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"], ids="log_{}".format)
def test_log(kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path) -> None:
    database = bench_database(kind)
    # Debezium's connector for MariaDB is not in the wheel: its MySQL figures of the same run stand for it.
    rounds = Rounds(database, tmp_path, [data.ORDERS], debezium=kind != "mariadb")
    data.fill(database, data.ORDERS, scale.rows)
    rounds.run(scale.rounds, rows=scale.rows, peer_rows=scale.peer_rows)
    tool = {TOOLS[kind]: [scale.rows / s.seconds for s in rounds.read]}
    results.add_profile(f"{NAMES[kind]}, log", rounds.profile())
    bars = (Bar(10, DEBEZIUM),) if kind != "postgres" else (Bar(2, DEBEZIUM), Bar(0.9, TOOLS[kind]))
    name = NAMES[kind]
    figures = [
        Figure(f"log_{kind}", "Log", f"{name}: log to staged Parquet", "rows/s", {**rounds.rates(), **tool}, bars),
        Figure(
            f"cpu_{kind}",
            "Log",
            f"{name}: CPU a row, capture",
            "µs",
            {**rounds.costs(), TOOLS[kind]: [s.cpu / scale.rows * 1e6 for s in rounds.read]},
            (Bar(0.2, DEBEZIUM, at_most=True),),
        ),
        Figure(
            f"memory_{kind}",
            "Memory",
            f"{name}: most memory of the capture, {scale.rows:,} rows",
            "MB",
            rounds.memory(),
            (Bar(400, at_most=True),),
        ),
    ]
    for figure in figures:
        mysqls = figure.name.replace("mariadb", "mysql")
        results.add(results.with_debezium_of(figure, mysqls) if kind == "mariadb" else figure)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("shape", "kind"),
    [(shape, kind) for shape in ("tiny", "wide", "long", "many") for kind in ("mysql", "postgres")],
)
def test_shapes(
    shape: str, kind: str, bench_database: NewDatabase, scale: Scale, results: Results, tmp_path: Path
) -> None:
    title, tables, rows, fill = _shape(shape, scale)
    database = bench_database(kind)
    rounds = Rounds(database, tmp_path, tables)
    fill(database, rows)
    rounds.run(scale.rounds, rows=rows, peer_rows=rows, tool=shape in LIMITED)
    tool = {TOOLS[kind]: [rows / s.seconds for s in rounds.read]} if shape in LIMITED else {}
    bar = Bar(TIMES[shape], DEBEZIUM)
    results.add(
        Figure(f"{shape}_{kind}", "Log", f"{NAMES[kind]}: {title}", "rows/s", {**rounds.rates(), **tool}, (bar,))
    )
    if shape in LIMITED:
        results.add_profile(f"{NAMES[kind]}, {title}", rounds.profile())


def _shape(shape: str, scale: Scale) -> tuple[str, Sequence[Table], int, Fill]:
    def make_fill(table: Table, per_transaction: int) -> Fill:
        return lambda database, rows: data.fill(database, table, rows, per_transaction=per_transaction)

    return {
        "tiny": ("transactions of 1 row", [data.ORDERS], scale.tiny, make_fill(data.ORDERS, 1)),
        "wide": ("a table of 200 columns", [data.WIDE], scale.wide, make_fill(data.WIDE, 1_000)),
        "long": ("rows of 10 kB", [data.LONG], scale.long, make_fill(data.LONG, 1_000)),
        "many": ("500 tables", data.MANY, scale.many, lambda d, rows: data.fill_many(d, data.MANY, rows)),
    }[shape]
