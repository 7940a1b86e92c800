"""Settings of signals and notices, and what they must not say together."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.config.loader import load
from dblog_core.errors import ConfigError
from tests.unit.config.config_files import REST, SIGNALS, SOURCE, faults, file

__all__ = ["file"]


AIRFLOW = """
[[airflow.notify]]
notifier = "notes.Note"
when = "dump"
events = ["completed", "failed"]
"""


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ('when = "dump"', 'when = "dump"\ndags = ["dump"]', "notify, entry 1, dags: has no meaning for dumps"),
        (
            'when = "dump"',
            'when = "failure"',
            'entry 1, events: has a meaning for when = "dump" alone',
        ),
        ('when = "dump"', 'when = "dump"\nname = "bus"', "name: bus is the name of another receiver of notices"),
        ("\n[[", AIRFLOW + "[[", "entry 2, name: airflow is the name of another receiver of notices"),
        ("completed", "done", "[airflow] notify, entry 1, events"),
    ],
)
def test_airflows_notifiers_of_dumps_are_receivers_of_notices(file: Path, before: str, after: str, what: str) -> None:
    assert before in AIRFLOW
    file.write_text(SOURCE + REST + SIGNALS + AIRFLOW)
    assert load(file).airflow.notify[0].name == "airflow"
    assert what in faults(file, SOURCE + REST + SIGNALS + AIRFLOW.replace(before, after, 1))


@pytest.mark.parametrize("arguments", ['{ url = "${A_SECRET}" }', '{ smtp = { password = "hunter2secret" } }'])
def test_what_lies_in_airflows_database_has_no_secret(
    file: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    """Arguments of who is told of late runs are serialized with the DAG."""
    monkeypatch.setenv("A_SECRET", "hunter2secret")
    entry = f'[[airflow.notify]]\nnotifier = "a.B"\nwhen = "late"\narguments = {arguments}\n'
    late = f'[airflow]\nmerged_within = "10m"\n{entry}'
    assert "[airflow] notify, entry 1, arguments: would lie in Airflow's database" in faults(file, SOURCE + REST + late)
    monkeypatch.delenv("A_SECRET")
    file.write_text(SOURCE + REST + late)
    with pytest.raises(ConfigError, match="would lie in Airflow's database"):
        load(file, secrets=False)
    file.write_text(SOURCE + REST + late.replace('"late"', '"failure"').replace('merged_within = "10m"\n', ""))
    assert load(file, secrets=False).airflow.notify


def test_the_brokers_authority_is_looked_for_beside_the_file(file: Path) -> None:
    (file.parent / "ca.pem").touch()
    signals = SIGNALS.replace('topic = "signals"', 'topic = "signals"\ntls_ca = "ca.pem"')
    file.write_text(
        SOURCE + REST + signals.replace('topic = "notices"', 'topic = "notices"\ntls = "verify-ca"\ntls_ca = "ca.pem"')
    )
    config = load(file)
    kafka_settings = [config.signals.kafka, config.notify[1].kafka]
    assert [settings_of_one.tls_ca for settings_of_one in kafka_settings if settings_of_one is not None] == [
        file.parent / "ca.pem"
    ] * 2


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ('file = "', 'topic = "', "[signals] topic: is not known"),
        ('token = "hunter2secret of a caller"', 'token = ""', "[signals.http] token: is shorter than 16"),
        ('token = "hunter2secret of a caller"', 'token = "hunter2secret"', "[signals.http] token: is shorter than 16"),
        ('token = "hunter2secret of a caller"', 'listen = "127.0.0.1:1"', "[signals.http] token"),
        (
            'token = "hunter2secret of a caller"',
            'callers = { app = { token = "hunter2" } }',
            "[signals.http] callers, app, token: is shorter than 16",
        ),
        (
            'token = "hunter2secret of a caller"',
            'token = "hunter2secret of a caller"\ncallers = { app = { token = "hunter2secret of a caller" } }',
            "[signals.http] callers, app, token: is that of token too",
        ),
        (
            'token = "hunter2secret of a caller"',
            'callers = { "a b" = { token = "hunter2secret of a caller" } }',
            '[signals.http] callers, "a b"',
        ),
        ('token = "', 'tls_client_ca = "none.pem"\ntoken = "', "tls_client_ca: is given without tls_cert"),
        ('token = "', 'listen = "0.0.0.0:9179"\ntoken = "', "in clear text over the network"),
        ('token = "', 'tls_cert = "none.pem"\ntoken = "', "tls_cert: is given without tls_key"),
        ("shop.dblog_signal", "shop.dblog_watermark", "is the watermark table"),
        ('url = "https://ops.example/hook"', "", "[notify] entry 1, url: is missing"),
        ("https://ops", "ftp://ops", "[notify] entry 1, url"),
        ('to = "webhook"', 'to = "log"', "url: has no meaning for a log"),
        ('secret = "', 'tls_ca = "none.pem"\nsecret = "', "names a file that does not exist"),
        ('name = "ops"', 'name = "ops"\nevents = ["done"]', "[notify] entry 1, events"),
        ('user = "dblog"\n', "", "[signals.kafka] password: is given without user"),
        ('user = "dblog"', 'tls_ca = "none.pem"\nuser = "dblog"', "[signals.kafka] tls_ca: names a file"),
        ('servers = "kafka', 'server = "kafka', "[signals.kafka] server: is not known"),
        ('[notify.kafka]\nservers = "localhost:9092"\ntopic = "notices"\n', "", "[notify] entry 2, kafka: is missing"),
        ('to = "kafka"', 'to = "kafka"\nurl = "https://x.example"', "url: has no meaning for a kafka"),
    ],
)
def test_faults_of_signals_and_notices_are_told_in_their_place(file: Path, before: str, after: str, what: str) -> None:
    assert before in SIGNALS
    # The default of the watermark table is not written down: what is compared is what is.
    source = SOURCE + 'watermark_table = "shop.dblog_watermark"\n'
    assert what in faults(file, source + REST + SIGNALS.replace(before, after))


def test_a_read_only_source_has_no_signal_table_and_two_channels_no_name_in_common(file: Path) -> None:
    fault_texts = faults(file, SOURCE + "read_only = true\n" + REST + SIGNALS + SIGNALS[SIGNALS.index("[[notify]]") :])
    assert "[signals] table: is read from the log of a source that others write" in fault_texts
    assert "[notify] entry 3, name: stands there twice" in fault_texts


def test_a_merge_that_never_ends_is_never_late(file: Path) -> None:
    late = (
        '[airflow]\nmerge = "continuous"\nmerged_within = "10m"\n[[airflow.notify]]\nnotifier = "a.B"\nwhen = "late"\n'
    )
    assert 'merged_within: has no meaning for merge = "continuous"' in faults(file, SOURCE + REST + late)
    file.write_text(SOURCE + REST + late.replace("continuous", "batches"))
    assert load(file, secrets=False).airflow.merge == "batches"
