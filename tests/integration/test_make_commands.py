"""The README's first commands, run as its reader runs them: `make demo QUICK=1`, `make up` and `make down`.

Their data lies apart (`$DBLOG_DATA_DIR`), so that a stack or a demo of this checkout goes on undisturbed.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pyarrow as pa
import pymysql
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.local.demo import shop
from dblog_core.local.servers import data_root, guard
from dblog_core.local.servers.airflow_client import AirflowClient
from tests.integration.test_local_stack import CLASSES
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.in_turn, pytest.mark.timeout(1800)]

KINDS = sorted(CLASSES)
DAGS = ("capture", "capture_standby", "dump", "maintenance", "merge", "repair", "replay", "verify")
_SECONDS = 1080.0  # for a command: a slow machine that does much else needs ten times what a good one takes
_OF_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "QUICK", "DEMO_SOURCE")


@pytest.fixture
def data(server_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the commands of one test put everything; it goes with all that runs in it."""
    directory = server_root / f"make-{secrets.token_hex(4)}"
    directory.mkdir()
    monkeypatch.setenv("DBLOG_DATA_DIR", str(directory))
    yield directory
    for process in _running_in(directory):
        guard.kill_tree(process)
    shutil.rmtree(directory)


@pytest.mark.one_of(2)
def test_the_short_demo_ends_with_equal_tables_and_nothing_running(source_kind: str, data: Path) -> None:
    demo = _make("demo", "QUICK=1", f"DEMO_SOURCE={source_kind}")
    assert demo.returncode == 0, _output(demo)
    assert re.search(r"│ verdict +│ every row and column is equal ", demo.stdout), _output(demo)
    assert re.search(r"│ merges +│ 1, up to offset", demo.stdout), _output(demo)
    table_counts = re.findall(r"│ \w+\.(\w+) +│ ([\d,]+) rows; missing 0, extra 0, different 0 ", demo.stdout)
    rows = {table: int(count.replace(",", "")) for table, count in table_counts}
    assert rows.keys() == set(shop.TABLES) and sum(rows.values()) > 20_000, _output(demo)
    root = data_root.data_root(f"demo-{source_kind}")
    assert root.is_relative_to(data) and f"Delta tables     {root / 'lake'}" in demo.stdout
    assert {table: _rows_in_lake(root, source_kind, table) for table in rows} == rows
    assert not (left := _running_in(data)), f"still running: {left}"
    _check_progress(demo.stdout)


@pytest.mark.one_of(2)
def test_the_stack_comes_up_with_all_its_dags_and_goes_down_with_its_data_kept(source_kind: str, data: Path) -> None:
    up = _make("up")
    assert up.returncode == 0, _output(up)
    addresses = dict(re.findall(r"^  (\w+) +(.*127\.0\.0\.1.*)$", up.stdout, flags=re.MULTILINE))
    assert addresses.keys() == {*KINDS, "zookeeper", "airflow"}, _output(up)
    assert {kind: _orders_at(kind, addresses[kind]) for kind in KINDS} == dict.fromkeys(KINDS, shop.ROWS["orders"])
    host, port = addresses["zookeeper"].split(":")
    socket.create_connection((host, int(port)), timeout=10).close()
    _wait_for_dags(addresses["airflow"])
    _check_configuration(up.stdout, source_kind)
    for kind in KINDS:
        capture = f"dblog_shop_{kind}_capture"
        assert f"unpause {capture} and {capture}_standby, then trigger dblog_shop_{kind}_dump" in up.stdout

    down = _make("down")
    assert down.returncode == 0, _output(down)
    assert not (left := _running_in(data)), f"still running: {left}"
    root = data_root.data_root("stack")
    assert str(root) in down.stderr and sorted((root / "config").glob("*.toml"))
    assert _orders_kept(source_kind, root) == shop.ROWS["orders"]


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`make` in the checkout, without a terminal. It takes this Python's environment as it is, for other tests run in
    it too; whatever happens, it ends before this returns."""
    command = ["make", "-o", ".venv/.complete", f"PYTHON={sys.executable}", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    with subprocess.Popen(
        command,
        cwd=data_root.CHECKOUT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=_SECONDS)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            stdout, stderr = process.communicate(timeout=PATIENCE_SECONDS)
            print(stdout, stderr, sep="\n")
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _output(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def _running_in(directory: Path) -> list[psutil.Process]:
    """Processes that work below the directory, or were started with it: some of them overwrite one of the signs."""
    named = str(directory)

    def works_there(process: psutil.Process) -> bool:
        signs = (
            process.info["cwd"] or "",
            *(process.info["cmdline"] or ()),
            (process.info["environ"] or {}).get("DBLOG_DATA_DIR", ""),
        )
        return any(named in sign for sign in signs)

    processes = psutil.process_iter(["cwd", "cmdline", "environ"])
    own_pids = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return [p for p in processes if p.pid not in own_pids and works_there(p) and guard.runs(p)]


# The demo -------------------------------------------------------------------------------------------------------------


def _rows_in_lake(root: Path, kind: str, table: str) -> int:
    """By another reader than Spark."""
    path = root / "lake" / shop.dialect(kind).schema / table
    query = QueryBuilder().register("lake", DeltaTable(str(path))).execute("SELECT count(*) AS n FROM lake")
    return int(pa.table(query.read_all())["n"][0].as_py())


def _check_progress(stdout: str) -> None:
    """Where there is no terminal: stages and what stays, and a short line every ten seconds."""
    lines = re.findall(r"^(\d+):(\d\d)    (.*) …$", stdout, flags=re.MULTILINE)
    assert lines, stdout
    seconds = [60 * int(minutes) + int(rest) for minutes, rest, _ in lines]
    assert all(later - earlier >= 9 for earlier, later in pairwise(seconds)), stdout
    assert all(len(text) <= 110 for *_, text in lines), stdout


# The stack ------------------------------------------------------------------------------------------------------------


def _orders_at(kind: str, address: str) -> int:
    where_to = rf"(.+):(\d+), user (\w+), password (\w+), database {shop.DATABASE}(?:, schema public)?"
    match = re.fullmatch(where_to, address)
    assert match is not None, address
    host, port, user, password = match.groups()
    where: dict[str, Any] = {"host": host, "port": int(port), "user": user, "password": password}
    if kind == "postgres":
        return _count(psycopg2.connect(**where, dbname=shop.DATABASE))
    return _count(pymysql.connect(**where, database=shop.DATABASE))


def _count(connection: Any) -> int:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM orders")
            return int(cursor.fetchone()[0])
    finally:
        connection.close()


def _orders_kept(kind: str, root: Path) -> int:
    """What the database has when it is started again on the data that it left."""
    server = CLASSES[kind](root / kind)
    server.start()
    try:
        return _count(server.connect(shop.DATABASE))
    finally:
        server.kill()


def _wait_for_dags(address: str) -> None:
    match = re.fullmatch(r"(http://\S+), user (\w+), password in (.+)", address)
    assert match is not None, address
    url, user, passwords = match.groups()
    client = AirflowClient(url, user=user, password=json.loads(Path(passwords).read_text())[user])
    expected = {f"dblog_shop_{kind}_{dag}" for kind in KINDS for dag in DAGS}
    wait_until(lambda: set(client.dags()) == expected, what=f"the DAGs {sorted(expected)}")
    assert client.import_errors() == []


def _check_configuration(stdout: str, kind: str) -> None:
    """The command that `make up` proposes for this database finds nothing that prevents a capture."""
    commands = re.findall(r"^  \.venv/bin/dblog (--config \S+ check)$", stdout, flags=re.MULTILINE)
    assert len(commands) == len(KINDS), stdout
    (arguments,) = [command for command in commands if f"shop_{kind}.toml" in command]
    program = Path(sys.executable).with_name("dblog")
    done = subprocess.run([program, *arguments.split()], capture_output=True, text=True, check=False)
    assert done.returncode == 0, _output(done)
