"""A table of lines in MySQL or MariaDB: see `sql_table`."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql

from dblog_core import tls
from dblog_core.config.output import OutputConfig
from dblog_core.errors import OutputError, OutputRefused, OutputUnavailable, PoisonLine
from dblog_core.model import server_messages, transient_errors
from dblog_core.outputs.sql_table import COLUMNS, TWICE

_TRANSIENT = transient_errors.MYSQL | {1290, 1836}  # and a server that takes no writes: the next primary does
_TWICE = 1062
_NO_TABLE = 1146
_NO_TLS = 2026  # the driver's own, for a server that does not offer it
_VALUES = {1048, 1118, 1153, 1264, 1265, 1292, 1364, 1366, 1406, 1451, 1452, 1644, 3140, 3819, 4025}
_MARGIN_BYTES = 1 << 16  # bytes of a statement beside one line, twice its length when quoted
_IDLE_SECONDS = 60
"""A relay that stands still inside a transaction holds its place's lock for so long at most."""


class MysqlDialect:
    """`settings`: of `[output.NAME]`."""

    def __init__(self, settings: OutputConfig) -> None:
        self._settings = settings
        self.where = f"mysql {settings.user}@{settings.host}:{settings.port}/{settings.database}"
        table = ".".join(f"`{part}`" for part in settings.table.split("."))
        self.place = f"{table[:-1]}_place`"
        marks = ", ".join(["%s"] * len(COLUMNS))
        self.insert = f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES ({marks})"
        form = "ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
        self.create: tuple[str, ...] = (
            f"CREATE TABLE IF NOT EXISTS {self.place}"
            f" (output varchar(100) PRIMARY KEY, place bigint, epoch bigint NOT NULL) {form}",
            f"CREATE TABLE IF NOT EXISTS {table} (output varchar(100), line_offset bigint, op char(1) NOT NULL,"
            " table_name text NOT NULL, row_key longtext, position text, transaction_id text,"
            " commit_time datetime(6) NOT NULL, origin varchar(10) NOT NULL, line longtext NOT NULL,"
            f" PRIMARY KEY (output, line_offset)) {form}",
        )

    def connect(self) -> Any:
        settings = self._settings
        with self.translate_errors():
            connection: Any = pymysql.connect(
                host=settings.host,
                port=settings.port,
                user=settings.user,
                # In UTF-8, as the server has it from CREATE USER: of a text the driver would take Latin-1.
                password=settings.password.get_secret_value().encode(),
                database=settings.database,
                charset="utf8mb4",
                autocommit=False,
                # Without it the server cuts values that are too long, with a warning that nobody reads.
                sql_mode="STRICT_ALL_TABLES",
                # A relay that hangs must lose its lock, so the server ends an idle session soon.
                init_command=f"SET SESSION time_zone = '+00:00', wait_timeout = {_IDLE_SECONDS},"
                f" innodb_lock_wait_timeout = {max(1, round(settings.timeout))}",
                connect_timeout=max(1, round(settings.timeout)),
                read_timeout=max(1, round(10 * settings.timeout)),
                write_timeout=max(1, round(10 * settings.timeout)),
                **self._tls(),
            )
        # Looked up at the socket: some versions of the driver go on in the clear where the server offers no TLS.
        if settings.tls != "off" and not isinstance(connection._sock, ssl.SSLSocket):  # no public name for it
            connection.close()
            raise self._no_tls_error()
        return connection

    def insert_rows(self, cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
        cursor.executemany(self.insert, rows)

    def probe(self, cursor: Any, name: str) -> None:
        """By preparing the statements, for which rights are looked at: tables that were made would stay."""
        place = (
            f"SELECT place FROM {self.place} FOR UPDATE",
            f"INSERT INTO {self.place} (output, epoch) VALUES ('', 0)",
            f"UPDATE {self.place} SET place = 1",
        )
        for statement in (*self.create, *place, self.insert.replace("%s", "NULL")):
            try:
                # Preparing checks the rights and writes nothing: DDL cannot be rolled back here.
                cursor.execute("PREPARE dblog_check FROM %s", (statement,))
            except pymysql.err.ProgrammingError as error:
                if error.args[0] != _NO_TABLE:  # which comes after the rights
                    raise

    def max_line_bytes(self, cursor: Any) -> int | None:
        """A longer statement makes the server end the connection, which looks like a broken one."""
        cursor.execute("SELECT @@max_allowed_packet")
        return max(0, (int(cursor.fetchone()[0]) - _MARGIN_BYTES) // 2)

    def to_driver_time(self, time: dt.datetime) -> dt.datetime:
        return time.astimezone(dt.UTC).replace(tzinfo=None)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except pymysql.err.MySQLError as error:
            raise self._error(error) from error
        except (OSError, EOFError) as error:
            raise OutputUnavailable(
                f"the connection broke: {error}", where=self.where, fix="check the server and the network"
            ) from error
        except RuntimeError as error:  # the driver's way of saying that `cryptography` is missing
            raise OutputRefused(str(error), where=self.where, fix="use TLS, or install that package") from error

    def _tls(self) -> dict[str, Any]:
        try:
            return tls.pymysql_options(self._settings)
        except OSError as error:
            raise OutputRefused(
                f"the TLS files cannot be used: {error}", where=self.where, fix="correct tls_ca, tls_cert, tls_key"
            ) from error

    def _no_tls_error(self) -> OutputRefused:
        return OutputRefused("the server does not offer TLS", where=self.where, fix='enable it, or set tls = "off"')

    def _error(self, error: pymysql.err.MySQLError) -> OutputError:
        code = server_messages.mysql_code(error)
        reason = server_messages.by_mysql(error)
        if code == _NO_TLS:
            return self._no_tls_error()
        if tls.is_lasting(getattr(error, "original_exception", None)):
            return OutputRefused(
                reason, where=self.where, fix="the certificate must be signed by tls_ca, and name the host"
            )
        if code == _TWICE:
            return OutputRefused(reason, where=self.where, fix=TWICE)
        if code in _VALUES or isinstance(error, pymysql.err.DataError):
            return PoisonLine(reason, where=self.where)
        if code in _TRANSIENT or code == 0:
            return OutputUnavailable(
                reason, where=self.where, fix="check that the server runs and can be reached from here"
            )
        return OutputRefused(reason, where=self.where, fix="correct user, password, database, grants and TLS")
