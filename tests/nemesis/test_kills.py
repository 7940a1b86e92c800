"""Seeded runs: capture, worker, merge and server are killed under a live workload, with dumps of every kind going on;
nothing is lost or repeated, and no row goes back."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.lake.lake_status import State, read_status
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.nemesis import oracles
from tests.nemesis.dumps import Dumps
from tests.nemesis.processes import Dblog, kill
from tests.nemesis.replicas import Key, Row, values
from tests.nemesis.workload import TABLES, Writers, column_of, create_tables
from tests.waiting import PATIENCE_SECONDS

CHAOS = 14.0  # seconds of kills, at least
FILED = PATIENCE_SECONDS  # until the first dump is filed
RUNNING = {"capture": ("capture",), "work": ("work",), "merge": ("merge",)}
MERGES_KILLED = 4
"""Of so many runs of a soak, one runs and kills merges too: Spark's starts are most of a run's work, and the seeded
merges under faults (`tests/spark/test_merge_faults.py`) kill it at every step."""
LIFETIMES = {"capture": (1.5, 7.0), "work": (1.5, 7.0), "merge": (3.0, 15.0), "server": (5.0, 30.0)}  # seconds

Rows = dict[str, dict[Key, Row]]
LakeReader = Callable[[Path], list[dict[str, Any]]]


class Chaos:
    """Keeps what `running` names running, and kills each, and the server, after lifetimes that the seed draws."""

    def __init__(self, dblog: Dblog, database: Database, seed: int, running: Collection[str]) -> None:
        self._dblog = dblog
        self._database = database
        self._draw = random.Random(seed)
        self._running = {name: RUNNING[name] for name in running}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ends: dict[str, float] = {}
        self.kills: dict[str, int] = dict.fromkeys(LIFETIMES, 0)

    def run(self, seconds: float) -> None:
        """For `seconds`, and until each of `running` was killed at least once."""
        deadline = time.monotonic() + seconds
        self._live("server")
        while time.monotonic() < deadline or not all(self.kills[name] for name in self._running):
            for name, arguments in self._running.items():
                if name not in self._processes or self._processes[name].poll() is not None:
                    self._processes[name] = self._dblog.start(*arguments)
                    self._live(name)
            for name, ends in self._ends.items():
                if time.monotonic() >= ends:
                    self._strike(name)
            time.sleep(0.05)  # the pace of this loop, not a wait: lifetimes are drawn

    def stop(self) -> None:
        for process in self._processes.values():
            kill(process)

    def _live(self, name: str) -> None:
        self._ends[name] = time.monotonic() + self._draw.uniform(*LIFETIMES[name])

    def _strike(self, name: str) -> None:
        if name == "server":
            self._database.server.kill()
            self._database.server.start()
            self.kills[name] += 1
        elif self._processes[name].poll() is None:
            kill(self._processes[name])
            self.kills[name] += 1
        self._live(name)


def log_start(database: Database) -> Callable[[], list[oracles.Entry]]:
    """Marks the present end of the server's log; the function it returns reads from there by the server's own tools."""
    if database.kind == "postgres":
        slot = f"reference_{database.name}"
        database.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'wal2json')")

        def read() -> list[oracles.Entry]:
            entries = oracles.slot_entries(database, slot)
            database.query(f"SELECT pg_drop_replication_slot('{slot}')")
            return entries

        return read
    assert isinstance(database.server, MysqlServer)
    file, position = database.query(database.server.status_statement)[0][:2]
    return lambda: oracles.binlog_entries(database, (file, int(position)))


@pytest.mark.one_of(4)
@pytest.mark.in_turn
def test_kills_lose_nothing_and_repeat_nothing(
    database: Database,
    soak_seed: int,
    request: pytest.FixtureRequest,
    zookeeper_url: str,
    merge_here: Callable[[Config], None],
    read_lake: LakeReader,
    tmp_path: Path,
) -> None:
    create_tables(database)
    start = oracles.source_rows(database)
    state = {"url": zookeeper_url if soak_seed % 2 else f"sqlite:///{tmp_path / 'state.db'}", "ttl": 4.0}
    config = database.config(tmp_path, state=state, dump={"chunk_size": 100, "workers": 2, "delay": 0.2})
    dblog = Dblog(config, tmp_path)
    merging = request.config.option.soak_seeds == 1 or soak_seed % MERGES_KILLED == 0
    chaos = Chaos(dblog, database, soak_seed, RUNNING if merging else [name for name in RUNNING if name != "merge"])
    dumps = Dumps(config, database, soak_seed)
    try:
        reference = log_start(database)
        dblog.run("capture", "--until-current")
        with Writers(database, seed=soak_seed) as writers:
            first = dblog.start("dump", "--all")
            wait_until_filed(config, first)
            with dumps:
                chaos.run(CHAOS)
            kill(first)
        chaos.stop()
        assert not (writers.faults or dumps.faults), (writers.faults, dumps.faults)
        print(f"kills: {chaos.kills}, transactions: {writers.transactions}")
        print(f"truncates: {writers.truncates}, changes of shape: {writers.alters}")
        print(f"dumps: {sorted(dumps.filed.values())}")
        dumps.let_go()
        capture = dblog.start("capture")
        merge_to_the_end(dblog, config, merge_here)
        kill(capture)
        dumps.check()
        judge(config, database, start, reference(), read_lake)
    except BaseException:
        print(dblog.output())
        raise
    finally:
        dblog.close()


def wait_until_filed(config: Config, command: subprocess.Popen[bytes]) -> None:
    """The dump of all tables reaches every row: it is there before anything is killed."""
    deadline = time.monotonic() + FILED
    with closing(wiring.open_state(config)) as state:
        while not dump_store.list_dumps(state):
            assert command.poll() is None and time.monotonic() < deadline, "the first dump was not filed"
            time.sleep(0.1)


def merge_to_the_end(dblog: Dblog, config: Config, merge: Callable[[Config], None]) -> None:
    """Dumps and merges, until no table waits for a dump that a merge has requested by itself."""
    for _ in range(5):
        dblog.run("work", "--once")
        dblog.run("capture", "--until-current")
        merge(config)
        status = read_status(wiring.open_lake(config))
        assert status is not None
        if all(table.state is State.OK for table in status.tables.values()):
            return
    raise AssertionError(f"dumps do not bring what tables wait for: {status.tables}")


def judge(
    config: Config, database: Database, start: Rows, reference: list[oracles.Entry], read_lake: LakeReader
) -> None:
    """All validators over what the run has left."""
    end = judge_log(config, database, start, reference)
    lake: Rows = {}
    for table in TABLES:
        rows = read_lake(Path(config.lake.path) / database.schema / table)
        names = oracles.columns(database, table)  # what the source has dropped, the lake keeps
        lake[table] = {(row["id"],): values(map(column_of, names), [row[name] for name in names]) for row in rows}
    oracles.check_equal(end, lake)


def judge_log(config: Config, database: Database, start: Rows, reference: list[oracles.Entry]) -> Rows:
    """The validators of the super-changelog; returns the source's rows."""
    log_lines = [oracles.by_column(line) for line in lines(wiring.open_staging(config))]
    end = oracles.source_rows(database)
    oracles.check_offsets(log_lines)
    oracles.check_no_key_goes_back(log_lines)
    oracles.check_same_log(oracles.ours(log_lines), reference)
    oracles.check_every_transaction(oracles.ours(log_lines), reference, start)
    oracles.check_replicas(log_lines, start, end, database.schema)
    assert {line["op"] for line in log_lines} >= {"c", "u", "d", "r", "f"}
    return end
