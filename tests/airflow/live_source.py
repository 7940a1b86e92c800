"""What the source of the live Airflow consists of: its tables, its TOML file, and the notifiers that the file names."""

from __future__ import annotations

from pathlib import Path

from tests.fix_servers import Database

PASSWORD = "DBLOG_TEST_PASSWORD"
OTHERS = ("DBLOG_TEST_HASH_KEY", "DBLOG_TEST_SECRET_KEY", "DBLOG_TEST_COPY")
"""Variables of secrets that the source has beside its password."""
SLICES = 2
_TOML = """
[source]
name = "live"
kind = "mysql"
host = "{host}"
port = {port}
user = "{user}"
password = "${{{variable}}}"
database = "{database}"
tables = ["{database}.orders", "{database}.countries", "{database}.parcels"]
hash_key = "${{DBLOG_TEST_HASH_KEY}}"
[staging]
path = "{root}/staging"
[state]
url = "sqlite:///{root}/state.db"
ttl = 4
[lake]
path = "{root}/lake"
[s3]
access_key = "an id"
secret_key = "${{DBLOG_TEST_SECRET_KEY}}"
[output.copy]
kind = "postgres"
database = "copy"
user = "dblog"
password = "${{DBLOG_TEST_COPY}}"
[airflow]
repair_slices = {slices}
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
NOTIFIERS = """
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
TABLES = (
    "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40))",
    "INSERT INTO orders WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
    "SELECT i, CONCAT('order ', i) FROM n",
    "CREATE TABLE countries (code VARCHAR(8) PRIMARY KEY, name VARCHAR(40))",
    "INSERT INTO countries VALUES ('de', 'Germany'), ('fr', 'France'), ('pt', 'Portugal')",
    "CREATE TABLE parcels (id INT PRIMARY KEY, note VARCHAR(40))",
)


def configuration(database: Database, root: Path) -> str:
    """The TOML file of a source whose staging, state and lake lie below `root`."""
    return _TOML.format(
        host=database.server.host,
        port=database.server.port,
        user=database.account.user,
        variable=PASSWORD,
        database=database.name,
        root=root,
        slices=SLICES,
    )
