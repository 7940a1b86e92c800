"""MERGE tables: what is changed through one of them is in the log under its name, not under that of the table that has
the rows. The tables themselves are ordinary ones, of the engine MyISAM.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pymysql

from dblog_core.interfaces import Problem
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import quote_for_shell
from dblog_core.sources.mysql.sql.connection import LOCKED, is_of_table, rows
from dblog_core.sources.mysql.sql.watermarks import qualify

_MERGE_TABLES = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE ENGINE = 'MRG_MYISAM'"
_NAME = r"`(?:[^`]|``)+`"
_UNION = re.compile(rf"\bUNION=\(((?:{_NAME}|[.,])+)\)")
_PART = re.compile(rf"(?:({_NAME})\.)?({_NAME})")
_UNSEEN = {1142, 1143, 1146, 1168, 1472, *LOCKED}
"""The account may not read it, or it was dropped meanwhile, or one of its tables was, or is of another kind now. Or
somebody has locked it."""


def problems(connection: Any, names: list[TableName]) -> Iterator[Problem]:
    """A warning for each table of `names` whose rows can be changed through a MERGE table."""
    captured = set(names)
    for merge in sorted(TableName(str(schema), str(name)) for schema, name in rows(connection, _MERGE_TABLES)):
        for name in sorted(captured.intersection(_find_parts(connection, merge))):
            yield Problem(
                f"{name}: what is changed through the MERGE table {merge} is in the log under that name alone",
                f"`dblog dump --table {quote_for_shell(name)}` brings it; change {name} itself from then on",
                fatal=False,
                table=str(name),
            )


def _find_parts(connection: Any, merge: TableName) -> list[TableName]:
    try:
        definition = str(rows(connection, f"SHOW CREATE TABLE {qualify(merge)}")[0][1])
    except pymysql.err.MySQLError as error:
        if error.args[0] in _UNSEEN or is_of_table(error):
            return []
        raise
    return list(parse_parts(definition, merge.schema))


def parse_parts(definition: str, schema: str) -> Iterator[TableName]:
    """The tables of a MERGE table by its definition; `schema`: its own, which the definition leaves out."""
    if (union := _UNION.search(definition)) is not None:
        for of, name in _PART.findall(union[1]):
            yield TableName(_unquote(of) or schema, _unquote(name))


def _unquote(name: str) -> str:
    return name[1:-1].replace("``", "`")
