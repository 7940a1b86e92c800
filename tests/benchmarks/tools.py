"""The servers' own tools as peers: the fastest that the same server can be read."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.fix_servers import Database


@dataclass(frozen=True, slots=True)
class Spent:
    """A tool's run: wall-clock and CPU seconds."""

    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a server's log, from which its tool reads again: a file of MySQL and MariaDB, a slot of PostgreSQL."""

    name: str


def mark(database: Database, name: str, publication: str = "") -> Place:
    """The present end of the log."""
    if database.kind == "postgres":
        database.query(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        return Place(name)
    database.execute("FLUSH BINARY LOGS")
    [*_, last] = database.query("SHOW BINARY LOGS")
    return Place(str(last[0]))


def read_log(database: Database, place: Place) -> Spent:
    """The log from the place to its present end, thrown away."""
    if database.kind == "postgres":
        return _pg_recvlogical(database, place)
    tool = "mariadb-binlog" if database.kind == "mariadb" else "mysqlbinlog"
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        options = ["--read-from-remote-server", "--raw", "--to-last-log", f"--result-file={directory}/", place.name]
        return _run_timed([database.server.tool(tool), *_mysql(database), *options], database)


def read_table(database: Database, table: str) -> Spent:
    """A whole table in one SELECT, thrown away."""
    if database.kind == "postgres":
        command = f"COPY (SELECT * FROM {table}) TO STDOUT"
        return _run_timed([database.server.tool("psql"), *_postgres(database), "-qc", command], database)
    tool = "mariadb" if database.kind == "mariadb" else "mysql"
    options = ["--quick", "--batch", f"--database={database.name}", f"--execute=SELECT * FROM {table}"]
    return _run_timed([database.server.tool(tool), *_mysql(database), *options], database)


def _pg_recvlogical(database: Database, place: Place) -> Spent:
    slot = f"{place.name}_again"
    database.query(f"SELECT pg_copy_logical_replication_slot('{place.name}', '{slot}')")
    # What comes after the end is a commit: the tool ends at the first message there or beyond.
    [(end,)] = database.query("SELECT pg_current_wal_insert_lsn()")
    database.query("SELECT pg_logical_emit_message(true, 'bench', 'end')")
    options = ["--start", "-f", "/dev/null", f"--endpos={end}", "--no-loop", "-o", "proto_version=1"]
    publication = f"dblog_{database.name}"
    slot_options = ["--slot", slot, "-o", f"publication_names={publication}"]
    try:
        return _run_timed(
            [database.server.tool("pg_recvlogical"), *_postgres(database), *options, *slot_options], database
        )
    finally:
        database.query(f"SELECT pg_drop_replication_slot('{slot}')")


def _mysql(database: Database) -> list[str]:
    server = database.server
    return ["--no-defaults", f"--host={server.host}", f"--port={server.port}", f"--user={server.admin.user}"]


def _postgres(database: Database) -> list[str]:
    server = database.server
    return ["-h", server.host, "-p", str(server.port), "-U", server.admin.user, "-d", database.name]


def _run_timed(command: Sequence[str | Path], database: Database) -> Spent:
    password = database.server.admin.password
    env = {**os.environ, "MYSQL_PWD": password, "PGPASSWORD": password}
    cpu = _children_cpu()
    began = time.monotonic()
    done = subprocess.run(
        [str(part) for part in command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    spent = Spent(time.monotonic() - began, _children_cpu() - cpu)
    assert done.returncode == 0, f"{command[0]} failed: {done.stderr.decode()[-2000:]}"
    return spent


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
