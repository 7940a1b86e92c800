"""Foreign keys that change rows of another table: where the engine does that, and not the server, no log has it.

MySQL's server does it from 9.6 on, unless `innodb_native_foreign_keys` is ON; in MySQL before, and in MariaDB, InnoDB
does. The catalogue tells which tables have foreign keys, SHOW CREATE TABLE what they do: MariaDB's catalogue shows that
to nobody who may only SELECT.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pymysql

from dblog_core.interfaces import Problem
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import quote_for_shell
from dblog_core.sources.mysql.sql.connection import LOCKED, is_of_table, rows, variables
from dblog_core.sources.mysql.sql.watermarks import qualify

_BY_ENGINE = "innodb_native_foreign_keys"
# MariaDB 11.4 prints a name as it is, without doubling the backticks in it.
_KEY = re.compile(r"^\s*CONSTRAINT `(.*?)` FOREIGN KEY \(`.*?((?: ON (?:DELETE|UPDATE) [A-Z ]+)+),?$", re.MULTILINE)
_ACTION = re.compile(r"ON (DELETE|UPDATE) (CASCADE|SET NULL|SET DEFAULT)")
_HAVING = """SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_NAME IS NOT NULL AND TABLE_SCHEMA IN %s ORDER BY TABLE_SCHEMA, TABLE_NAME"""
_UNSEEN = {1142, 1143, 1146, *LOCKED}
"""The account may not read the table, or it was dropped meanwhile: reported elsewhere. Or somebody has locked it."""


def problems(connection: Any, names: list[TableName]) -> Iterator[Problem]:
    """A warning for each table of `names` that is changed by what the log does not have."""
    # OFF: the server itself carries cascades out, and logs them. Servers where the engine always does it lack the
    # variable.
    if variables(connection, _BY_ENGINE).get(_BY_ENGINE) == "OFF":
        return
    schemas = {name.schema for name in names}
    having = {TableName(*row) for row in rows(connection, _HAVING, (schemas,))} if schemas else set()
    for name in sorted(having.intersection(names)):
        for key, actions in _find_cascades(connection, name):
            yield Problem(
                f"{name}: what {actions} of the foreign key {key} changes is not in this server's log",
                f"`dblog dump --table {quote_for_shell(name)}` brings it, and so do scheduled repairs; or let who "
                "changes the other table change this one too; or use MySQL from 9.6 on, which logs it",
                fatal=False,
                table=str(name),
            )


def _find_cascades(connection: Any, name: TableName) -> list[tuple[str, str]]:
    """Foreign keys of the table by which changes of another table change it, each with what does."""
    try:
        text = str(rows(connection, f"SHOW CREATE TABLE {qualify(name)}")[0][1])
    except pymysql.err.MySQLError as error:
        if error.args[0] in _UNSEEN or is_of_table(error):
            return []
        raise
    constraints = [(key.replace("``", "`"), _ACTION.findall(rules)) for key, rules in _KEY.findall(text)]
    return [(key, " and ".join(f"ON {event} {action}" for event, action in acts)) for key, acts in constraints if acts]
