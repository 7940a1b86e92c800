"""MySQL without `binlog_order_commits`: everything refuses it, and what would come of it if nothing did."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.sources.mysql.sql import chunks
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.cli_world import Commands, write
from tests.nemesis.oracles import binlog_images
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(6)]

ROWS = 400
WRITERS = 12
DUMPS = 5
WINDOWS = 50  # so many tell something


@pytest.fixture
def order_commits(database: Database) -> Iterator[Callable[[str], None]]:
    """Sets `binlog_order_commits`, and in the end back."""

    def switch(value: str) -> None:
        database.execute(f"SET GLOBAL binlog_order_commits = {value}")

    yield switch
    switch("ON")


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    database.execute(
        "CREATE TABLE hot (id int PRIMARY KEY, op bigint NOT NULL)",
        "INSERT INTO hot VALUES " + ", ".join(f"({n}, 0)" for n in range(ROWS)),
    )
    return database.config(tmp_path, dump={"chunk_size": 10})


@pytest.fixture
def dblog(config: Config, tmp_path: Path) -> Iterator[Commands]:
    write(config, tmp_path / "source.toml")
    commands = Commands(tmp_path / "source.toml", config.source.password.get_secret_value())
    yield commands
    commands.kill()


@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_it_is_refused_by_check_and_capture_and_by_a_dump_that_runs_while_it_is_switched(
    database: Database, dblog: Commands, order_commits: Callable[[str], None]
) -> None:
    order_commits("OFF")
    for command in (["check"], ["capture", "--until-current"]):
        refused = dblog(*command)
        output = refused.stdout + refused.stderr
        assert refused.returncode == 1 and "binlog_order_commits" in output and "fix: " in output, output
    order_commits("ON")
    capture = dblog.start("capture")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    name = f"{database.schema}.hot"
    slow = dblog.start("dump", "--table", name, "--chunk-size", "10", "--delay", "0.3", "--wait", "--json")
    placed = dblog.until(lambda status: status["dumps"] and status["dumps"][0]["chunks"])["dumps"][0]["chunks"]
    order_commits("OFF")
    failed = dblog.end(slow)
    assert failed.returncode == 1
    assert "binlog_order_commits is OFF" in failed.stdout + failed.stderr, failed
    dump = dblog.json("dumps")[0]
    assert dump["state"] == "running", "no task goes on, and none has failed"
    assert placed <= dump["chunks"] < ROWS / 10
    order_commits("ON")
    assert dblog("work", "--once").returncode == 0
    dblog.until(lambda status: status["dumps"][0]["state"] == "done")
    assert dblog.json("dumps")[0]["rows"] == ROWS, "the fix is made, and the dump goes on"
    capture.terminate()
    assert dblog.end(capture).returncode == 0


class Writers:
    """Many sessions that write single rows as fast as they can; each owns its keys, and counts its operations.

    Processes of their own: the test that measures must not share an interpreter with them.
    """

    def __init__(self, database: Database) -> None:
        fork = multiprocessing.get_context("fork")
        self._stop = fork.Event()
        self._processes = [fork.Process(target=_write, args=(database, n, self._stop)) for n in range(WRITERS)]

    def __enter__(self) -> Writers:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for process in self._processes:
            process.join(timeout=PATIENCE_SECONDS)
            assert process.exitcode == 0


def _write(database: Database, number: int, stop: Any) -> None:
    operation = 0
    with database.connect() as connection, connection.cursor() as cursor:
        while not stop.is_set():
            operation += 1
            key = (operation * WRITERS + number) % ROWS // WRITERS * WRITERS + number
            cursor.execute("UPDATE hot SET op = %s WHERE id = %s", (operation, key))


def dumped_under_load(database: Database, config: Config) -> None:
    """Dumps the table again and again while it is written."""
    stop = threading.Event()
    faults = []

    def capture() -> None:
        try:
            run_capture(config, stop=stop)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            faults.append(error)

    thread = threading.Thread(target=capture)
    with Writers(database):
        thread.start()
        try:
            wait_until(lambda: wiring.open_staging(config).head() is not None or faults, "the capture has begun")
            for _ in range(DUMPS):
                dump_id = filing.submit(config, DumpRequest(tables=(f"{database.schema}.hot",)))
                work_loop.work(config, stop=stop, dump_id=dump_id)
                work_loop.wait(config, dump_id, stop=stop)
                assert not faults, faults
        finally:
            stop.set()
            thread.join(timeout=PATIENCE_SECONDS)
    assert not faults, faults


def stale(config: Config) -> list[dict[str, Any]]:
    """Rows of dumps that are older than what the log said of their key before."""
    newest: dict[int, int] = {}
    stale_lines = []
    for line in lines(wiring.open_staging(config)):
        if line["op"] in "cur":
            key = line["key"]["id"]
            operation = line["after"]["op"]
            if operation < newest.get(key, 0):
                stale_lines.append(line)
            newest[key] = operation
    return stale_lines


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_no_row_goes_back_where_commits_become_visible_in_the_logs_order(database: Database, config: Config) -> None:
    dumped_under_load(database, config)
    assert stale(config) == []


def windows(database: Database, config: Config, seconds: float) -> list[dict[int, int]]:
    """What SELECTs see right after their low watermarks, under load; watermark N says `N`. At least `WINDOWS`."""
    source = wiring.open_source(config.source)
    seen = []
    source.prepare()
    schema = next(s for s in source.tables() if s.table.name == "hot")
    with Writers(database), closing(source.open_watermarks("w")) as watermarks, closing(source.open_reader()) as reader:
        end = time.monotonic() + seconds
        while time.monotonic() < end or len(seen) < WINDOWS:
            watermarks.write(str(len(seen)))
            rows = reader.read(schema, after=None, upto=None, limit=ROWS + WRITERS).rows
            seen.append(dict(zip(rows.column("id").to_pylist(), rows.column("op").to_pylist(), strict=True)))
    return seen


def rows_at_watermarks(database: Database, start: tuple[str, int]) -> list[dict[int, int]]:
    """What the log says of every key up to each watermark, by the server's own tool."""
    rows: dict[int, int] = {}
    snapshots: list[dict[int, int]] = []
    for table, image in binlog_images(database, start):
        if table == "hot":
            rows[int(image[1])] = int(image[2])
        elif table == "dblog_watermark":
            snapshots.append(dict(rows))
    return snapshots


def behind(database: Database, config: Config, seconds: float = 8) -> tuple[int, int]:
    """Windows with a row that is older than the log before its low watermark, of how many."""
    assert isinstance(database.server, MysqlServer)
    file, position = database.query(database.server.status_statement)[0][:2]
    seen = windows(database, config, seconds)
    pairs = zip(seen, rows_at_watermarks(database, (file, int(position))), strict=True)
    stale = [1 for rows, log in pairs if any(rows[key] < operation for key, operation in log.items())]
    print(f"{database.kind}: {len(stale)} of {len(seen)} windows hold a stale row")
    return len(stale), len(seen)


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_a_select_after_its_low_watermark_sees_all_that_was_logged_before(database: Database, config: Config) -> None:
    stale, count = behind(database, config)
    assert stale == 0 and count >= WINDOWS


@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_without_the_setting_it_does_not(
    database: Database, config: Config, order_commits: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why it is refused: the log's rows before a low watermark are not all seen by the SELECT after it."""
    monkeypatch.setattr(chunks, "refuse_any_order", lambda *_: None)
    order_commits("OFF")
    assert behind(database, config)[0] > 0, "the guards that refuse this protect from nothing"
