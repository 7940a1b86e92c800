"""What passes for a source passes for an output to a server of the same kind: a relay fails on no deadlock."""

from __future__ import annotations

import psycopg2
import pymysql
import pytest

from dblog_core.config.output import OutputConfig
from dblog_core.config.source import SourceConfig
from dblog_core.errors import OutputUnavailable, SourceUnavailable
from dblog_core.model import transient_errors
from dblog_core.outputs.mysql import MysqlDialect
from dblog_core.outputs.postgres import PostgresDialect
from dblog_core.sources.mysql.sql import connection as mysql_connection
from dblog_core.sources.postgres.sql import connection as postgres_connection


def source_config(kind: str) -> SourceConfig:
    return SourceConfig.model_validate({"name": "shop", "kind": kind, "database": "shop", "tables": ["shop.*"]})


def output_config(kind: str) -> OutputConfig:
    return OutputConfig.model_validate({"kind": kind, "database": "shop"})


@pytest.mark.parametrize("code", sorted(transient_errors.MYSQL))
def test_mysqls_numbers(code: int) -> None:
    error = pymysql.err.OperationalError(code, "it passes")
    with pytest.raises(SourceUnavailable), mysql_connection.translate_errors(source_config("mysql"), "reading"):
        raise error
    with pytest.raises(OutputUnavailable), MysqlDialect(output_config("mysql")).translate_errors():
        raise error


@pytest.mark.parametrize("code", transient_errors.POSTGRES)
def test_postgres_states(code: str) -> None:
    class Passing(psycopg2.OperationalError):
        """The driver alone can give one of its own a state."""

        pgcode = code.ljust(5, "0")

    with pytest.raises(SourceUnavailable), postgres_connection.translate_errors(source_config("postgres")):
        raise Passing("it passes")
    with pytest.raises(OutputUnavailable), PostgresDialect(output_config("postgres")).translate_errors():
        raise Passing("it passes")
