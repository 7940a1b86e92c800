"""Airflow connections in place of host, port, user and password; and the form that Airflow shows for our types."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dblog_core.airflow.connections import resolve
from dblog_core.airflow.hooks import MysqlSourceHook, PostgresSourceHook
from dblog_core.airflow.provider import TYPES, provider_info
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError
from dblog_core.installed_packages import DISTRIBUTION
from dblog_core.local.servers.server import DatabaseServer
from tests.fix_servers import Database

Connect = Callable[..., Config]


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """A configuration of the given kind, resolved by a connection with the given fields."""

    def make(kind: str = "mysql", **fields: Any) -> Config:
        usual = {"conn_type": "dblog_mysql", "host": "db.example", "login": "cdc", "password": "hunter2secret"}
        monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps({**usual, **fields}))
        source = {"name": "shop", "kind": kind, "database": "shop", "tables": ["shop.*"]}
        sections = {"staging": {"path": "/s"}, "state": {"url": "sqlite:////s.db"}, "lake": {"path": "/l"}}
        config = Config.model_validate({"source": {**source, "airflow_connection": "shop_db"}, **sections})
        return resolve(config)

    return make


def test_our_types_bring_tls_along(connect: Connect) -> None:
    source_config = connect(
        port=3307, extra={"tls": "verify-ca", "tls_ca": "/ca.pem", "tls_cert": "", "other": 1}
    ).source
    assert (
        source_config.host,
        source_config.port,
        source_config.user,
        source_config.tls,
        str(source_config.tls_ca),
    ) == (
        *("db.example", 3307, "cdc", "verify-ca"),
        "/ca.pem",
    )
    assert source_config.password.get_secret_value() == "hunter2secret" and source_config.tls_cert is None
    assert connect().source.tls == "verify-full"


def test_the_extra_of_other_types_means_something_else(connect: Connect) -> None:
    assert connect(conn_type="mysql", extra={"tls": "off"}).source.tls == "verify-full"


@pytest.mark.parametrize(
    ("kind", "fields", "expected_text"),
    [
        ("mysql", {"login": ""}, "lacks a host or a login"),
        ("postgres", {}, "shop_db has the type dblog_mysql, and the source is postgres"),
        ("mysql", {"conn_type": "dblog_postgres"}, "has the type dblog_postgres"),
        ("mysql", {"extra": {"tls": "maybe"}}, "shop_db: tls:"),
    ],
)
def test_a_connection_that_is_wrong_is_named(
    connect: Connect, kind: str, fields: dict[str, Any], expected_text: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        connect(kind, **fields)
    assert expected_text in str(refused.value) and refused.value.fix
    assert "hunter2secret" not in str(refused.value)


def test_a_missing_connection_is_named() -> None:
    source = {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"], "airflow_connection": "none"}
    sections = {"staging": {"path": "/s"}, "state": {"url": "sqlite:////s.db"}, "lake": {"path": "/l"}}
    with pytest.raises(ConfigError, match="no connection none") as refused:
        resolve(Config.model_validate({"source": source, **sections}))
    assert "AIRFLOW_CONN_NONE" in refused.value.fix


def test_airflow_takes_our_types_as_a_provider() -> None:
    from airflow.providers_manager import ProvidersManager
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    manager = ProvidersManager()
    assert provider_info().items() <= manager.providers[DISTRIBUTION].data.items()
    hooks = ProvidersManagerTaskRuntime().hooks
    hooks_by_type = {name: hooks[name] for name in TYPES}
    assert {name: hook.hook_name for name, hook in hooks_by_type.items() if hook is not None} == TYPES
    widgets = {name for name in manager.connection_form_widgets if name.startswith("extra__dblog_mysql")}
    assert widgets == {f"extra__dblog_mysql__{name}" for name in ("tls", "tls_ca", "tls_cert", "tls_key")}


@pytest.mark.in_turn
def test_a_connection_is_tested_as_a_capture_would_connect(
    source_server: DatabaseServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = PostgresSourceHook if database.kind == "postgres" else MysqlSourceHook
    right = {"conn_type": hook.conn_type, "host": source_server.host, "port": source_server.port}
    right |= {"login": database.account.user, "password": database.account.password}
    monkeypatch.setenv("AIRFLOW_CONN_RIGHT", json.dumps(right))
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", json.dumps({**right, "password": "wrong secret"}))
    well, version = hook("right").test_connection()
    assert well and database.query("SELECT version()") == [(version,)]
    well, reason = hook("wrong").test_connection()
    assert not well and database.account.user in reason and "wrong secret" not in reason
