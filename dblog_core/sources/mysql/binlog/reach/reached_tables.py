"""Which tables a change of rows in statement form may reach beside those that it names, by the server's catalogue.

A trigger and a stored function may change any table, and so may a statement about a view or about a table of an engine
that passes changes on: whatever involves one of these may have changed every table. A foreign key reaches the tables
that refer to a changed one. A name that no table has, in a catalogue that is seen whole, is that of a column or of a
temporary table.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from dblog_core.model.schema import TableName, to_lower_case
from dblog_core.sources.mysql.sql.connection import SKIPPED, rows

_TABLES = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES"
_TRIGGERS = "SELECT EVENT_OBJECT_SCHEMA, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS"
_REFERENCES = """SELECT REFERENCED_TABLE_SCHEMA, REFERENCED_TABLE_NAME, TABLE_SCHEMA, TABLE_NAME
FROM information_schema.KEY_COLUMN_USAGE WHERE REFERENCED_TABLE_NAME IS NOT NULL"""
_FUNCTIONS = "SELECT ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_TYPE <> 'PROCEDURE'"
_PLAIN_TYPES = ("BASE TABLE", "SYSTEM VERSIONED")
_PLAIN_ENGINES = ("INNODB", "MYISAM", "ARIA", "MEMORY", "CSV", "ARCHIVE", "ROCKSDB", "BLACKHOLE", "NDBCLUSTER")
"""Engines whose tables hold the rows that are written to them, or none."""
_GLOBAL_GRANT = re.compile(r"GRANT (.*) ON \*\.\* TO ", re.DOTALL)
_SEES_TABLES = "SELECT"
_SEES_TRIGGERS = "TRIGGER"
_SEES_FUNCTIONS = ("EXECUTE", "SHOW_ROUTINE")
NEEDED = "SELECT, TRIGGER, EXECUTE ON *.*"
"""What an account needs to see all that a statement reaches: the catalogue shows nobody what they may not use."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a server's catalogue says of all tables. `plain`: tables that have no trigger, and rows of their own;
    `others`: all other tables and views; `referring`: the tables that refer to each by foreign keys; `functions`:
    names of stored functions, as `_fold` has them."""

    plain: frozenset[TableName]
    others: frozenset[TableName]
    referring: Mapping[TableName, frozenset[TableName]]
    functions: frozenset[str]

    def find_reached(self, targets: Iterable[TableName], sql: str) -> frozenset[TableName] | None:
        """The tables that a statement with this text changes, by triggers and foreign keys too; None: any table."""
        text = _fold(sql)
        if any(_is_word(name, text) for name in self.functions):
            return None
        reached: set[TableName] = set()
        waiting = [table for table in targets if table in self.plain or table in self.others]
        while waiting:
            table = waiting.pop()
            if table not in self.plain:
                return None
            if table not in reached:
                reached.add(table)
                waiting += self.referring.get(table, ())
        return frozenset(reached)


def read_catalogue(connection: Connection[Any], *, any_case: bool) -> Catalogue | None:
    """The catalogue; None where the account does not see all of it. `any_case`: names in lower case, as `classify`
    has them. Raises the driver's errors."""
    if not _sees_all(connection) or (tables := _ask_all(connection, _TABLES)) is None:
        return None

    def name(schema: Any, table: Any) -> TableName:
        return TableName(*(to_lower_case(str(part)) if any_case else str(part) for part in (schema, table)))

    triggers = {name(*row) for row in rows(connection, _TRIGGERS)}
    plain: set[TableName] = set()
    others: set[TableName] = set()
    for schema, table, kind, engine in tables:
        is_plain = str(kind) in _PLAIN_TYPES and str(engine).upper() in _PLAIN_ENGINES
        found = name(schema, table)
        (plain if is_plain and found not in triggers else others).add(found)
    referring: dict[TableName, set[TableName]] = {}
    for parent_schema, parent, child_schema, child in rows(connection, _REFERENCES):
        referring.setdefault(name(parent_schema, parent), set()).add(name(child_schema, child))
    functions = frozenset(_fold(str(function)) for (function,) in rows(connection, _FUNCTIONS))
    return Catalogue(
        frozenset(plain), frozenset(others), {table: frozenset(refer) for table, refer in referring.items()}, functions
    )


def _ask_all(connection: Connection[Any], question: str) -> list[tuple[Any, ...]] | None:
    """The rows of the answer; None where MariaDB leaves a table out, since somebody is changing its definition."""
    with connection.cursor() as cursor:
        cursor.execute(question)
        answer = [tuple(row) for row in cursor.fetchall()]
        has_warnings = bool(cursor.warning_count)
    warnings = rows(connection, "SHOW WARNINGS") if has_warnings else []
    return None if any(code == SKIPPED for _, code, _ in warnings) else answer


def _sees_all(connection: Connection[Any]) -> bool:
    privileges: set[str] = set()
    for (grant,) in rows(connection, "SHOW GRANTS"):
        if str(grant).startswith("REVOKE"):  # a part of what is granted for all databases
            return False
        if match := _GLOBAL_GRANT.match(str(grant)):
            privileges |= set(match[1].split(", "))
    if "ALL PRIVILEGES" in privileges:
        return True
    return {_SEES_TABLES, _SEES_TRIGGERS} <= privileges and not privileges.isdisjoint(_SEES_FUNCTIONS)


def _fold(text: str) -> str:
    """Text as servers compare names of functions: without case and accents."""
    decomposed = unicodedata.normalize("NFKD", text.replace("`", ""))
    return "".join(character for character in decomposed if not unicodedata.combining(character)).casefold()


def _is_word(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", text) is not None
