"""The whole local stack: the three databases with a shop in each, ZooKeeper, and Airflow with their DAGs.

`up` starts what is not running and prints where it is; `down` stops all, the data stays for the next `up`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from dblog_core.errors import LocalError
from dblog_core.local.demo import shop
from dblog_core.local.servers import airflow_settings, data_root
from dblog_core.local.servers.airflow import AirflowServer
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.local.servers.server import Account, DatabaseServer, Server
from dblog_core.local.servers.zookeeper import ZookeeperServer
from dblog_core.user_cache import print_progress

_DATABASES: dict[str, Callable[..., DatabaseServer]] = {
    "mysql": MysqlServer,
    "mariadb": MariadbServer,
    "postgres": PostgresServer,
}


class Stack:
    """The servers with their data below `root`; they outlive the command that starts them."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.databases = [make(root / kind, detached=True) for kind, make in _DATABASES.items()]
        self.zookeeper = ZookeeperServer(root / "zookeeper", detached=True)
        self.airflow = AirflowServer(
            self.airflow_home, dags=data_root.CHECKOUT / "dags", configs=self.configs, detached=True
        )

    @property
    def configs(self) -> Path:
        """One configuration for each database."""
        return self._root / "config"

    @property
    def airflow_home(self) -> Path:
        """With its settings, and the passwords of its users."""
        return self._root / "airflow"

    @property
    def servers(self) -> list[Server]:
        return [*self.databases, self.zookeeper, self.airflow]

    def up(self) -> None:
        """Starts what does not run, all at the same time."""
        self.configs.mkdir(mode=0o700, exist_ok=True)
        steps = [*(partial(self._start_shop, d) for d in self.databases), partial(self._start, self.zookeeper)]
        steps.append(partial(self._start, self.airflow))
        # At the same time: most of the wait is Airflow's.
        with ThreadPoolExecutor(len(steps)) as pool:
            for running in [pool.submit(step) for step in steps]:
                running.result()

    def down(self) -> None:
        """Stops all, Airflow first, since its tasks use the others. Tries every server, then raises the first error."""
        faults = [fault for server in reversed(self.servers) if (fault := _attempt(server.stop))]
        if faults:
            raise faults[0]

    def _start_shop(self, database: DatabaseServer) -> None:
        self._start(database)
        self._configure(database)

    def _start(self, server: Server) -> None:
        print_progress(f"starting {server.name}")
        server.start()

    def _configure(self, database: DatabaseServer) -> None:
        """A shop with a capture user, and the configuration of its capture; made once."""
        file = self.configs / f"shop_{database.kind}.toml"
        if file.exists():
            return
        print_progress(f"filling the shop in {database.name}")
        database.drop_database(shop.DATABASE)  # what an interrupted run left
        database.drop_user("dblog")
        database.create_database(shop.DATABASE)
        if isinstance(database, PostgresServer):  # its publication takes an administrator
            account = database.create_capture_user(shop.DATABASE, publication=f"dblog_shop_{database.kind}")
        else:
            account = database.create_capture_user(shop.DATABASE)
        connection = database.connect(shop.DATABASE)
        try:
            shop.load(connection, database.kind)
        finally:
            connection.close()
        part = file.with_suffix(".part")  # Airflow reads the directory all the time, and no half of a file
        with os.fdopen(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as out:
            out.write(self._configuration(database, account))
        part.rename(file)

    def _configuration(self, database: DatabaseServer, account: Account) -> str:
        name = f"shop_{database.kind}"
        sections: dict[str, dict[str, object]] = {
            "source": {
                "name": name,
                "kind": database.kind,
                "host": database.host,
                "port": database.port,
                "user": account.user,
                "password": account.password,
                "database": shop.DATABASE,
                "tables": [f"{shop.dialect(database.kind).schema}.{table}" for table in shop.TABLES],
            },
            "staging": {"path": str(self._root / "staging" / name)},
            "state": {"url": f"zookeeper://{self.zookeeper.address()}/dblog"},
            "lake": {"path": str(self._root / "lake" / name)},
        }
        return "\n".join(_section(title, values) for title, values in sections.items())


def main(arguments: Sequence[str]) -> int:
    stack = Stack(data_root.data_root("stack"))
    if list(arguments) not in (["up"], ["down"]):
        print("usage: python -m dblog_core.local.stack up|down", file=sys.stderr)
        return 2
    try:
        if arguments[0] == "up":
            stack.up()
            _show(stack)
        else:
            stack.down()
            print_progress(f"stopped; the data stays in {data_root.data_root('stack')}")
    except LocalError as error:
        print(f"dblog: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print_progress("interrupted; `make down` stops what has been started")
        return 128 + signal.SIGINT
    return 0


def _show(stack: Stack) -> None:
    print("\nThe local stack runs; `make down` stops it.\n")
    shops = {database.name: _database(database.kind) for database in stack.databases}
    for server in stack.servers:
        print(f"  {server.name:10} {server.address()}{shops.get(server.name, '')}")
    print(f"\nAirflow's password for {airflow_settings.USER}:\n\n  {_password(stack)}")
    files = sorted(stack.configs.glob("*.toml"))
    print("\nTry:\n")
    for file in files:
        print(f"  .venv/bin/dblog --config {file} check")
    print(f"\nUntil the captures are unpaused, nothing is captured. In Airflow, {stack.airflow.address()}:\n")
    for file in files:
        name = f"dblog_{file.stem}"
        print(f"  unpause {name}_capture and {name}_capture_standby, then trigger {name}_dump")


def _database(kind: str) -> str:
    """The name of the shop's database; on PostgreSQL its tables lie in a schema."""
    schema = shop.dialect(kind).schema
    return f", database {shop.DATABASE}" + ("" if schema == shop.DATABASE else f", schema {schema}")


def _password(stack: Stack) -> str:
    """A command that prints it: a start of the stack should not leave it in the terminal's history."""
    file = stack.airflow_home / airflow_settings.PASSWORDS
    code = f"import json; print(json.load(open({str(file)!r}))[{airflow_settings.USER!r}])"
    return f".venv/bin/python -c {shlex.quote(code)}"


def _section(title: str, values: dict[str, object]) -> str:
    """TOML of texts, numbers and lists of texts: JSON writes them the same way."""
    return "\n".join([f"[{title}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]) + "\n"


def _attempt(step: Callable[[], None]) -> LocalError | None:
    try:
        step()
    except LocalError as error:
        return error
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
