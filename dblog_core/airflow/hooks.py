"""The hooks behind our types of connections: what *Test* in Airflow's form of a connection does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from airflow.sdk import BaseHook

from dblog_core.airflow.connections import as_source
from dblog_core.airflow.provider import TYPES
from dblog_core.config.source import SourceConfig
from dblog_core.errors import DblogError


class _SourceHook(BaseHook, ABC):
    """Connects as a capture would."""

    conn_name_attr = "dblog_conn_id"
    conn_type: str
    kind: str
    database: str  # one that every server has

    def __init__(self, dblog_conn_id: str = "dblog_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.dblog_conn_id = dblog_conn_id

    def get_conn(self) -> Any:
        """An open connection of the driver. Raises ConfigError, SourceUnavailable, SourceRefused."""
        about = {"name": "connection", "kind": self.kind, "database": self.database, "tables": ["*.*"]}
        source = SourceConfig.model_validate({**about, "airflow_connection": self.dblog_conn_id})
        return self.connect(as_source(source))

    @abstractmethod
    def connect(self, source: SourceConfig) -> Any:
        """An open connection of the driver."""

    def test_connection(self) -> tuple[bool, str]:
        """Whether the server lets the capture user in, and what it says."""
        try:
            connection = self.get_conn()
        except DblogError as error:
            return False, str(error)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT version()")
                (version,) = cursor.fetchone()
        finally:
            connection.close()
        return True, str(version)


class MysqlSourceHook(_SourceHook):
    """MySQL and MariaDB."""

    conn_type = "dblog_mysql"
    kind = "mysql"
    database = "information_schema"
    hook_name = TYPES[conn_type]

    def connect(self, source: SourceConfig) -> Any:
        from dblog_core.sources.mysql.sql.connection import connect

        return connect(source)


class PostgresSourceHook(_SourceHook):
    """PostgreSQL."""

    conn_type = "dblog_postgres"
    kind = "postgres"
    database = "postgres"
    hook_name = TYPES[conn_type]

    def connect(self, source: SourceConfig) -> Any:
        from dblog_core.sources.postgres.sql.connection import connect

        return connect(source)
