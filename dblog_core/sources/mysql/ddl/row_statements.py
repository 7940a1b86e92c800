"""Changes of rows in statement form: the tables whose rows the statement itself changes, by its text.

The text does not name what else may change: tables that triggers, functions and foreign keys reach, and those behind a
view. `binlog/reach` adds them. A text that the grammar does not know names nothing (None): it may change any table.
"""

from __future__ import annotations

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.ddl import statement_text
from dblog_core.sources.mysql.ddl.statement_tokens import StatementTokens

_MODIFIERS = frozenset({"LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "QUICK", "IGNORE", "CONCURRENT"})
_AFTER_INSERTED = frozenset({"(", "VALUES", "VALUE", "SELECT", "SET", "WITH", "TABLE", "PARTITION"})
_AFTER_DELETED = frozenset({"", "WHERE", "ORDER", "LIMIT", "RETURNING", ";"})
_AFTER_LOADED = frozenset(
    {"", "PARTITION", "CHARACTER", "CHARSET", "FIELDS", "COLUMNS", "LINES", "ROWS", "IGNORE", "(", "SET", ";"}
)


def find_targets(sql: str, schema: str, *, any_case: bool) -> frozenset[TableName] | None:
    """The tables that the statement itself changes; among them may be names of columns, and of tables that it only
    reads. None: its text does not certainly show them. `schema`: the default database that it was run in."""
    # Which server executes such a comment, and from which version on, the log does not say.
    if "/*!" in sql or "/*M!" in sql or not (statement_text.is_read(sql) and statement_text.is_read(schema)):
        return None
    tokens = StatementTokens(sql, schema, any_case=any_case)
    tokens.skip_settings()
    if tokens.take("INSERT") or tokens.take("REPLACE"):
        _skip_modifiers(tokens)
        tokens.take("INTO")
        return _take_target(tokens, _AFTER_INSERTED)
    if tokens.take("LOAD", "DATA") or tokens.take("LOAD", "XML"):
        return _find_loaded(tokens)
    begin = tokens.place()
    if tokens.take("UPDATE"):
        _skip_modifiers(tokens)
        target = _take_target(tokens, {"SET"})
    elif tokens.take("DELETE"):
        _skip_modifiers(tokens)
        target = _take_target(tokens, _AFTER_DELETED) if tokens.take("FROM") else None
    elif tokens.take("WITH"):
        target = None
    else:
        return None
    # In other forms any name may be that of a target, or its alias. A backslash is an escape or a character by the
    # session's sql_mode: where a text ends is not certain then, and a name may be taken for a part of it.
    if target is None and "\\" not in sql:
        tokens.return_to(begin)
        return frozenset(tokens.possible_tables())
    return target


def _skip_modifiers(tokens: StatementTokens) -> None:
    while tokens.peek().word in _MODIFIERS:
        tokens.take(tokens.peek().word)


def _take_target(tokens: StatementTokens, followers: frozenset[str] | set[str]) -> frozenset[TableName] | None:
    """The one table that comes next, if one of these words comes after it or its alias."""
    table = tokens.take_table()
    if table is None:
        return None
    if tokens.take("AS") or (tokens.peek().word not in followers and tokens.peek(1).word == "SET"):
        tokens.take_name()
    ends = tokens.peek() == tokens.end if "" in followers else False
    return frozenset({table}) if ends or (tokens.peek().word and tokens.peek().word in followers) else None


def _find_loaded(tokens: StatementTokens) -> frozenset[TableName] | None:
    _skip_modifiers(tokens)
    tokens.take("LOCAL")
    if not (tokens.take("INFILE") and tokens.take("'")):
        return None
    _ = tokens.take("REPLACE") or tokens.take("IGNORE")
    return _take_target(tokens, _AFTER_LOADED) if tokens.take("INTO", "TABLE") else None
