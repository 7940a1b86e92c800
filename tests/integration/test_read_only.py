"""Sources that are never written: dumps and verifications by users that may read the log, SELECT, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import ServerNotSafe
from dblog_core.model.schema import TableName
from dblog_core.sources.postgres.position import Lsn
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.read_only import forget, reader_of
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.in_turn]

ROWS = 1000
CHUNK = 10
SECONDS = 30.0  # for a hundred chunks of an idle server: an event a chunk that somebody waited for would take minutes


@pytest.fixture
def reader(database: Database) -> Iterator[Database]:
    """`database` as a user that may only read; with a table of ROWS rows."""
    values = ", ".join(f"({n}, {n % 7})" for n in range(ROWS))
    database.execute(
        "CREATE TABLE quiet (id int PRIMARY KEY, v int NOT NULL)",
        f"INSERT INTO quiet VALUES {values}",
        "CREATE TABLE other (id int PRIMARY KEY, v int NOT NULL)",
        "INSERT INTO other VALUES (1, 0)",
    )
    reader_database = reader_of(database)
    yield reader_database
    forget(reader_database)


@pytest.fixture
def config(reader: Database, tmp_path: Path) -> Config:
    return config_of(reader, tmp_path)


def config_of(reader: Database, path: Path, **source: Any) -> Config:
    own_settings = {
        "name": reader.name,
        "kind": reader.kind,
        "host": reader.server.host,
        "port": reader.server.port,
        "user": reader.account.user,
        "password": reader.account.password,
        "database": reader.name,
        "tables": [f"{reader.schema}.quiet"],
        "read_only": True,
    }
    return reader.config(path, source={**own_settings, **source}, dump={"chunk_size": CHUNK})


@contextmanager
def capturing(config: Config) -> Iterator[None]:
    stop = threading.Event()
    faults = list[BaseException]()

    def capture() -> None:
        try:
            run_capture(config, stop=stop)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            faults.append(error)

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        wait_until(lambda: wiring.open_staging(config).head() is not None or faults, "the capture has begun")
        assert not faults, faults
        yield
    finally:
        stop.set()
        thread.join(timeout=PATIENCE_SECONDS)
    assert not faults, faults


def run_dump(config: Config, **options: Any) -> DumpStatus:
    dump_id = filing.submit(config, DumpRequest(**options))
    stop = threading.Event()
    work_loop.work(config, stop=stop, dump_id=dump_id)
    with closing(wiring.open_state(config)) as state:
        wait_until(lambda: dump_store.read_dump(state, dump_id).state == "done", "the dump is done")
        return dump_store.read_dump(state, dump_id)


def rows_of(config: Config, table: str) -> dict[Any, Any]:
    rows: dict[Any, Any] = {}
    for line in lines(wiring.open_staging(config)):
        if line["table"] == table and line["op"] in "cur":
            rows[line["key"]["id"]] = line["after"]
        elif line["table"] == table and line["op"] == "d":
            rows.pop(line["key"]["id"], None)
    return rows


def test_an_idle_server_is_dumped_in_a_hundred_chunks_without_waiting_for_an_event(
    reader: Database, config: Config
) -> None:
    source = wiring.open_source(config.source)
    assert [problem for problem in source.check() if problem.fatal] == []
    if reader.kind != "postgres":
        reader.execute("FLUSH BINARY LOGS")  # the log's end has no transaction before it in its file
    with capturing(config):
        began = time.monotonic()
        status = run_dump(config, tables=(f"{reader.schema}.quiet",))
        took = time.monotonic() - began
    assert status.chunks >= ROWS / CHUNK and took < SECONDS, (status.chunks, took)
    assert len(rows_of(config, f"{reader.schema}.quiet")) == ROWS
    with closing(wiring.open_state(config)) as state:
        assert state.children("windows") == [], "what is published leaves no window behind"


def test_check_names_what_a_reader_lacks_and_wants_no_right_to_write(reader: Database, config: Config) -> None:
    source = wiring.open_source(config.source)
    assert [problem for problem in source.check() if problem.fatal] == []
    user = reader.account.user
    if reader.kind == "postgres":
        reader.execute(f'REVOKE SELECT ON quiet FROM "{user}"', f"DROP PUBLICATION dblog_{reader.name}")
        expected_problems = ["may not read public.quiet", "read_only is set"]
    else:
        who = f"'{user}'@'{reader.server.host}'"
        reader.execute(f"REVOKE REPLICATION SLAVE ON *.* FROM {who}")
        expected_problems = ["the log cannot be read"]
    problems = [problem for problem in wiring.open_source(config.source).check() if problem.fatal]
    assert all(any(words in problem.what for problem in problems) for words in expected_problems), problems
    assert all(problem.fix for problem in problems) and not any("watermark" in p.what + p.fix for p in problems), (
        problems
    )


@pytest.fixture
def quiet_server(reader: Database) -> Iterator[None]:
    """No transaction but the test's: PostgreSQL's autovacuum, which analyses the new table, takes a number of its own
    whenever its nap ends."""
    if reader.kind != "postgres":
        yield
        return
    reader.execute("ALTER SYSTEM SET autovacuum = off", "SELECT pg_reload_conf()")
    at_work = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'"
    wait_until(lambda: reader.query(at_work) == [(0,)], "autovacuum has ended")
    yield
    reader.execute("ALTER SYSTEM RESET autovacuum", "SELECT pg_reload_conf()")


def test_nothing_is_written_by_capture_dump_or_verification(
    reader: Database, config: Config, quiet_server: None
) -> None:
    """Beside what grants refuse: no statement is even sent that the server would have to refuse."""
    before = reader.query(WRITTEN[reader.kind])
    with capturing(config):
        status = run_dump(config, tables=(f"{reader.schema}.quiet",), keys=(1, ROWS + 5))
    assert status.rows == 2, "one key is there, and of the other it is told that it is not"
    assert (WATERMARKS,) not in reader.query(TABLES[reader.kind].format(name=reader.name))
    assert reader.query(WRITTEN[reader.kind]) == before, "the log has not grown by a transaction"
    assert [line["op"] for line in lines(wiring.open_staging(config)) if line["origin"] == "dump"] == ["r", "d"]


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_worker_beside_a_capture_that_may_write_is_told_so(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE quiet (id int PRIMARY KEY, v int NOT NULL)", "INSERT INTO quiet VALUES (1, 1)")
    config = config_of(database, tmp_path, read_only=False)
    mistaken = config_of(database, tmp_path)
    with capturing(config):
        dump_id = filing.submit(mistaken, DumpRequest(tables=(f"{database.schema}.quiet",)))
        with pytest.raises(ServerNotSafe, match="started without") as error_info:
            work_loop.work(mistaken, stop=threading.Event(), dump_id=dump_id)
        assert "the same read_only" in error_info.value.fix and "capture " in error_info.value.where
        work_loop.work(config, stop=threading.Event(), dump_id=dump_id)
        assert len(rows_of(config, f"{database.schema}.quiet")) == 1


WATERMARKS = "dblog_watermark"
TABLES = {
    "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = '{name}'",
    "mariadb": "SELECT table_name FROM information_schema.tables WHERE table_schema = '{name}'",
    "postgres": "SELECT relname::text FROM pg_class",
}
WRITTEN = {
    "mysql": "SELECT @@GLOBAL.gtid_executed",
    "mariadb": "SELECT @@GLOBAL.gtid_binlog_pos",
    "postgres": "SELECT pg_snapshot_xmax(pg_current_snapshot())",
}
"""What grows with every transaction that writes."""


def test_a_restarted_capture_voids_the_windows_of_the_one_before_and_the_dump_goes_on(
    reader: Database, config: Config
) -> None:
    """The worker is never told more than that its attempt is over."""
    dump_id = filing.submit(config, DumpRequest(tables=(f"{reader.schema}.quiet",), delay=0.02))
    stop = threading.Event()
    worker = threading.Thread(target=work_loop.work, args=(config,), kwargs={"stop": stop, "dump_id": dump_id})
    worker.start()
    try:
        with closing(wiring.open_state(config)) as state:
            for placed in (5, 30, 60):
                with capturing(config):
                    wait_until(lambda n=placed: dump_store.read_dump(state, dump_id).chunks >= n, f"{placed} chunks")
            with capturing(config):
                wait_until(lambda: dump_store.read_dump(state, dump_id).state == "done", "the dump is done")
                reader.execute("UPDATE quiet SET v = 100 WHERE id = 3")
                wait_until(lambda: rows_of(config, f"{reader.schema}.quiet")[3]["v"] == 100, "the log goes on after it")
    finally:
        stop.set()
        worker.join(timeout=PATIENCE_SECONDS)
    rows = rows_of(config, f"{reader.schema}.quiet")
    assert len(rows) == ROWS and all(row["v"] == (100 if key == 3 else key % 7) for key, row in rows.items())


def test_events_of_a_table_that_is_not_captured_move_a_window(reader: Database, config: Config) -> None:
    """Each chunk's end lies behind changes of the other table, and no event of its own comes."""
    stop = threading.Event()

    def write() -> None:
        with closing(reader.connect()) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("UPDATE other SET v = v + 1 WHERE id = 1")

    writer = threading.Thread(target=write)
    with capturing(config):
        writer.start()
        try:
            began = time.monotonic()
            status = run_dump(config, tables=(f"{reader.schema}.quiet",), chunk_size=50)
            took = time.monotonic() - began
        finally:
            stop.set()
            writer.join(timeout=PATIENCE_SECONDS)
    assert status.chunks >= ROWS / 50 and took < SECONDS, (status.chunks, took)
    assert len(rows_of(config, f"{reader.schema}.quiet")) == ROWS


@pytest.fixture
def hiding(reader: Database) -> Iterator[None]:
    """A replica that is waited for and never comes: a commit is logged, and becomes visible after some seconds."""
    off, on = HIDING[reader.kind]
    if reader.kind == "mysql":
        reader.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
    reader.execute(*on)
    yield
    reader.execute(off)
    if reader.kind == "mysql":
        reader.execute("UNINSTALL PLUGIN rpl_semi_sync_source")


HIDDEN = 6000  # milliseconds that a commit stays hidden
HIDING = {
    kind: (
        f"SET GLOBAL rpl_semi_sync_{name}_enabled = OFF",
        (
            f"SET GLOBAL rpl_semi_sync_{name}_timeout = {HIDDEN}",
            f"SET GLOBAL rpl_semi_sync_{name}_wait_point = AFTER_SYNC",
            f"SET GLOBAL rpl_semi_sync_{name}_enabled = ON",
        ),
    )
    for kind, name in (("mysql", "source"), ("mariadb", "master"))
}


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_a_select_waits_for_commits_that_are_logged_and_hidden(reader: Database, config: Config, hiding: None) -> None:
    """The capture has read the change long before any SELECT shows it; the window opens behind it."""
    table = f"{reader.schema}.quiet"
    seen = "SELECT v FROM quiet WHERE id = 3"
    with capturing(config):
        run_dump(config, tables=(table,), keys=(4,))  # all is warm by now
        writer = threading.Thread(target=reader.execute, args=("UPDATE quiet SET v = 500 WHERE id = 3",))
        writer.start()
        wait_until(lambda: rows_of(config, table).get(3, {}).get("v") == 500, "the change is staged")
        assert reader.query(seen) == [(3,)], "the change is hidden"
        assert run_dump(config, tables=(table,), keys=(3,)).rows == 1
        writer.join(timeout=PATIENCE_SECONDS)
    assert reader.query(seen) == [(500,)]
    assert rows_of(config, table)[3]["v"] == 500, "no dump has brought the old value back"


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_the_logs_end_lies_behind_a_commit_that_did_not_wait_for_its_flush(reader: Database, config: Config) -> None:
    with (
        closing(wiring.open_source(config.source).open_reader()) as chunks,
        closing(reader.connect()) as connection,
        connection.cursor() as cursor,
    ):
        schema = chunks.schema(TableName("public", "quiet"))
        cursor.execute("SET synchronous_commit = off")
        for number in range(20):
            cursor.execute("UPDATE quiet SET v = %s WHERE id = 3", (1000 + number,))
            cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
            logged = Lsn.parse(cursor.fetchone()[0]).end_of_record()
            chunk = chunks.read_keys(schema, [(3,)])
            assert chunk.rows.column("v").to_pylist() == [1000 + number]
            assert Lsn.parse(chunks.log_end()) >= logged


def test_an_insert_position_behind_a_pages_header_is_the_end_of_the_page_before() -> None:
    page = Lsn(7 * 8192)
    assert [Lsn(page + n).end_of_record() for n in (0, 24, 40)] == [page] * 3
    assert [Lsn(page + n).end_of_record() - page for n in (8, 48, 8184)] == [8, 48, 8184]
