"""A MySQL server from packages."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pymysql

from dblog_core.local.packages import trees
from dblog_core.local.servers import ports
from dblog_core.local.servers.daemon import Daemon
from dblog_core.local.servers.server import Account, merge_options, remembered_password
from dblog_core.local.set_up_programs import run_to_end

SMALL: dict[str, str | None] = {
    "innodb_buffer_pool_size": "96M",
    "innodb_log_buffer_size": "8M",
    "max_connections": "100",
    "table_open_cache": "400",
    "performance_schema": "OFF",
}
LOGGED: dict[str, str | None] = {
    "server_id": "1",
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "sync_binlog": "1",  # with the next: what was committed outlives a kill -9
    "innodb_flush_log_at_trx_commit": "1",
}
_OF_THE_DIRECTORY = ("lower_case_table_names",)
"""Options that the data directory is made with, and that every later start has to repeat."""


class MysqlServer:
    """MySQL on loopback, data in `directory`."""

    kind = "mysql"
    package = trees.MYSQL
    shared: Mapping[str, str | None] = {
        **SMALL,
        **LOGGED,
        "gtid_mode": "ON",
        "enforce_gtid_consistency": "ON",
        "innodb_redo_log_capacity": "128M",
        "mysqlx": "OFF",  # its second port
    }
    """Of the servers in docker/compose.yaml too."""
    settings: Mapping[str, str | None] = {
        **shared,
        "secure_file_priv": "NULL",  # else it wants a folder that only an installed package has
    }
    grants = (
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT, XA_RECOVER_ADMIN ON *.* TO {account}",
        "GRANT SELECT ON `{database}`.* TO {account}",
        "GRANT CREATE, INSERT, UPDATE ON `{database}`.`dblog_watermark` TO {account}",
    )
    """For the capture's user: reading the log and its position; reading the tables; its own watermark table."""

    def __init__(
        self,
        directory: Path,
        *,
        options: Mapping[str, str | None] | None = None,
        detached: bool = False,
        name: str = "",
    ) -> None:
        self.name = name or self.kind
        self.host = ports.HOST
        self.options: Mapping[str, str | None] = options or {}
        self._dir = directory.absolute()
        self._daemon = Daemon(self.name, self._dir, detached=detached)

    @property
    def port(self) -> int:
        return ports.remember_port(self._dir / "port")

    @property
    def admin(self) -> Account:
        return Account("root", remembered_password(self._dir / "password"))

    @property
    def pid(self) -> int | None:
        return self._daemon.pid

    def start(self) -> None:
        self._temporary.mkdir(parents=True, exist_ok=True)
        # The mark comes last, so an interrupted set-up begins again.
        if not self._initialised_mark.exists():
            self._initialise()
            self._initialised_mark.touch()
        self._daemon.start(self._command(), ready=self.ready)

    def ready(self) -> bool:
        try:
            self.connect().close()
        except pymysql.err.OperationalError:
            return False
        return True

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    def address(self) -> str:
        return f"{self.host}:{self.port}, user {self.admin.user}, password {self.admin.password}"

    def tool(self, name: str) -> Path:
        return trees.program(self.package, name)

    def connect(self, database: str = "", *, account: Account | None = None) -> Any:
        who = account or self.admin
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=who.user,
            password=who.password,
            database=database or None,
            autocommit=True,
            charset="utf8mb4",
            connect_timeout=5,
        )

    def execute(self, *statements: str, database: str = "") -> None:
        """Runs statements as the administrator."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def create_database(self, name: str) -> None:
        self.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")

    def drop_database(self, name: str) -> None:
        """Fails after a while, and does not wait forever, when a forgotten transaction holds one of its tables."""
        self.execute("SET SESSION lock_wait_timeout = 20", f"DROP DATABASE IF EXISTS `{name}`")

    def create_capture_user(self, database: str, *, user: str = "dblog", password: str | None = None) -> Account:
        account = Account(user, password or secrets.token_hex(12))
        who = f"'{user}'@'{self.host}'"
        grants = [grant.format(account=who, database=database) for grant in self.grants]
        self.execute(f"CREATE USER {who} IDENTIFIED BY '{account.password}'", *grants)
        return account

    def replica_of(self, source: MysqlServer) -> None:
        """Makes this running server a replica of `source`, by GTID and from its first transaction on."""
        self.execute(*self._replica_sql(source))

    def _replica_sql(self, source: MysqlServer) -> list[str]:
        place = f"SOURCE_HOST = '{source.host}', SOURCE_PORT = {source.port}, SOURCE_USER = '{source.admin.user}'"
        options = "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1"
        change = f"CHANGE REPLICATION SOURCE TO {place}, SOURCE_PASSWORD = '{source.admin.password}', {options}"
        # What the set-up has written of its own is no transaction of the source's.
        return [self.reset_statement, change, "START REPLICA"]

    @property
    def status_statement(self) -> str:
        """Shows the log's end."""
        return "SHOW MASTER STATUS" if self.package is trees.MYSQL_80 else "SHOW BINARY LOG STATUS"

    @property
    def reset_statement(self) -> str:
        """Removes the log and its GTIDs, and begins a new one."""
        return "RESET MASTER" if self.package is trees.MYSQL_80 else "RESET BINARY LOGS AND GTIDS"

    def drop_user(self, user: str) -> None:
        self.execute(f"DROP USER IF EXISTS '{user}'@'{self.host}'")

    @property
    def _initialised_mark(self) -> Path:
        return self._dir / "initialised"

    @property
    def _temporary(self) -> Path:
        """Of this server alone: at its start MariaDB removes temporary tables that lie there, also another's."""
        return self._dir / "tmp"

    def _admin_sql(self) -> str:
        who = f"'{self.admin.user}'@'{self.host}'"  # by address: names are not resolved
        create = f"CREATE USER {who} IDENTIFIED BY '{self.admin.password}';"
        return f"{create}\nGRANT ALL ON *.* TO {who} WITH GRANT OPTION;\n"

    def _initialise(self) -> None:
        script = self._dir / "admin.sql"
        # The set-up makes an account without a password.
        script.write_text(f"DROP USER 'root'@'localhost';\n{self._admin_sql()}")
        directory_options = [f"--{name}={self.options[name]}" for name in _OF_THE_DIRECTORY if name in self.options]
        initialise = ["--initialize-insecure", f"--init-file={script}"]
        run_to_end([*self._program(), *directory_options, *initialise], where=self.name, cwd=self._dir)
        # It holds the administrator's password.
        script.unlink()

    def _command(self) -> list[str]:
        network = [f"--bind-address={self.host}", f"--port={self.port}", "--skip-name-resolve"]
        settings = merge_options(self.settings, self.options)
        return [*self._program(), *network, *(f"--{name}={value}" for name, value in settings.items())]

    def _program(self) -> list[str]:
        """The server with the paths of its tree: the packages' own paths are not there."""
        tree = trees.tree(self.package)
        return [
            str(self.tool("mysqld")),
            "--no-defaults",
            *(["--user=root"] if os.geteuid() == 0 else []),
            f"--basedir={tree / 'usr'}",
            f"--datadir={self._dir / 'data'}",
            f"--tmpdir={self._temporary}",
            f"--lc-messages-dir={tree / 'usr/share/mysql'}",
            f"--character-sets-dir={tree / 'usr/share/mysql/charsets'}",
            f"--plugin-dir={tree / 'usr/lib/mysql/plugin'}",
            "--socket=mysql.sock",  # in the data directory: a full path could be too long for a socket
            "--pid-file=mysql.pid",
        ]
