"""The server's catalogue: which tables are wanted, and their shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.errors import TableLocked
from dblog_core.interfaces import Problem
from dblog_core.model import server_messages, table_patterns
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.retry import wait_for
from dblog_core.rows import column_rule_faults, source_key_faults
from dblog_core.rows.value_forms import shape_to_read
from dblog_core.sources.mysql.sql import row_key
from dblog_core.sources.mysql.sql.connection import SKIPPED, is_mariadb, is_of_table, rows
from dblog_core.sources.mysql.sql.row_key import UniqueIndex
from dblog_core.sources.mysql.sql.watermarks import qualify
from dblog_core.sources.mysql.values import charsets, multibyte, types


class TableFilter:
    """The configuration's patterns, of which only `*` and `?` are special. The tables of our own are never
    wanted: `watermarks`, and `signals` (None: there is none)."""

    def __init__(self, config: SourceConfig) -> None:
        self.patterns = config.tables
        self.columns = config.columns
        self.watermarks = TableName.parse(config.watermark_table)
        self.signals = TableName.parse(config.signal_table) if config.signal_table else None
        self._known: dict[TableName, bool] = {}

    def wants(self, table: TableName) -> bool:
        """Whether a pattern matches the table, which is neither the watermark table nor the signal table."""
        is_wanted = self._known.get(table)
        if is_wanted is None:
            is_wanted = not self.ours(table) and table_patterns.matches(table, self.patterns)
            self._known[table] = is_wanted
        return is_wanted

    def ours(self, table: TableName) -> bool:
        """Whether its rows are for us, and for nobody behind us."""
        return table in (self.watermarks, self.signals)

    def may_want(self, table: TableName) -> bool:
        """Whether a statement that names this table may be about a wanted one: some servers do not mind the case."""
        return table_patterns.matches(table, self.patterns, any_case=True)

    def wants_schema(self, schema: str, *, any_case: bool = False) -> bool:
        """Whether a pattern may match tables of the schema."""
        return table_patterns.matches_schema(schema, self.patterns, any_case=any_case)


@dataclass(frozen=True, slots=True)
class Described:
    """A table of the catalogue: its shape, or why it has none that we can use.

    `key_faults`: what is wrong with its entry in [source.keys]; `candidates`: what could stand there instead;
    `contradiction`: that it names other columns than the primary key.
    `rule_problems`: of its column rules, those that do not fit it. `versioned`: MariaDB keeps every version of a row;
    `periods`: the columns for that which its definition names. `engine`: of the table, where it keeps no rows.
    `unseen`: columns of its key that were not among its columns: it was altered between two questions.
    """

    table: TableName
    schema: TableSchema | None
    column_faults: tuple[str, ...] = ()
    key_faults: tuple[str, ...] = ()
    candidates: tuple[tuple[str, ...], ...] = ()
    rule_problems: tuple[Problem, ...] = ()
    versioned: bool = False
    engine: str = ""
    periods: tuple[str, ...] = ()
    contradiction: str = ""
    unseen: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        """All that is wrong, in words."""
        table_faults = (types.VERSIONED,) if self.versioned else ()
        if self.engine:
            table_faults = (types.explain_rowless(self.engine),)
        key_faults = (self.contradiction,) if self.contradiction else self.key_faults
        return (*table_faults, *self.column_faults, *key_faults, *(problem.what for problem in self.rule_problems))


# MariaDB lists system-versioned tables under a type of their own; views and sequences have others.
_TABLES = """SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES
WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')
  AND TABLE_SCHEMA NOT IN ('mysql', 'sys', 'performance_schema', 'information_schema')
ORDER BY TABLE_SCHEMA, TABLE_NAME"""
_IS_TABLE = """SELECT 1 FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"""
_PRIMARY_KEY = """SELECT COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX"""
_PRIMARY = "PRIMARY"
_INDEX_NAMES = """SELECT INDEX_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0"""
_ENGINE = "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
_KINDS = """SELECT TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES
WHERE TABLE_SCHEMA = %s {} AND (TABLE_TYPE IN ('SYSTEM VERSIONED', 'SEQUENCE') OR ENGINE IN %s)"""
_ROWLESS = ("MRG_MYISAM", "BLACKHOLE", "FEDERATED", "CONNECT", "SPIDER", "SPHINX", "OQGRAPH")
"""Engines whose tables show rows of other tables and servers, or none: the log does not say which."""
_PERIODS = """SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s {} AND GENERATION_EXPRESSION IN ('ROW START', 'ROW END')"""
_COLUMNS = """SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, NUMERIC_PRECISION, NUMERIC_SCALE,
  CHARACTER_SET_NAME, IS_NULLABLE, EXTRA
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s {} ORDER BY TABLE_NAME, ORDINAL_POSITION"""
_COLUMN_NAMES = """SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION"""
_INDEXES = """SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME, SUB_PART, INDEX_TYPE FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s {} AND NON_UNIQUE = 0 ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX"""
# Types, character sets and storage forms that are not known here; and labels, of which two may print alike in a key.
_SUSPECTS = """SELECT TABLE_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s {}
AND (DATA_TYPE IN ('enum', 'set') OR DATA_TYPE NOT IN %s OR CHARACTER_SET_NAME NOT IN %s OR CHARACTER_SET_NAME IN %s
  OR COLUMN_TYPE LIKE '%%/*%%' OR COLUMN_TYPE LIKE '%% COMPRESSED%%')"""
_TWINS = frozenset(name for name, form in multibyte.FORMS.items() if form.twins)
_ONE = "AND TABLE_NAME = %s"
_LOOKS_AGAIN = 3
"""At a table that was altered while the catalogue was read: what remains is of an account that sees some columns."""
_FEW = 10
"""Tables of a schema up to which each is asked for alone: some servers open every table that they list."""


# MariaDB opens each table that its catalogue lists, and waits for one whose definition a statement is about to change,
# whosever it is. A session that holds some metadata lock itself, as a user-level lock is, gets a warning in its place.
_WAIT_FOR_NONE = "SELECT GET_LOCK(CONCAT('dblog catalogue ', CONNECTION_ID()), 0)"
_NOT_SUPPORTED = 1235
_NO_SUCH_TABLE = 1146
_PATIENCE = 1.0
_PAUSES = (0.02, 0.2)
"""Seconds in which such a statement may come to its end, and between two looks."""
_SKIPPED_TABLE = re.compile(r"'(.*?)'\.'(.*)'", re.DOTALL)  # the server does not mask a quote in a name


def wait_for_no_table(connection: Connection[Any]) -> None:
    """From here on the catalogue of MariaDB leaves out tables whose definition is locked: see `_ask`."""
    if is_mariadb(connection):
        try:
            rows(connection, _WAIT_FOR_NONE)
        except pymysql.err.MySQLError as error:
            if error.args[0] != _NOT_SUPPORTED:  # by a node of a cluster, whose catalogue then waits
                raise


def _ask(
    connection: Connection[Any], question: str, arguments: Sequence[Any], wants: Callable[[TableName], bool]
) -> list[tuple[Any, ...]]:
    """The rows of a question to the catalogue. Raises TableLocked where they lack a wanted table, whose definition
    somebody keeps locked."""

    # Most statements that change a table have its definition for a moment alone.
    answer, missed = wait_for(
        lambda: _ask_once(connection, question, arguments, wants),
        until=lambda result: not result[1],
        waits=_PAUSES,
        give_up_after=_PATIENCE,
    )
    if missed:
        # Whoever asks may want another table: what it says is true of each.
        raise TableLocked(
            f"the catalogue cannot be read whole: MariaDB shows nothing of {missed[0]} while a statement changes it",
            fix="try again once that statement is over; a capture does so automatically",
        )
    return answer


def _ask_once(
    connection: Connection[Any], question: str, arguments: Sequence[Any], wants: Callable[[TableName], bool]
) -> tuple[list[tuple[Any, ...]], list[str]]:
    """The rows, and the wanted tables that they lack."""
    with connection.cursor() as cursor:
        cursor.execute(question, tuple(arguments))
        answer = [tuple(row) for row in cursor.fetchall()]
        has_warnings = bool(cursor.warning_count)
    warnings = rows(connection, "SHOW WARNINGS") if has_warnings else []
    skipped = [_name_skipped(str(text)) for _, code, text in warnings if code == SKIPPED]
    return answer, [str(table or "a table") for table in skipped if table is None or wants(table)]


def _name_skipped(warning: str) -> TableName | None:
    """The table of which the answer has nothing; None where the server's words are others."""
    named = _SKIPPED_TABLE.search(warning)
    return None if named is None else TableName(*named.groups())


def list_wanted(connection: Connection[Any], tables: TableFilter) -> list[TableName]:
    """The existing tables that the patterns match. Raises TableLocked, see `wait_for_no_table`."""
    names = (TableName(str(schema), str(name)) for schema, name in _ask(connection, _TABLES, (), tables.wants))
    return [table for table in names if tables.wants(table)]


def is_table(connection: Connection[Any], table: TableName) -> bool:
    """Whether it is there, and a table: MariaDB's log and its catalogue of columns hold sequences too. True also where
    the server cannot say: somebody keeps its definition locked, or it cannot be opened."""
    try:
        found, locked = _ask_once(connection, _IS_TABLE, (table.schema, table.name), table.__eq__)
        return bool(found or locked)
    except pymysql.err.MySQLError as error:
        if not is_of_table(error):
            raise
        return True


def primary_key(connection: Connection[Any], table: TableName) -> tuple[str, ...]:
    """The columns of its primary key; none where it has none, there is no such table, the server cannot open it, or
    somebody keeps its definition locked: no log waits for one table."""
    try:
        return tuple(str(column) for (column,) in rows(connection, _PRIMARY_KEY, (table.schema, table.name)))
    except pymysql.err.MySQLError as error:
        if not is_of_table(error):
            raise
        return ()


def column_names(connection: Connection[Any], table: TableName) -> tuple[str, ...]:
    """All columns of a table, in their order."""
    return tuple(str(name) for (name,) in rows(connection, _COLUMN_NAMES, (table.schema, table.name)))


Rows = list[tuple[Any, ...]]


def describe(
    connection: Connection[Any],
    table: TableName,
    keys: Mapping[str, Sequence[str]],
    rules: Mapping[str, ColumnRules],
) -> Described | None:
    """The table as the catalogue has it now; None if it does not exist."""
    return next(iter(describe_all(connection, [table], keys, rules)), None)


def describe_all(
    connection: Connection[Any],
    tables: Sequence[TableName],
    keys: Mapping[str, Sequence[str]],
    rules: Mapping[str, ColumnRules],
) -> list[Described]:
    """The tables that exist, as the catalogue has them now: a few questions a schema, however many tables it
    has."""
    descriptions = {described.table: described for described in _describe_each(connection, tables, keys, rules)}
    for _ in range(_LOOKS_AGAIN):
        altered = [described.table for described in descriptions.values() if described.unseen]
        if not altered:
            break
        for table in altered:
            descriptions.pop(table)  # it may be gone by now
        descriptions |= {described.table: described for described in _describe_each(connection, altered, keys, rules)}
    return [descriptions[table] for table in tables if table in descriptions]


def _describe_each(
    connection: Connection[Any],
    tables: Sequence[TableName],
    keys: Mapping[str, Sequence[str]],
    rules: Mapping[str, ColumnRules],
) -> list[Described]:
    """The tables that exist. One that the server cannot open is refused alone: it may fail a question about all."""
    try:
        return _describe_once(connection, tables, keys, rules)
    except pymysql.err.MySQLError as error:
        if not is_of_table(error):
            raise
        if len(tables) > 1:
            return [described for table in tables for described in _describe_each(connection, [table], keys, rules)]
        return [Described(tables[0], None, (f"its definition cannot be read: {server_messages.by_mysql(error)}",))]


def _describe_once(
    connection: Connection[Any],
    tables: Sequence[TableName],
    keys: Mapping[str, Sequence[str]],
    rules: Mapping[str, ColumnRules],
) -> list[Described]:
    columns = _ask_by_table(connection, _COLUMNS, tables)
    indexes = _ask_by_table(connection, _INDEXES, tables)
    kinds = _ask_kinds(connection, tables)
    periods = _ask_by_table(connection, _PERIODS, [table for table, (kind, _) in kinds.items() if kind == _VERSIONED])
    descriptions = []
    for table in tables:
        kind, engine = kinds.get(table, ("", ""))
        # MariaDB lists the columns of a sequence like those of a table.
        if table not in columns or kind == _SEQUENCE:
            continue
        if kind == _VERSIONED:
            columns_of_periods = tuple(str(name) for (name,) in periods.get(table, ()))
            descriptions.append(Described(table, None, versioned=True, periods=columns_of_periods))
        elif engine:
            descriptions.append(Described(table, None, engine=engine))
        else:
            unique_indexes = row_key.list_unique_indexes(indexes.get(table, []))
            if _PRIMARY not in unique_indexes:
                unique_indexes = _put_in_order(connection, table, unique_indexes)
            descriptions.append(_describe(table, columns[table], unique_indexes, keys, rules))
    return descriptions


def _put_in_order(
    connection: Connection[Any], table: TableName, indexes: dict[str, UniqueIndex]
) -> dict[str, UniqueIndex]:
    """The indexes in the order of the table's definition, from which the server takes the first that it can use for a
    key. One by a hash is none on MariaDB, except for tables in memory, whose indexes are all so."""
    names: Iterable[str] = indexes
    mariadb = is_mariadb(connection)
    if len(indexes) > 1:
        names = _list_index_names(connection, table, mariadb=mariadb)
    in_order = {name: indexes[name] for name in names if name in indexes}
    if not any(index.hashed for index in in_order.values()):
        return in_order
    in_memory = not mariadb or _ask(connection, _ENGINE, (table.schema, table.name), table.__eq__) == [("MEMORY",)]
    return {name: replace(index, hashed=index.hashed and not in_memory) for name, index in in_order.items()}


def _list_index_names(connection: Connection[Any], table: TableName, *, mariadb: bool) -> list[str]:
    """MariaDB lists them in their order where none is asked for; MySQL shows its order in this statement alone."""
    if mariadb:
        return [str(name) for (name,) in _ask(connection, _INDEX_NAMES, (table.schema, table.name), table.__eq__)]
    try:
        return [str(row[2]) for row in rows(connection, f"SHOW INDEX FROM {qualify(table)}")]
    except pymysql.err.ProgrammingError as error:
        if error.args[0] != _NO_SUCH_TABLE:
            raise
        return []  # it was dropped since


def suspects(connection: Connection[Any], tables: Sequence[TableName]) -> set[TableName]:
    """Those among the tables that `describe_all` may find to be such as cannot be captured, whatever the configuration
    says of them: few, so that it need not be asked about all of them all the time."""
    what_is_known = (tuple(types.known_names()), tuple(charsets.every()), tuple(_TWINS))
    try:
        return {*_ask_by_table(connection, _SUSPECTS, tables, *what_is_known), *_ask_kinds(connection, tables)}
    except pymysql.err.MySQLError as error:
        if not is_of_table(error):
            raise
        return set(tables)


_VERSIONED = "SYSTEM VERSIONED"
_SEQUENCE = "SEQUENCE"


def _ask_kinds(connection: Connection[Any], tables: Sequence[TableName]) -> dict[TableName, tuple[str, str]]:
    """The type and the engine of each that is more, or less, than an ordinary table."""
    answers = _ask_by_table(connection, _KINDS, tables, _ROWLESS)
    return {table: (str(kind), str(engine)) for table, ((kind, engine), *_) in answers.items()}


def _ask_by_table(
    connection: Connection[Any], question: str, tables: Sequence[TableName], *more: Any
) -> dict[TableName, Rows]:
    """The answer's rows by table; rows of other tables are left out. `more`: what the question asks with besides."""
    answers: dict[TableName, Rows] = {}
    for schema in sorted({table.schema for table in tables}):
        names = {table.name for table in tables if table.schema == schema}
        # Of many tables it is cheaper to ask about their whole schema once.
        questions = [("", (schema, *more))] if len(names) > _FEW else [(_ONE, (schema, name, *more)) for name in names]
        for condition, values in questions:
            for name, *row in _ask(connection, question.format(condition), values, tables.__contains__):
                if name in names:
                    answers.setdefault(TableName(schema, str(name)), []).append(tuple(row))
    return answers


def _describe(
    table: TableName,
    column_rows: Rows,
    indexes: dict[str, UniqueIndex],
    keys: Mapping[str, Sequence[str]],
    rules: Mapping[str, ColumnRules],
) -> Described:
    columns = []
    faults = []
    for name, data_type, column_type, precision, scale, charset, *_ in column_rows:
        try:
            kind = types.from_catalogue(str(data_type), str(column_type), precision, scale, charset)
            columns.append(Column(str(name), str(column_type), kind))
        except types.UnsupportedType as error:
            faults.append(f"column {name}: {error}")
    primary = indexes[_PRIMARY].columns if _PRIMARY in indexes else ()
    unique = [index for name, index in indexes.items() if index.whole and name != _PRIMARY]
    # Only columns that cannot be NULL identify rows: a unique index admits NULL many times.
    nullable = {str(row[0]) for row in column_rows if row[6] == "YES"}
    candidates = [index for index in unique if not nullable & set(index.columns)]
    # The servers do not choose a column that is computed when it is read.
    virtual = {str(row[0]) for row in column_rows if "VIRTUAL" in str(row[7]).upper()}
    first = next((index.columns for index in candidates if not index.hashed and not virtual & set(index.columns)), ())
    entry = tuple(keys.get(str(table), ()))
    key = primary or row_key.choose(entry, first)
    contradiction = source_key_faults.explain_contradiction(table, entry, primary, ignore_case=True)
    faults += [f"column {c.name}: {alike}" for c in columns if c.name in key and (alike := row_key.why_not_in_key(c))]
    if not entry:  # it says that the key may be as it is
        texts = [row for row in column_rows if row[5] in _TWINS and row[1] not in ("enum", "set")]
        faults += [f"column {name}: {types.TWINS}" for name, *_ in texts if name in key]
    names = [str(row[0]) for row in column_rows]
    unseen = tuple(name for name in primary or first if name not in names)
    why = "it is in the key, and the account needs SELECT on the whole table to see it"
    faults += [f"column {name}: {why}" for name in unseen]
    wrong = row_key.find_faults(key, set(names), nullable, [i.columns for i in unique]) if key and not primary else ()
    ruled = tuple(column_rule_faults.of_table(str(table), names, key, rules))
    refused = bool(faults or wrong or contradiction or ruled)
    schema = None if refused else shape_to_read(TableSchema(table, tuple(columns), key), rules)
    named = tuple(index.columns for index in candidates)
    description = Described(table, schema, tuple(faults), tuple(wrong), named, ruled, contradiction=contradiction)
    return replace(description, unseen=unseen)
