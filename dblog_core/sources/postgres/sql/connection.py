"""Connections to PostgreSQL: TLS (`tls`), the session settings that fix every value's text form, our errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg2
import psycopg2.errors
import psycopg2.extensions
from psycopg2.extras import LogicalReplicationConnection

from dblog_core import tls
from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceError, SourceForbids, SourceReadOnly, SourceRefused, SourceUnavailable, TableLocked
from dblog_core.model import server_messages, transient_errors
from dblog_core.sources.postgres import session_settings

Connection = psycopg2.extensions.connection

_CUT_OFF = ("closed the connection", "transaction timeout", "connection has been closed", "connection already closed")
_COMING_BACK = (
    "starting up",
    "shutting down",
    "recovery mode",
    "too many",
    "connection slots",
    "terminating",
    "not yet accepting",
)


def connect(
    config: SourceConfig, *, replication: bool = False, name: str = "", lock_seconds: float | None = None
) -> Connection:
    """An open connection in autocommit mode, which the server knows by `name` too, and whose statements wait for a lock
    for so many seconds (None: as long as it takes). Raises SourceUnavailable or SourceRefused."""
    at_start = dict(session_settings.AT_START)
    if lock_seconds is not None:
        at_start["lock_timeout"] = str(round(lock_seconds * 1000))
    try:
        return _open_session(config, name, at_start, replication=replication)
    except SourceUnavailable as error:
        if not any(words in error.message for words in _CUT_OFF):
            raise
        # A server that ends transactions after a millisecond ends the first one of a session too, unless it is told at
        # the start. Servers before 17 do not know the setting, and do not end a session so.
        try:
            at_start[session_settings.TRANSACTION_TIMEOUT] = "0"
            return _open_session(config, name, at_start, replication=replication)
        except SourceRefused:
            raise error from None


def _open_session(config: SourceConfig, name: str, at_start: Mapping[str, str], *, replication: bool) -> Connection:
    connection = _open(config, name, at_start, replication=replication)
    _complete(connection, config, at_start)
    return connection


def _open(config: SourceConfig, name: str, at_start: Mapping[str, str], *, replication: bool) -> Connection:
    factory = LogicalReplicationConnection if replication else Connection
    with translate_errors(config, connecting=True):
        connection: Connection = psycopg2.connect(connection_factory=factory, **_arguments(config, name, at_start))
    if not replication:  # those are so by nature
        connection.autocommit = True
    return connection


def _complete(connection: Connection, config: SourceConfig, at_start: Mapping[str, str]) -> None:
    """Sets what the session lacks of `session_settings`: settings of newer versions, and those at the start that libpq
    or something between us and the server has changed. Raises SourceRefused for one that we may not set; the connection
    is closed then."""
    try:
        with translate_errors(config):
            present = dict(rows(connection, session_settings.QUESTION, (list(session_settings.NAMES),)))
            for name, text in session_settings.deviating(present, at_start):
                _set(connection, config, name, present[name], text)
    except BaseException:
        connection.close()
        raise


def _set(connection: Connection, config: SourceConfig, name: str, present: str, text: str) -> None:
    try:
        execute(connection, "SELECT pg_catalog.set_config(%s, %s, false)", (name, text))
    except (psycopg2.errors.InsufficientPrivilege, psycopg2.errors.CantChangeRuntimeParam) as error:
        raise SourceRefused(
            f"sessions of {config.user} have {name} = {present}, by which rows could be left out, and only a superuser"
            " may change that",
            where=f"source {config.name} ({config.host}:{config.port}/{config.database})",
            fix=f"set {name} = {text} where it is set: ALTER ROLE, ALTER DATABASE, ALTER SYSTEM or postgresql.conf",
        ) from error


@contextmanager
def session(config: SourceConfig) -> Iterator[Connection]:
    """A connection for a few statements; their errors are translated, and it is closed at the end."""
    connection = connect(config)
    try:
        with translate_errors(config):
            yield connection
    finally:
        connection.close()


@contextmanager
def one_snapshot(connection: Connection) -> Iterator[None]:
    """All questions within see the same catalogue: a statement of another session between two of them would show a
    table that never was, such as one whose key names a column that it does not have. Inside of a transaction, which has
    its own snapshots, it does nothing."""
    if connection.info.transaction_status != psycopg2.extensions.TRANSACTION_STATUS_IDLE:
        yield
        return
    execute(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        if not connection.closed:
            execute(connection, "ROLLBACK")


@contextmanager
def translate_errors(config: SourceConfig, *, connecting: bool = False) -> Iterator[None]:
    """Turns psycopg2's errors into ours: transient ones, and refusals with the server's own words."""
    try:
        yield
    except psycopg2.Error as error:
        where = f"source {config.name} ({config.host}:{config.port}/{config.database})"
        raise (_connect_error if connecting else _error)(error, config, where) from error


def rows(connection: Connection, query: Any, parameters: Any = None) -> list[tuple[Any, ...]]:
    """All rows of a query; `parameters` are bound."""
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return cursor.fetchall()


def value(connection: Connection, query: Any, parameters: Any = None) -> Any:
    """The one value that a query gives."""
    return rows(connection, query, parameters)[0][0]


def execute(connection: Connection, statement: Any, parameters: Any = None) -> None:
    """Runs a statement whose rows, if it has any, do not matter."""
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def _arguments(config: SourceConfig, name: str, at_start: Mapping[str, str]) -> dict[str, Any]:
    return {
        **tls.libpq_options(config),
        "host": config.host,
        "port": config.port,
        "user": config.user,
        "password": config.password.get_secret_value(),
        "dbname": config.database,
        "connect_timeout": max(2, round(config.connect_timeout)),  # libpq takes whole seconds, at least two
        "application_name": " ".join(filter(None, ("dblog", name, config.name))),
        "client_encoding": "UTF8",
        "options": " ".join(f"-c {name}={text.replace(' ', chr(92) + ' ')}" for name, text in at_start.items()),
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
    }


def _connect_error(error: psycopg2.Error, config: SourceConfig, where: str) -> SourceError:
    message = server_messages.by_postgres(error)
    if tls.is_lasting_in_libpq(message):
        return SourceRefused(
            message, where=where, fix="set tls, tls_ca, tls_cert and tls_key in [source] to what the server offers"
        )
    if "FATAL" not in message:
        return SourceUnavailable(
            message, where=where, fix="check host, port, and that the server runs and listens there"
        )
    if any(words in message for words in _COMING_BACK):
        return SourceUnavailable(message, where=where, fix="wait until the server accepts connections again")
    return SourceRefused(
        message,
        where=where,
        fix="check user, password and database in [source], and the server's pg_hba.conf for this address",
    )


def _error(error: psycopg2.Error, config: SourceConfig, where: str) -> SourceError:
    code = error.pgcode
    message = server_messages.by_postgres(error)
    if code is None and isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError | psycopg2.DatabaseError):
        return SourceUnavailable(message, where=where, fix="the connection broke: dblog opens it again")
    if code == "55P03":
        return TableLocked(message, where=where, fix="dblog tries again")
    if code is not None and code.startswith(transient_errors.POSTGRES):
        return SourceUnavailable(message, where=where, fix="dblog tries again")
    if code == "25006":
        return SourceReadOnly(
            f"{message} (SQLSTATE {code})", where=where, fix="the server must accept writes: connect to the primary"
        )
    message = f"{message} (SQLSTATE {code})"
    if code == "42501":
        fix = f"run `dblog check`: it prints the missing grants of user {config.user}"
        return SourceForbids(message, where=where, fix=fix)
    return SourceRefused(message, where=where, fix="run `dblog check`")
