"""A marked secret in every setting that may hold one: no message, no log line and no fault shows it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dblog_core.commands import session as sessions
from dblog_core.commands.session import Session, set_up_logging
from dblog_core.config import Config, secrets_of
from dblog_core.preflight import readable_secret
from dblog_core.spark import for_staging, whole

MARK = "qZx7-secret-{}-of-sixteen"
FIELDS = """
[source]
name = "shop"
kind = "mysql"
database = "shop"
tables = ["shop.*"]
password = "{0}"
hash_key = "{1}"
[staging]
path = "s3://bucket/staging"
[state]
url = "zookeeper://127.0.0.1:2181/dblog"
user = "dblog"
password = "{2}"
[lake]
path = "s3://bucket/lake"
[s3]
access_key = "an id"
secret_key = "{3}"
[signals.http]
token = "{4}"
[signals.kafka]
servers = "127.0.0.1:9092"
topic = "signals"
user = "dblog"
password = "{5}"
[[notify]]
name = "hook"
to = "webhook"
url = "https://example.org/{6}"
secret = "{7}"
[[notify]]
name = "topic"
to = "kafka"
[notify.kafka]
servers = "127.0.0.1:9092"
topic = "notices"
user = "dblog"
password = "{8}"
[output.db]
kind = "postgres"
database = "copy"
user = "dblog"
password = "{9}"
[output.own]
kind = "python"
class = "module:Class"
options = {{ api = {{ api_token = "{10}" }} }}
[spark.conf]
"spark.hadoop.javax.net.ssl.trustStorePassword" = "{11}"
[[airflow.notify]]
notifier = "a.module.Notifier"
arguments = {{ password = "{12}" }}
"""
SECRETS = [MARK.format(number) for number in range(13)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.toml"
    path.write_text(FIELDS.format(*SECRETS))
    return path


def test_every_secret_of_a_configuration_is_known_as_one(file: Path) -> None:
    config = Session(file=file).config()
    assert set(SECRETS) <= set(secrets_of(config))


@pytest.mark.parametrize("debug", [False, True])
def test_no_log_line_of_any_level_shows_a_secret(file: Path, monkeypatch: pytest.MonkeyPatch, debug: bool) -> None:
    printed: list[str] = []
    monkeypatch.setattr(sessions, "note", printed.append)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in ("kazoo", "botocore")}
    session = Session(file=file, debug=debug)
    set_up_logging(session)
    try:
        session.config()
        for secret in SECRETS:
            logging.getLogger("kazoo.client").debug("Sending request(xid=-4): Auth(auth='dblog:%s')", secret)
            logging.getLogger("another").warning("%s", {"password": secret})
            logging.getLogger("botocore.auth").debug("x-amz-security-token:of-the-environment")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
    assert len(printed) == len(SECRETS) * (2 if debug else 1)
    assert not [line for line in printed if "qZx7" in line or "of-the-environment" in line]


def test_who_reads_staging_alone_gets_the_secrets_of_storage_alone(file: Path) -> None:
    shipped = whole(for_staging(Session(file=file).config()))
    assert [secret for secret in SECRETS if secret in shipped] == [SECRETS[3]]
    assert Config.model_validate_json(shipped).staging.path == "s3://bucket/staging"


def test_a_readable_file_is_warned_of_whatever_secret_it_holds(file: Path) -> None:
    file.chmod(0o644)
    told = list(readable_secret(file))
    assert len(told) == len(SECRETS) - 1, "the path of a webhook has no name that tells"
    assert "qZx7" not in str(told)
    file.chmod(0o600)
    assert list(readable_secret(file)) == []


def test_a_faulty_file_shows_no_secret(file: Path) -> None:
    file.write_text(file.read_text().replace('kind = "mysql"', 'kind = "mysq"').replace("[staging]", "[stagin]"))
    with pytest.raises(Exception, match="faults") as told:
        Session(file=file).config()
    assert "qZx7" not in str(told.value) and "qZx7" not in json.dumps(repr(told.value))
