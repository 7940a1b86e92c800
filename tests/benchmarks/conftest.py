"""What figures share: the scale, servers with room for them, databases, and where results go.

pytest tests/benchmarks -k log_mysql --bench quick
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.local.servers.server import DatabaseServer
from tests.benchmarks import report
from tests.benchmarks.results import Results
from tests.benchmarks.scale import SCALES, Scale
from tests.fix_servers import Database, drop, new

_MYSQL = {"innodb_buffer_pool_size": "1G"}
_OPTIONS = {
    "mysql": _MYSQL | {"innodb_redo_log_capacity": "1G"},
    "mariadb": _MYSQL | {"innodb_log_file_size": "1G"},
    "postgres": {"shared_buffers": "1GB", "max_wal_size": "8GB"},
}
_SERVERS = {"mysql": MysqlServer, "mariadb": MariadbServer, "postgres": PostgresServer}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All here but the guard are `bench`: `make test` leaves them out. Some are left to --bench=full."""
    if config.option.bench != "full":
        longest = [item for item in items if item.get_closest_marker("full") is not None]
        items[:] = [item for item in items if item not in longest]
        config.hook.pytest_deselected(items=longest)
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("guard") is None:
            item.add_marker(pytest.mark.bench)


@pytest.fixture(scope="session")
def scale(request: pytest.FixtureRequest) -> Scale:
    return SCALES[request.config.option.bench]


@pytest.fixture(scope="session")
def results(scale: Scale) -> Iterator[Results]:
    """Where figures go; the page is written anew when the run is over, but for a quick one, which is only printed."""
    quick = scale.name == "quick"
    file = report.RESULTS.with_stem("benchmarks-quick") if quick else report.RESULTS
    bench_results = Results(file, scale=scale.name)
    yield bench_results
    if not quick:
        report.write(bench_results)


@pytest.fixture(scope="session")
def bench_server(server_root: Path) -> Iterator[Callable[[str], DatabaseServer]]:
    """A server of a kind, with more memory than tests give theirs; started when first asked for."""
    started: dict[str, DatabaseServer] = {}

    def server(kind: str) -> DatabaseServer:
        if kind not in started:
            started[kind] = _SERVERS[kind](server_root / f"bench-{kind}", options=_OPTIONS[kind])
            started[kind].start()
        return started[kind]

    yield server
    for each in started.values():
        each.kill()


@pytest.fixture
def bench_database(bench_server: Callable[[str], DatabaseServer]) -> Iterator[Callable[[str], Database]]:
    """A new database in the server of that kind."""
    databases: list[Database] = []

    def make(kind: str) -> Database:
        databases.append(new(bench_server(kind), f"b_{secrets.token_hex(4)}"))
        return databases[-1]

    yield make
    for database in databases:
        drop(database)
