"""A PostgreSQL server from packages, with wal2json."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg2

from dblog_core.errors import LocalError
from dblog_core.local.packages import trees
from dblog_core.local.servers import ports
from dblog_core.local.servers.daemon import Daemon, as_user, wait_until
from dblog_core.local.servers.server import Account, merge_options, remembered_password
from dblog_core.local.set_up_programs import run_to_end


class PostgresServer:
    """PostgreSQL on loopback, data in `directory`. As root it runs under another user, since it refuses to be root.

    `programs`: where the server's programs are; None: those of the distribution's version, in the cache. `primary`: the
    primary of which it is a hot standby, made from a base backup over a physical slot of its own.
    """

    kind = "postgres"
    package = trees.POSTGRES
    shared: Mapping[str, str | None] = {
        "wal_level": "logical",
        "max_replication_slots": "20",
        "max_wal_senders": "20",
        "max_connections": "100",
        "shared_buffers": "64MB",
        "max_wal_size": "512MB",
        "fsync": "on",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
    """Of the server in docker/compose.yaml too."""
    settings: Mapping[str, str | None] = {
        **shared,
        "output_plugin_libraries": "pgoutput, test_decoding, wal2json",  # newer minor versions refuse others
        "jit": "off",  # its compiler is left out of the tree
        "dynamic_shared_memory_type": "mmap",  # in the data directory: a kill leaves nothing behind
        "unix_socket_directories": "",
    }
    grants = (
        "GRANT CONNECT, CREATE ON DATABASE {database} TO {user}",
        "GRANT USAGE, CREATE ON SCHEMA public TO {user}",
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}",
        "ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {user}",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {user}",
    )
    """For the capture's user, beside REPLICATION: connecting; its own watermark table; reading the tables, also those
    that the administrator makes later."""

    def __init__(
        self,
        directory: Path,
        *,
        options: Mapping[str, str | None] | None = None,
        detached: bool = False,
        name: str = "",
        programs: Path | None = None,
        primary: PostgresServer | None = None,
    ) -> None:
        self.name = name or self.kind
        self.host = ports.HOST
        self.options: Mapping[str, str | None] = options or {}
        self._dir = directory.absolute()
        self._programs = programs
        self._primary = primary
        self._daemon = Daemon(self.name, self._dir, detached=detached)

    @property
    def port(self) -> int:
        return ports.remember_port(self._dir / "port")

    @property
    def admin(self) -> Account:
        if self._primary is not None:
            return self._primary.admin  # its roles are copied too
        return Account("postgres", remembered_password(self._dir / "password"))

    @property
    def pid(self) -> int | None:
        return self._daemon.pid

    def start(self) -> None:
        self._dir.mkdir(parents=True, exist_ok=True)
        program = self.tool("postgres")
        if not (self._dir / "initialised").exists():
            self._initialise()
            (self._dir / "initialised").touch()
        all_settings = {"listen_addresses": self.host, "port": str(self.port), **self._known_settings()}
        flags = [part for name, value in all_settings.items() for part in ("-c", f"{name}={value}")]
        self._daemon.start([program, "-D", self._data, *flags], ready=self.ready, user=self._user)

    def ready(self) -> bool:
        try:
            self.connect().close()
        except psycopg2.OperationalError:
            return False
        return True

    def stop(self) -> None:
        self._daemon.stop(signal.SIGINT)  # "fast": sessions are ended, not waited for

    def kill(self) -> None:
        self._daemon.kill()

    @property
    def slot(self) -> str:
        """The physical slot that a standby has at its primary."""
        return self.name.replace("-", "_")

    def promote(self) -> None:
        """Ends a standby's recovery; returns when it may be written."""
        self.execute("SELECT pg_promote()")

    def address(self) -> str:
        return f"{self.host}:{self.port}, user {self.admin.user}, password {self.admin.password}"

    def tool(self, name: str) -> Path:
        return self._programs / name if self._programs else trees.program(self.package, name)

    def connect(self, database: str = "", *, account: Account | None = None) -> Any:
        who = account or self.admin
        connection = psycopg2.connect(
            host=self.host,
            port=self.port,
            user=who.user,
            password=who.password,
            dbname=database or "postgres",
            connect_timeout=5,
        )
        # CREATE DATABASE is refused inside a transaction.
        connection.autocommit = True
        return connection

    def execute(self, *statements: str, database: str = "") -> None:
        """Runs statements as the administrator."""
        connection = self.connect(database)
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
        finally:
            connection.close()

    def create_database(self, name: str) -> None:
        self.execute(f'CREATE DATABASE "{name}"')

    def drop_database(self, name: str) -> None:
        """Drops its replication slots too: the server refuses to drop a database that has one."""
        readers = (
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = '{name}' AND active"
        )
        idle = f"FROM pg_replication_slots WHERE database = '{name}' AND NOT active"
        slots = f"SELECT pg_drop_replication_slot(slot_name) {idle}"
        # A slot that a reader holds cannot be dropped.
        self.execute(readers)
        wait_until(lambda: not self._active_slots(name), timeout=10, what=f"the replication slots of {name} to be free")
        self.execute(slots, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def create_capture_user(
        self, database: str, *, user: str = "dblog", password: str | None = None, publication: str | None = None
    ) -> Account:
        """`publication`: made for all tables, which takes an administrator; None: left to the tables' owner."""
        account = Account(user, password or secrets.token_hex(12))
        grants = [grant.format(user=f'"{user}"', database=f'"{database}"') for grant in self.grants]
        if publication:
            grants.append(f'CREATE PUBLICATION "{publication}" FOR ALL TABLES WITH (publish_via_partition_root = true)')
        create = f"CREATE ROLE \"{user}\" LOGIN REPLICATION PASSWORD '{account.password}'"
        self.execute(create, *grants, database=database)
        return account

    def drop_user(self, user: str) -> None:
        """Drops a user whose databases have been dropped before."""
        self.execute(f'DROP ROLE IF EXISTS "{user}"')

    @property
    def _data(self) -> Path:
        return self._dir / "data"

    @property
    def _user(self) -> str | None:
        if os.geteuid() != 0:
            return None
        user_names = {entry.pw_name for entry in pwd.getpwall()}
        return "postgres" if "postgres" in user_names else "nobody"

    def _known_settings(self) -> dict[str, str]:
        """The settings without the one that an older minor version does not know, and would not start with."""
        settings = merge_options(self.settings, self.options)
        described = [str(self.tool("postgres")), "--describe-config"]
        described_settings = run_to_end(described, where=self.name, cwd=self._dir, **as_user(self._user))
        # An older server stops at a setting that it does not know.
        if "\noutput_plugin_libraries\t" not in described_settings:
            settings.pop("output_plugin_libraries", None)
        return settings

    def _active_slots(self, database: str) -> int:
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active", [database])
                return int(cursor.fetchone()[0])
        finally:
            connection.close()

    def _initialise(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)  # what an interrupted set-up left
        self._data.mkdir(mode=0o700)
        if self._primary is not None:
            self._copy(self._primary)
            return
        secret = self._data.with_name("initdb-password")
        # initdb takes the password from a file, so that no argument shows it.
        secret.touch(mode=0o600)
        secret.write_text(self.admin.password)
        if self._user:
            self._check_path()
            shutil.chown(self._data, self._user)
            shutil.chown(secret, self._user)
        initdb = [str(self.tool("initdb")), "-D", str(self._data), "-U", self.admin.user, f"--pwfile={secret}"]
        # `C.UTF-8` sorts by code point, on every machine alike.
        options = ["-A", "scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        run_to_end([*initdb, *options], where=self.name, cwd=self._data, **as_user(self._user))
        secret.unlink()

    def _copy(self, primary: PostgresServer) -> None:
        if self._user:
            self._check_path()
            shutil.chown(self._data, self._user)
        place = f"host={primary.host} port={primary.port} user={primary.admin.user} dbname=postgres"  # for slots' sync
        backup = [str(self.tool("pg_basebackup")), "-D", str(self._data), "-d", place, "--no-password"]
        # `-R` writes the standby's settings, `-C -S` makes the slot that keeps its WAL.
        options = ["-R", "-C", "-S", self.slot, "--checkpoint=fast", "--no-sync"]
        env = {**os.environ, "PGPASSWORD": primary.admin.password}
        run_to_end([*backup, *options], where=self.name, cwd=self._data, env=env, **as_user(self._user))

    def _check_path(self) -> None:
        """The server's user must be able to walk to its data and its programs."""
        for path in (self._dir, self._programs or trees.tree(self.package)):
            closed = [str(p) for p in [path, *path.parents] if not p.stat().st_mode & 0o001]
            if closed:
                raise LocalError(
                    f"user {self._user}, as which PostgreSQL runs, cannot enter {closed[0]}",
                    where=str(path),
                    fix="choose another place (DBLOG_CACHE_DIR, DBLOG_DATA_DIR), or run as an ordinary user",
                )
