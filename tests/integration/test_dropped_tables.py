"""Tables that go while they are to be captured or dumped, and tables whose first rows are nowhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.healing import broken_tables
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import control, dump_records, dump_store, filing, work_loop
from dblog_core.dumps.requests import WHOLE, DumpRequest
from dblog_core.errors import RequestError
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.monitoring import gone_tables, preflight
from dblog_core.sources.postgres.sql import publication, replica_identity
from dblog_core.sources.postgres.sql.connection import session
from dblog_core.state import owed_dumps, recent_errors, stopped_tables
from tests.fix_servers import Database
from tests.integration.test_read_only import capturing
from tests.integration.test_reload import Watched
from tests.integration.test_swapped_tables import copies
from tests.waiting import wait_until

MANY = 25


@pytest.mark.in_turn
@pytest.mark.usefixtures("system_dumps_in_this_process")  # whose log is looked at
def test_a_dump_of_the_system_counts_tables_that_are_dropped_and_is_done_without_them(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"t{number}" for number in range(MANY)]
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names), "INSERT INTO t0 VALUES (1)")
    config = database.config(tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    with closing(wiring.open_state(config)) as state:
        dump_id, system_dump_id = filing.submit(config, DumpRequest(None)), None
        control.pause(state, dump_id)
        system_dump_id = filing.submit(config, WHOLE, requested_by=dump_records.SYSTEM, state=state)
        database.execute(*(f"DROP TABLE {name}" for name in names[1:]))
        with caplog.at_level(logging.INFO), capturing(config):
            wait_until(lambda: dump_store.read_dump(state, system_dump_id).state == "done", "the system's dump is done")
            dump = dump_store.read_dump(state, system_dump_id)
            assert (dump.rows, len(dump.tables_gone), dump.error) == (1, MANY - 1, None)
            control.resume(state, dump_id)
            with pytest.raises(RequestError):
                work_loop.work(config, stop=threading.Event(), dump_id=dump_id)
            wait_until(lambda: dump_store.read_dump(state, dump_id).state == "failed", "the other one fails")
            dump = dump_store.read_dump(state, dump_id)
        assert dump.error is not None and dump.error.startswith(f"{MANY - 1} tables are no longer in the source: ")
        assert f"and {MANY - 11} more" in dump.error and len(dump.error) < 300
        assert recent_errors.read(state) == []
    lines = [record.getMessage() for record in caplog.records if "were dropped before they were read" in record.msg]
    assert 1 <= len(lines) <= 4 and sum(int(line.split()[0]) for line in lines[:2]) >= MANY // 4


@pytest.mark.one_of(4)
def test_a_table_that_goes_before_it_is_published_keeps_no_other_from_it(
    postgres: PostgresServer, new_database: Callable[[PostgresServer], Database], tmp_path: Path
) -> None:
    database = new_database(postgres)
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("a", "b", "gone")))
    database.execute(f"DROP PUBLICATION dblog_{database.name}")
    admin = {"user": postgres.admin.user, "password": postgres.admin.password}
    usual = database.config(tmp_path).source.model_dump(exclude_unset=True)
    config = database.config(tmp_path, source={**usual, **admin}).source
    with session(config) as connection:
        tables = replica_identity.usable(connection, config)
        publication_found = publication.find_publication(connection, config, tables)
        database.execute(
            "DROP TABLE gone", "CREATE TABLE public.dblog_watermark (worker text PRIMARY KEY, payload text)"
        )
        publication.ensure_publication(connection, config, tables)
        assert [str(name) for name in publication_found.missing if name.name == "gone"] == ["public.gone"]
        assert (
            publication.find_publication(connection, config, replica_identity.usable(connection, config)).missing == ()
        )


@pytest.mark.one_of(4)
def test_rows_that_a_new_table_without_a_key_has_had_before_are_told_of(
    postgres: PostgresServer,
    new_database: Callable[[PostgresServer], Database],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PostgreSQL's log tells of a table once its publication does; what was in it by then, a dump would bring."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.5)
    database = new_database(postgres)
    added = f"ALTER PUBLICATION dblog_{database.name} ADD TABLE log"
    database.execute(
        "CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, v VARCHAR(50))",
        "CREATE TABLE dblog_watermark (worker text PRIMARY KEY, payload text NOT NULL)",
        f"GRANT SELECT, INSERT, UPDATE ON dblog_watermark TO {database.account.user}",
        f"DROP PUBLICATION dblog_{database.name}",
        f"CREATE PUBLICATION dblog_{database.name} FOR TABLE a, dblog_watermark",
    )
    watched = Watched(database, tmp_path)
    watched.write("*")
    with watched.capturing(), closing(wiring.open_state(watched.base)) as state:
        wait_until(lambda: watched.in_force("*"), "the capture uses the pattern")
        database.execute("CREATE TABLE log (v VARCHAR(50))", "ALTER TABLE log REPLICA IDENTITY FULL")
        database.execute("INSERT INTO log VALUES ('unseen')", added)
        (recent_error,) = wait_until(lambda: recent_errors.read(state), "somebody is told")
        assert (
            recent_error.part == "capture" and "public.log" in recent_error.error and "a unique key" in recent_error.fix
        )

        def is_log_read() -> bool:
            database.execute("INSERT INTO log VALUES ('live')")
            return bool(watched.lines("log"))

        wait_until(is_log_read, "its log is read")
        assert {line["after"]["v"] for line in watched.lines("log") if line["op"] == "c"} == {"live"}


@pytest.mark.one_of(4)
@pytest.mark.parametrize("identity", ["FULL", "NOTHING"])
def test_rows_that_a_table_without_a_key_has_had_before_are_dumped_once_it_has_one(
    postgres: PostgresServer,
    new_database: Callable[[PostgresServer], Database],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    identity: str,
) -> None:
    """No row comes between the two: the first shape that the log shows has the key already. NOTHING: the table is
    stopped before it has its identity, and its rows are passed over."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.5)
    monkeypatch.setattr(broken_tables, "STAMPS_SECONDS", 0.5)
    database = new_database(postgres)
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("a", "low")))
    database.execute("CREATE TABLE log (v text)", f"ALTER TABLE log REPLICA IDENTITY {identity}")
    watched = Watched(database, tmp_path)
    watched.write("a")
    with watched.capturing(), closing(wiring.open_state(watched.base)) as state:
        wait_until(lambda: watched.in_force("a"), "the capture has begun")
        database.execute("INSERT INTO log VALUES ('x'), ('x'), (NULL)")
        if identity == "NOTHING":
            database.execute("ALTER TABLE log RENAME TO hidden")
            watched.write("a", "lo*")
            wait_until(lambda: watched.in_force("a", "lo*"), "the capture uses the pattern")
            database.execute("ALTER TABLE hidden RENAME TO log")
            wait_until(lambda: stopped_tables.read(state), "the table is stopped")
            database.execute("ALTER TABLE log REPLICA IDENTITY FULL")
        else:
            target = wiring.open_source(watched.base.source).current_position()
            wait_until(lambda: has_read(watched, target), "the log is read up to there")
            watched.write("a", "log")
        wait_until(lambda: recent_errors.read(state), "somebody is told that these rows are not captured")
        database.execute("ALTER TABLE log ADD COLUMN id serial PRIMARY KEY")
        wait_until(
            lambda: [row[1] for row in watched.replay("log")] == ["x", "x", None],
            "the rows are dumped",
            describe=lambda: (watched.lines("log"), stopped_tables.read(state), owed_dumps.read(state)),
        )
        wait_until(lambda: not owed_dumps.read(state), "no dump is owed any more")


def has_read(watched: Watched, target: str) -> bool:
    head = wiring.open_staging(watched.base).head()
    return head is not None and wiring.open_source(watched.base.source).has_reached(head.position, target)


@pytest.mark.one_of(4)
def test_check_names_the_tables_whose_end_no_log_shows(
    postgres: PostgresServer, new_database: Callable[[PostgresServer], Database], tmp_path: Path
) -> None:
    database = new_database(postgres)
    shape = "(id int PRIMARY KEY, v text)"
    database.execute(*(f"CREATE TABLE {name} {shape}" for name in ("a", "dropped", "renamed", "attached")))
    config = database.config(tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(*(f"INSERT INTO {name} VALUES (1, 'kept')" for name in ("a", "dropped", "renamed", "attached")))
    run_capture(config, stop=threading.Event(), until_current=True)
    assert list(gone_tables.find_gone(config, wiring.open_source(config.source))) == []
    database.execute(
        "DROP TABLE dropped",
        "ALTER TABLE renamed RENAME TO now",
        f"CREATE TABLE root {shape} PARTITION BY RANGE (id)",
        "ALTER TABLE root ATTACH PARTITION attached FOR VALUES FROM (0) TO (10)",
        "INSERT INTO a VALUES (2, 'goes on')",
    )
    run_capture(config, stop=threading.Event(), until_current=True)
    rows = copies(config)
    assert all(rows[name] == {1: "kept"} for name in ("dropped", "renamed", "attached"))
    problems = [f.problem for f in preflight.findings(config) if gone_tables.GONE in f.problem.what]
    assert [problem.table for problem in problems] == ["public.attached", "public.dropped", "public.renamed"]
    assert not any(problem.fatal for problem in problems) and all(problem.fix for problem in problems)
    # Another table that the source refuses does not hide them.
    database.execute("ALTER TABLE a DROP CONSTRAINT a_pkey")
    assert len([f for f in preflight.findings(config) if gone_tables.GONE in f.problem.what]) == 3
