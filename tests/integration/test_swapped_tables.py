"""Tables that are renamed, swapped or exchanged under a capture: whoever has a copy ends with what they hold."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.config_reload import ConfigFile
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.staging.reader import lines
from dblog_core.state.lease_holder import CAPTURE
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.in_turn]
DEADLINE = PATIENCE_SECONDS


def copies(config: Config) -> dict[str, dict[int, str]]:
    """What a keyed consumer of `log` holds of each table."""
    rows: dict[str, dict[int, str]] = {}
    seen: dict[tuple[str, int], int] = {}
    for line in lines(wiring.open_staging(config)):
        table = line["table"].partition(".")[2]
        rows_of_table = rows.setdefault(table, {})
        if line["op"] in "cur":
            rows_of_table[line["key"]["id"]], seen[table, line["key"]["id"]] = line["after"]["v"], line["offset"]
        elif line["op"] == "d":
            rows_of_table.pop(line["key"]["id"], None)
        elif line["op"] == "t":
            rows_of_table.clear()
        elif line["op"] == "f":
            rows[table] = {k: v for k, v in rows_of_table.items() if seen[table, k] > line["since"]}
    return {table: rows_of_table for table, rows_of_table in rows.items() if rows_of_table}


def source_rows(database: Database, *tables: str) -> dict[str, dict[int, str]]:
    """What the source has."""
    query_rows = {table: {int(k): str(v) for k, v in database.query(f"SELECT id, v FROM {table}")} for table in tables}
    return {table: rows for table, rows in query_rows.items() if rows}


Wait = Callable[[dict[str, dict[int, str]]], None]


@contextlib.contextmanager
def capturing(config: Config) -> Iterator[Wait]:
    """A capture that never stops; its value waits until the dumps that it requests are done and a consumer has what is
    wanted."""
    stop = threading.Event()
    faults: list[BaseException] = []
    file = Path(config.staging.path).parent / "unchanged.toml"
    file.touch()

    def capture() -> None:
        try:
            run_capture(config, stop=stop, file=ConfigFile(file, lambda _: config))
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            faults.append(error)

    thread = threading.Thread(target=capture, daemon=True)
    thread.start()
    with contextlib.closing(wiring.open_state(config)) as state:
        staging = wiring.open_staging(config)
        # What is written from here on it meets while it runs: a first capture has its position by then.
        while (state.leader(CAPTURE) is None or staging.head() is None) and not faults:
            thread.join(0.05)

    def wait(expected_rows: dict[str, dict[int, str]]) -> None:
        deadline = time.monotonic() + DEADLINE
        pause = threading.Event()
        with contextlib.closing(wiring.open_state(config)) as state:
            while any(d.state != "done" for d in dump_store.list_dumps(state)) or copies(config) != expected_rows:
                if faults:
                    raise faults[0]
                assert time.monotonic() < deadline, (copies(config), expected_rows)
                pause.wait(0.1)

    try:
        yield wait
    finally:
        stop.set()
        thread.join(timeout=PATIENCE_SECONDS)
    assert not faults


def capture_until(config: Config, expected_rows: dict[str, dict[int, str]]) -> None:
    """A capture, for as long as it takes."""
    with capturing(config) as wait:
        wait(expected_rows)


def healing(config: Config) -> dict[str, str]:
    """The dumps that `s` lines name, by table."""
    staging = wiring.open_staging(config)
    marks: list[Any] = [mark for manifest in staging.manifests(after=0) for mark in manifest.marks]
    return {mark.table.partition(".")[2]: mark.dump for mark in marks if mark.op == "s" and mark.dump}


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_a_table_swapped_in_as_gh_ost_does_it_is_dumped_under_its_name(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path)
    shape = "id int PRIMARY KEY, v varchar(20)"
    database.execute(f"CREATE TABLE t ({shape})", f"CREATE TABLE _t_gho ({shape}, more int)")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "INSERT INTO _t_gho VALUES (1, 'a', 0), (2, 'later', 0), (4, 'new', 0)",
        "RENAME TABLE t TO _t_del, _t_gho TO t",
        "INSERT INTO t VALUES (5, 'after', 0)",
        "UPDATE t SET v = 'again' WHERE id = 1",
    )
    capture_until(config, source_rows(database, "t", "_t_del"))
    assert set(healing(config)) == {"t"}  # of the other one nobody has a copy yet
    database.execute("ALTER TABLE _t_del RENAME TO gone", "DROP TABLE gone", f"CREATE TABLE _t_del ({shape})")
    database.execute("INSERT INTO _t_del VALUES (9, 'anew')")
    capture_until(config, source_rows(database, "t", "_t_del"))


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_both_tables_of_an_exchanged_partition_are_dumped(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path)
    parts = "PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20)"
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, v varchar(20)) PARTITION BY RANGE (id) ({parts})",
        "CREATE TABLE u (id int PRIMARY KEY, v varchar(20))",
    )
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(
        "INSERT INTO t VALUES (1, 'a'), (11, 'b')",
        "INSERT INTO u VALUES (12, 'c')",
        "ALTER TABLE t EXCHANGE PARTITION p1 WITH TABLE u",
        "INSERT INTO t VALUES (2, 'after')",
    )
    capture_until(config, source_rows(database, "t", "u"))
    assert set(healing(config)) == {"t", "u"}


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_a_dropped_database_empties_its_captured_tables_and_no_other(database: Database, tmp_path: Path) -> None:
    """A database that never was, of a name that the pattern fits, is nobody's. Another's tables stay."""
    other = f"{database.name}_other"
    make = (f"CREATE DATABASE {other}", f"CREATE TABLE {other}.u (id int PRIMARY KEY, v varchar(20))")
    rights = f"GRANT SELECT ON {other}.* TO '{database.account.user}'@'{database.server.host}'"
    config = database.config(tmp_path, source={"tables": [f"{database.name}*.*"]})
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))", *make, rights)
    try:
        run_capture(config, stop=threading.Event(), until_current=True)
        database.execute(
            "INSERT INTO t VALUES (1, 'stays')", f"INSERT INTO {other}.u VALUES (1, 'goes'), (2, 'goes too')",
            f"DROP DATABASE IF EXISTS {database.name}_never_was",
        )  # fmt: skip
        capture_until(config, {"t": {1: "stays"}, "u": {1: "goes", 2: "goes too"}})
        database.execute(f"DROP DATABASE {other}", *make, f"INSERT INTO {other}.u VALUES (2, 'anew')")
        database.execute("INSERT INTO t VALUES (2, 'after')")
        capture_until(config, {"t": {1: "stays", 2: "after"}, "u": {2: "anew"}})
    finally:
        database.execute(f"DROP DATABASE IF EXISTS {other}")
    ops = [(line["table"].partition(".")[2], line["op"]) for line in lines(wiring.open_staging(config))]
    assert ops.count(("u", "t")) == 1 and ("t", "t") not in ops and healing(config) == {}


@pytest.mark.parametrize("source_kind", ["mariadb"], indirect=True)
def test_mariadb_an_alter_that_fails_in_its_second_phase_changes_nothing(database: Database, tmp_path: Path) -> None:
    """Its text is in the log twice: where it began, and where it was undone."""
    config = database.config(tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20), x int)")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 1)")
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_alter_two_phase = 1")
        cursor.execute("SHOW MASTER STATUS")
        file, first, *_ = cursor.fetchone()
        with pytest.raises(pymysql.err.IntegrityError, match="Duplicate entry"):
            cursor.execute("ALTER TABLE t ADD UNIQUE (x), RENAME TO u")
        cursor.execute("ALTER TABLE t ADD COLUMN w int")
        # From here on alone: statements of other tests before it may have names that are no UTF-8.
        cursor.execute(f"SHOW BINLOG EVENTS IN '{file}' FROM {first}")
        events_text = " ".join(str(event[5]) for event in cursor.fetchall())
    assert all(f"{phase} ALTER" in events_text for phase in ("START", "ROLLBACK", "COMMIT")), events_text
    database.execute("INSERT INTO t VALUES (3, 'c', 3, 4)")
    capture_until(config, source_rows(database, "t"))
    staged_lines = list(lines(wiring.open_staging(config)))
    assert [line["op"] for line in staged_lines] == ["s", "c", "c", "s", "c"], "not emptied, and not dumped"
    assert staged_lines[-1]["after"] == {"id": 3, "v": "c", "x": 3, "w": 4}


@pytest.fixture
def newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that took a name are looked for all the time."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)


@pytest.mark.one_of(4)
@pytest.mark.usefixtures("newcomers")
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_postgres_a_table_that_takes_anothers_name_is_published_and_dumped(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u", "public.p"]})
    shape = "(id int PRIMARY KEY, v varchar(20))"
    database.execute(
        f"CREATE TABLE t {shape}", f"CREATE TABLE t_new {shape}", f"CREATE TABLE u {shape}",
        f"CREATE TABLE p {shape} PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO t_new VALUES (1, 'a'), (4, 'new')", "INSERT INTO p VALUES (1, 'stays'), (11, 'goes')",
    )  # fmt: skip
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO u VALUES (1, 'old'), (2, 'old')",
        "UPDATE p SET v = 'seen'",
    )  # fmt: skip
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(
        "BEGIN; ALTER TABLE t RENAME TO t_old; ALTER TABLE t_new RENAME TO t; COMMIT",
        "DROP TABLE u", f"CREATE TABLE u {shape}", "INSERT INTO u VALUES (3, 'anew')",
        "ALTER TABLE p DETACH PARTITION p2",
        "INSERT INTO t VALUES (5, 'after')",
    )  # fmt: skip
    capture_until(config, source_rows(database, "t", "u", "p"))
    assert set(healing(config)) == {"t", "u", "p"}
    with capturing(config) as wait:  # and while it runs
        database.execute("DROP TABLE u", f"CREATE TABLE u {shape}", "INSERT INTO u VALUES (4, 'again')")
        wait(source_rows(database, "t", "u", "p"))
        database.execute("TRUNCATE p1")  # of one partition: in no log
        wait(source_rows(database, "t", "u", "p"))
