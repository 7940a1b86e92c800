"""A configuration file to write, and the faults that loading it raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.config.loader import load
from dblog_core.errors import ConfigError

SOURCE = """
[source]
name = "shop"
kind = "mysql"
host = "127.0.0.1"
password = "hunter2secret"
database = "shop"
tables = ["shop.*"]
"""
REST = """
[staging]
path = "staging"
[state]
url = "sqlite:///var/lib/dblog/state.db"
[lake]
path = "lake"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "shop.toml"


def faults(file: Path, text: str) -> str:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert "hunter2secret" not in str(caught.value)
    return str(caught.value)


SQLITE = 'url = "sqlite:///var/lib/dblog/state.db"'
SIGNALS = """
[signals]
table = "shop.dblog_signal"
file = "requests.jsonl"
[signals.http]
token = "hunter2secret of a caller"
[signals.kafka]
servers = "kafka.example:9092"
topic = "signals"
user = "dblog"
password = "hunter2secret"
[[notify]]
name = "ops"
to = "webhook"
url = "https://ops.example/hook"
secret = "hunter2secret"
[[notify]]
name = "bus"
to = "kafka"
[notify.kafka]
servers = "localhost:9092"
topic = "notices"
"""
