"""The configuration as it is read: defaults, paths, the environment, and the JSON schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dblog_core.config.loader import json_schema, load
from dblog_core.config.secret_settings import secrets_of
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError
from dblog_core.model.schema import TableName
from tests.unit.config.config_files import REST, SIGNALS, SOURCE, SQLITE, faults, file

__all__ = ["file"]


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
    file.write_text(SOURCE + REST.replace(SQLITE, f'url = "{url}"'))
    assert load(file).state.tls == tls


def test_relative_paths_are_meant_from_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(SOURCE + REST)
    monkeypatch.chdir("/")
    assert load(file).staging.path == str(file.parent / "staging")


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
    connected = source.with_connection(host="db.example", port=None, user="u", password="p")
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
    policies_text = POLICIES.replace('schema_changes = "fail"', 'json_as = "variant"').replace(
        '"evolve"', '"evolve"\njson_as = "text"'
    )
    file.write_text(SOURCE.replace('"shop.*"', '"shop.*", "other.*"') + REST + policies_text)
    lake = load(file).lake
    tables = {name: lake.json_as_of(TableName.parse(name)) for name in ("shop.orders", "shop.x", "other.x")}
    assert tables == {"shop.orders": "text", "shop.x": "variant", "other.x": "variant"}
    file.write_text(SOURCE + REST)
    assert load(file).lake.json_as_of(TableName("shop", "orders")) == "text"
    fault_texts = faults(file, SOURCE + REST + 'json_as = "struct"\n')
    assert "[lake] json_as: is none of the possible values" in fault_texts


def test_a_policy_that_is_none_or_of_no_captured_table_is_a_fault_in_its_place(file: Path) -> None:
    text = SOURCE + REST + POLICIES.replace("shop.orders", "shopp.orders").replace('"ignore"', '"skip"')
    fault_texts = faults(file, text)
    assert '[lake.tables."shop.or*"] schema_changes: is none of the possible values' in fault_texts
    assert '[lake.tables."shopp.orders"]: is no table of this capture' in fault_texts


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
    config = load(file).source
    assert config.replica is not None and config.replica.replica is None
    assert (config.replica.host, config.replica.port, config.replica.tls, config.tls) == (host, port, tls, tls)
    assert config.replica.model_copy(update={"host": config.host, "port": 5544, "read_replica": place}) == config
