"""What the demo is made of: the servers, the configuration, the workload's process, and views on what they do."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dblog_core.config.loader import load
from dblog_core.config.settings import Config
from dblog_core.errors import LocalError
from dblog_core.local.demo import shop, workload
from dblog_core.local.servers import data_root
from dblog_core.local.servers.airflow import AirflowServer
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.local.servers.zookeeper import ZookeeperServer

KINDS: dict[str, Callable[[Path], DatabaseServer]] = {
    "mysql": MysqlServer,
    "mariadb": MariadbServer,
    "postgres": PostgresServer,
}
NAME = "shop"
_USER = "dblog"

_CONFIGURATION = """\
[source]
name = "{name}"
kind = "{kind}"
host = "{host}"
port = {port}
user = "{user}"
password = "{password}"
database = "{database}"
tables = {tables}

[staging]
path = "{root}/staging"

[state]
url = "zookeeper://{zookeeper}/dblog"
ttl = 4.0

[lake]
path = "{root}/lake"

[spark]
master = "local[2]"

[spark.conf]  # small tables: compiling to the last would take longer than what it saves
# The compiler that is left gets 48 MB by itself; a verification fills them, and from then on nothing is compiled.
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"spark.sql.adaptive.enabled" = "false"  # each stage would be planned anew
"spark.sql.shuffle.partitions" = "2"
"spark.databricks.delta.snapshotPartitions" = "1"
"""


@dataclass(frozen=True, slots=True)
class Edition:
    """How much a demo tells. `size`: of the shop; `rate`: transactions a second that the workload aims at;
    `takeover_after`: rows of the dump after which the leader is killed.

    `whole`: with that takeover, a dump of a few keys, and a verification while the writers continue.
    """

    size: str
    rate: float
    chunk_size: int
    takeover_after: int
    whole: bool


WHOLE = Edition(size="usual", rate=100.0, chunk_size=4000, takeover_after=40_000, whole=True)
QUICK = Edition(size="small", rate=100.0, chunk_size=1000, takeover_after=0, whole=False)


class Parts:
    """Everything below `root`; nothing is started by the constructor."""

    def __init__(self, kind: str, root: Path, edition: Edition = WHOLE) -> None:
        self.kind = kind
        self.root = root
        self.edition = edition
        self.database = KINDS[kind](root / kind)
        self.zookeeper = ZookeeperServer(root / "zookeeper")
        self.airflow = AirflowServer(root / "airflow", dags=data_root.CHECKOUT / "dags", configs=root / "config")
        self.workload: Workload | None = None

    @property
    def config_file(self) -> Path:
        return self.root / "config" / f"{NAME}.toml"

    @property
    def tables(self) -> list[str]:
        schema = shop.dialect(self.kind).schema
        return [f"{schema}.{table}" for table in shop.TABLES]

    def config(self) -> Config:
        return load(self.config_file)

    def configure(self) -> None:
        """Writes the configuration; ports are chosen, and no server needs to run yet."""
        self.config_file.parent.mkdir(mode=0o700)
        text = _CONFIGURATION.format(
            name=NAME,
            kind=self.kind,
            host=self.database.host,
            port=self.database.port,
            user=_USER,
            password=secrets.token_hex(12),
            database=shop.DATABASE,
            tables=json.dumps(self.tables),
            root=self.root,
            zookeeper=self.zookeeper.address(),
        )
        with os.fdopen(os.open(self.config_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as out:
            out.write(text)

    def start_servers(self) -> None:
        """All of them at once."""
        run_together(self.database.start, self.zookeeper.start, self.airflow.start)

    def start_database(self) -> int:
        """The database server with the shop in it; returns the number of rows."""
        self.database.start()
        self.database.create_database(shop.DATABASE)
        password = self.config().source.password.get_secret_value()
        if isinstance(self.database, PostgresServer):
            # The tables belong to the administrator, and so must the publication.
            publication = self.config().source.publication
            self.database.create_capture_user(shop.DATABASE, user=_USER, password=password, publication=publication)
        else:
            self.database.create_capture_user(shop.DATABASE, user=_USER, password=password)
        with closing(self.database.connect(shop.DATABASE)) as connection:
            return shop.load(connection, self.kind, shop.SIZES[self.edition.size])

    def start_workload(self) -> Workload:
        self.workload = Workload(self.database, size=self.edition.size, rate=self.edition.rate)
        return self.workload

    def stop(self, *, orderly: bool) -> None:
        """Ends all that runs; `orderly` false: at once."""
        if self.workload is not None:
            self.workload.stop()
        for server in (self.airflow, self.zookeeper, self.database):
            if orderly:
                server.stop()
            else:
                server.kill()

    def addresses(self) -> list[str]:
        """Where to look around while the servers run."""
        return [
            f"Airflow    {self.airflow.address()}",
            f"database   {self.database.address()}",
            f"staging    {self.root / 'staging'}",
            f"lake       {self.root / 'lake'}",
            f"status     .venv/bin/dblog --config {self.config_file} status",
            f"log        .venv/bin/dblog --config {self.config_file} log | head",
        ]


class Workload:
    """The workload's process, and what it last printed."""

    def __init__(self, database: DatabaseServer, *, size: str, rate: float) -> None:
        command = [sys.executable, "-m", "dblog_core.local.demo.workload", "--kind", database.kind]
        command += ["--host", database.host, "--port", str(database.port), "--user", database.admin.user]
        self._process = subprocess.Popen(
            [*command, "--size", size, "--rate", str(rate)],
            # Not as an argument: everybody on the machine can read those.
            env={**os.environ, workload.PASSWORD_FROM: database.admin.password},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.report = workload.WorkloadReport()
        self._is_stopped = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def check(self) -> None:
        """Raises LocalError if it has ended before it was stopped."""
        if self._process.poll() is not None and not self._is_stopped:
            assert self._process.stderr is not None
            output = self._process.stderr.read().strip()[-1500:]
            raise LocalError(f"the workload has ended early:\n{output}", where="demo")

    def stop(self) -> None:
        """Lets it finish its transactions."""
        self._is_stopped = True
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait(30)
        self._reader.join(5)

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self.report = workload.WorkloadReport.from_line(line)


def run_together(*steps: Callable[[], Any]) -> list[Any]:
    """Runs the steps in threads; returns what they return. Raises the first error; a Ctrl-C does not wait."""
    results: list[Any] = [None] * len(steps)
    faults: list[Exception] = []

    def run(index: int, step: Callable[[], Any]) -> None:
        try:
            results[index] = step()
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that waits
            faults.append(error)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(steps)]
    for thread in threads:
        thread.start()
    # Short waits, so that a Ctrl-C reaches the main thread.
    while not faults and any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(0.1)
    if faults:
        raise faults[0]
    return results
