"""What goes over a network in clear text is told by `check`, one warning each; what lets somebody in is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.config.loader import load
from dblog_core.errors import ConfigError
from dblog_core.monitoring.clear_text import in_clear_text

FILE = """
[source]
name = "shop"
kind = "mysql"
database = "shop"
tables = ["shop.*"]
host = "{host}"
tls = "off"
[staging]
path = "s3://bucket/staging"
[state]
url = "zookeeper://{host}:2181/dblog"
tls = "off"
[lake]
path = "lake"
[s3]
endpoint = "http://{host}:9000"
[spark]
master = "spark://{host}:7077"
[signals.kafka]
servers = "{host}:9092"
topic = "signals"
user = "dblog"
password = "of-signals"
sasl = "plain"
tls = "off"
[[notify]]
name = "hook"
to = "webhook"
url = "http://{host}/hook"
[[notify]]
name = "topic"
to = "kafka"
[notify.kafka]
servers = "{host}:9092"
topic = "notices"
tls = "off"
[output.db]
kind = "postgres"
database = "copy"
host = "{host}"
tls = "off"
[output.post]
kind = "http"
url = "http://{host}/lines"
secret = "of-the-receiver"
[output.avro]
kind = "kafka"
servers = "{host}:9092"
form = "avro"
registry = "http://{host}:8081"
tls = "off"
"""
TOLD = {
    "[source] tls": "rows",
    "[state] tls": "keys of rows and positions",
    "[state] has no user": "take the lead",
    "[s3] endpoint": "rows",
    "[signals.kafka] tls": "user, password and messages",
    "[[notify]] hook": "notices",
    "[[notify]] topic tls": "messages",
    "[output.db] tls": "rows",
    "[output.post] url": "rows",
    "[output.avro] tls": "messages",
    "[output.avro] registry": "schemas",
    "[spark] master": "secrets of storage",
}


def _fields_of(directory: Path, text: str) -> list[str]:
    file = directory / "shop.toml"
    file.write_text(text)
    fields_in_clear = list(in_clear_text(load(file)))
    assert not [problem for problem in fields_in_clear if problem.fatal or not problem.fix]
    return [problem.what for problem in fields_in_clear]


def test_each_connection_in_clear_text_to_another_machine_is_warned_of(tmp_path: Path) -> None:
    progress = _fields_of(tmp_path, FILE.format(host="far.example"))
    assert [[place for place in TOLD if what.startswith(place)] for what in progress] == [
        [place] for place in sorted(TOLD, key=list(TOLD).index)
    ]
    assert [what for what, part in zip(progress, TOLD.values(), strict=True) if part not in what] == []


def test_nothing_is_said_of_what_stays_on_this_machine(tmp_path: Path) -> None:
    assert _fields_of(tmp_path, FILE.format(host="127.0.0.1")) == []


def test_nothing_is_said_of_the_defaults_to_another_machine(tmp_path: Path) -> None:
    text = FILE.format(host="far.example").replace('tls = "off"\n', "").replace("http://", "https://")
    text = text.replace("[lake]", 'user = "dblog"\npassword = "of-the-state"\n[lake]')
    safe = '[spark.conf]\n"spark.authenticate" = "true"\n"spark.network.crypto.enabled" = "true"\n'
    assert _fields_of(tmp_path, text.replace("[signals.kafka]", f"{safe}[signals.kafka]")) == []


def test_a_password_to_zookeeper_is_named(tmp_path: Path) -> None:
    text = FILE.format(host="far.example").replace("[lake]", 'user = "dblog"\npassword = "of-the-state"\n[lake]')
    progress = _fields_of(tmp_path, text)
    assert "[state] tls is off: user and password travel to ZooKeeper in clear text" in progress
    assert not any("of-the-state" in what or "has no user" in what for what in progress)


@pytest.mark.parametrize(
    ("before", "after", "place"),
    [
        ('secret = "of-the-receiver"', 'secret = "x"\ntoken = "hunter2secret"', "[output.post] token"),
        (
            'form = "avro"',
            'form = "avro"\nregistry_user = "u"\nregistry_password = "hunter2secret"',
            "[output.avro] registry_password",
        ),
    ],
)
def test_what_lets_somebody_in_is_refused_in_clear_text(tmp_path: Path, before: str, after: str, place: str) -> None:
    text = FILE.replace(before, after)
    with pytest.raises(ConfigError) as refused:
        _fields_of(tmp_path, text.format(host="far.example"))
    assert f"{place}: would be sent in clear text" in str(refused.value)
    assert "hunter2secret" not in str(refused.value)
    _fields_of(tmp_path, text.format(host="127.0.0.1"))
