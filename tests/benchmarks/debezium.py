"""Debezium as a peer: its engine in a process of its own, from a prepared place in the log as often as is wanted."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from dblog_core.errors import LocalError
from dblog_core.local.servers import guard
from dblog_core.local.servers.daemon import wait_until
from tests.benchmarks.timeline import Timeline
from tests.fix_servers import Database

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-bench" / "bin" / "python"
CHILD = "tests.benchmarks.debezium_child"
SIGNALS = "debezium_signal"
PROBE = "debezium_probe"
# What the engine logs, by which we know how far it is.
_STREAMING = "(Connected to binlog at|Processing messages|Starting streaming)"
_STARTED = "Incremental Snapshot.*(STARTED)"
_COMPLETED = "Incremental Snapshot.*'?(COMPLETED)"
_LOG_SETTINGS = """
rootLogger.level=INFO
rootLogger.appenderRef.file.ref=file
appender.file.type=File
appender.file.name=file
appender.file.fileName={file}
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d{{yyyy-MM-dd'T'HH:mm:ss.SSS}} %p %c{{1}} %m%n
"""


class DebeziumFailed(AssertionError):
    """The engine ended early; with the end of its log."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """What an engine delivered, and the most memory it had, in bytes."""

    timeline: Timeline
    peak: int


class Engine:
    """A running engine; `directory` holds its offsets, its schema history and its log."""

    def __init__(self, directory: Path, properties: dict[str, str], *, expect: int | None) -> None:
        self.log = directory / "engine.log"
        self._errors = directory / "engine.err"
        self.log.touch()
        settings = directory / "log4j2.properties"
        settings.write_text(_LOG_SETTINGS.format(file=self.log))
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [PYTHON, "-m", CHILD],
                cwd=directory,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        guard.watch(self._process.pid, psutil.Process(self._process.pid).create_time())
        request = {"properties": properties, "expect": expect, "log_settings": str(settings)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def arrivals(self, timeout: float = 300) -> Arrivals:
        """Waits for the engine's end and returns what it delivered. Raises DebeziumFailed."""
        deadline = threading.Timer(timeout, self._process.kill)
        deadline.start()
        try:
            assert self._process.stdout is not None
            text = self._process.stdout.read()
        finally:
            deadline.cancel()
            self.kill()
        if not text:
            raise DebeziumFailed(f"the engine ended early:\n{self.end_of_log()}")
        answer = json.loads(text)
        return Arrivals(Timeline.of_batches(answer["batches"]), answer["peak"])

    def kill(self) -> None:
        """`kill -9`, where it still runs."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # what it no longer reads
                pipe.close()

    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, pattern: str, timeout: float) -> datetime:
        """Waits until it logs a line that matches; when that was. Raises DebeziumFailed."""
        try:
            wait_until(
                lambda: not self.alive() or self.first_logged_at(pattern) is not None, timeout=timeout, what=pattern
            )
        except LocalError as error:
            raise DebeziumFailed(self.end_of_log()) from error
        match = self.first_logged_at(pattern)
        if match is None:
            raise DebeziumFailed(f"the engine ended before {pattern}:\n{self.end_of_log()}")
        return match

    def first_logged_at(self, pattern: str) -> datetime | None:
        """When it first logged a line that matches."""
        match = re.search(rf"^(\S+) .*{pattern}", self.log.read_text(errors="replace"), re.MULTILINE)
        return datetime.fromisoformat(match[1]) if match else None

    def end_of_log(self) -> str:
        return "\n".join((self.log.read_text(errors="replace") + self._errors.read_text()).splitlines()[-25:])


class Snapshots:
    """Incremental snapshots by a running engine."""

    def __init__(self, engine: Engine, database: Database) -> None:
        self._engine = engine
        self._database = database

    def dump(self, table: str, *, timeout: float = 300) -> float:
        """Takes one of the table, the engine's only one; seconds from its start to its end as the engine logs them."""
        data = json.dumps({"data-collections": [f"{self._database.schema}.{table}"], "type": "INCREMENTAL"})
        number = secrets.token_hex(8)
        self._database.execute(f"INSERT INTO {SIGNALS} VALUES ('{number}', 'execute-snapshot', '{data}')")
        began = self._engine.wait(_STARTED, timeout)
        ended = self._engine.wait(_COMPLETED, timeout)
        return (ended - began).total_seconds()


class Debezium:
    """Prepared engines of one database: each `run` begins where `prepare` has left off, with files of its own."""

    def __init__(self, database: Database, directory: Path, *tables: str) -> None:
        self._database = database
        self._dir = directory
        self._tables = tables
        self._slots = f"dbz_{directory.name}"
        self._runs = 0

    def prepare(self) -> None:
        """Finds the place in the log where every run begins: the present end, after a first row of its own."""
        self._database.execute(
            f"DROP TABLE IF EXISTS {PROBE}",
            f"CREATE TABLE {PROBE} (id int PRIMARY KEY)",
            f"CREATE TABLE IF NOT EXISTS {SIGNALS} (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text)",
        )
        home = self._dir / "start"
        shutil.rmtree(home, ignore_errors=True)  # an earlier place
        home.mkdir(parents=True)
        self._drop_slots(f"{self._slots}_start")
        engine = Engine(home, self._properties(home, f"{self._slots}_start"), expect=1)
        try:
            engine.wait(_STREAMING, 120)
            self._database.execute(f"INSERT INTO {PROBE} VALUES (1)")
            engine.arrivals(60)
        finally:
            engine.kill()

    def start(self, *, expect: int | None = None, options: dict[str, str] | None = None) -> Engine:
        """An engine from the prepared place; with `expect` it ends by itself after so many records."""
        self._runs += 1
        home = self._dir / f"run-{self._runs}"
        shutil.copytree(self._dir / "start", home)
        slot = f"{self._slots}_{self._runs}"
        if self._database.kind == "postgres":
            self._database.query(f"SELECT pg_copy_logical_replication_slot('{self._slots}_start', '{slot}')")
        return Engine(home, {**self._properties(home, slot), **(options or {})}, expect=expect)

    def run(self, rows: int) -> Arrivals:
        """The next `rows` records of the log."""
        engine = self.start(expect=rows)
        try:
            return engine.arrivals()
        finally:
            engine.kill()
            self.forget()

    @contextmanager
    def streaming(self, chunk: int) -> Iterator[Snapshots]:
        """An engine that reads the log, and takes incremental snapshots in chunks of that many rows when asked."""
        engine = self.start(options={"incremental.snapshot.chunk.size": str(chunk)})
        try:
            engine.wait(_STREAMING, 120)
            yield Snapshots(engine, self._database)
        finally:
            engine.kill()
            self.forget()

    def forget(self) -> None:
        """Drops the slots of engines that have ended."""
        self._drop_slots(f"{self._slots}_[0-9]+")

    def _drop_slots(self, pattern: str) -> None:
        if self._database.kind != "postgres":
            return
        idle = f"slot_name ~ '^{pattern}$' AND database = current_database()"
        wait_until(
            lambda: not self._database.query(f"SELECT 1 FROM pg_replication_slots WHERE active AND {idle}"),
            timeout=30,
            what="the engine's slot to be free",
        )
        self._database.query(f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE {idle}")

    def _properties(self, home: Path, slot: str) -> dict[str, str]:
        database = self._database
        schema = self._database.schema
        server = database.server
        tables = ",".join(f"{schema}.{t}" for t in (*self._tables, PROBE, SIGNALS))
        usual = {
            "name": "bench",
            "topic.prefix": "bench",
            "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
            "offset.storage.file.filename": str(home / "offsets.dat"),
            "offset.flush.interval.ms": "1000",
            "database.hostname": server.host,
            "database.port": str(server.port),
            "database.user": server.admin.user,
            "database.password": server.admin.password,
            "table.include.list": tables,
            "signal.data.collection": f"{schema}.{SIGNALS}",
            "notification.enabled.channels": "log",
            "snapshot.mode": "no_data",
            "tombstones.on.delete": "false",
        }
        if database.kind == "postgres":
            return usual | {
                "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "database.dbname": database.name,
                "plugin.name": "pgoutput",
                "slot.name": slot,
                "publication.name": self._slots,
                "publication.autocreate.mode": "filtered",
            }
        return usual | {
            "connector.class": "io.debezium.connector.mysql.MySqlConnector",
            "database.include.list": schema,
            "database.server.id": str(9_000 + self._runs),
            "include.schema.changes": "false",
            "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
            "schema.history.internal.file.filename": str(home / "history.dat"),
        }
