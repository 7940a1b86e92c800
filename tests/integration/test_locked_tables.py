"""A table that somebody keeps locked waits for its dump alone: the capture begins, goes on, and brings all others."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload, term_start
from dblog_core.capture.config_reload import ConfigFile
from dblog_core.capture.healing import broken_tables
from dblog_core.capture.healing.unlogged_rewrites import Stamps
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.interfaces import StateStore
from dblog_core.state import owed_dumps
from tests.fix_servers import Database
from tests.integration.locks import locked, renaming
from tests.integration.test_read_only import capturing, rows_of
from tests.records import read_records
from tests.waiting import wait_until

FROM_THE_BEGINNING = {"start": "initial"}


def has_rows(config: Config, table: str, rows: dict[int, int | None]) -> bool:
    """Whether what is staged leads to these rows."""
    return {
        key: row["v"] for key, row in rows_of(config, f"{config.source.tables[0].split('.')[0]}.{table}").items()
    } == rows


def has_dumped(config: Config, table: str) -> bool:
    manifests = wiring.open_staging(config).manifests()
    return any(chunk.table.endswith(f".{table}") for manifest in manifests for chunk in manifest.chunks)


def are_done(state: StateStore) -> bool:
    return all(dump.state == "done" for dump in dump_store.list_dumps(state))


def held(state: StateStore) -> str:
    """What status says of dumps that wait."""
    return "; ".join(dump.held for dump in dump_store.list_dumps(state) if dump.held)


@pytest.mark.one_of(2)
@pytest.mark.in_turn
def test_a_locked_table_that_is_to_be_dumped_keeps_no_other_from_its_capture(
    database: Database, tmp_path: Path
) -> None:
    """It was not captured before, and is dumped as a capture of both begins."""
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)" for name in "ab"))
    database.execute("INSERT INTO b VALUES (7, 7)")
    of_one = database.config(tmp_path, source={"tables": [f"{database.schema}.a"]})
    run_capture(of_one, stop=threading.Event(), until_current=True)
    config = database.config(tmp_path)
    with closing(wiring.open_state(config)) as state, ExitStack() as lock:
        lock.enter_context(locked(database, "b"))
        with capturing(config):
            database.execute("INSERT INTO a VALUES (1, 1)")
            wait_until(lambda: has_rows(config, "a", {1: 1}), "a row of the other table is staged")
            assert not has_dumped(config, "b")
            lock.close()
            wait_until(lambda: has_rows(config, "b", {7: 7}), "the table is dumped once it is free")
            wait_until(lambda: are_done(state), "the dumps are done")


@pytest.mark.in_turn
def test_the_first_dump_of_all_leaves_a_locked_table_for_later(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One worker, and the locked table comes first. It is locked once the place is known where the log begins: on
    PostgreSQL all chunks wait for the transactions that run at that moment, whatever they have locked."""
    lock = ExitStack()
    real_dump_all = term_start._dump_all

    def lock_and_dump_all(*given: Any) -> dict[str, str]:
        lock.enter_context(locked(database, "a"))
        return real_dump_all(*given)

    monkeypatch.setattr(term_start, "_dump_all", lock_and_dump_all)
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)" for name in "abc"))
    database.execute(*(f"INSERT INTO {name} VALUES (7, 7)" for name in "abc"))
    config = database.config(tmp_path, source=FROM_THE_BEGINNING, dump={"workers": 1})
    with closing(wiring.open_state(config)) as state, lock, caplog.at_level(logging.WARNING), capturing(config):
        database.execute("INSERT INTO b VALUES (8, 8)")
        wait_until(lambda: has_rows(config, "b", {7: 7, 8: 8}), "b is dumped")
        wait_until(lambda: has_rows(config, "c", {7: 7}), "c is dumped")
        wait_until(lambda: f"{database.schema}.a" in held(state), "status names the table")
        if database.kind == "postgres":
            assert "is locked by process" in held(state) and f"user {database.server.admin.user}" in held(state)
        assert not has_dumped(config, "a")
        lock.close()
        wait_until(lambda: has_rows(config, "a", {7: 7}), "it is dumped once it is free")
        wait_until(lambda: are_done(state) and not held(state), "the dump is done")
    told = [record.getMessage() for record in caplog.records if "other tables come first" in record.getMessage()]
    assert len(told) == 1, told


@pytest.mark.one_of(4)
@pytest.mark.in_turn
def test_a_dump_that_a_person_requests_reads_all_others_first_and_says_why_it_waits(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)" for name in "abc"))
    config = database.config(tmp_path, source=FROM_THE_BEGINNING)
    said = []
    with capturing(config), closing(wiring.open_state(config)) as state, ExitStack() as lock:
        wait_until(lambda: are_done(state) and dump_store.list_dumps(state), "the first dump is done")
        lock.enter_context(locked(database, "a"))
        with caplog.at_level(logging.WARNING):
            dump_id = filing.submit(config, DumpRequest(tables=None), lock_seconds=1.0)

        def free_once_the_others_are_done() -> bool:
            dump = dump_store.read_dump(state, dump_id)
            if dump.tasks_done == 2 and dump.held:
                said.append(dump.held)
                lock.close()
            return bool(said)

        stop = threading.Event()
        work = threading.Thread(target=work_loop.work, args=(config,), kwargs={"stop": stop, "dump_id": dump_id})
        work.start()
        try:
            wait_until(free_once_the_others_are_done, "the others are done, and it says why it waits")
            wait_until(lambda: dump_store.read_dump(state, dump_id).state == "done", "the dump is done")
        finally:
            stop.set()
            work.join()
    assert f"{database.schema}.a" in said[0]
    assert [record for record in caplog.records if "once it is free it is dumped" in record.getMessage()]


def make_partitioned(database: Database) -> None:
    """Two tables, of which the second has two partitions where that takes a word in the statement that makes it."""
    parts = "PARTITION BY RANGE (id) (PARTITION b_1 VALUES LESS THAN (10), PARTITION b_2 VALUES LESS THAN (20))"
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        f"CREATE TABLE b (id int PRIMARY KEY, v int) {'' if database.kind == 'postgres' else parts}",
        "INSERT INTO b VALUES (1, 1), (11, 11)",
    )


@pytest.mark.one_of(4)
@pytest.mark.in_turn
def test_rows_that_changed_without_a_log_are_dumped_once_their_table_is_free(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broken_tables, "STAMPS_SECONDS", 0.2)
    make_partitioned(database)
    config = database.config(tmp_path, source=FROM_THE_BEGINNING)
    with capturing(config), closing(wiring.open_state(config)) as state, ExitStack() as lock:
        wait_until(lambda: has_rows(config, "b", {1: 1, 11: 11}) and are_done(state), "both are dumped")
        before = len(dump_store.list_dumps(state))
        if database.kind == "postgres":
            database.execute("ALTER TABLE b ALTER COLUMN v TYPE int USING v + 1")
        holder = lock.enter_context(locked(database, "b"))
        if database.kind != "postgres":
            holder.execute("ALTER TABLE b TRUNCATE PARTITION b_1")
        wait_until(lambda: len(dump_store.list_dumps(state)) > before, "the dump is requested")
        database.execute("INSERT INTO a VALUES (1, 1)")
        wait_until(lambda: has_rows(config, "a", {1: 1}), "the other table goes on")
        lock.close()
        after = {1: 2, 11: 12} if database.kind == "postgres" else {11: 11}
        wait_until(lambda: are_done(state), "the table is dumped")
        assert dict(database.query("SELECT id, v FROM b")) == after
        # That rows are gone, the end of the dump tells a merge.
        assert has_rows(config, "b", {1: 1, **after})


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
@pytest.mark.in_turn
def test_a_shape_that_no_row_shows_is_looked_at_once_its_table_is_free(database: Database, tmp_path: Path) -> None:
    make_partitioned(database)
    config = database.config(tmp_path, source=FROM_THE_BEGINNING)
    staging = wiring.open_staging(config)

    def columns_of_b() -> list[str]:
        head = staging.head()
        assert head is not None
        return [column.name for column in staging.schema(head.schemas[f"{database.schema}.b"]).columns]

    with capturing(config), closing(wiring.open_state(config)) as state:
        wait_until(lambda: has_rows(config, "b", {1: 1, 11: 11}) and are_done(state), "both are dumped")
        with locked(database, "b") as holder:
            holder.execute("ALTER TABLE b ADD COLUMN c int DEFAULT 5")
            database.execute("INSERT INTO a VALUES (1, 1)")
            wait_until(lambda: has_rows(config, "a", {1: 1}), "the other table goes on")
            wait_until(lambda: f"{database.schema}.b" in held(state), "the window waits")
            database.execute("INSERT INTO a VALUES (2, 2)")
            wait_until(lambda: has_rows(config, "a", {1: 1, 2: 2}), "the other table goes on")
            assert columns_of_b() == ["id", "v"]
        wait_until(lambda: columns_of_b() == ["id", "v", "c"], "its shape is shown")
        wait_until(lambda: are_done(state), "the dumps are done")


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_locked_partition_keeps_no_other_table_from_its_capture(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture looks again and again at what is in no log, partition by partition."""
    looks = []
    monkeypatch.setattr(broken_tables, "STAMPS_SECONDS", 0.2)
    real_look = Stamps.look
    monkeypatch.setattr(Stamps, "look", lambda *given: (looks.append(1), real_look(*given))[1])
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
    )
    config = database.config(tmp_path, source=FROM_THE_BEGINNING)
    with capturing(config), closing(wiring.open_state(config)) as state:
        wait_until(lambda: are_done(state) and dump_store.list_dumps(state), "both are dumped")
        with locked(database, "p_1"):
            seen = len(looks)
            wait_until(lambda: len(looks) > seen + 2, "looks while it is locked")
            database.execute("INSERT INTO a VALUES (1, 1)")
            wait_until(lambda: has_rows(config, "a", {1: 1}), "the other table goes on")


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_new_table_that_is_locked_is_captured_and_dumped_once_it_is_free(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The publication names its tables: nobody can add one that is locked. Others that are made are captured."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.5)
    config = database.owner_config(tmp_path)
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY, v int)")
    wiring.open_source(config.source.model_copy(update={"tables": ("public.a",)})).prepare()
    stop = threading.Event()
    (file := tmp_path / "dblog.toml").touch()
    arguments = {"stop": stop, "file": ConfigFile(file, lambda _: config)}
    capture = threading.Thread(target=run_capture, args=(config,), kwargs=arguments)
    with closing(wiring.open_state(config)) as state, ExitStack() as lock, caplog.at_level(logging.WARNING):
        database.execute("INSERT INTO b VALUES (1, 1)")
        lock.enter_context(locked(database, "b"))
        capture.start()
        try:
            database.execute("INSERT INTO a VALUES (1, 1)")
            wait_until(lambda: has_rows(config, "a", {1: 1}), "a goes on")
            database.execute("CREATE TABLE c (id int PRIMARY KEY, v int)")
            published = "SELECT 1 FROM pg_publication_tables WHERE pubname = 'own' AND tablename = 'c'"
            wait_until(lambda: database.query(published), "a table that is made meanwhile is published")
            database.execute("INSERT INTO c VALUES (1, 1)")
            wait_until(lambda: has_rows(config, "c", {1: 1}), "a table that is made meanwhile is captured")
            assert not has_dumped(config, "b")
            lock.close()
            database.execute("INSERT INTO b VALUES (2, 2)")
            wait_until(lambda: has_rows(config, "b", {1: 1, 2: 2}), "b is captured, and dumped")
            database.execute("DELETE FROM b WHERE id = 1")
            wait_until(lambda: has_rows(config, "b", {2: 2}), "b is captured")
            wait_until(lambda: are_done(state), "the dumps are done")
        finally:
            stop.set()
            capture.join()
    warnings_of_b = [record.getMessage() for record in caplog.records if "public.b" in record.getMessage()]
    assert 1 <= len([text for text in warnings_of_b if "locked" in text]) <= 3, warnings_of_b


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["mariadb"], indirect=True)
def test_a_table_whose_definition_is_locked_keeps_no_other_from_what_the_log_asks_for(
    database: Database, tmp_path: Path
) -> None:
    """MariaDB's catalogue shows nothing of it meanwhile. What another table needs is owed until it shows all."""
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)" for name in "abyz"))
    config = database.config(tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    staging = wiring.open_staging(config)

    def shows_column() -> bool:
        head = staging.head()
        shape = None if head is None else head.schemas.get(f"{database.schema}.a")
        return shape is not None and [c.name for c in staging.schema(shape).columns] == ["id", "v", "c"]

    with closing(wiring.open_state(config)) as state, ExitStack() as lock:
        lock.enter_context(renaming(database, "b"))
        with capturing(config):
            database.execute("INSERT INTO a VALUES (1, 1)")
            wait_until(lambda: has_rows(config, "a", {1: 1}), "a capture that begins reads the log")
            database.execute("ALTER TABLE a ADD COLUMN c int DEFAULT 5")
            wait_until(lambda: f"{database.schema}.a" in owed_dumps.read(read_records(config)), "its shape is owed")
            database.execute("INSERT INTO y VALUES (1, 1)")
            wait_until(lambda: has_rows(config, "y", {1: 1}), "the log is read on")
            lock.close()
            wait_until(shows_column, "its shape is shown")
            wait_until(lambda: not owed_dumps.read(read_records(config)) and are_done(state), "nothing is owed")
