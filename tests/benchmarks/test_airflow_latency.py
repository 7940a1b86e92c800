"""From a commit to its row in Delta where Airflow merges in slices, beside `dblog merge --continuous`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

from dblog_core import wiring
from dblog_core.interfaces import StateStore
from dblog_core.lake.lake_status import table_location
from dblog_core.lake_engine.merging.handover import OVER
from dblog_core.lake_engine.merging.lock import LEASE
from dblog_core.local.servers.airflow import AirflowServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.model.schema import TableName
from tests.benchmarks import data
from tests.benchmarks.data import NewDatabase
from tests.benchmarks.delta_rows import DeltaRows
from tests.benchmarks.followers import latencies, percentile
from tests.benchmarks.ours import Ours
from tests.benchmarks.results import NAMES, OURS, Bar, Figure, Results
from tests.benchmarks.scale import Scale
from tests.benchmarks.test_lake import Merges
from tests.benchmarks.writers import Writers
from tests.fix_airflow import QUIET_SETTINGS, metadata
from tests.fix_servers import Database
from tests.waiting import wait_until

RATE = 5  # transactions a second
SECONDS = {"quick": 45, "usual": 180, "full": 900}
SLICES = {"merge": 60.0, "merge_standby": 45.0}
"""In place of half an hour: a handover is what is looked at."""
HANDOVERS = 2
WARM_SECONDS = 20.0
SETTLED_SECONDS = 10.0  # after another merge has taken the lake
START_SECONDS = 240.0
LOOK_SECONDS = 0.1
COMMAND = "dblog merge --continuous"
NOT_SLOWER = 1.5  # times the command: Airflow's own processes share the processors
LONGEST_PAUSE = 3.0  # seconds; the connections of the load commit together, every 0.8 s
_DAGS = f"""
from dblog_core.airflow import dag_factory
dag_factory.MERGE_SLICES.update({SLICES})
globals().update(dag_factory.dags())
"""


@dataclass(frozen=True, slots=True)
class Handover:
    """When (monotonic seconds) a merge's slice was over, and when the next merge held the lake."""

    began: float
    taken: float

    @property
    def settled(self) -> float:
        return self.taken + SETTLED_SECONDS


class Handovers:
    """What the state store tells of them, at each look."""

    def __init__(self, state: StateStore) -> None:
        self._state = state
        self._epoch: int | None = None
        self._began: float | None = None
        self.seen: list[Handover] = []

    def look(self) -> None:
        now = time.monotonic()
        merging = self._state.leader(LEASE)
        if merging is None:
            return
        if self._epoch is not None and merging.epoch != self._epoch:
            assert self._began is not None, "another merge has the lake, and no slice was over: one has died"
            self.seen.append(Handover(self._began, now))
            self._began = None
        self._epoch = merging.epoch
        over = self._state.get(OVER)
        if self._began is None and over is not None and orjson.loads(over.data)["epoch"] == merging.epoch:
            self._began = now


@dataclass(frozen=True, slots=True)
class Watched:
    """A load whose rows came into the lake: its commits and the moments between which it is measured."""

    committed: dict[int, float]
    rows: DeltaRows
    since: float
    until: float

    def latencies(self, but_for: list[Handover] | None = None) -> list[float]:
        """Seconds from each commit to its row. `but_for`: without those of handovers."""
        spans = [(handover.began, handover.settled) for handover in but_for or ()]
        committed = {
            key: at for key, at in self.committed.items() if not any(began <= at < ended for began, ended in spans)
        }
        return [ms / 1000 for ms in latencies(committed, self.rows.seen, since=self.since, until=self.until)]

    def latencies_at(self, handover: Handover) -> list[float]:
        """The same of the commits from the end of a slice until the next one has settled."""
        span = {"since": handover.began, "until": handover.settled}
        return [ms / 1000 for ms in latencies(self.committed, self.rows.seen, **span)]

    def longest_pause(self, since: float | None = None, until: float | None = None) -> float:
        """Seconds between two versions of the table, one after the other."""
        return self.rows.longest_pause(since=since or self.since, until=until or self.until)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["mysql", "postgres"], ids="airflow_latency_{}".format)
def test_commit_to_delta_through_airflow(
    kind: str,
    bench_database: NewDatabase,
    bench_server: Callable[[str], DatabaseServer],
    scale: Scale,
    results: Results,
    tmp_path: Path,
) -> None:
    """The same load on two databases, one after the other. The slices of the captures take half an hour as ever."""
    seconds = SECONDS[scale.name]
    database = bench_database(kind)
    dblog = _prepared(database, tmp_path / "command")
    with dblog.capturing(), Merges(dblog.file, dblog.env):
        command = _watch(database, dblog, seconds)
    database = bench_database(kind)
    dblog = _prepared(database, tmp_path / "airflow")
    server = bench_server("postgres")
    assert isinstance(server, PostgresServer)
    with closing(wiring.open_state(dblog.config)) as state, _airflow(dblog, server, tmp_path):
        handovers = Handovers(state)
        slices = _watch(database, dblog, seconds, handovers)
    _report(results, kind, command, slices, handovers.seen)


def _prepared(database: Database, directory: Path) -> Ours:
    data.create(database, data.ORDERS)
    dblog = Ours(database, directory, airflow={"merge": "continuous"})
    dblog.prepare()
    return dblog


@contextmanager
def _airflow(dblog: Ours, server: PostgresServer, root: Path) -> Iterator[None]:
    """An Airflow that captures and merges. `server`: for what Airflow keeps."""
    dags = root / "dags"
    dags.mkdir()
    (dags / "dblog.py").write_text(_DAGS)
    secrets = {name: dblog.env[name] for name in dblog.env.keys() - os.environ.keys()}
    environment = {**QUIET_SETTINGS, **secrets, "PYTHONPATH": str(Path(__file__).parents[2])}
    captures = [f"dblog_{dblog.config.source.name}_capture{kind}" for kind in ("", "_standby")]
    with metadata(server) as url:
        airflow = AirflowServer(
            root / "home", dags=dags, configs=dblog.file.parent, database=url, environment=environment
        )
        try:
            airflow.start()
            client = airflow.client()
            wait_until(lambda: set(captures) <= set(client.dags()), "the DAGs are parsed", describe=client.dags)
            for dag in captures:
                client.pause(dag, False)
            yield
        finally:
            airflow.kill()


def _watch(database: Database, dblog: Ours, seconds: float, handovers: Handovers | None = None) -> Watched:
    """A load for so long, and until there were enough handovers where there are any; then all of it is in the lake."""
    table = table_location(wiring.open_lake(dblog.config), TableName(database.schema, data.ORDERS.name))
    rows = DeltaRows(Path(str(table)))
    with Writers(database, data.ORDERS, rate=RATE) as load:
        wait_until(rows.read, "the first row is in the lake", timeout=START_SECONDS)
        load.measure(WARM_SECONDS)
        began = time.monotonic()
        while (now := time.monotonic()) < began + seconds or not _are_enough(handovers, now):
            assert now < began + seconds + HANDOVERS * START_SECONDS, "the merges do not hand over"
            if handovers is not None:
                handovers.look()
            load.measure(LOOK_SECONDS)
        ended = time.monotonic()
        assert load.count >= RATE * 0.9 * (ended - began), "the source cannot keep up: nothing is measured"
    wait_until(lambda: load.committed.keys() <= rows.read().keys(), "the last row is in the lake")
    return Watched(load.committed, rows, began, ended)


def _are_enough(handovers: Handovers | None, now: float) -> bool:
    if handovers is None:
        return True
    return len(handovers.seen) >= HANDOVERS and now > handovers.seen[-1].settled


def _report(results: Results, kind: str, command: Watched, slices: Watched, handovers: list[Handover]) -> None:
    title = f"{NAMES[kind]}: commit to a row in Delta, {RATE} transactions a second, Airflow's merge in slices"

    def add(name: str, text: str, series: dict[str, list[float]], *bars: Bar) -> None:
        results.add(Figure(f"airflow_latency_{kind}_{name}", "Lake", f"{title}, {text}", "s", series, bars))

    for q, most in ((50, 1), (99, 3)):
        bars = (Bar(most, at_most=True), Bar(NOT_SLOWER, other=COMMAND, at_most=True))
        others = [percentile(command.latencies(), q)]
        add(f"p{q}", f"p{q}", {OURS: [percentile(slices.latencies(handovers), q)], COMMAND: others}, *bars)
        add(f"all_p{q}", f"handovers included, p{q}", {OURS: [percentile(slices.latencies(), q)], COMMAND: others})
    at_handovers = [slices.latencies_at(handover) for handover in handovers]
    add("handover_p50", "at a handover, p50", {OURS: [percentile(values, 50) for values in at_handovers]})
    add("handover_most", "at a handover, longest", {OURS: [max(values) for values in at_handovers]})
    pauses = [slices.longest_pause(handover.began, handover.settled) for handover in handovers]
    text = "longest time without a new version at a handover"
    add("pause", text, {OURS: pauses, COMMAND: [command.longest_pause()]}, Bar(LONGEST_PAUSE, at_most=True))
    takes = [handover.taken - handover.began for handover in handovers]
    add("handover", "from the end of a slice to the next merge's hold of the lake", {OURS: takes})
