"""A MariaDB server from packages: MySQL's way of starting, with another set-up and a few other settings."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from dblog_core.errors import LocalError
from dblog_core.local.packages import trees
from dblog_core.local.servers.mysql import LOGGED, SMALL, MysqlServer
from dblog_core.local.set_up_programs import run_to_end

_SYSTEM_TABLES = (
    "*_system_tables.sql",
    "*_performance_tables.sql",
    "*_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql",
    "*_sys_schema.sql",
)
"""In the order in which they are made."""
_DELETE_OPEN_ACCOUNTS = "DELETE FROM global_priv WHERE User IN ('root', '');"
"""Those that the set-up makes without a password, one of them by the name of this machine."""


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

    def _replica_sql(self, source: MysqlServer) -> list[str]:
        place = f"MASTER_HOST = '{source.host}', MASTER_PORT = {source.port}, MASTER_USER = '{source.admin.user}'"
        options = "MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1"
        change = f"CHANGE MASTER TO {place}, MASTER_PASSWORD = '{source.admin.password}', {options}"
        return [self.reset_statement, "SET GLOBAL gtid_slave_pos = ''", change, "START SLAVE"]

    @property
    def status_statement(self) -> str:
        return "SHOW MASTER STATUS"

    @property
    def reset_statement(self) -> str:
        return "RESET MASTER"

    def _initialise(self) -> None:
        # As `mariadb-install-db` does it: that is a shell script, and starts no server with a C library of its own.
        data = self._dir / "data"
        shutil.rmtree(data, ignore_errors=True)  # what an interrupted set-up left
        (data / "mysql").mkdir(parents=True)
        tables = "".join(self._share_file(name).read_text() + "\n" for name in _SYSTEM_TABLES)
        # `--bootstrap` skips the grant tables until they are flushed, and GRANT needs them.
        accounts = f"USE mysql;\n{_DELETE_OPEN_ACCOUNTS}\nFLUSH PRIVILEGES;\n{self._admin_sql()}"
        for script in ("USE mysql;\n" + tables, accounts):
            run_to_end([*self._program(), "--bootstrap"], where=self.name, cwd=self._dir, input=script)

    def _share_file(self, name: str) -> Path:
        """The prefix of the name is another one in each version."""
        files = sorted(self._share.glob(name))
        if not files:
            raise LocalError(
                f"its packages hold no {name}", where=self.name, fix="report it: the distribution has moved the file"
            )
        return files[0]

    @property
    def _share(self) -> Path:
        shared = trees.tree(self.package) / "usr/share"
        # Newer packages keep them below the server's own name.
        return next((shared / name for name in ("mariadb", "mysql") if (shared / name / "charsets").is_dir()), shared)

    def _program(self) -> list[str]:
        tree = trees.tree(self.package)
        return [
            str(self.tool("mariadbd")),
            "--no-defaults",
            *(["--user=root"] if os.geteuid() == 0 else []),
            f"--basedir={tree / 'usr'}",
            f"--datadir={self._dir / 'data'}",
            f"--tmpdir={self._temporary}",
            f"--lc-messages-dir={self._share}",
            f"--character-sets-dir={self._share / 'charsets'}",
            f"--plugin-dir={tree / 'usr/lib/mysql/plugin'}",
            "--socket=mysql.sock",
            "--pid-file=mysql.pid",
        ]


class NewestMariadbServer(MariadbServer):
    """The newest that there are packages of: from 11.8 on the log has other forms of events."""

    package = trees.NEWEST_MARIADB
