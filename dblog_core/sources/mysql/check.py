"""The preflight: every reason why a capture of this source would be wrong or fail, each with its fix."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceError, TableLocked
from dblog_core.interfaces import Problem
from dblog_core.model import server_messages, table_patterns
from dblog_core.model.schema import TableName
from dblog_core.model.table_names import keys_entry, quote_for_toml
from dblog_core.rows import column_rule_faults, source_key_faults
from dblog_core.sources import minor_releases
from dblog_core.sources.mysql import check_generated, check_replica, check_signals, session_settings, watermark_table
from dblog_core.sources.mysql.binlog import log
from dblog_core.sources.mysql.binlog.xa import prepared_at_start
from dblog_core.sources.mysql.row_events.table_ids import Lookups
from dblog_core.sources.mysql.sql import catalogue, foreign_keys, merge_tables, xa_visibility
from dblog_core.sources.mysql.sql.catalogue import Described, TableFilter
from dblog_core.sources.mysql.sql.connection import (
    LOCKED,
    NO_DATABASE,
    connect,
    is_mariadb,
    quote_identifier,
    rows,
    variables,
)
from dblog_core.sources.mysql.sql.log_end import GTIDS_FIX
from dblog_core.sources.mysql.sql.server import LOG_BIN_FIX, account, list_undurable, log_status, version
from dblog_core.sources.mysql.sql.watermarks import qualify
from dblog_core.sources.mysql.values import types

_WANTED = {
    "binlog_format": ("ROW", "changes would be logged as statements"),
    "binlog_row_image": ("FULL", "rows would be logged without all their columns"),
    "binlog_row_metadata": ("FULL", "rows would be logged without column names, character sets and keys"),
    "binlog_order_commits": ("ON", "a chunk could miss what the log already holds, and stale rows would win"),
    "binlog_row_value_options": ("", "updates of JSON columns would be logged in part"),
}


_AT_ONCE = 100
"""Tables that one statement looks at."""
_LOCK_SECONDS = 1
_MAY_NOT_READ = (1142, 1143)
_OF_THE_DRIVER = range(2000, 3000)  # the connection is gone: no table is to blame
_NOT_INTO_THE_DATABASE = 1044
_GONE = 1146


def problems(config: SourceConfig, tables: TableFilter) -> list[Problem]:
    """Everything that is wrong; an unreachable server is the only finding then."""
    problems_found: list[Problem] = []
    refused: SourceError | None = None
    try:
        connection = connect(config)
    except SourceError as error:
        if not _has_no_right_in_the_database(error):
            return [_of_error(error)]
        refused = error
        try:
            connection = connect(config.model_copy(update={"database": ""}))
        except SourceError:
            return [_of_error(error)]
    with connection:
        catalogue.wait_for_no_table(connection)
        # All other checks would ask the wrong questions.
        if is_mariadb(connection) != (config.kind == "mariadb"):
            other = "mysql" if config.kind == "mariadb" else "mariadb"
            return [Problem(f"the server is {other}, not {config.kind}", f'set source.kind = "{other}"')]
        for part in _PARTS:
            problems_found += _run_part(part, connection, config, tables)
    if refused is not None and not any(problem.fatal for problem in problems_found):
        problems_found.append(_of_error(refused))
    return problems_found


def _of_error(error: SourceError) -> Problem:
    return Problem(f"{error.where}: {error.message}", error.fix)


def _has_no_right_in_the_database(error: SourceError) -> bool:
    """Whether the server lets the account in, but not into the database: the parts then name the missing grants."""
    cause = error.__cause__
    return isinstance(cause, pymysql.err.MySQLError) and cause.args[0] == _NOT_INTO_THE_DATABASE


Part = Callable[[Any, SourceConfig, TableFilter], Iterator[Problem]]


def _run_part(part: Part, connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> list[Problem]:
    """A part's findings; an error that it does not expect is one more finding, and the other parts still run."""
    problems_found: list[Problem] = []
    try:
        problems_found += part(connection, config, tables)
    except TableLocked as error:
        what = f"nothing can be said of the tables: {error.message}"
        problems_found.append(Problem(what, "check again, once the statement that changes it is over", fatal=False))
    except pymysql.err.MySQLError as error:
        problems_found.append(
            Problem(
                f"checking {part.__name__.strip('_')}: {server_messages.by_mysql(error)}",
                "grant what the message names, or repair the server",
            )
        )
    return problems_found


def _version(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    text, numbers = version(connection)
    # The first whose table maps can carry names, character sets and keys (binlog_row_metadata).
    least = (10, 5) if config.kind == "mariadb" else (8, 0)
    if numbers < least:
        yield Problem(f"{config.kind} {text} is too old", f"use {config.kind} {least[0]}.{least[1]} or later")
    yield from minor_releases.problems(config.kind, minor_releases.parse(text))


def _settings(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    values = variables(connection, "log_bin", "gtid_mode", *_WANTED)
    if values.get("log_bin") != "ON":
        yield Problem("log_bin is OFF: the server writes no log", LOG_BIN_FIX)
    # MariaDB has no SET PERSIST: its setting is lost with the next start, unless a file has it.
    persist = "SET GLOBAL" if config.kind == "mariadb" else "SET PERSIST"
    in_file = "; and write it into the server's configuration file" if config.kind == "mariadb" else ""
    for name, (needed, why) in _WANTED.items():
        if name in values and values[name].upper() != needed:
            needed_text = needed if needed in ("ON", "OFF") else f"'{needed}'"
            yield Problem(
                f"{name} is {values[name] or 'empty'}: {why}",
                f"{persist} {name} = {needed_text}; and reconnect all clients (it is a session setting too){in_file}",
            )
    for name, value in list_undurable(connection).items():
        yield Problem(
            f"{name} is {value}: after a crash tables and log may differ, so the capture dumps all tables",
            f"{persist} {name} = 1{in_file}",
            fatal=False,
        )
    # MariaDB gives every transaction a GTID.
    if config.kind == "mysql" and values.get("gtid_mode") != "ON":
        why = "the capture cannot follow a failover to another server"
        if config.read_only:
            why = "with read_only = true nobody could tell which commits a chunk sees"
        yield Problem(f"gtid_mode is {values.get('gtid_mode')}: {why}", GTIDS_FIX, fatal=config.read_only)


def _replica(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    yield from check_replica.problems(connection, config)


def _log(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    client = "BINLOG MONITOR" if config.kind == "mariadb" else "REPLICATION CLIENT"
    try:
        status = log_status(connection)
    except pymysql.err.MySQLError:
        yield _missing(connection, f"the log's position cannot be read: {client} is missing", client, "*.*")
        return
    if status is None:
        return  # log_bin is OFF, and that is told already
    # By these the server leaves transactions out of its log, some by the session's default database alone.
    for label, value in (("binlog_do_db", status[2]), ("binlog_ignore_db", status[3])):
        if value:
            yield Problem(f"{label} is {value}: the log leaves schemas out", f"start the server without {label}")
    try:
        _try_log(config, connection)
    except SourceError as error:
        yield _missing(connection, f"the log cannot be read: {error.message}", "REPLICATION SLAVE", "*.*")


def _try_log(config: SourceConfig, connection: Connection[Any]) -> None:
    """Asks for the log from its end, under an id of its own: the server ends the older stream with the same id. So the
    id is neither a running capture's, nor one that a check in another container may have.
    """
    from dblog_core.sources.mysql.binlog.log_state import LogState
    from dblog_core.sources.mysql.sql import server
    from dblog_core.sources.mysql.values import charsets, multibyte

    mariadb = config.kind == "mariadb"
    start = server.present_end(connection, config, mariadb=mariadb)
    state = LogState(
        tables=TableFilter(config),
        keys=config.keys,
        charsets=charsets.load(connection, partial(multibyte.ask, connection)),
        zero_dates="null",
        any_case=server.any_case(connection),
        mariadb=mariadb,
        server=None,
        position=start,
        rows_to_skip=0,
        lookups=Lookups(partial(catalogue.is_table, connection), partial(catalogue.primary_key, connection)),
    )
    identity = 500_000 + secrets.randbelow(500_000)
    stream = log.open_log(config, start, state, mariadb=mariadb, identity=identity)
    try:
        # The server refuses on the first read, not when the log is asked for.
        stream.read(timeout=0.5)
    finally:
        stream.close()


def _missing(connection: Connection[Any], what: str, grant: str, on: str) -> Problem:
    return Problem(what, f"GRANT {grant} ON {on} TO {account(connection)};")


def _database(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    if not config.database:
        return
    try:
        # Not by SHOW DATABASES, which leaves out what an account may do nothing in: other parts ask for its grants.
        rows(connection, f"USE {quote_identifier(config.database)}")
    except pymysql.err.MySQLError as error:
        if error.args[0] == NO_DATABASE:
            fix = "correct source.database, or make it again"
            yield Problem(f"the server has no database {config.database}", fix, of_dumps=True)


def _tables(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    names = catalogue.list_wanted(connection, tables)
    for pattern in tables.patterns:
        if not any(table_patterns.matches(name, [pattern]) for name in names):
            schema, name = table_patterns.parts(pattern)
            is_exact = "*" not in pattern and "?" not in pattern
            on = qualify(TableName(schema, name)) if is_exact else f"{quote_identifier(schema)}.*"
            yield Problem(
                f"source.tables: {pattern} matches no table that {config.user} can see",
                f"correct the pattern, or GRANT SELECT ON {on.replace('%%', '%')} TO {account(connection)};",
                pattern=pattern,
            )
    yield from column_rule_faults.of_missing(set(map(str, names)), config.columns)
    descriptions = catalogue.describe_all(connection, names, config.keys, config.columns)
    for described in descriptions:
        yield from _table(config, described)
    if config.kind == "mariadb":
        yield from check_generated.problems(connection, config, descriptions)
    # A table that somebody has locked must not keep a capture of all others from its beginning.
    rows(connection, f"SET SESSION lock_wait_timeout = {_LOCK_SECONDS}")
    # What an engine without rows shows is refused already; a MERGE table may not even open.
    read = [described.table for described in descriptions if not described.engine]
    for first in range(0, len(read), _AT_ONCE):
        yield from _readable(connection, read[first : first + _AT_ONCE])
    yield from foreign_keys.problems(connection, names)
    yield from merge_tables.problems(connection, names)
    rows(connection, f"SET SESSION lock_wait_timeout = {session_settings.LOCK_SECONDS}")


def _table(config: SourceConfig, described: Described) -> Iterator[Problem]:
    name = described.table
    yield from table_problems(described)
    if described.schema and not described.schema.key:
        yield Problem(
            f"{name} has no primary key, and no unique key that could stand for one: it goes to the super-changelog "
            "and to history, not to the lake or to dumps",
            _keyless_fix(name, described.candidates),
            fatal=False,
            table=str(name),
        )


def _readable(connection: Connection[Any], names: Sequence[TableName]) -> Iterator[Problem]:
    """Tables that the account may not read, or that the server cannot open: one statement where all can be read."""
    try:
        rows(connection, " UNION ALL ".join(f"(SELECT 1 FROM {qualify(name)} LIMIT 0)" for name in names))
    except pymysql.err.MySQLError as error:
        # Dropped since the list was made, or locked: the server looks at grants before it waits for a lock.
        if error.args[0] in (_GONE, *LOCKED) and len(names) == 1:
            return
        if error.args[0] in _OF_THE_DRIVER:
            raise
        # The message names one table, and perhaps not the only one: each is asked about alone.
        if len(names) > 1:
            for name in names:
                yield from _readable(connection, [name])
            return
        on = qualify(names[0]).replace("%%", "%")
        if error.args[0] not in _MAY_NOT_READ:
            fix = f"REPAIR TABLE {on}, restore or drop it, or leave it out of source.tables"
            yield Problem(f"{names[0]} cannot be opened: {server_messages.by_mysql(error)}", fix, table=str(names[0]))
            return
        problem = _missing(connection, f"{names[0]} cannot be read: {server_messages.by_mysql(error)}", "SELECT", on)
        yield replace(problem, table=str(names[0]))


def table_problems(described: Described) -> Iterator[Problem]:
    """Why the table cannot be captured as it is, each problem with its `table`: what it is, its columns, and what is
    wrong with its entries in [source.keys] and [source.columns]."""
    name = str(described.table)
    if described.versioned:
        yield Problem(
            f"{name}: {types.VERSIONED}", types.unversioned_fix(described.table, described.periods), table=name
        )
    if described.engine:
        yield Problem(
            f"{name}: {types.explain_rowless(described.engine)}", types.rowless_fix(described.table), table=name
        )
    for fault in described.column_faults:
        yield Problem(f"{name}: {fault}", types.CHANGE, table=name)
    for fault in described.key_faults:
        yield Problem(f"{name}: {fault}", _key_fix(described.table, described.candidates), table=name)
    if described.contradiction:
        yield Problem(described.contradiction, source_key_faults.contradiction_fix(described.table), table=name)
    yield from described.rule_problems


def _keyless_fix(name: TableName, candidates: Sequence[Sequence[str]]) -> str:
    """How a table without a key comes to have one. `candidates`: unique ones that the server itself does not choose."""
    entries = _name_candidates(name, candidates)
    other = f"name unique never-null columns: {entries}" if entries else source_key_faults.UNIQUE_KEY
    return f"give it a primary key, or {other}"


def _name_candidates(name: TableName, candidates: Sequence[Sequence[str]]) -> str:
    """The entries that would name its unique, never-null columns; empty where it has none."""
    listed = (", ".join(map(quote_for_toml, columns)) for columns in candidates)
    return " or ".join(f"{keys_entry(name)} = [{columns}]" for columns in listed)


def _key_fix(name: TableName, candidates: Sequence[Sequence[str]]) -> str:
    """Its unique, never-null columns as the entry is to name them, or how to have some."""
    if entries := _name_candidates(name, candidates):
        return entries
    return f"ALTER TABLE {qualify(name).replace('%%', '%')} ADD UNIQUE (its key's columns), all of them NOT NULL"


def _signals(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    yield from check_signals.problems(connection, config, tables)


_PREPARED = ("XA_RECOVER_ADMIN", "XA RECOVER", "those that are prepared when a capture first starts")
_COMMITTING = (
    "PROCESS",
    "SELECT 1 FROM information_schema.INNODB_TRX LIMIT 1",
    "those that are just committing, which a dump must wait for",
)


def _xa(connection: Connection[Any], config: SourceConfig, tables: TableFilter) -> Iterator[Problem]:
    """What is missing for XA transactions; nothing else needs it, so these are warnings."""
    mariadb = config.kind == "mariadb"
    probes = [] if mariadb else [_PREPARED]
    probes += [_COMMITTING] if xa_visibility.may_commit_late(connection, config) else []
    for needed, probe, why in probes:
        try:
            rows(connection, probe)
        except pymysql.err.MySQLError as error:
            if error.args[0] not in prepared_at_start.MAY_NOT:
                raise
            what = f"XA transactions cannot be seen ({needed} is missing): {why}"
            yield replace(_missing(connection, what, needed, "*.*"), fatal=False)
    if prepared := prepared_at_start.list_prepared(connection, mariadb=mariadb):
        some_ids = ", ".join(sorted(prepared)[:5]) + (", …" if len(prepared) > 5 else "")
        yield Problem(
            f"{len(prepared)} XA transactions are prepared: {some_ids}. They hold locks, and the binlog with their"
            " rows must not be purged before they end",
            "nothing, if they end soon; else XA COMMIT or XA ROLLBACK them",
            fatal=False,
        )


_PARTS: Sequence[Part] = (
    _version, _settings, _replica, _log, _database, _tables, watermark_table.find_problems, _signals, _xa,
)  # fmt: skip
