"""The preflight of the signal table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Problem
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.sql.connection import rows
from dblog_core.sources.mysql.sql.server import account
from dblog_core.sources.mysql.sql.watermarks import qualify

_TEXT = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "json")
_COLUMNS = """SELECT DATA_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s
ORDER BY ORDINAL_POSITION"""


def problems(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    """What is wrong with the signal table, where one is configured. An administrator makes it, since who may write it
    may request dumps."""
    if (name := tables.signals) is None:
        return
    signal_table = qualify(name).replace("%%", "%")
    make = f"CREATE TABLE {signal_table} (id varchar(255) PRIMARY KEY, type varchar(64) NOT NULL, data text)"
    kinds = [str(row[0]).lower() for row in rows(connection, _COLUMNS, (name.schema, name.name))]
    if not kinds:
        yield Problem(
            f"the signal table {name} is missing, or {config.user} cannot see it",
            f"{make}; GRANT SELECT ON {signal_table} TO {account(connection)}; "
            "GRANT INSERT to those who may request dumps",
        )
    elif len(kinds) < 3 or any(kind not in _TEXT for kind in kinds[:3]):
        yield Problem(f"{name} is no signal table: its first three columns are to be text", f"rename it, and {make}")
