"""A marked secret in every setting that may hold one: no message, no log line and no fault shows it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import threading
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from dblog_core.commands import session as sessions
from dblog_core.commands.session import Session, set_up_logging
from dblog_core.config.loader import load
from dblog_core.config.secret_settings import (
    CAPTURE,
    LAKE,
    READER,
    SOURCE,
    STATE,
    STORAGE,
    given_to,
    is_needed,
    secrets_of,
)
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError
from dblog_core.lake.spark_submit import CONFIG_VARIABLE, _escape_property, config_json, job_environment, run_job
from dblog_core.monitoring.preflight import readable_secret
from spark_jobs import entry_point
from tests import marked

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
    handlers = root.handlers[:]
    level = root.level
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
    shipped = config_json(given_to(Session(file=file).config(), STORAGE))
    assert [secret for secret in SECRETS if secret in shipped] == [SECRETS[3]]
    assert Config.model_validate_json(shipped).staging.path == "s3://bucket/staging"


def test_a_readable_file_is_warned_of_whatever_secret_it_holds(file: Path) -> None:
    file.chmod(0o644)
    findings = list(readable_secret(file))
    assert len(findings) == len(SECRETS) - 1, "the path of a webhook has no name that tells"
    assert "qZx7" not in str(findings)
    file.chmod(0o600)
    assert list(readable_secret(file)) == []


def test_a_faulty_file_shows_no_secret(file: Path) -> None:
    file.write_text(file.read_text().replace('kind = "mysql"', 'kind = "mysq"').replace("[staging]", "[stagin]"))
    with pytest.raises(Exception, match="faults") as error_info:
        Session(file=file).config()
    assert "qZx7" not in str(error_info.value) and "qZx7" not in json.dumps(repr(error_info.value))


OF_A_SECTION = {
    "source": {0, 1},
    "state": {2},
    "s3": {3},
    "signals.http": {4},
    "signals.kafka": {5},
    "notify": {6, 7, 8},
    "output.db": {9},
    "output.own": {10},
    "spark": {11},
    "airflow": {12},
}
"""Which of SECRETS a section has."""


@pytest.mark.parametrize(
    "needs", [STATE, STORAGE, READER, LAKE, SOURCE, CAPTURE, STATE | {"signals.http"}, READER | {"output.db"}]
)
def test_a_process_needs_and_gives_the_secrets_of_its_sections_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: frozenset[str]
) -> None:
    names = [f"DBLOG_TEST_SECRET_{number}" for number in range(len(SECRETS))]
    file = tmp_path / "shop.toml"
    file.write_text(FIELDS.format(*(f"${{{name}}}" for name in names)).replace("{{", "{").replace("}}", "}"))
    needed = sorted(set().union(*(OF_A_SECTION[need] for need in needs)))
    for number in needed:
        monkeypatch.setenv(names[number], SECRETS[number])
    config = load(file, needs=needs)
    assert set(SECRETS) & set(secrets_of(config)) == {SECRETS[number] for number in needed}
    for number in needed:
        monkeypatch.delenv(names[number])
        with pytest.raises(ConfigError, match=f"one fault\n.*{names[number]} is not set"):
            load(file, needs=needs)
        monkeypatch.setenv(names[number], SECRETS[number])
    for name, secret in zip(names, SECRETS, strict=True):
        monkeypatch.setenv(name, secret)
    job_config = config_json(given_to(load(file), needs))
    assert [number for number, secret in enumerate(SECRETS) if secret in job_config] == needed


def test_code_that_reads_a_secret_which_its_process_did_not_get_fails(file: Path) -> None:
    """An empty password would be tried at the server, which refuses it as a wrong one, or lets it in."""
    config = given_to(load(file), READER)
    for secret in (config.source.password, Config.model_validate_json(config_json(config)).source.password):
        assert "qZx7" not in repr(secret)
    with pytest.raises(ConfigError, match="this process has no access") as raised:
        config.source.password.get_secret_value()
    assert "report it" in raised.value.fix
    assert config_json(config) == config_json(given_to(config, READER))


def test_a_job_has_the_secrets_of_its_sections_alone_also_where_its_file_has_all(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = config_json(load(file))
    assert SECRETS[0] in whole
    monkeypatch.setenv(CONFIG_VARIABLE, whole)
    for options in (argparse.Namespace(config=file), argparse.Namespace(config=None)):
        config = entry_point.load_config(options)
        with pytest.raises(ConfigError, match="this process has no access"):
            config.source.password.get_secret_value()
        assert {SECRETS[number] for number in OF_A_SECTION["state"]} <= set(secrets_of(config))


def test_a_secret_that_is_needed_all_the_same_is_asked_for_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "shop.toml"
    monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
    file.write_text(FIELDS.format("${NOT_SET_ANYWHERE}", *SECRETS[1:]))
    config = load(file, needs=READER)
    assert "NOT_SET" not in repr(config)
    with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE is not set"):
        config.source.password.get_secret_value()
    for what in ("name", "database"):
        file.write_text(FIELDS.format(*SECRETS).replace(f'{what} = "shop"', f'{what} = "${{NOT_SET_ANYWHERE}}"'))
        with pytest.raises(ConfigError, match="NOT_SET_ANYWHERE is not set"):
            load(file, needs=READER)


def test_files_of_sections_that_a_process_has_no_need_of_need_not_be_there(file: Path) -> None:
    file.write_text(
        file.read_text().replace('database = "shop"', 'database = "shop"\ntls_ca = "no.pem"\ntls = "require"')
    )
    with pytest.raises(ConfigError, match="tls_ca"):
        load(file, needs=READER)  # a contradiction is one for everybody
    file.write_text(file.read_text().replace('tls = "require"', 'tls = "verify-ca"'))
    assert load(file, needs=READER).source.name == "shop"
    with pytest.raises(ConfigError, match="does not exist"):
        load(file, needs=SOURCE)


def test_no_representation_of_a_configuration_shows_a_secret(file: Path) -> None:
    config = Session(file=file).config()
    printed = repr(config) + str(config) + repr([*config.output.values(), *config.notify, *config.airflow.notify])
    assert "qZx7" not in printed and "https://example.org/" in printed


@pytest.mark.parametrize(("job", "expected_secrets"), [("merge", {2, 3}), ("verify", {2, 3}), ("dump", {0, 1, 2, 3})])
def test_a_job_gets_the_secrets_that_it_needs_and_none_as_an_argument(
    file: Path, monkeypatch: pytest.MonkeyPatch, job: str, expected_secrets: set[int]
) -> None:
    for number, secret in enumerate(SECRETS):
        monkeypatch.setenv(f"DBLOG_TEST_SECRET_{number}", secret)
    begun: list[tuple[list[str], dict[str, str]]] = []

    def begin(argv: list[str], *, env: dict[str, str], **_: object) -> object:
        begun.append((argv, env))
        assert Path(argv[argv.index("--properties-file") + 1]).read_text().endswith(f" {SECRETS[11]}\n")
        raise OSError("not here")

    monkeypatch.setattr("dblog_core.lake.spark_submit.subprocess.Popen", begin)
    with pytest.raises(OSError, match="not here"):
        run_job(job, Session(file=file).config(), stop=threading.Event(), on_line=print)
    ((argv, env),) = begun
    assert "qZx7" not in " ".join(argv)
    assert {number for number, secret in enumerate(SECRETS) if secret in " ".join(env.values())} == expected_secrets
    assert "PATH" in env


def test_who_starts_a_job_by_another_program_hands_on_no_secret_that_it_does_not_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"DBLOG_TEST_SECRET_{number}" for number in range(len(SECRETS))]
    file = tmp_path / "shop.toml"
    file.write_text(FIELDS.format(*(f"${{{name}}}" for name in names)).replace("{{", "{").replace("}}", "}"))
    for name, secret in zip(names, SECRETS, strict=True):
        monkeypatch.setenv(name, secret)
    awkward = 'qZx7 "awkward" p@ss/word'
    monkeypatch.setenv(names[0], awkward)
    monkeypatch.setenv("DBLOG_TEST_URL", f"mysql://dblog:{quote_plus(awkward)}@db.example.org/shop")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps({"conn_type": "mysql", "password": awkward}))
    monkeypatch.setenv("DBLOG_TEST_PATH", f"/opt/{SECRETS[1]}/bin")  # a password may be a word that stands in a path
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps({"password": "known to Airflow alone"}))
    before = dict(os.environ)
    config = load(file, needs=LAKE)
    source = config.source.model_copy(update={"airflow_connection": "shop_db"})
    config = config.model_copy(update={"source": source})

    def start() -> None:
        with job_environment(config):
            inherited = {number for number, name in enumerate(names) if name in os.environ}
            assert inherited == OF_A_SECTION["state"] | OF_A_SECTION["s3"]
            assert not {"DBLOG_TEST_URL", "AIRFLOW_CONN_OTHER", "AIRFLOW_CONN_SHOP_DB"} & os.environ.keys()
            assert {"DBLOG_TEST_PATH", "PATH"} <= os.environ.keys()
            raise OSError("not here")

    with pytest.raises(OSError, match="not here"):
        start()
    assert dict(os.environ) == before


def test_java_reads_settings_as_they_are() -> None:
    assert _escape_property("a=b: c\\d\n#!ü") == "a\\=b\\:\\ c\\\\d\\n\\#\\!ü"


def test_every_secret_of_the_model_can_be_planted_and_is_known_as_one(tmp_path: Path) -> None:
    """What a setting has to be to be looked for by the tests of leaks."""
    marked_config = marked.mark_config(tmp_path)
    assert marked_config.planted_fields() == marked.secret_fields(), (
        "add a section to marked.BASE that may have the new setting"
    )
    config = load(marked_config.write(tmp_path / "shop.toml"))
    assert set(marked_config.secrets.values()) <= set(secrets_of(config))
    assert marked.MARK not in repr(config)
    for needs in (STORAGE, READER, LAKE, SOURCE, CAPTURE):
        sections = {place[0] for place in marked_config.shown_in(config_json(given_to(config, needs)))}
        assert sections <= {need.partition(".")[0] for need in needs}
    for place in marked_config.secrets:
        if place[0] != "airflow":
            assert not is_needed(place, frozenset()), f"{place} would be asked for by every command"


def test_no_address_takes_a_password_within_it(tmp_path: Path) -> None:
    """Messages show addresses; who lets somebody in by a user and a password has settings of their own for these."""
    sections = {
        "s3": {"access_key": "an id", "endpoint": f"http://{marked.NOWHERE}"},
        "staging": {"path": "s3://bucket/staging"},
        "lake": {"path": "s3://bucket/lake"},
        "output": {"out": {"kind": "files", "path": "s3://bucket/out"}},
    }
    settings = marked.mark_config(tmp_path, **sections)
    file = settings.write(tmp_path / "shop.toml")
    assert load(file).s3.endpoint
    tried = set()
    for place, model in marked.addresses(settings.data):
        address = marked.value_at(settings.data, place)
        marked.value_at(settings.data, place[:-1])[place[-1]] = address.replace(
            "://", f"://user:{marked.MARK}password@"
        )
        settings.write(file)
        marked.value_at(settings.data, place[:-1])[place[-1]] = address
        with pytest.raises(ConfigError, match="one fault") as refusal:
            load(file)
        assert str(place[-1]) in str(refusal.value) and marked.MARK not in str(refusal.value)
        tried.add((model, str(place[-1])))
    assert tried >= marked.address_fields(), "add a section to marked.BASE that may have the new address"
