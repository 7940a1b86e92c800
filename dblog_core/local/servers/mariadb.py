"""A MariaDB server from packages: MySQL's way of starting, with another set-up and a few other settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from dblog_core.local.packages import trees
from dblog_core.local.servers.mysql import LOGGED, SMALL, MysqlServer
from dblog_core.local.set_up_programs import run_to_end


class MariadbServer(MysqlServer):
    """MariaDB on loopback, data in `directory`."""

    kind = "mariadb"
    package = trees.MARIADB
    shared: Mapping[str, str | None] = {
        **SMALL,
        **LOGGED,
        "gtid_strict_mode": "ON",
        "innodb_log_file_size": "128M",
        "plugin_maturity": "stable",
    }
    settings = shared
    grants = (
        "GRANT REPLICATION SLAVE, BINLOG MONITOR, PROCESS ON *.* TO {account}",
        "GRANT SELECT ON `{database}`.* TO {account}",
        "GRANT CREATE, INSERT, UPDATE ON `{database}`.`dblog_watermark` TO {account}",
    )

    _create_user = "CREATE OR REPLACE USER"  # the set-up has made one without a password

    def _replica_sql(self, source: MysqlServer) -> list[str]:
        place = f"MASTER_HOST = '{source.host}', MASTER_PORT = {source.port}, MASTER_USER = '{source.admin.user}'"
        options = "MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1"
        change = f"CHANGE MASTER TO {place}, MASTER_PASSWORD = '{source.admin.password}', {options}"
        return ["RESET MASTER", "SET GLOBAL gtid_slave_pos = ''", change, "START SLAVE"]

    def _initialise(self) -> None:
        shutil.rmtree(self._dir / "data", ignore_errors=True)  # what an interrupted set-up left
        tree = trees.tree(self.package)
        install = [str(self.tool("mariadb-install-db")), "--no-defaults", f"--basedir={tree / 'usr'}"]
        options = [
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
            *self._as_root(),
        ]
        environment = {**os.environ, "TMPDIR": str(self._temporary)}
        command = [*install, f"--datadir={self._dir / 'data'}", *options]
        run_to_end(command, where=self.name, cwd=self._dir, env=environment)
        # `--bootstrap` skips the grant tables until they are flushed, and GRANT needs them.
        bootstrap = "USE mysql;\nFLUSH PRIVILEGES;\n" + self._admin_sql()
        run_to_end([*self._program(), "--bootstrap"], where=self.name, cwd=self._dir, input=bootstrap)

    def _program(self) -> list[str]:
        tree = trees.tree(self.package)
        return [
            str(self.tool("mariadbd")),
            "--no-defaults",
            *self._as_root(),
            f"--basedir={tree / 'usr'}",
            f"--datadir={self._dir / 'data'}",
            f"--tmpdir={self._temporary}",
            f"--lc-messages-dir={tree / 'usr/share/mysql'}",
            f"--character-sets-dir={tree / 'usr/share/mysql/charsets'}",
            f"--plugin-dir={tree / 'usr/lib/mysql/plugin'}",
            "--socket=mysql.sock",
            "--pid-file=mysql.pid",
        ]

    @staticmethod
    def _as_root() -> list[str]:
        return ["--user=root"] if os.geteuid() == 0 else []
