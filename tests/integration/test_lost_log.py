"""What the log does not tell: it is lost (an error that says so, and the way on), a partition or a type was dropped."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import LogPositionLost
from dblog_core.monitoring.preflight import findings
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS


def replay(config: Config) -> dict[int, str]:
    """What a keyed consumer of `log` holds at the end."""
    rows: dict[int, str] = {}
    seen: dict[int, int] = {}
    for line in lines(wiring.open_staging(config)):
        if line["op"] in "cur":
            rows[line["key"]["id"]], seen[line["key"]["id"]] = line["after"]["v"], line["offset"]
        elif line["op"] == "d":
            rows.pop(line["key"]["id"], None)
        elif line["op"] == "f":
            rows = {k: v for k, v in rows.items() if seen[k] > line["since"]}
    return rows


def drop_log(database: Database) -> None:
    """Makes the server forget everything that is in its log now."""
    if database.kind == "postgres":
        database.execute(f"SELECT pg_drop_replication_slot('dblog_{database.name}')")
        return
    database.execute("FLUSH BINARY LOGS")
    newest = database.query("SHOW BINARY LOGS")[-1][0]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while database.query("SHOW BINARY LOGS")[0][0] != newest:  # not while the last capture's thread still reads it
        assert time.monotonic() < deadline, "the server keeps its log"
        database.execute(f"PURGE BINARY LOGS TO '{newest}'")


def test_a_lost_log_stops_the_capture_and_a_fresh_start_mends_it(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))")
    config = database.config(tmp_path)
    stop = threading.Event()
    run_capture(config, stop=stop, until_current=True)
    database.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    run_capture(config, stop=stop, until_current=True)
    before = wiring.open_staging(config).head()
    database.execute("UPDATE t SET v = 'changed' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    drop_log(database)
    with pytest.raises(LogPositionLost, match="lost") as caught:
        run_capture(config, stop=stop, until_current=True)
    assert "--fresh-start" in caught.value.fix
    assert wiring.open_staging(config).head() == before
    mend(config, fresh_start=True, rows={1: "changed", 3: "three"})


@pytest.mark.one_of(2)
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_rows_of_a_dropped_partition_go_with_a_dump_that_is_requested_by_itself(
    database: Database, tmp_path: Path
) -> None:
    parts = ", ".join(f"PARTITION p{i} VALUES LESS THAN ({10 * i + 10})" for i in range(3))
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, v varchar(20)) PARTITION BY RANGE (id) ({parts})")
    config = database.config(tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO t VALUES (1, 'one'), (11, 'two'), (21, 'three')")
    database.execute("ALTER TABLE t DROP PARTITION p1", "ALTER TABLE t TRUNCATE PARTITION p2")
    database.execute("INSERT INTO t VALUES (2, 'later')")
    mend(config, fresh_start=False, rows={1: "one", 2: "later"})
    assert dump_store.list_dumps(wiring.open_state(config))


@pytest.mark.one_of(2)
@pytest.mark.in_turn("plugin")
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
def test_rows_of_a_type_that_was_dropped_since_end_neither_a_fresh_start_nor_what_follows_it(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    """`check`, which sees no more than the catalogue, is right to find no fault."""
    write = (
        "CREATE TYPE mood AS ENUM ('fine', 'odd')", "ALTER TABLE t ALTER v TYPE mood USING v::mood",
        "INSERT INTO t SELECT count(*) + 1, 'odd' FROM t", "ALTER TABLE t ALTER v TYPE text", "DROP TYPE mood",
    )  # fmt: skip
    config = database.config(tmp_path, source={"plugin": plugin})
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(*write)
    assert [finding for finding in findings(config) if finding.problem.fatal] == []
    mend(config, fresh_start=True, rows={1: "odd"})
    database.execute(*write)
    mend(config, fresh_start=False, rows={1: "odd", 2: "odd"})
    assert [finding for finding in findings(config) if finding.problem.fatal] == []


@pytest.mark.one_of(2)
@pytest.mark.parametrize("keep_state", [False, True], ids=["all-anew", "staging-anew"])
def test_a_log_that_tells_of_dumps_into_an_older_staging_is_read_into_a_new_one(
    database: Database, tmp_path: Path, keep_state: bool
) -> None:
    """Someone begins anew at an earlier place: the chunks of those days are gone, and so is their table version."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))")
    database.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    old = database.config(tmp_path / "old")
    run_capture(old, stop=threading.Event(), until_current=True)
    begun = wiring.open_staging(old).head().log_position.split()[0]
    if database.kind == "postgres":
        slot = f"dblog_{database.name}"
        database.execute(f"SELECT pg_copy_logical_replication_slot('{slot}', '{slot}_begun')")
    whole_dump(old)
    assert replay(old) == {1: "one", 2: "two"}
    state = {"state": {"url": old.state.url}} if keep_state else {}
    new = database.config(tmp_path / "new", **state, source={"start": begun})
    if database.kind == "postgres":  # which begins where its slot does
        new = database.config(tmp_path / "new", **state, source={"slot": f"{slot}_begun"})
    run_capture(new, stop=threading.Event(), until_current=True)
    assert replay(new) == {}, "nothing of that dump is here"
    assert not [c for m in wiring.open_staging(new).manifests() for c in m.chunks]
    database.execute("DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (3, 'three')")
    whole_dump(new)
    assert replay(new) == {1: "one", 3: "three"}


def whole_dump(config: Config) -> None:
    """A dump of all tables, beside a capture."""
    stop = threading.Event()
    thread = threading.Thread(target=run_capture, args=(config,), kwargs={"stop": stop})
    thread.start()
    try:
        dump_id = filing.submit(config, DumpRequest(tables=("*.*",)))
        work_loop.work(config, stop=threading.Event(), dump_id=dump_id)
    finally:
        stop.set()
        thread.join(timeout=PATIENCE_SECONDS)


def mend(config: Config, *, fresh_start: bool, rows: dict[int, str]) -> None:
    """A capture, with a fresh start or not, until the dumps that it requests are done and a consumer has `rows`."""
    stop = threading.Event()
    faults = []

    def capture() -> None:
        try:
            run_capture(config, stop=stop, fresh_start=fresh_start)
        except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
            faults.append(error)

    thread = threading.Thread(target=capture, daemon=True)
    thread.start()
    state: Any = wiring.open_state(config)
    pause = threading.Event()
    while any(d.state != "done" for d in dump_store.list_dumps(state)) or replay(config) != rows:
        assert thread.is_alive(), faults or replay(config)
        pause.wait(0.1)
    state.close()
    stop.set()
    thread.join(timeout=PATIENCE_SECONDS)
    assert not faults
