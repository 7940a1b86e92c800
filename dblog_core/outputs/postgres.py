"""A table of lines in PostgreSQL: see `sql_table`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg2
import psycopg2.extensions
from psycopg2.extras import execute_values

from dblog_core import tls
from dblog_core.config.output import OutputConfig
from dblog_core.errors import OutputError, OutputRefused, OutputUnavailable, PoisonLine
from dblog_core.model import server_messages, transient_errors
from dblog_core.outputs.sql_table import COLUMNS, TWICE

_TRANSIENT = (*transient_errors.POSTGRES, "25006")  # and a server that takes no writes: the next primary does
_TWICE = "23505"
_VALUES = ("22", "23", "54")  # a value, a constraint, a row or index entry that is too large
_GRANTS = "42501"
_IDLE_SECONDS = 60
"""A relay that stands still inside a transaction holds its place's lock for so long at most."""


class PostgresDialect:
    """`settings`: of `[output.NAME]`."""

    def __init__(self, settings: OutputConfig) -> None:
        self._settings = settings
        self.where = f"postgres {settings.user}@{settings.host}:{settings.port}/{settings.database}"
        table = ".".join(f'"{part}"' for part in settings.table.split("."))
        self.place = f'{table[:-1]}_place"'
        self.insert = f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES %s"
        self.create: tuple[str, ...] = (
            f"CREATE TABLE IF NOT EXISTS {self.place} (output text PRIMARY KEY, place bigint, epoch bigint NOT NULL)",
            f"CREATE TABLE IF NOT EXISTS {table} (output text, line_offset bigint, op text NOT NULL,"
            " table_name text NOT NULL, row_key json, position text, transaction_id text,"
            " commit_time timestamptz NOT NULL, origin text NOT NULL, line json NOT NULL,"
            " PRIMARY KEY (output, line_offset))",
        )

    def connect(self) -> psycopg2.extensions.connection:
        settings = self._settings
        timeout = round(settings.timeout * 1000)
        limits = {
            "lock_timeout": timeout,
            # Longer than a lock's: a batch of lines takes its time.
            "statement_timeout": 10 * timeout,
            "idle_in_transaction_session_timeout": _IDLE_SECONDS * 1000,
        }
        with self.translate_errors():
            connection: psycopg2.extensions.connection = psycopg2.connect(
                **tls.libpq_options(settings),
                host=settings.host,
                port=settings.port,
                user=settings.user,
                password=settings.password.get_secret_value(),
                dbname=settings.database,
                connect_timeout=max(2, round(settings.timeout)),
                application_name="dblog relay",
                client_encoding="UTF8",
                options=" ".join(f"-c {name}={value}" for name, value in limits.items()),
                # A server that vanished without a word is noticed within a minute, and not by TCP's two hours.
                keepalives_idle=30,
                keepalives_interval=10,
                keepalives_count=3,
            )
        return connection

    def insert_rows(self, cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None:
        execute_values(cursor, self.insert, rows, page_size=500)

    def probe(self, cursor: Any, name: str) -> None:
        """By doing it: here tables too are made in a transaction."""
        for statement in self.create:
            cursor.execute(statement)
        cursor.execute(f"INSERT INTO {self.place} (output, epoch) VALUES (%s, 0)", (name,))
        cursor.execute(f"SELECT place FROM {self.place} WHERE output = %s FOR UPDATE", (name,))
        cursor.execute(f"UPDATE {self.place} SET place = 1 WHERE output = %s", (name,))
        now = dt.datetime.now(dt.UTC)
        self.insert_rows(cursor, [(name, 1, "c", "check", None, None, None, now, "log", "{}")])

    def max_line_bytes(self, cursor: Any) -> int | None:
        """The server refuses what is too long, and the connection lives on."""
        return None

    def to_driver_time(self, time: dt.datetime) -> dt.datetime:
        return time

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            raise self._error(error) from error

    def _error(self, error: psycopg2.Error) -> OutputError:
        reason = server_messages.by_postgres(error)
        code = error.pgcode or ""
        if code == _TWICE:
            return OutputRefused(reason, where=self.where, fix=TWICE)
        if code.startswith(_VALUES) and code != "54001":  # that is the server's stack
            return PoisonLine(reason, where=self.where)
        if code.startswith(_TRANSIENT):
            return OutputUnavailable(reason, where=self.where)
        if code:
            fix = "grant what is missing" if code == _GRANTS else "see the server's message"
            return OutputRefused(reason, where=self.where, fix=fix)
        # Errors of connecting have no SQLSTATE in libpq, only a text.
        refused = any(word in reason for word in ("authentication", "no pg_hba", "does not exist"))
        if refused or tls.is_lasting_in_libpq(reason):
            return OutputRefused(reason, where=self.where, fix="correct user, password, database and TLS")
        return OutputUnavailable(
            reason, where=self.where, fix="check that the server runs and can be reached from here"
        )
