"""Chunks and dumps beside XA transactions: a chunk sees what is committed before its low watermark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.model.events import WatermarkSeen
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.source import MysqlSource
from dblog_core.sources.mysql.sql import chunks
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import batches
from tests.integration.mysql_xa.transactions import Ids
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


class Committers:
    """Sessions that prepare and commit XA transactions as fast as they can, each of one new row."""

    def __init__(self, database: Database, ids: Ids, sessions: int) -> None:
        self._database = database
        self._ids = ids
        self._sessions = sessions
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(sessions)]

    def __enter__(self) -> Committers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        with self._database.connect() as connection, connection.cursor() as cursor:
            while not self._stop.is_set():
                number += self._sessions
                xid = self._ids.of(str(number))
                for statement in (
                    f"XA START {xid}", f"INSERT INTO a VALUES ({number}, 0)", f"XA END {xid}",
                    f"XA PREPARE {xid}", f"XA COMMIT {xid}",
                ):  # fmt: skip
                    cursor.execute(statement)


def count_missed_rows(database: Database, source: MysqlSource, ids: Ids, chunk_count: int) -> int:
    """Rows of XA COMMITs logged before a low watermark that the SELECT after it has missed, over many chunks."""
    start = source.current_position()
    writer = source.open_watermarks("w")
    reader = source.open_reader()
    schema = reader.schema(TableName(database.schema, "a"))
    selected: dict[str, set[int]] = {}
    with Committers(database, ids, sessions=4):
        for number in range(chunk_count):
            writer.write(str(number))
            rows = reader.read(schema, after=None, upto=None, limit=1_000_000).rows
            selected[str(number)] = set(rows.column("id").to_pylist())
    writer.close()
    reader.close()
    logged: set[int] = set()
    missed = 0
    for batch in batches(source, start):
        order = [(s.sequence, s.payload) for s in batch.signals if isinstance(s, WatermarkSeen)]
        order += [(r["sequence"], r["after"]["id"]) for c in batch.changes for r in c.batch.to_pylist()]
        for _, what in sorted(order, key=lambda entry: entry[0]):
            if isinstance(what, str):
                missed += len(logged - selected[what])
            else:
                logged.add(what)
    assert len(logged) > chunk_count / 10
    return missed


def test_a_chunk_sees_every_xa_commit_that_is_logged_before_its_low_watermark(
    database: Database, source: MysqlSource, ids: Ids
) -> None:
    assert count_missed_rows(database, source, ids, 400) == 0


def test_mariadb_commits_xa_transactions_out_of_order(
    database: Database, source: MysqlSource, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why `await_xa_commits` is there: without it, chunks miss rows. MySQL needs none, as the test above shows, and on
    MariaDB 11.8 none was seen to miss any."""
    monkeypatch.setattr(chunks, "await_xa_commits", lambda *_: None)
    deadline = time.monotonic() + PATIENCE_SECONDS
    missed = 0
    while not missed and type(database.server) is MariadbServer:
        assert time.monotonic() < deadline, "nothing is missed without waiting: it protects from nothing"
        missed = count_missed_rows(database, source, ids, 400)
        database.execute("DELETE FROM a")


def lines_of(config: Config) -> list[tuple[str, str, int, int | None]]:
    """Op, origin, id and value of every row of the super-changelog, in order."""
    changes = []
    for line in lines(wiring.open_staging(config)):
        if line["op"] in "cudr":
            after = line["after"] or {}
            changes.append((line["op"], line["origin"], line["key"]["id"], after.get("v")))
    return changes


@pytest.mark.parametrize("first", [False, True], ids=["while it runs", "before it first starts"])
def test_a_dump_between_the_phases(database: Database, tmp_path: Path, first: bool, ids: Ids) -> None:
    """Prepared before the low watermark and committed after the high one: first the old row, at last the new one."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 1), (2, 1), (3, 1)")
    config = database.config(tmp_path, dump={"chunk_size": 2})
    if not first:
        run_capture(config, stop=threading.Event(), until_current=True)
    ids.prepare("one", "UPDATE a SET v = 2 WHERE id = 1", "DELETE FROM a WHERE id = 2", "INSERT INTO a VALUES (4, 2)")
    ids.prepare("two", "UPDATE a SET v = 9 WHERE id = 3")
    stop = threading.Event()
    faults = []

    def capture() -> None:
        try:
            run_capture(config, stop=stop)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            faults.append(error)

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        if first:
            until_there(lambda: wiring.open_staging(config).head() is not None, faults)
        dump_id = filing.submit(config, DumpRequest(tables=(f"{database.schema}.a",)))
        work_loop.work(config, stop=stop, dump_id=dump_id)
        work_loop.wait(config, dump_id, stop=stop)
        dumped = [(op, key, value) for op, origin, key, value in lines_of(config) if origin == "dump"]
        assert sorted(dumped) == [("r", 1, 1), ("r", 2, 1), ("r", 3, 1)] and not faults, faults
        ids.commit("one")
        ids.rollback("two")
        until_there(lambda: len([line for line in lines_of(config) if line[1] != "dump"]) >= 3, faults)
    finally:
        stop.set()
        thread.join(timeout=PATIENCE_SECONDS)
    assert not faults
    logged = [(op, key, value) for op, origin, key, value in lines_of(config) if origin != "dump"]
    assert logged == [("u", 1, 2), ("d", 2, None), ("c", 4, 2)]


def until_there(is_there: Callable[[], bool], faults: list[BaseException]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not is_there():
        assert not faults and time.monotonic() < deadline, faults
        pause.wait(0.05)
