"""The preflight of generated columns, which newer versions of MariaDB leave out of what they log of updates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.interfaces import Problem
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import exclude_entry
from dblog_core.sources.mysql.sql.catalogue import Described
from dblog_core.sources.mysql.sql.connection import rows
from dblog_core.sources.mysql.sql.server import version

_LEFT_OUT_SINCE = (11, 5)
"""10.11 and 11.4.7 log them, 11.8.9 does not; no version between these was tried."""
_GENERATED = """SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA IN %s AND GENERATION_EXPRESSION IS NOT NULL ORDER BY ORDINAL_POSITION"""


def problems(connection: Connection[Any], config: SourceConfig, descriptions: Sequence[Described]) -> Iterator[Problem]:
    """A warning for each table of a MariaDB server that has such columns and does not exclude them: its first update
    will stop it."""
    text, numbers = version(connection)
    schemas = sorted({described.table.schema for described in descriptions})
    if numbers < _LEFT_OUT_SINCE or not schemas:
        return
    generated: dict[TableName, list[str]] = defaultdict(list)
    for schema, table, column in rows(connection, _GENERATED, (schemas,)):
        generated[TableName(schema, table)].append(column)
    for described in descriptions:
        rules = config.columns.get(str(described.table))
        excluded = () if rules is None else rules.exclude
        names = [name for name in generated.get(described.table, ()) if name not in excluded]
        if names and described.schema:
            yield Problem(
                f"{described.table}: MariaDB {text} may log updates without generated columns ({', '.join(names)}): "
                "the first one stops the table",
                f"exclude them: {exclude_entry(described.table, names)}",
                fatal=False,
                table=str(described.table),
            )
