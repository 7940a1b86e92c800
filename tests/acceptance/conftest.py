"""The installed product, servers whose every account needs a password, and worlds on them.

`new_world` makes a world on the database of `source_kind`. Once the test has called `follow_check`, its account has
what `dblog check` asks for, and nothing else. After each test the fixture ends what runs, and searches all files and
nodes for secrets.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from dblog_core.local.servers.server import DatabaseServer
from dblog_core.local.servers.zookeeper import ZookeeperServer
from tests.acceptance.accounts import Server
from tests.acceptance.scenarios import SCENARIOS
from tests.acceptance.secret_texts import WITHOUT_BRACES, Secret, ZookeeperLogin, new_secret
from tests.acceptance.world import World

NewWorld = Callable[..., World]
"""`new_world(state, password=…)`: see the fixture."""
_CHECKOUT = Path(__file__).parents[2]
_PACKAGES = ("dblog_core", "spark_jobs")
_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


@pytest.fixture(scope="session")
def installed_dblog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which a wheel of the checkout is installed, as a user installs it."""
    root = tmp_path_factory.mktemp("installed")
    tree = root / "tree"
    # A copy, because setuptools writes beside what it builds.
    for package in _PACKAGES:
        shutil.copytree(_CHECKOUT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(_CHECKOUT / file, tree)
    _pip("wheel", "--no-build-isolation", "--wheel-dir", str(root), str(tree))
    (wheel,) = root.glob("*.whl")
    site = root / "site"
    _pip("install", "--no-compile", "--target", str(site), str(wheel))
    _take_compiled_kernels(site)
    _assert_is_used(site, root)
    return site


def _pip(command: str, *arguments: str) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([sys.executable, "-m", "pip", command, *options, *arguments], check=True, capture_output=True)


def _take_compiled_kernels(site: Path) -> None:
    """The kernels that `make setup` has compiled for the same text: to compile them again takes a minute.

    numba compares the time and the size of the module's file.
    """
    for package in _PACKAGES:
        for cache in (_CHECKOUT / package).rglob("*.nb[ic]"):
            target = site / cache.parent.relative_to(_CHECKOUT)
            target.mkdir(exist_ok=True)
            shutil.copy2(cache, target)
        for module in _modules(package):
            installed = site / module.relative_to(_CHECKOUT)
            assert installed.read_bytes() == module.read_bytes(), f"the wheel lacks {module}"
            times = module.stat()
            os.utime(installed, ns=(times.st_atime_ns, times.st_mtime_ns))


def _modules(package: str) -> list[Path]:
    """Of the product: the servers of tests and demo are not in the wheel."""
    servers = _CHECKOUT / "dblog_core" / "local"
    return [module for module in (_CHECKOUT / package).rglob("*.py") if not module.is_relative_to(servers)]


def _assert_is_used(site: Path, directory: Path) -> None:
    program = "import dblog_core, spark_jobs; print(dblog_core.__file__, spark_jobs.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [str(site / package / "__init__.py") for package in _PACKAGES]


@pytest.fixture(scope="session")
def zookeeper_login(server_root: Path) -> Iterator[ZookeeperLogin]:
    """A ZooKeeper that lets nobody in without a login of its list."""
    password = new_secret(form=WITHOUT_BRACES)
    directory = server_root / "zookeeper-with-logins"
    directory.mkdir()
    users = directory / "users.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    quoted = password.text.replace("\\", "\\\\").replace('"', '\\"')
    users.write_text(f'Server {{ {module} user_dblog="{quoted}"; }};\n')
    server = ZookeeperServer(
        directory / "server",
        settings={
            "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
            "sessionRequireClientSASLAuth": "true",
        },
        properties={"java.security.auth.login.config": str(users)},
    )
    server.start()
    yield ZookeeperLogin(server.address(), "dblog", password)
    server.kill()


@pytest.fixture
def server(source_server: DatabaseServer) -> Server:
    """The server of `source_kind`, with no account that needs no password."""
    admin = source_server.admin
    server = Server(source_server.kind, source_server.host, source_server.port, admin.user, admin.password)
    assert server.accounts_without_password() == []
    return server


@pytest.fixture
def new_world(
    server: Server,
    source_server: DatabaseServer,
    installed_dblog: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[NewWorld]:
    """Makes a world. `state` says where its state is kept: `zookeeper` or `sqlite`."""
    worlds: list[World] = []

    def make(state: str, *, password: Secret | None = None) -> World:
        assert state in ("zookeeper", "sqlite")
        zookeeper = request.getfixturevalue("zookeeper_login") if state == "zookeeper" else None
        name = f"acc_{secrets.token_hex(4)}"
        world = World(name, installed_dblog, server, tmp_path / name, zookeeper, password or new_secret())
        worlds.append(world)
        turn = zlib.crc32(f"{request.config.option.soak_first} {request.node.nodeid}".encode()) % 2
        world.sections["lake"]["engine"] = ("local", "spark")[turn]
        world.create()
        return world

    yield make
    for world in worlds:
        world.kill()
    for world in worlds:
        source_server.drop_database(world.name)
        server.drop_account(world.user)
        world.assert_no_secret_written()
    if request.node.stash.get(_PASSED, False):
        _assert_ran(request.node.originalname, worlds)


def _assert_ran(test: str, worlds: list[World]) -> None:
    """A scenario has run each command that `SCENARIOS` names for it."""
    missing = SCENARIOS.get(test, frozenset()) - {command for world in worlds for command in world.ran}
    assert missing == set(), f"{test} has not run {sorted(missing)}"
