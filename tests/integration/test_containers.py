"""The scripts of docker/ on real servers: what the containers run when they are new, and when they are looked at."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError

from dblog_core.local.servers.s3 import S3Server
from dblog_core.local.servers.server import DatabaseServer
from tests.marked import read_nodes
from tests.waiting import PATIENCE_SECONDS, wait_until

DOCKER = Path(__file__).parents[2] / "docker"
PROGRAMS = Path(sys.executable).parent
_HEALTHY = [sys.executable, str(DOCKER / "dblog" / "healthy")]


def _run(command: list[str | Path], environment: Mapping[str, str], **options: Any) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PROGRAMS), environment.get("PATH", ""), os.environ["PATH"]])
    env = {**os.environ, **environment, "PATH": path}
    return subprocess.run(command, env=env, check=False, capture_output=True, text=True, **options)


@pytest.fixture(params=["mysql", "mariadb", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[DatabaseServer]:
    """One that is as a container's is when it runs its script: with an empty database `shop`."""
    asked_server: DatabaseServer = request.getfixturevalue(request.param)
    asked_server.create_database("shop")
    yield asked_server
    asked_server.drop_database("shop")
    if asked_server.kind == "postgres":
        asked_server.drop_user("dblog")
    else:
        asked_server.execute("DROP USER IF EXISTS 'dblog'@'%'")


def _run_preparation(server: DatabaseServer, password: str) -> subprocess.CompletedProcess[str]:
    """Runs the script as the image does, but over TCP."""
    admin = server.admin
    if server.kind == "postgres":
        at = {"PGHOST": server.host, "PGPORT": str(server.port), "PGUSER": admin.user, "PGPASSWORD": admin.password}
        command = [server.tool("psql"), "--no-password", "--no-psqlrc", "--quiet", "--dbname=shop"]
        script = [*command, "--file", DOCKER / "init" / "postgres.sql"]
        return _run(script, {**at, "DBLOG_PASSWORD": password})
    client = server.tool(server.kind)
    at = {"MYSQL_HOST": server.host, "MYSQL_TCP_PORT": str(server.port), "PATH": str(client.parent)}
    root = {f"{server.kind.upper()}_ROOT_PASSWORD": admin.password, "DBLOG_PASSWORD": password}
    return _run([DOCKER / "init" / server.kind], {**at, **root})


def _write_environment(server: DatabaseServer, directory: Path, password: str, state_url: str) -> dict[str, str]:
    """The stack's own configuration, with this machine's places; what a container has in its environment."""
    file = directory / f"shop_{server.kind}.toml"
    text = (DOCKER / "config" / file.name).read_text()
    file.write_text(text.replace(f'host = "{server.kind}"', f'host = "{server.host}"\nport = {server.port}'))
    return {
        "DBLOG_CONFIG": str(file),
        "DBLOG_PASSWORD": password,
        "DBLOG_ROOT": str(directory / "root"),
        "DBLOG_STATE": state_url,
        "ZOOKEEPER_PASSWORD": f"{password} of nodes",
        "DBLOG_SPARK_MASTER": "local[1]",
        "S3_ENDPOINT": "http://s3:7070",
        "S3_REGION": "us-east-1",
        "S3_ACCESS_KEY": "dblog",
        "S3_SECRET_KEY": "unused",
    }


@pytest.mark.one_of(4)
def test_a_new_container_has_all_that_a_capture_of_it_needs(
    server: DatabaseServer, zookeeper_url: str, tmp_path: Path
) -> None:
    password = secrets.token_hex(16)
    done = _run_preparation(server, password)
    assert done.returncode == 0, done.stderr
    assert password not in done.stdout + done.stderr
    checked = _run(["dblog", "check"], _write_environment(server, tmp_path, password, zookeeper_url))
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.one_of(4)
@pytest.mark.parametrize("server", ["postgres"], indirect=True)
def test_a_capture_is_healthy_while_somebody_leads(server: DatabaseServer, zookeeper_url: str, tmp_path: Path) -> None:
    environment = _write_environment(server, tmp_path, "secret", zookeeper_url)
    assert _run_preparation(server, "secret").returncode == 0
    assert _run([*_HEALTHY, "capture"], environment).stderr == "no capture leads\n"
    with (tmp_path / "log").open("w") as log:
        command = [PROGRAMS / "dblog", "capture"]
        capture = subprocess.Popen(command, env={**os.environ, **environment}, stderr=log)
    try:
        healthy = [*_HEALTHY, "capture"]
        wait_until(lambda: _run(healthy, environment).returncode == 0, what="a capture that is healthy")
        assert _run([*_HEALTHY, "relay", "events"], environment).stderr == "no relay passes on to events\n"
        assert _run([*_HEALTHY, "merge"], environment).returncode == 0, "nothing is staged to be behind of"
        with pytest.raises(NoAuthError):
            list(read_nodes(zookeeper_url))
        assert dict(read_nodes(zookeeper_url, login="dblog:secret of nodes"))
    finally:
        capture.terminate()
        assert capture.wait(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_password_that_would_be_sql_is_refused_before_anything_is_made(kind: str) -> None:
    done = _run([DOCKER / "init" / kind], {"DBLOG_PASSWORD": "a'; DROP TABLE x; --"})
    assert done.returncode == 1 and "docker/make-env" in done.stderr and "DROP" not in done.stderr


def test_the_bucket_is_made_once_and_only_where_there_is_to_be_one(tmp_path: Path) -> None:
    store = S3Server(tmp_path)
    store.start()
    try:
        settings = store.settings
        environment = {
            "S3_ENDPOINT": str(settings.endpoint),
            "S3_REGION": str(settings.region),
            "S3_ACCESS_KEY": str(settings.access_key),
            "S3_SECRET_KEY": settings.secret_key.get_secret_value(),
        }
        bucket = [sys.executable, str(DOCKER / "dblog" / "bucket")]
        for _ in range(2):
            done = _run([*bucket, "s3://lakehouse/of/us"], environment)
            assert done.returncode == 0, done.stderr
        assert _run([*bucket, "/var/lib/dblog"], environment).returncode == 0
        with pytest.raises(Exception, match="BucketAlready"):
            store.make_bucket("lakehouse")
    finally:
        store.stop()
