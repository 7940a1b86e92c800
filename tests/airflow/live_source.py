"""What the source of the live Airflow consists of: its tables, its TOML file, and the notifiers that the file names."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.fix_servers import Database
from tests.marked import BASE, Marked, mark_config

SLICES = 2
_BESIDE = {
    **{name: BASE[name] for name in ("s3", "output", "spark")},
    "signals": {"http": BASE["signals"]["http"]},
    "notify": [{**receiver, "events": ["refused"]} for receiver in BASE["notify"]],
}
"""Sections with secrets that change nothing of what the tests look at: nobody asks for a dump by a signal."""
MASKED = "Qz7masked motto"
"""What `countries` has in a column that is masked."""
_TOML = """
[source]
name = "live"
kind = "mysql"
host = "{host}"
port = {port}
user = "{user}"
password = "{password}"
database = "{database}"
tables = ["{database}.orders", "{database}.countries", "{database}.parcels"]
columns = {{ "{database}.countries" = {{ mask = ["motto"] }} }}
[staging]
path = "{root}/staging"
[state]
url = "sqlite:///{root}/state.db"
ttl = 4
[lake]
path = "{root}/lake"
engine = "{engine}"
[airflow]
repair_slices = {slices}
approve_rows = 1500
merged_within = "1s"
[[airflow.notify]]
notifier = "file_notifier.FileNotifier"
dags = ["dump"]
arguments = {{ path = "{root}/notified", password = "{{}}" }}
[[airflow.notify]]
notifier = "file_notifier.LateNotifier"
when = "late"
arguments = {{ path = "{root}/late" }}
[[airflow.notify]]
notifier = "file_notifier.NoticeNotifier"
when = "dump"
arguments = {{ path = "{root}/notices", text = "{{{{ task.task_id }}}}: {{{{ notice.event }}}}" }}
"""
NOTIFIERS = """
import json
from airflow.sdk import BaseNotifier
class FileNotifier(BaseNotifier):
    def __init__(self, *, path, password=""):
        super().__init__()
        self.path = path
        self.password = password
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
TABLES = (
    "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40))",
    "INSERT INTO orders WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
    "SELECT i, CONCAT('order ', i) FROM n",
    f"CREATE TABLE countries (code VARCHAR(8) PRIMARY KEY, name VARCHAR(40), motto VARCHAR(40) DEFAULT '{MASKED}')",
    "INSERT INTO countries (code, name) VALUES ('de', 'Germany'), ('fr', 'France'), ('pt', 'Portugal')",
    "CREATE TABLE parcels (id INT PRIMARY KEY, note VARCHAR(40))",
)


def configuration(database: Database, root: Path, *, engine: str) -> Marked:
    """A source whose staging, state and lake lie below `root`; every setting that takes a secret has one."""
    text = _TOML.format(
        host=database.server.host,
        port=database.server.port,
        user=database.account.user,
        password=database.account.password,
        database=database.name,
        root=root,
        engine=engine,
        slices=SLICES,
    )
    return mark_config(root, base=_BESIDE, **tomllib.loads(text))
