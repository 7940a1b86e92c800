"""The databases of a test by plain drivers: what an administrator does, and the restricted account that dblog gets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg2
import psycopg2.extras
import pymysql

from tests.acceptance.secret_texts import Secret

REFUSED = (psycopg2.OperationalError, pymysql.err.OperationalError)
"""What the drivers raise where a server does not let an account in."""

_SQL = re.compile(r"\b(GRANT [A-Z_, ]+ ON|ALTER (ROLE|PUBLICATION)|CREATE (SCHEMA|TABLE|PUBLICATION)) ")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, and its administrator."""

    kind: str
    host: str
    port: int
    user: str
    password: str

    def connect(self, database: str = "", *, user: str | None = None, password: str | None = None) -> Any:
        """A connection in autocommit mode and in UTC; as the administrator unless an account is named."""
        who = user or self.user
        secret = self.password if password is None else password
        if self.kind == "postgres":
            return _postgres(self.host, self.port, who, secret, database or "postgres")
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=who,
            password=secret.encode(),  # as bytes: the driver encodes a text as Latin-1
            database=database or None,
            charset="utf8mb4",
            autocommit=True,
            init_command="SET time_zone = '+00:00'",
        )

    def execute(self, *statements: str, database: str = "") -> None:
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, statement: str, *, database: str = "") -> list[dict[str, Any]]:
        """The rows of a SELECT, by the names of its columns."""
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def accounts_without_password(self) -> list[str]:
        """Accounts that let somebody in who knows no password, and rules of PostgreSQL that ask for none."""
        return [str(row["account"]) for row in self.query(_WITHOUT_PASSWORD[self.kind])]

    def create_account(self, user: str, password: Secret) -> None:
        """An account that may log in, and nothing else."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            if self.kind == "postgres":
                cursor.execute(f'CREATE ROLE "{user}" LOGIN PASSWORD %s', [password.text])
            else:
                cursor.execute("CREATE USER %s@%s IDENTIFIED BY %s", [user, self.host, password.text])

    def account(self, user: str) -> str:
        """The account's name as SQL has it."""
        return f'"{user}"' if self.kind == "postgres" else f"'{user}'@'{self.host}'"

    def drop_account(self, user: str) -> None:
        kind = "ROLE" if self.kind == "postgres" else "USER"
        self.execute(f"DROP {kind} IF EXISTS {self.account(user)}")


def _postgres(host: str, port: int, user: str, password: str, database: str) -> Any:
    connection = psycopg2.connect(
        host=host,
        port=port,
        user=user,
        password=password,
        dbname=database,
        connect_timeout=5,
        options="-c timezone=UTC",
    )
    connection.autocommit = True
    psycopg2.extras.register_default_json(connection, loads=str)
    psycopg2.extras.register_default_jsonb(connection, loads=str)
    return connection


_WITHOUT_PASSWORD = {
    "mysql": "SELECT CONCAT(QUOTE(user), '@', QUOTE(host)) AS account FROM mysql.user"
    " WHERE authentication_string = '' AND account_locked = 'N'",
    "mariadb": "SELECT CONCAT(QUOTE(user), '@', QUOTE(host)) AS account FROM mysql.global_priv"
    " WHERE COALESCE(JSON_VALUE(priv, '$.authentication_string'), '') = ''"
    " AND COALESCE(JSON_VALUE(priv, '$.account_locked'), 0) = 0",
    "postgres": "SELECT rolname AS account FROM pg_authid WHERE rolcanlogin AND rolpassword IS NULL UNION ALL"
    " SELECT 'pg_hba.conf line ' || line_number || ': ' || auth_method FROM pg_hba_file_rules"
    " WHERE auth_method NOT IN ('scram-sha-256', 'reject')",
}


def sql_of_fixes(problems: Sequence[dict[str, Any]]) -> list[str]:
    """The statements for an administrator in what `dblog check --json` reports, without a repetition."""
    return list(dict.fromkeys(statement for problem in problems for statement in _sql_of_fix(problem["fix"])))


def _sql_of_fix(fix: str) -> Iterator[str]:
    """Of several ways that a fix offers, the first: the text behind it that is no SQL begins the next one."""
    begin = _SQL.search(fix)
    if begin is None:
        return
    for part in fix[begin.start() :].split(";"):
        if not _SQL.match(part.strip()):
            return
        yield part.strip()
