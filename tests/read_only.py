"""Users that may read and nothing else, as an administrator makes them for `read_only = true`."""

from __future__ import annotations

import secrets
from dataclasses import replace

from dblog_core.local.servers.server import Account
from tests.fix_servers import Database

GRANTS = {
    "mysql": ("GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {who}", "GRANT SELECT ON `{name}`.* TO {who}"),
    "mariadb": ("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO {who}", "GRANT SELECT ON `{name}`.* TO {who}"),
    "postgres": (
        "GRANT CONNECT ON DATABASE {name} TO {who}",
        "GRANT USAGE ON SCHEMA public TO {who}",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {who}",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {who}",
        "ALTER ROLE {who} SET default_transaction_read_only = on",
    ),
}


def reader_of(database: Database, *, slot: bool = True) -> Database:
    """The database with another user, who may SELECT and read the log. On PostgreSQL the administrator makes the slot,
    unless that is to be on another server, and has made the publication."""
    account = Account(f"ro_{database.name}", secrets.token_hex(12))
    who = account.user if database.kind == "postgres" else f"'{account.user}'@'{database.server.host}'"
    create = f"CREATE ROLE {who} LOGIN REPLICATION PASSWORD" if database.kind == "postgres" else f"CREATE USER {who} "
    by = "" if database.kind == "postgres" else "IDENTIFIED BY "
    database.execute(
        f"{create} {by}'{account.password}'", *(g.format(who=who, name=database.name) for g in GRANTS[database.kind])
    )
    if database.kind == "postgres" and slot:
        database.query(f"SELECT pg_create_logical_replication_slot('dblog_{database.name}', 'pgoutput')")
    return replace(database, account=account)


def forget(reader: Database) -> None:
    """Drops the user, before its database goes."""
    if reader.kind == "postgres":
        reader.execute(f"DROP OWNED BY {reader.account.user}")
    reader.server.drop_user(reader.account.user)
