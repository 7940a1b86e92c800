"""Connections to the server: TLS as configured, one session setting for all, and the driver's errors as ours."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

import pymysql
from pymysql.connections import Connection

from dblog_core import tls
from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceError, SourceForbids, SourceReadOnly, SourceRefused, SourceUnavailable, TableLocked
from dblog_core.model import server_messages, transient_errors
from dblog_core.sources.mysql import session_settings
from dblog_core.sources.mysql.session_settings import Setting

NO_DATABASE = 1049
SKIPPED = 1684
"""The catalogue leaves out a table, or refuses a question about it, while a statement changes its definition."""
LOCKED = frozenset({1205, SKIPPED})
"""A lock is kept for longer than a statement waits, or than the catalogue does."""
_CREDENTIALS = {1045, 1698}
_GRANTS_ON_TABLES = {1142, 1143}
_GRANTS = {1044, 1227, 1370, 3159, *_GRANTS_ON_TABLES}
_READ_ONLY = {1290, 1792, 1836}
_CLEAR_PASSWORD = 2059  # the driver's own, for a plugin that it has not
_NO_TLS = 2026  # the driver's own, for a server that does not offer it
_UNKNOWN_VARIABLE = 1193
_TOO_LARGE = 1153  # a statement of more than max_allowed_packet bytes


def connect(config: SourceConfig, *, lock_seconds: float | None = None) -> Connection[Any]:
    """A session with all of `session_settings`, whose statements wait for locks of tables for so many seconds (None:
    for a day). Raises SourceUnavailable or SourceRefused, without the password.
    """
    with translate_errors(config, "connecting"):
        connection = _open(config)
        try:
            _set_session(connection, config, lock_seconds)
        except BaseException:
            connection.close()
            raise
    if config.tls != "off" and not isinstance(_socket(connection), ssl.SSLSocket):
        connection.close()
        raise _without_tls(config)
    return connection


def _open(config: SourceConfig) -> Connection[Any]:
    """A session in the configured database; in none once that is dropped, since the log needs none. Our
    statements name the database of each table."""
    arguments: dict[str, Any] = {
        "host": config.host,
        "port": config.port,
        "user": config.user,
        # In UTF-8, as the server has it from CREATE USER: of a text the driver would take Latin-1.
        "password": config.password.get_secret_value().encode(),
        "charset": "utf8mb4",
        "autocommit": True,
        "sql_mode": session_settings.SQL_MODE,
        "connect_timeout": max(1, round(config.connect_timeout)),
        # A long SELECT may think before its first row; a dead server is noticed by TCP keepalive or this.
        "read_timeout": 600,
        "write_timeout": 60,
        **_tls(config),
    }
    try:
        return pymysql.connect(database=config.database, **arguments)
    except pymysql.err.MySQLError as error:
        if error.args[0] != NO_DATABASE:
            raise
    return pymysql.connect(**arguments)


def _set_session(connection: Connection[Any], config: SourceConfig, lock_seconds: float | None) -> None:
    """Gives the session all settings that the server knows. Raises SourceRefused for one that we may not set."""
    kind = "mariadb" if is_mariadb(connection) else "mysql"
    _assign(connection, session_settings.first(kind))
    for setting in session_settings.first_of_some(kind):
        try:
            _assign(connection, [setting])
        except pymysql.err.MySQLError as error:
            if error.args[0] != _UNKNOWN_VARIABLE:
                raise
    # Without a condition: a statement longer than the least max_allowed_packet could not tell of it.
    present = {str(name).lower(): str(value) for name, value in rows(connection, "SHOW SESSION VARIABLES")}
    deviating = list(session_settings.deviating(kind, present, lock_seconds))
    if not deviating:
        return
    try:
        _assign(connection, deviating)
    except pymysql.err.MySQLError:
        # It has set none of them; one by one the server tells which it is.
        for setting in deviating:
            _set_one(connection, config, setting, present[setting.name])


def _assign(connection: Connection[Any], settings: Sequence[Setting]) -> None:
    rows(connection, f"SET SESSION {', '.join(setting.assignment() for setting in settings)}")


def _set_one(connection: Connection[Any], config: SourceConfig, setting: Setting, present: str) -> None:
    try:
        _assign(connection, [setting])
    except pymysql.err.MySQLError as error:
        if not error.args or error.args[0] in transient_errors.MYSQL:
            raise
        least = " at least" if setting.at_least else ""
        raise SourceRefused(
            f"the server gives new sessions {setting.name} = {present or 'nothing'}, and {config.user} may not set it"
            f" ({error.args[0]}): {setting.why}",
            where=where(config),
            fix=f"SET GLOBAL {setting.name} to{least} {setting.value or 'nothing'}, or leave it out of init_connect",
        ) from error


def _without_tls(config: SourceConfig) -> SourceRefused:
    return SourceRefused(
        "the server does not offer TLS", where=where(config), fix='enable TLS on the server or set tls = "off"'
    )


def _socket(connection: Any) -> Any:
    return connection._sock  # the driver has no public name for it


def _tls(config: SourceConfig) -> dict[str, Any]:
    try:
        return tls.pymysql_options(config)
    except OSError as error:
        raise SourceRefused(
            f"the TLS files cannot be used: {error}", where=where(config), fix="correct tls_ca, tls_cert and tls_key"
        ) from error


def where(config: SourceConfig) -> str:
    """The server, for errors."""
    return f"{config.kind} {config.user}@{_host(config.host)}:{config.port}"


def _host(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


@contextlib.contextmanager
def translate_errors(config: SourceConfig, doing: str) -> Iterator[None]:
    """Turns the driver's and the socket's errors into ours, with the cause chained."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise translate(error, config, doing) from error
    except (OSError, EOFError) as error:
        raise SourceUnavailable(
            f"{doing}: the connection broke: {error}", where=where(config), fix="check the server and the network"
        ) from error
    except RuntimeError as error:  # the driver's way of saying that `cryptography` is missing
        raise SourceRefused(
            f"{doing}: {error}", where=where(config), fix="use TLS, or install the package that is named"
        ) from error


def is_of_table(error: pymysql.err.MySQLError) -> bool:
    """Whether an error of a question about tables may be one table's own: it lasts, and no grant, setting or connection
    is at fault."""
    code = server_messages.mysql_code(error)
    is_of_client = code == 0 or 2000 <= code < 2100
    return not is_of_client and code not in transient_errors.MYSQL | _CREDENTIALS | _GRANTS | _READ_ONLY | LOCKED


def translate(error: pymysql.err.MySQLError, config: SourceConfig, doing: str) -> SourceError:
    """Our error of the same meaning."""
    code = server_messages.mysql_code(error)
    message = f"{doing}: {server_messages.by_mysql(error)}"
    place = where(config)
    if code == _NO_TLS:
        return _without_tls(config)
    if tls.is_lasting(getattr(error, "original_exception", None)):
        return SourceRefused(
            message,
            where=place,
            fix="the certificate must be signed by tls_ca and name the host; or choose another tls mode",
        )
    if code == _CLEAR_PASSWORD:
        return SourceRefused(
            message, where=place, fix='use tls = "verify-full" with tls_ca, or give the account another plugin'
        )
    if code in _CREDENTIALS:
        return SourceRefused(
            message, where=place, fix="correct user and password; the account must be allowed from this host"
        )
    if code in _GRANTS:
        kind = SourceForbids if code in _GRANTS_ON_TABLES else SourceRefused
        return kind(message, where=place, fix="`dblog check` prints the GRANT statements that are missing")
    if code in _READ_ONLY:
        return SourceReadOnly(message, where=place, fix="the server must accept writes: connect to the primary")
    if code == _TOO_LARGE:
        return SourceRefused(message, where=place, fix="SET GLOBAL max_allowed_packet = 67108864, and try again")
    if code == 1049:
        return SourceRefused(message, where=place, fix="name an existing database in source.database")
    if code in LOCKED:
        return TableLocked(message, where=place, fix="dblog tries again")
    if code in transient_errors.MYSQL or code == 0:
        return SourceUnavailable(message, where=place, fix="check that the server runs and can be reached from here")
    return SourceError(message, where=place)


def rows(connection: Connection[Any], sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a statement. The driver binds the values, so a bare percent sign is doubled. Raises its errors."""
    with connection.cursor() as cursor:
        cursor.execute(sql, tuple(arguments))
        return [tuple(row) for row in cursor.fetchall()]


def variables(connection: Connection[Any], *names: str) -> dict[str, str]:
    """Global variables by name; those that the server does not know are absent."""
    marks = ", ".join(["%s"] * len(names))
    settings = rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    return {str(name).lower(): str(value) for name, value in settings}


def quote_identifier(name: str) -> str:
    """An identifier as SQL, whatever it contains; `%` is doubled because statements pass the driver's formatting."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def is_mariadb(connection: Connection[Any]) -> bool:
    """Whether the server is MariaDB, by the version in its greeting."""
    return "MariaDB" in str(connection.get_server_info())  # type: ignore[no-untyped-call]  # the stubs leave it open
