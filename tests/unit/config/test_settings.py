"""The configuration: every fault is told at once, in its place, with a fix, and without a secret."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dblog_core.config.loader import json_schema, load
from dblog_core.config.secrets import secrets_of
from dblog_core.config.settings import Config, ConfigError
from dblog_core.model.schema import TableName

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


def test_what_is_left_out_has_its_documented_default(file: Path) -> None:
    file.write_text(SOURCE + REST)
    config = load(file)
    assert (config.source.port, config.source.tls, config.source.slot) == (3306, "off", "dblog_shop")
    assert config.source.watermark_table == "shop.dblog_watermark"
    assert (config.dump.chunk_size, config.dump.workers) == (10_000, 2)
    assert "hunter2secret" not in repr(config)


def test_defaults_follow_the_kind_and_the_host(file: Path) -> None:
    file.write_text(SOURCE.replace("mysql", "postgres").replace("127.0.0.1", "db.example") + REST)
    source = load(file).source
    assert (source.port, source.tls, source.watermark_table) == (5432, "verify-full", "public.dblog_watermark")


@pytest.mark.parametrize(
    ("url", "tls"),
    [
        ("zookeeper://zk1:2181,127.0.0.1:2181/dblog", "verify-full"),
        ("zookeeper://127.0.0.1:2181,[::1]:2181,localhost/dblog", "off"),
        ("sqlite:///zk/state.db", None),
    ],
)
def test_a_state_store_of_another_machine_is_reached_by_tls(file: Path, url: str, tls: str | None) -> None:
    file.write_text(SOURCE + REST.replace(_SQLITE, f'url = "{url}"'))
    assert load(file).state.tls == tls


def test_relative_paths_are_meant_from_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(SOURCE + REST)
    monkeypatch.chdir("/")
    assert load(file).staging.path == str(file.parent / "staging")


_SQLITE = 'url = "sqlite:///var/lib/dblog/state.db"'
_ZOOKEEPER = 'url = "zookeeper://zk:2181/dblog"'


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("kind =", "kindd ="), ["[source] kindd: is not known; did you mean kind?", "[source] kind: is missing"]),
        (
            ('"mysql"', '"oracle"'),
            ["[source] kind: is none of the possible values; use 'mysql', 'mariadb' or 'postgres'"],
        ),
        (('name = "shop"', 'name = "My Shop"'), ["[source] name: does not have the right form"]),
        (("[staging]", "[stagging]"), ["[stagging]: is not known; did you mean staging?", "[staging]: is missing"]),
        (("database =", "chunk_size = 5\ndatabase ="), ["[source] chunk_size: is not known; it belongs in [dump]"]),
        (("database =", 'port = "3306"\ndatabase ='), ["[source] port: has the wrong type; it must be a whole number"]),
        (("database =", "port = true\ndatabase ="), ["[source] port: has the wrong type"]),
        (("database =", "port = 70000\ndatabase ="), ["[source] port: must be less than or equal to 65535"]),
        (
            ("database =", 'read_only = "no"\ndatabase ='),
            ["[source] read_only: has the wrong type; it must be true or false"],
        ),
        (('["shop.*"]', '"shop.*"'), ["[source] tables: has the wrong type; it must be a list"]),
        (('["shop.*"]', "[]"), ["[source] tables"]),
        (('["shop.*"]', '["shop"]'), ["[source] tables, entry 1: does not have the right form"]),
        (('["shop.*"]', '["shop.a", "shop.a"]'), ["[source] tables, entry 2: stands there twice"]),
        (("database =", 'slot = "s"\ndatabase ='), ["[source] slot: has no meaning for kind = mysql"]),
        (("database =", 'read_replica = "r"\ndatabase ='), ["[source] read_replica: has no meaning for kind = mysql"]),
        (("database =", 'tls_ca = "no.pem"\ndatabase ='), ["[source] tls_ca: names a file that does not exist"]),
        (
            ("database =", 'tls = "off"\ntls_ca = "no.pem"\ndatabase ='),
            ["[source] tls_ca: is never used with tls = off"],
        ),
        (("database =", 'tls_cert = "no.pem"\ndatabase ='), ["[source] tls_cert: is given without tls_key"]),
        (('"mysql"', '"postgres"\ntls = "verify-ca"'), ["[source] tls: is verify-ca, for which PostgreSQL's client"]),
        (("database =", 'start = "newest"\ndatabase ='), ["[source] start: is no place in the log of mysql"]),
        (("database =", 'start = "0/16B3748"\ndatabase ='), ["[source] start: is no place in the log of mysql"]),
        (("database =", 'start = "2026-11-20T10:00"\ndatabase ='), ["[source] start: is a time without its zone"]),
        (("database =", "start = 2026-11-20T10:00:00\ndatabase ="), ["[source] start: is a time without its zone"]),
        (("database =", "start = 2026-11-20\ndatabase ="), ["[source] start: is a time without its zone"]),
        (("database =", 'airflow_connection = "db"\ndatabase ='), ["[source] password: is in airflow_connection too"]),
        (('path = "lake"', 'path = "staging/lake"'), ["[lake] path: lies inside the staging directory"]),
        (('path = "lake"', 'path = "staging"'), ["[lake] path: is the staging directory"]),
        (('path = "staging"', 'path = "lake/staging"'), ["[staging] path: lies inside the lake"]),
        (('path = "staging"', 'path = "gs://bucket/x"'), ["[staging] path: is a URL that is not supported"]),
        (('path = "staging"', 'path = "s3://"'), ["[staging] path: is a URL that is not supported"]),
        (
            (REST, REST.replace('"staging"', '"s3://b-1/lake/x"').replace('"lake"', '"s3://b-1/lake"')),
            ["[staging] path: lies inside the lake"],
        ),
        (('path = "lake"', 'path = "lake"\n[s3]\naccess_key = "a"'), ["[s3] access_key: is given without secret_key"]),
        (
            ('path = "lake"', 'path = "lake"\n[s3]\nendpoint = "b.example"'),
            ["[s3] endpoint: does not have the right form"],
        ),
        (
            ('path = "lake"', 'path = "lake"\n[dump]\nworkers = 0'),
            ["[dump] workers: must be greater than or equal to 1"],
        ),
        (
            ('path = "lake"', 'path = "lake"\n[dump]\nmax_retained = "lots"\nadaptive = 1'),
            ["[dump] max_retained: is no size", "[dump] adaptive: has the wrong type; it must be true or false"],
        ),
        (('path = "lake"', 'path = "lake"\n[s3]\nkms_key = "a"'), ["[s3] kms_key: is never used without aws:kms"]),
        (("sqlite:///var", "sqlite://var"), ["[state] url: does not have the right form"]),
        (
            (_SQLITE, f'{_SQLITE}\nuser = "u"\ntls = "require"'),
            [f"[state] {k}: has no meaning" for k in ("user", "tls")],
        ),
        (
            (_SQLITE, f'{_ZOOKEEPER}\nuser = "a:b"\ntls = "off"\ntls_ca = "no.pem"\ntls_key = "no.pem"'),
            [
                "[state] user: is given without password",
                "[state] user: holds a colon",
                "[state] tls_ca: is never used with tls = off",
                "[state] tls_key: is given without tls_cert",
            ],
        ),
        (
            (_SQLITE, f'{_ZOOKEEPER}\ntls_ca = "no.pem"'),
            ["[state] tls_ca: names a file that does not exist"],
        ),
        (
            ("hunter2secret", "${NOT_SET_ANYWHERE}"),
            ["[source] password: the environment variable NOT_SET_ANYWHERE is not set"],
        ),
        (("hunter2secret", "hunter2secret${A:-b}"), ["[source] password: holds a ${ that is not ${NAME}"]),
    ],
)
def test_a_fault_is_told_in_its_place_with_its_fix(file: Path, change: tuple[str, str], told: list[str]) -> None:
    text = SOURCE + REST
    assert change[0] in text
    message = faults(file, text.replace(*change))
    for line in told:
        assert line in message


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        (
            '[source.columns."shop.a"]\nmaskk = ["x"]',
            '[source.columns."shop.a"] maskk: is not known; did you mean mask?',
        ),
        ('[source.columns."other.a"]\nmask = ["x"]', '[source.columns."other.a"]: is no table of this capture'),
        (
            '[source.columns."shop.a"]\nmask = ["x"]\nhash = ["x"]',
            '[source.columns."shop.a"] hash, entry 1: is under mask too',
        ),
        (
            '[source.columns."shop.a"]\nexclude = ["id"]\n[source.keys]\n"shop.a" = ["id"]',
            '[source.keys] "shop.a", entry 1: is a key column, and under exclude',
        ),
        (
            '[source.columns."shop.a"]\nstaged_as = { x = "float" }',
            "[source.columns.\"shop.a\"] staged_as, x: is none of the possible values; use 'double', 'text'",
        ),
        (
            '[source.columns."shop.a"]\nmask = ["x"]\nstaged_as = { x = "double" }',
            '[source.columns."shop.a"] staged_as, x: is under mask too',
        ),
        (
            '[source.columns."shop.a"]\nstaged_as = { id = "bigint" }\n[source.keys]\n"shop.a" = ["id"]',
            '[source.keys] "shop.a", entry 1: is a key column, and under staged_as',
        ),
        ('[source.keys]\n"shop.a" = []', '[source.keys] "shop.a": names no column'),
        ('[source.keys]\n"shop.a" = ["id", "id"]', '[source.keys] "shop.a", entry 2: stands there twice'),
    ],
)
def test_faults_of_column_rules_and_keys(file: Path, rules: str, told: str) -> None:
    assert told in faults(file, f"{SOURCE}\n{rules}\n{REST}")


def test_all_faults_are_told_at_once(file: Path) -> None:
    text = SOURCE.replace("mysql", "oracle").replace("database", "databse") + REST.replace('"lake"', '"staging/lake"')
    message = faults(file, text)
    assert "4 faults" in message
    for place in ("[source] kind", "[source] databse", "[source] database", "[lake] path"):
        assert f"  - {place}: " in message


@pytest.mark.parametrize("text", ["[source\n", 'password = "hunter2secret\n', "a = 1\na = 2"])
def test_what_is_not_toml_is_told_with_its_line(file: Path, text: str) -> None:
    assert "is not TOML" in faults(file, text)


def test_a_missing_file_is_told_with_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="DBLOG_CONFIG"):
        load(tmp_path / "none.toml")


def test_values_from_the_environment_stand_for_texts_numbers_and_flags(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "4406")
    monkeypatch.setenv("SECRET", "x${NOT_EXPANDED}y")
    monkeypatch.setenv("RO", "true")
    more = 'port = "${PORT}"\nread_only = "${RO}"\ndatabase ='
    file.write_text((SOURCE + REST).replace("database =", more).replace("hunter2secret", "${SECRET}"))
    source = load(file).source
    assert (source.port, source.read_only) == (4406, True)
    assert source.password.get_secret_value() == "x${NOT_EXPANDED}y"


@pytest.mark.parametrize(("text", "size"), [('"10G"', 10 << 30), ("4096", 4096), ('"${CEILING}"', 7 << 10)])
def test_a_size_is_a_number_or_text_with_a_unit(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str, size: int
) -> None:
    monkeypatch.setenv("CEILING", "7K")
    file.write_text(f"{SOURCE}{REST}[dump]\nmax_retained = {text}\n")
    assert load(file).dump.max_retained == size


def test_an_environment_variable_of_the_wrong_type_is_told_without_its_value(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORT", "hunter2secret")
    message = faults(file, (SOURCE + REST).replace("database =", 'port = "${PORT}"\ndatabase ='))
    assert "[source] port: comes from an environment variable that holds a value of the wrong type" in message


def test_without_secrets_an_unset_variable_and_a_missing_file_are_no_fault(file: Path) -> None:
    more = 'port = "${NOT_SET}"\ntls = "verify-ca"\ntls_ca = "no.pem"\ndatabase ='
    file.write_text((SOURCE + REST).replace("database =", more).replace("hunter2secret", "${NOT_SET_EITHER}"))
    config = load(file, secrets=False)
    assert config.source.name == "shop"
    assert config.source.password.get_secret_value() == ""
    with pytest.raises(ConfigError):
        load(file)


def test_an_airflow_connection_is_resolved_by_who_connects(file: Path) -> None:
    text = (SOURCE + REST).replace('password = "hunter2secret"', 'airflow_connection = "shop_db"')
    file.write_text(text.replace('host = "127.0.0.1"\n', ""))
    source = load(file).source
    assert source.tls is None, "unknown while the host is"
    connected = source.connected(host="db.example", port=None, user="u", password="p")
    assert (connected.port, connected.tls, connected.airflow_connection) == (3306, "verify-full", None)


def test_loading_imports_no_driver_no_arrow_and_no_airflow(file: Path) -> None:
    file.write_text(SOURCE + REST)
    code = (
        "import sys; from dblog_core.config.loader import load; load(sys.argv[1]); "
        "print(sorted({'pymysql', 'psycopg2', 'pyarrow', 'airflow', 'pyspark', 'kazoo'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_schema_names_every_section_and_key() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == set(Config.model_fields)
    assert json.dumps(schema).count('"additionalProperties": false') >= len(Config.model_fields)


POLICIES = """
schema_changes = "fail"
[lake.tables."shop.or*"]
schema_changes = "ignore"
[lake.tables."shop.orders"]
schema_changes = "evolve"
[lake.tables."other.?"]
"""


def test_the_policy_of_a_table_is_that_of_the_first_pattern_that_says_one(file: Path) -> None:
    file.write_text(SOURCE.replace('"shop.*"', '"shop.*", "other.*"') + REST + POLICIES)
    lake = load(file).lake
    tables = {name: lake.schema_changes_of(TableName.parse(name)) for name in ("shop.orders", "shop.x", "other.x")}
    assert tables == {"shop.orders": "ignore", "shop.x": "fail", "other.x": "fail"}
    file.write_text(SOURCE + REST)
    assert load(file).lake.schema_changes_of(TableName("shop", "orders")) == "evolve"


def test_json_columns_are_text_but_for_tables_whose_first_pattern_says_otherwise(file: Path) -> None:
    told = POLICIES.replace('schema_changes = "fail"', 'json_as = "variant"').replace(
        '"evolve"', '"evolve"\njson_as = "text"'
    )
    file.write_text(SOURCE.replace('"shop.*"', '"shop.*", "other.*"') + REST + told)
    lake = load(file).lake
    tables = {name: lake.json_as_of(TableName.parse(name)) for name in ("shop.orders", "shop.x", "other.x")}
    assert tables == {"shop.orders": "text", "shop.x": "variant", "other.x": "variant"}
    file.write_text(SOURCE + REST)
    assert load(file).lake.json_as_of(TableName("shop", "orders")) == "text"
    found = faults(file, SOURCE + REST + 'json_as = "struct"\n')
    assert "[lake] json_as: is none of the possible values" in found


def test_a_policy_that_is_none_or_of_no_captured_table_is_a_fault_in_its_place(file: Path) -> None:
    text = SOURCE + REST + POLICIES.replace("shop.orders", "shopp.orders").replace('"ignore"', '"skip"')
    found = faults(file, text)
    assert '[lake.tables."shop.or*"] schema_changes: is none of the possible values' in found
    assert '[lake.tables."shopp.orders"]: is no table of this capture' in found


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


@pytest.mark.parametrize("given", ['{ url = "${A_SECRET}" }', '{ smtp = { password = "hunter2secret" } }'])
def test_what_lies_in_airflows_database_has_no_secret(file: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """Arguments of who is told of late runs are serialized with the DAG."""
    monkeypatch.setenv("A_SECRET", "hunter2secret")
    late = (
        f'[airflow]\nmerged_within = "10m"\n[[airflow.notify]]\nnotifier = "a.B"\nwhen = "late"\narguments = {given}\n'
    )
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
    found = [config.signals.kafka, config.notify[1].kafka]
    assert [one.tls_ca for one in found if one is not None] == [file.parent / "ca.pem"] * 2


def test_the_signal_table_is_known_to_who_reads_the_log(file: Path) -> None:
    file.write_text(SOURCE + REST + SIGNALS)
    config = load(file)
    assert config.source.signal_table == "shop.dblog_signal" and config.signals.any
    assert config.signals.file == file.parent / "requests.jsonl"
    assert config.signals.http is not None and config.signals.http.listen == "127.0.0.1:9179"
    assert config.signals.kafka is not None and config.signals.kafka.tls == "verify-full"
    assert config.notify[1].kafka is not None and config.notify[1].kafka.tls == "off"
    assert "hunter2secret" not in repr(config) and set(secrets_of(config)) == {
        "hunter2secret",
        "hunter2secret of a caller",
    }
    file.write_text(SOURCE + REST)
    assert not load(file).signals.any


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ('file = "', 'topic = "', "[signals] topic: is not known"),
        ('token = "hunter2secret of a caller"', 'token = ""', "[signals.http] token: is shorter than 16"),
        ('token = "hunter2secret of a caller"', 'token = "hunter2secret"', "[signals.http] token: is shorter than 16"),
        ('token = "hunter2secret of a caller"', 'listen = "127.0.0.1:1"', "[signals.http] token"),
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


@pytest.mark.parametrize(
    ("place", "host", "port", "tls"),
    [
        ("localhost", "localhost", 5544, "off"),
        ("127.0.0.1:6000", "127.0.0.1", 6000, "off"),
        ("[::1]:6000", "::1", 6000, "off"),
        ("[2001:db8::1]", "2001:db8::1", 5544, "verify-full"),
        ("standby.example:5433", "standby.example", 5433, "verify-full"),
    ],
)
def test_a_read_replica_is_the_same_source_at_another_place(
    file: Path, place: str, host: str, port: int, tls: str
) -> None:
    source = SOURCE.replace('"mysql"', '"postgres"').replace(
        "database =", f'port = 5544\nread_replica = "{place}"\ndatabase ='
    )
    file.write_text(source + REST)
    found = load(file).source
    assert found.replica is not None and found.replica.replica is None
    assert (found.replica.host, found.replica.port, found.replica.tls, found.tls) == (host, port, tls, tls)
    assert found.replica.model_copy(update={"host": found.host, "port": 5544, "read_replica": place}) == found


def test_a_read_only_source_has_no_signal_table_and_two_channels_no_name_in_common(file: Path) -> None:
    told = faults(file, SOURCE + "read_only = true\n" + REST + SIGNALS + SIGNALS[SIGNALS.index("[[notify]]") :])
    assert "[signals] table: is read from the log of a source that others write" in told
    assert "[notify] entry 3, name: stands there twice" in told
