"""The watermark table: checked, and made where it is missing. The log shows it whatever it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Problem, WatermarkTable
from dblog_core.model import server_messages
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.sql.connection import NO_DATABASE, quote_identifier, rows
from dblog_core.sources.mysql.sql.server import account
from dblog_core.sources.mysql.sql.watermarks import create_statement, qualify

_GONE = 1146
_EXISTS = 1050
_ALLOWED = (_GONE, 1060, 1050)
"""What a statement on an absent table ends with where the account may run it: the table is not there, a column stands
there twice, or a standby has just made the table."""
_MAY_NOT = (1044, 1142, 1143, 1227, 1370)
_READ_ONLY = (1290, 1836)


def make(connection: Connection[Any], tables: TableFilter) -> str:
    """Makes the table where it is missing; why it cannot be made, empty where it is there."""
    try:
        rows(connection, create_statement(tables.watermarks))
    except pymysql.err.MySQLError as error:
        if error.args[0] == _EXISTS:
            return ""
        return server_messages.by_mysql(error)
    return ""


def keep(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> WatermarkTable:
    """As `Source.keep_watermark_table`."""
    if _is_there(connection, tables):
        return WatermarkTable("")
    why = make(connection, tables)
    if _is_there(connection, tables):
        return WatermarkTable("")
    problems = tuple(find_problems(connection, config, tables))
    if not problems:
        what = f"the watermark table {tables.watermarks} is missing and cannot be made: {why}"
        problems = (Problem(what, _explain_statement(tables), of_dumps=True),)
    return WatermarkTable(None, problems)


def _is_there(connection: Connection[Any], tables: TableFilter) -> bool:
    """Not by the catalogue: MariaDB leaves out a table that somebody alters."""
    try:
        rows(connection, f"SELECT 1 FROM {qualify(tables.watermarks)} LIMIT 0")
    except pymysql.err.MySQLError as error:
        return error.args[0] not in (_GONE, NO_DATABASE)
    return True


def _explain_statement(tables: TableFilter) -> str:
    return f"let an administrator run: {create_statement(tables.watermarks).replace('%%', '%')};"


def find_problems(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    """Why no watermark can be written."""
    if config.read_only:
        return
    table = tables.watermarks
    where = qualify(tables.watermarks)
    exists = rows(
        connection,
        "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (table.schema, table.name),
    )
    try:
        _try_watermarks(connection, config, where, exists=bool(exists))
    except pymysql.err.MySQLError as error:
        # The server is read-only: no grant helps there.
        if error.args[0] in _READ_ONLY:
            yield Problem(
                f"the watermark table {table} cannot be written: {server_messages.by_mysql(error)}",
                "connect to the primary: SET GLOBAL read_only = OFF",
            )
            return
        what = f"the watermark table {table} cannot be {'written' if exists else 'created'}"
        fix = _explain_fix(connection, tables, error.args[0])
        yield Problem(f"{what}: {server_messages.by_mysql(error)}", fix, of_dumps=True)


def _explain_fix(connection: Connection[Any], tables: TableFilter, code: int) -> str:
    table = qualify(tables.watermarks).replace("%%", "%")
    if code == NO_DATABASE:
        return f"CREATE DATABASE {quote_identifier(tables.watermarks.schema).replace('%%', '%')};"
    if code not in _MAY_NOT:
        return f"set watermark_table to another name, or DROP TABLE {table}: the capture makes it again"
    grant = f"GRANT CREATE, SELECT, INSERT, UPDATE ON {table} TO {account(connection)};"
    made = f"{create_statement(tables.watermarks).replace('%%', '%')}; and {grant.replace('CREATE, ', '')}"
    return f"{grant} or let an administrator run: {made}"


def _try_watermarks(connection: Connection[Any], config: SourceConfig, where: str, *, exists: bool) -> None:
    """Statements whose grants the server checks and that change nothing. Raises the driver's error for a missing one.

    Of an absent table each fails in the end: its two columns have one name, or it is not there.
    """
    write = f"INSERT INTO {where} (worker, payload) SELECT '', '' FROM DUAL WHERE 1 = 0"
    write += " ON DUPLICATE KEY UPDATE payload = ''"
    attempts = [write]
    if not exists:
        # Two columns of one name: the server checks the grant first, and then refuses the table.
        attempts.insert(0, f"CREATE TABLE {where} (worker int, worker int)")
        if config.kind == "mariadb":  # where the table exists, `write` asks for this too
            attempts.append(f"SELECT payload FROM {where} LIMIT 0")
    for statement in attempts:
        try:
            rows(connection, statement)
        except pymysql.err.MySQLError as error:
            if exists or error.args[0] not in _ALLOWED:
                raise
