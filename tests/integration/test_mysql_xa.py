"""XA transactions on real servers: rows count from XA COMMIT's place in the log, whatever lies before it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import LogPositionLost, SourceRefused, UnknownLogEvent
from dblog_core.model.events import LogBatch, WatermarkSeen
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog.xa import row_memory
from dblog_core.sources.mysql.row_events import batch as batching
from dblog_core.sources.mysql.source import MysqlSource
from dblog_core.sources.mysql.sql import chunks
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import batches, changes, execute
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


@pytest.fixture(params=["in memory", "read again"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether prepared rows may be kept in memory; without, every XA COMMIT reads them from the server again."""
    if request.param == "read again":
        monkeypatch.setattr(row_memory, "TRANSACTION_BYTES", 0)
    return str(request.param)


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Any:
    return database.config(tmp_path).source


@pytest.fixture
def source(config: Any, database: Database) -> MysqlSource:
    source = MysqlSource(config)
    source.prepare()
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY)")
    return source


class Ids:
    """Transaction ids of one test: the server's are shared by all databases."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def prepare(self, xid: str, *statements: str) -> str:
        """Prepares an XA transaction of these statements in a session that then ends; returns its id for the server."""
        full = self.of(xid)
        execute(self._database, f"XA START {full}", *statements, f"XA END {full}", f"XA PREPARE {full}")
        return full

    def of(self, xid: str) -> str:
        return f"'{self._database.name}','{xid}',7"

    def commit(self, xid: str) -> None:
        finish(self._database, f"XA COMMIT {self.of(xid)}")

    def rollback(self, xid: str) -> None:
        finish(self._database, f"XA ROLLBACK {self.of(xid)}")


def finish(database: Database, statement: str) -> None:
    """Runs the second phase, as soon as the session that has prepared it is gone."""
    deadline = time.monotonic() + 20
    while True:
        try:
            execute(database, statement)
            return
        except Exception as error:
            if error.args[0] == 1402:  # MariaDB's word for an empty one that is rolled back
                return
            if error.args[0] not in (1397, 1399) or time.monotonic() > deadline:
                raise


@pytest.fixture
def ids(database: Database) -> Ids:
    return Ids(database)


def shown(found: list[LogBatch]) -> list[Any]:
    """Op and id of each change, in order."""
    return [(row["op"], (row["after"] or row["before"])["id"]) for row in changes(found)]


def owners(found: list[LogBatch]) -> list[tuple[Any, str]]:
    """Id of each changed row, and the id of its transaction."""
    rows = []
    for batch in found:
        of_batch = [row for change in batch.changes for row in change.batch.to_pylist()]
        of_batch.sort(key=lambda row: row["sequence"])
        rows += [(row["after"]["id"], batch.transactions[row["transaction"]].id) for row in of_batch]
    return rows


def test_rows_stand_where_the_second_phase_commits_them(
    database: Database, source: MysqlSource, ids: Ids, memory: str
) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (2)", "INSERT INTO a VALUES (3, 3)")
    ids.prepare("two", "INSERT INTO a VALUES (4, 4)")
    execute(database, "INSERT INTO a VALUES (5, 5)")
    ids.prepare("three", "INSERT INTO a VALUES (6, 6)")
    before = source.current_position()
    ids.commit("one")
    execute(database, "INSERT INTO a VALUES (7, 7)", "UPDATE a SET v = 0 WHERE id = 1")
    ids.rollback("two")
    ids.commit("three")
    found = list(batches(source, start))
    assert shown(found) == [("c", 5), ("c", 1), ("c", 2), ("c", 3), ("c", 7), ("u", 1), ("c", 6)]
    transactions = dict(owners(found))
    assert transactions[2] == transactions[3] and len(set(transactions.values())) == 5
    assert "prepared" not in json.loads(found[-1].position)
    first = next(t for batch in found for t in batch.transactions if t.id == transactions[2])
    place = json.loads(before)
    assert first.position == f"{place['file']}:{place['offset']}" or database.kind == "mariadb"
    assert abs(first.commit_time / 1e6 - time.time()) < 600


def test_an_outstanding_transaction_lives_in_the_position(database: Database, source: MysqlSource, ids: Ids) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    ids.prepare("two", "INSERT INTO a VALUES (2, 2)")
    found = list(batches(source, start))
    assert shown(found) == []
    execute(database, "FLUSH BINARY LOGS", "INSERT INTO a VALUES (3, 3)")
    ids.commit("two")
    more = list(batches(source, found[-1].position))
    assert shown(more) == [("c", 3), ("c", 2)]
    ids.commit("one")
    ids.prepare("one", "INSERT INTO a VALUES (4, 4)")  # the same id again
    ids.commit("one")
    last = list(batches(source, more[-1].position))
    assert shown(last) == [("c", 1), ("c", 4)]
    assert shown(list(batches(source, start))) == [("c", 3), ("c", 2), ("c", 1), ("c", 4)]


def test_one_phase_counts_at_once(database: Database, source: MysqlSource, memory: str) -> None:
    start = source.current_position()
    execute(database, "XA START 'x'", "INSERT INTO a VALUES (1, 1)", "XA END 'x'", "XA COMMIT 'x' ONE PHASE")
    execute(database, "INSERT INTO a VALUES (2, 2)")
    assert shown(list(batches(source, start))) == [("c", 1), ("c", 2)]


@pytest.mark.parametrize("xid", ["X'00ff27','b',LARGEST", "'it''s','',0", "X'0a',X'5c25'", "'x'"])
def test_ids_of_every_form(database: Database, source: MysqlSource, xid: str) -> None:
    xid = xid.replace("LARGEST", "4294967295" if database.kind == "mysql" else "2147483647")
    start = source.current_position()
    execute(database, f"XA START {xid}", "INSERT INTO a VALUES (1, 1)", f"XA END {xid}", f"XA PREPARE {xid}")
    finish(database, f"XA COMMIT {xid}")
    assert shown(list(batches(source, start))) == [("c", 1)]


def test_resuming_inside_the_rows_neither_loses_nor_repeats(
    database: Database, source: MysqlSource, ids: Ids, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    monkeypatch.setattr(batching, "EVENTS", 2)  # a batch ends after so many
    start = source.current_position()
    many = [
        "INSERT INTO a VALUES " + ", ".join(f"({i}, 1)" for i in range(low, low + 50)) for low in range(0, 1000, 50)
    ]
    ids.prepare("one", *many, "UPDATE a SET v = 2 WHERE id < 300")
    execute(database, "INSERT INTO a VALUES (5000, 1)")
    ids.commit("one")
    execute(database, "INSERT INTO a VALUES (5001, 1)")
    one_phase = ids.of("two")
    execute(
        database,
        f"XA START {one_phase}",
        "UPDATE a SET v = 3",
        f"XA END {one_phase}",
        f"XA COMMIT {one_phase} ONE PHASE",
    )
    target = source.current_position()
    whole = list(batches(source, start, upto=target))
    rows = shown(whole)
    assert len(rows) == 2304 and sum(1 for batch in whole if batch.partial) > 10
    seen = 0
    for batch in whole[:-1]:
        seen += sum(change.batch.num_rows for change in batch.changes)
        again = shown(list(batches(source, batch.position, skip=batch.partial, upto=target)))
        assert again == rows[seen:]


def test_rows_without_gtids_are_found_by_their_place(
    database: Database, source: MysqlSource, ids: Ids, memory: str
) -> None:
    if database.kind == "mariadb":  # it always has GTIDs
        return
    position = json.loads(source.current_position())
    position.update(gtids=None, server=database.query("SELECT @@server_uuid")[0][0])
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    execute(database, "INSERT INTO a VALUES (2, 2)", "FLUSH BINARY LOGS")
    ids.commit("one")
    execute(database, "SET SESSION binlog_transaction_compression = ON", "INSERT INTO a VALUES (3, 3)")
    assert shown(list(batches(source, json.dumps(position)))) == [("c", 2), ("c", 1), ("c", 3)]


def misplaced(position: str) -> str:
    """The position as of a server whose files have other names and lengths."""
    data = json.loads(position)
    data["prepared"] = [[xid, "other.000077", 4, *gtids] for xid, _, _, *gtids in data["prepared"]]
    return json.dumps(data)


def test_with_gtids_rows_are_found_on_another_server_too(database: Database, source: MysqlSource, ids: Ids) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    execute(database, "INSERT INTO a VALUES (2, 2)")
    position = list(batches(source, start))[-1].position
    execute(database, "INSERT INTO a VALUES (3, 3)")
    ids.commit("one")
    assert shown(list(batches(source, misplaced(position)))) == [("c", 3), ("c", 1)]


def test_without_gtids_another_transaction_at_the_place_is_an_error(
    database: Database, source: MysqlSource, ids: Ids
) -> None:
    if database.kind == "mariadb":
        return
    position = json.loads(source.current_position())
    position.update(gtids=None, server=database.query("SELECT @@server_uuid")[0][0])
    execute(database, "INSERT INTO a VALUES (2, 2)")
    wrong = position["file"], position["offset"]
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    position = json.loads(list(batches(source, json.dumps(position)))[-1].position)
    position["prepared"][0][1:3] = wrong
    ids.commit("one")
    with pytest.raises(LogPositionLost, match="at that place"):
        list(batches(source, json.dumps(position)))


def test_compressed_rows(database: Database, source: MysqlSource, memory: str) -> None:
    start = source.current_position()
    setting = "SESSION binlog_transaction_compression = ON"
    if database.kind == "mariadb":
        setting = "GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10"
    values = ", ".join(f"({i}, 0)" for i in range(200))
    try:
        for xid, end in (("x", "XA PREPARE 'x'"), ("y", "XA COMMIT 'y' ONE PHASE")):
            low = 1000 if xid == "y" else 0
            execute(
                database,
                f"SET {setting}", f"XA START '{xid}'", f"INSERT INTO a VALUES {values}" if not low
                else "INSERT INTO a VALUES (1000, 1)", f"XA END '{xid}'", end,
            )  # fmt: skip
        finish(database, "XA COMMIT 'x'")
    finally:
        if database.kind == "mariadb":
            execute(database, "SET GLOBAL log_bin_compress = OFF")
    assert shown(list(batches(source, start))) == [("c", 1000), *(("c", i) for i in range(200))]


def test_rows_of_other_tables_do_not_count(database: Database, config: Any, source: MysqlSource, ids: Ids) -> None:
    mine = MysqlSource(config.model_copy(update={"tables": (f"{database.schema}.b",)}))
    start = mine.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    ids.prepare("two")
    ids.prepare("three", "INSERT INTO a VALUES (2, 1)", "INSERT INTO b VALUES (1)")
    for xid in ("one", "three"):
        ids.commit(xid)
    ids.rollback("two")
    found = list(batches(mine, start))
    assert shown(found) == [("c", 1)] and "prepared" not in json.loads(found[-1].position)


def test_rows_that_are_purged_are_lost_by_name(database: Database, source: MysqlSource, ids: Ids) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    position = list(batches(source, start))[-1].position
    file = json.loads(position)["file"]
    execute(database, "FLUSH BINARY LOGS", "INSERT INTO a VALUES (2, 2)")
    position = list(batches(source, position))[-1].position
    deadline = time.monotonic() + 30
    while database.query("SHOW BINARY LOGS")[0][0] == file or any(f == file for f, *_ in logs(database)):
        assert time.monotonic() < deadline
        execute(database, f"PURGE BINARY LOGS TO '{logs(database)[-1][0]}'", "FLUSH BINARY LOGS")
    ids.commit("one")
    with pytest.raises(LogPositionLost) as raised:
        list(batches(source, position))
    assert database.name.encode().hex() in str(raised.value) and file in str(raised.value)
    assert "--fresh-start" in raised.value.fix


def logs(database: Database) -> list[Any]:
    return database.query("SHOW BINARY LOGS")


def test_rows_that_a_first_start_did_not_find_stop_the_capture(
    database: Database, source: MysqlSource, ids: Ids
) -> None:
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    ids.prepare("two", "INSERT INTO a VALUES (2, 1)")
    start = source.current_position()
    ids.rollback("two")
    ids.commit("one")
    with pytest.raises(UnknownLogEvent, match="before this capture") as raised:
        list(batches(source, start))
    assert f"X'{database.name.encode().hex()}'" in str(raised.value) and "--fresh-start" in raised.value.fix


def test_a_restart_of_the_server_between_the_phases(
    database: Database, source: MysqlSource, ids: Ids, memory: str
) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO b VALUES (1)", "INSERT INTO a VALUES (1, 1)")
    database.server.stop()
    database.server.start()
    execute(database, "INSERT INTO a VALUES (2, 2)")
    ids.commit("one")
    assert shown(list(batches(source, start))) == [("c", 2), ("c", 1), ("c", 1)]


def test_rows_prepared_before_the_first_start_are_found(
    database: Database, source: MysqlSource, ids: Ids, config: Any
) -> None:
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    execute(database, "FLUSH BINARY LOGS")
    ids.prepare("two", "INSERT INTO a VALUES (2, 1)")
    ids.prepare("three", "INSERT INTO a VALUES (3, 1)")
    ids.prepare("four", "INSERT INTO a VALUES (4, 1)")
    ids.commit("three")
    capture = MysqlSource(config)
    start = capture.start_position()
    places = {entry[0]: entry[1:] for entry in json.loads(start)["prepared"]}
    assert len(places) == 3 and len({place[0] for place in places.values()}) == 2
    assert any("3 XA transactions are prepared" in problem.what for problem in capture.check())
    ids.rollback("four")
    ids.commit("one")
    ids.commit("two")
    assert shown(list(batches(capture, start))) == [("c", 1), ("c", 2)]
    assert capture.check() == [] and "prepared" not in json.loads(capture.start_position())


def test_a_missing_grant_is_a_warning_and_stops_nothing_without_xa(
    database: Database, source: MysqlSource, ids: Ids
) -> None:
    grant = "XA_RECOVER_ADMIN" if database.kind == "mysql" else "PROCESS"
    execute(database, f"REVOKE {grant} ON *.* FROM '{database.account.user}'@'127.0.0.1'")
    (problem,) = source.check()
    assert grant in problem.what and f"GRANT {grant} ON *.*" in problem.fix and not problem.fatal
    reader = source.open_reader()
    schema = reader.schema(TableName(database.schema, "a"))
    assert reader.last_key(schema) is None
    ids.prepare("one", "INSERT INTO b VALUES (1)")
    source.start_position()
    if database.kind == "mariadb":
        with pytest.raises(SourceRefused, match="PROCESS"):
            reader.read(schema, after=None, upto=None, limit=9)
    else:
        reader.read(schema, after=None, upto=None, limit=9)
    reader.close()
    ids.rollback("one")


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


def unseen(database: Database, source: MysqlSource, ids: Ids, chunk_count: int) -> int:
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
    assert unseen(database, source, ids, 400) == 0


def test_mariadb_commits_xa_transactions_out_of_order(
    database: Database, source: MysqlSource, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why `await_xa_commits` is there: without it, chunks miss rows. MySQL needs none, as the test above shows."""
    monkeypatch.setattr(chunks, "await_xa_commits", lambda *_: None)
    deadline = time.monotonic() + 60
    missed = 0
    while not missed and database.kind == "mariadb":
        assert time.monotonic() < deadline, "nothing is missed without waiting: it protects from nothing"
        missed = unseen(database, source, ids, 400)
        database.execute("DELETE FROM a")


def lines_of(config: Config) -> list[tuple[str, str, int, int | None]]:
    """Op, origin, id and value of every row of the super-changelog, in order."""
    found = []
    for line in lines(wiring.open_staging(config)):
        if line["op"] in "cudr":
            after = line["after"] or {}
            found.append((line["op"], line["origin"], line["key"]["id"], after.get("v")))
    return found


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


def until_there(there: Callable[[], bool], faults: list[BaseException]) -> None:
    deadline = time.monotonic() + 30
    pause = threading.Event()
    while not there():
        assert not faults and time.monotonic() < deadline, faults
        pause.wait(0.05)
