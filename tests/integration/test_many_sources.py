"""Fifty sources beside each other: three servers, one ZooKeeper, one staging root; nothing of one is another's."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config import conflicts
from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.monitoring.metrics import Sources
from dblog_core.staging.reader import lines
from dblog_core.state import capture_status
from dblog_core.state.capture_status import LeaderReport
from dblog_core.state.lease_holder import CAPTURE
from tests.fix_servers import Database, drop, new
from tests.nemesis.processes import Dblog, kill
from tests.waiting import PATIENCE_SECONDS, wait_until

SOURCES, LIVE = 50, 6


@dataclass(frozen=True, slots=True)
class Source:
    """One of them; its rows hold its name."""

    config: Config
    database: Database

    @property
    def name(self) -> str:
        return self.config.source.name

    def write(self, *keys: int) -> None:
        self.database.execute(*(f"INSERT INTO {self.name} VALUES ({key}, '{self.name}')" for key in keys))

    def staged_rows(self) -> list[dict[str, Any]]:
        """Its rows in the super-changelog."""
        return [line["after"] for line in lines(wiring.open_staging(self.config)) if line["op"] == "c"]

    def epoch(self) -> int | None:
        with closing(wiring.open_state(self.config)) as state:
            leader = state.leader(CAPTURE)
        return leader.epoch if leader else None


@pytest.fixture(scope="module")
def databases(mysql: MysqlServer, mariadb: MariadbServer, postgres: PostgresServer) -> Iterator[list[Database]]:
    """One for each source, in turn on the three servers. Those that run have one of their own; the others share one on
    each server, and the watermark table in it."""
    servers: tuple[DatabaseServer, ...] = (mysql, mariadb, postgres)
    new_databases = [
        new(servers[number % len(servers)], f"t_{secrets.token_hex(4)}") for number in range(LIVE + len(servers))
    ]
    databases_by_number = [
        new_databases[number] if number < LIVE else new_databases[LIVE + number % len(servers)]
        for number in range(SOURCES)
    ]
    for number, database in enumerate(databases_by_number):
        database.execute(f"CREATE TABLE s{number:02} (id int PRIMARY KEY, source varchar(9))")
    yield databases_by_number
    for database in new_databases:
        drop(database)


@pytest.fixture
def fifty(databases: list[Database], zookeeper_url: str, tmp_path: Path) -> list[Source]:
    """A staging root and a ZooKeeper for all."""
    new_sources = []
    for number, database in enumerate(databases):
        name = f"s{number:02}"
        source: dict[str, Any] = {"name": name, "tables": [f"{database.schema}.{name}"]}
        if database.kind == "postgres":
            source |= {"publication": f"dblog_{database.name}" if number < LIVE else f"dblog_{name}"}
        state, lake = {"url": zookeeper_url, "ttl": 10}, {"path": str(tmp_path / "lake" / name)}
        new_sources.append(Source(database.config(tmp_path, source=source, state=state, lake=lake), database))
    return new_sources


def test_leases_nodes_requests_ids_and_slots_of_fifty_sources_are_each_ones_own(fifty: list[Source]) -> None:
    assert conflicts.clashes({Path(f"{s.name}.toml"): s.config for s in fifty}) == {}
    replicas = [s.config.source.replica_id for s in fifty if s.database.kind != "postgres"]
    assert len(set(replicas)) == len(replicas) > 30
    with ExitStack() as opened:
        states = {s.name: opened.enter_context(closing(wiring.open_state(s.config))) for s in fifty}
        leases = {name: state.acquire(CAPTURE, f"holder of {name}", ttl=30) for name, state in states.items()}
        for lease in filter(None, leases.values()):
            opened.callback(lease.release)
        for name, state in states.items():
            lease, leader = leases[name], state.leader(CAPTURE)
            assert (
                lease is not None and lease.epoch == 1 and leader is not None and leader.holder == f"holder of {name}"
            )
            capture_status.put_status(state, LeaderReport(1, float(name[1:]), 0, (), 1, True))
        dumps = {s.name: filing.submit(s.config, DumpRequest((f"{s.database.schema}.{s.name}",))) for s in fifty[:3]}
        for name, state in states.items():
            assert state.children("dumps") == ([dumps[name]] if name in dumps else [])
            status = capture_status.read_status(state)
            assert status is not None and status.lag_seconds == float(name[1:])
        first, second = fifty[0].name, fifty[1].name
        states[first].raise_epoch(CAPTURE, 41)
        control.cancel(states[second], dumps[second])
        for name, lease in leases.items():
            assert lease is not None and lease.valid(), name
            if name in (first, second):
                lease.release()
        next_leases = {name: states[name].acquire(CAPTURE, "next", ttl=30) for name in (first, second)}
        for lease in filter(None, next_leases.values()):
            opened.callback(lease.release)
        assert {name: lease.epoch for name, lease in next_leases.items() if lease} == {first: 42, second: 2}
        assert [dump_store.read_dump(states[name], dumps[name]).state for name in dumps] == [
            "requested",
            "cancelled",
            "requested",
        ]
        assert all((leader := state.leader(CAPTURE)) and leader.epoch == 1 for state in list(states.values())[2:])


@pytest.fixture
def live(fifty: list[Source], tmp_path: Path) -> Iterator[dict[str, tuple[Source, Dblog]]]:
    """Some of them, two a server, with captures as processes."""
    running = {}
    for source in fifty[:LIVE]:
        home = tmp_path / source.name
        home.mkdir()
        running[source.name] = (source, Dblog(source.config, home))
    yield running
    for _, dblog in running.values():
        dblog.close()


@pytest.mark.one_of(4)
def test_what_happens_to_one_capture_leaves_the_others_alone_and_metrics_tell_them_apart(
    fifty: list[Source], live: dict[str, tuple[Source, Dblog]]
) -> None:
    running = {name: dblog.start("capture") for name, (_, dblog) in live.items()}
    sources = [source for source, _ in live.values()]
    wait_until(lambda: all(s.epoch() == 1 and wiring.open_staging(s.config).head() for s in sources), "all lead")
    for source in sources:
        source.write(1, 2)
    wait_until(lambda: all(len(s.staged_rows()) == 2 for s in sources), "all stage their rows")
    killed, stopped, *others = sources
    kill(running[killed.name])
    running[stopped.name].send_signal(signal.SIGTERM)
    assert running[stopped.name].wait(PATIENCE_SECONDS) == 0
    for source in sources:
        source.write(3)
    wait_until(lambda: all(len(s.staged_rows()) == 3 for s in others), "the others go on")
    wait_until(lambda: killed.epoch() is None and stopped.epoch() is None, "the two lead no more")
    assert [len(s.staged_rows()) for s in (killed, stopped)] == [2, 2]
    figures = {
        (sample.name, sample.labels["source"]): sample.value
        for family in Sources([s.config for s in fifty]).collect()
        for sample in family.samples
    }
    names = {source.name for source in others}
    assert {s.name for s in fifty if figures["dblog_leader", s.name]} == names
    for source in sources:
        head = wiring.open_staging(source.config).head()
        assert head is not None and figures["dblog_staged_offset", source.name] == head.last_offset
    for source in (killed, stopped):
        live[source.name][1].start("capture")
    wait_until(lambda: all(len(s.staged_rows()) == 3 for s in sources), "the two go on where they ended")
    assert {s.name: s.epoch() for s in sources} == {s.name: 1 if s in others else 2 for s in sources}
    for source in sources:
        assert source.staged_rows() == [{"id": key, "source": source.name} for key in (1, 2, 3)]
