"""A real Airflow with one MySQL source, shared by the tests that ask for it."""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dblog_core.config import Config
from dblog_core.local.airflow import AirflowServer
from dblog_core.local.airflow_client import AirflowClient
from dblog_core.local.mysql import MysqlServer
from dblog_core.local.postgres import PostgresServer
from tests.fix_servers import Database

PASSWORD = "DBLOG_TEST_PASSWORD"
DAGS = Path(__file__).parents[1] / "dags"
_TOML = """
[source]
name = "live"
kind = "mysql"
host = "{host}"
port = {port}
user = "{user}"
password = "${{{variable}}}"
database = "{database}"
tables = ["{database}.orders", "{database}.countries"]
[staging]
path = "{root}/staging"
[state]
url = "sqlite:///{root}/state.db"
ttl = 4
[lake]
path = "{root}/lake"
[airflow]
repair_slices = 2
approve_rows = 1500
merged_within = "1s"
[[airflow.notify]]
notifier = "file_notifier.FileNotifier"
dags = ["dump"]
arguments = {{ path = "{root}/notified" }}
[[airflow.notify]]
notifier = "file_notifier.LateNotifier"
when = "late"
arguments = {{ path = "{root}/late" }}
[[airflow.notify]]
notifier = "file_notifier.NoticeNotifier"
when = "dump"
arguments = {{ path = "{root}/notices", text = "{{{{ task.task_id }}}}: {{{{ notice.event }}}}" }}
"""
_NOTIFIER = """
import json
from airflow.sdk import BaseNotifier
class FileNotifier(BaseNotifier):
    def __init__(self, *, path):
        super().__init__()
        self.path = path
    def notify(self, context):
        with open(self.path, "a") as file:
            file.write(context["dag_run"].run_id + "\\n")
class NoticeNotifier(FileNotifier):
    template_fields = ("text",)
    def __init__(self, *, path, text):
        super().__init__(path=path)
        self.text = text
    def notify(self, context):
        with open(self.path, "a") as file:
            file.write(json.dumps({"text": self.text, **context["notice"]}) + "\\n")
class LateNotifier(FileNotifier):
    def notify(self, context):
        with open(self.path, "a") as file:
            file.write(context["dag_run"]["dag_run_id"] + "\\n")
"""
_TABLES = (
    "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40))",
    "INSERT INTO orders WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
    "SELECT i, CONCAT('order ', i) FROM n",
    "CREATE TABLE countries (code VARCHAR(8) PRIMARY KEY, name VARCHAR(40))",
    "INSERT INTO countries VALUES ('de', 'Germany'), ('fr', 'France'), ('pt', 'Portugal')",
)


class Metrics:
    """What Airflow sends of its metrics by StatsD: the newest value of each, by its name without Airflow's prefix."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while line := self._socket.recv(65536).decode():
            for found in re.finditer(r"^airflow\.([^:]+):([-+.\d]+)\|", line, flags=re.MULTILINE):
                self.found[found[1]] = float(found[2])

    def close(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


@dataclass(frozen=True, slots=True)
class Live:
    """An Airflow in which both captures of the source `live` run."""

    server: AirflowServer
    client: AirflowClient
    database: Database
    config: Config = field(repr=False)
    notified: Path
    """Where ended runs are told, a line for each."""
    late: Path
    """Where late merges are told, a line for each."""
    notices: Path
    """Where what happens to dumps is told, a JSON object a line."""
    lineage: Path
    """Where OpenLineage's events go, a line for each."""
    metrics: Metrics


@contextmanager
def metadata(server: PostgresServer) -> Iterator[str]:
    """The URL of a database for what Airflow keeps: SQLite refuses some of what is asked at the same time."""
    name = f"airflow_{secrets.token_hex(4)}"
    server.create_database(name)
    try:
        account = f"{server.admin.user}:{server.admin.password}"
        yield f"postgresql+psycopg2://{account}@{server.host}:{server.port}/{name}"
    finally:
        server.drop_database(name)


@pytest.fixture(scope="package")
def live(mysql: MysqlServer, postgres: PostgresServer, server_root: Path) -> Iterator[Live]:
    name = f"t_{secrets.token_hex(4)}"
    mysql.create_database(name)
    database = Database(mysql, name, mysql.create_capture_user(name, user=f"dblog_{name}"))
    database.execute(*_TABLES)
    root, account = server_root / "airflow", database.account
    configs = root / "sources"
    configs.mkdir(parents=True)
    (configs / "live.toml").write_text(
        _TOML.format(host=mysql.host, port=mysql.port, user=account.user, variable=PASSWORD, database=name, root=root)
    )
    (configs / "broken.toml").write_text("[source]\nname = 'broken'\n")
    library = root / "library"
    library.mkdir()
    (library / "file_notifier.py").write_text(_NOTIFIER)
    metrics, lineage = Metrics(), root / "lineage"
    events = {"type": "file", "log_file_path": str(lineage), "append": True}
    given = {
        PASSWORD: account.password,
        "PYTHONPATH": str(library),
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_PORT": str(metrics.port),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(events),
        "AIRFLOW__CORE__TEST_CONNECTION": "Enabled",
    }
    config = database.config(root, source={"name": "live"}, state={"url": f"sqlite:///{root}/state.db", "ttl": 4})
    with metadata(postgres) as url:
        server = AirflowServer(root / "home", dags=DAGS, configs=configs, database=url, environment=given)
        try:
            server.start()
            client = server.client()
            for dag in ("dblog_live_capture", "dblog_live_capture_standby"):
                client.pause(dag, False)
            told = (root / name for name in ("notified", "late", "notices"))
            yield Live(server, client, database, config, *told, lineage, metrics)
        finally:
            metrics.close()
            server.kill()  # its data goes as well
