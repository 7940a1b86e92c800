"""What we tell Airflow as a provider: modules of operators and the like, and the types of connections that
`airflow_connection` may name, with their forms."""

from __future__ import annotations

from typing import Any

from dblog_core import __version__
from dblog_core.installed_packages import DISTRIBUTION

TLS = ("tls", "tls_ca", "tls_cert", "tls_key")
"""Fields of the form, kept in the connection's extra: they mean what `[source]` means by them."""

TYPES = {"dblog_mysql": "DBLog source: MySQL, MariaDB", "dblog_postgres": "DBLog source: PostgreSQL"}
_INTEGRATION = "DBLog"
_PORTS = {"dblog_mysql": "3306", "dblog_postgres": "5432"}


def provider_info() -> dict[str, Any]:
    """Found by its entry point, `apache_airflow_provider`."""
    return {
        "package-name": DISTRIBUTION,
        "name": _INTEGRATION,
        "description": "Captures databases into a lakehouse.",
        "versions": [__version__],
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        **{part: [_modules(part)] for part in ("operators", "sensors", "triggers", "hooks")},
        "plugins": [{"name": "dblog", "plugin-class": "dblog_core.airflow.plugin.DblogPlugin"}],
        "connection-types": [_type(name, label) for name, label in TYPES.items()],
    }


def _modules(part: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"dblog_core.airflow.{part}"]}


def _type(name: str, label: str) -> dict[str, Any]:
    hook = {"dblog_mysql": "MysqlSourceHook", "dblog_postgres": "PostgresSourceHook"}[name]
    return {
        "connection-type": name,
        "hook-class-name": f"dblog_core.airflow.hooks.{hook}",
        "hook-name": label,
        "ui-field-behaviour": {
            "hidden-fields": ["extra", "schema"],
            "relabeling": {"login": "Capture user"},
            "placeholders": {"host": "db.example.com", "port": _PORTS[name], "login": "dblog"},
        },
        "conn-fields": {
            "tls": {
                "label": "TLS",
                "description": "verify-full (the default; off on loopback), verify-ca, require or off",
                "schema": {"type": ["string", "null"], "enum": ["verify-full", "verify-ca", "require", "off"]},
            },
            "tls_ca": _file("Authority", "PEM file of the authority that signed the server's certificate"),
            "tls_cert": _file("Certificate", "PEM file of our own certificate"),
            "tls_key": _file("Key", "PEM file of its key"),
        },
    }


def _file(label: str, meaning: str) -> dict[str, Any]:
    """A file where the tasks run: what it holds never goes through Airflow."""
    return {"label": label, "description": f"{meaning}, where the tasks run", "schema": {"type": ["string", "null"]}}
