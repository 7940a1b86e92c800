"""PostgreSQL's visibility gap, made to happen: a commit that the log shows and that no SELECT sees.

With a synchronous standby that does not exist, COMMIT writes its record, which the slot decodes at once, and then waits
for ever. A dump goes on meanwhile: its chunks hold the old rows, and the log holds the newer ones before the window.
"""

from __future__ import annotations

import secrets
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.sources.postgres.logical import seen_log
from dblog_core.staging.reader import lines
from dblog_core.state import recent_errors
from tests.fix_servers import Database
from tests.integration import test_held_tables
from tests.integration.test_stopped_tables import stop_reasons
from tests.integration.test_swapped_tables import capturing
from tests.nemesis.processes import Dblog, kill
from tests.nemesis.replicas import Consumer, Mirror
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.parametrize("source_kind", ["postgres"], indirect=True), pytest.mark.one_of(6)]

BIG = secrets.token_hex(6_000)  # is stored out of line: an update that leaves it alone leaves it out of the log


class Session:
    """A client whose statements run in a thread, so that a COMMIT may hang."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection = database.connect()
        self.pid: int = self._connection.get_backend_pid()
        self._thread = threading.Thread(target=lambda: None)
        self._thread.start()
        self._faults: list[BaseException] = []

    def run(self, *statements: str) -> None:
        """Runs them to their end."""
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def start(self, *statements: str) -> Session:
        def execute() -> None:
            try:
                self.run(*statements)
            except Exception as error:  # noqa: BLE001 - shown by the test's own thread
                self._faults.append(error)

        self._thread = threading.Thread(target=execute)
        self._thread.start()
        return self

    def waits_for(self, event: str) -> bool:
        """Whether it waits for this now (pg_stat_activity.wait_event)."""
        activity = f"SELECT wait_event FROM pg_stat_activity WHERE pid = {self.pid}"
        return self._database.query(activity) == [(event,)]

    def cancel(self) -> None:
        """Ends the wait for the standby: the transaction is committed here, and visible."""
        self._database.query(f"SELECT pg_cancel_backend({self.pid})")
        self.join()

    def join(self) -> None:
        self._thread.join(timeout=PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        assert not self._faults, self._faults

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def session(database: Database, no_standby: Callable[[bool], None]) -> Iterator[Callable[[], Session]]:
    sessions: list[Session] = []

    def make() -> Session:
        sessions.append(Session(database))
        return sessions[-1]

    yield make
    no_standby(False)  # whoever hangs goes on
    for open_session in sessions:
        open_session.join()
        open_session.close()


@pytest.fixture
def no_standby(database: Database) -> Iterator[Callable[[bool], None]]:
    """Lets every commit wait for a standby that does not exist, or no longer."""

    def switch(on: bool) -> None:
        change = "SET synchronous_standby_names = 'nobody'" if on else "RESET synchronous_standby_names"
        database.execute(f"ALTER SYSTEM {change}", "SELECT pg_reload_conf()")
        probe = Session(database)
        message = "SELECT pg_logical_emit_message(true, 'probe', '')"
        if on:  # it is in force when a commit hangs
            hangs = wait_until(lambda: hang(probe.start(message)), "commits wait for the standby")
            assert hangs
            probe.cancel()
        else:
            probe.start(message).join()
        probe.close()

    yield switch
    switch(False)


def hang(session: Session) -> bool:
    """Whether its statement comes to wait for the standby, before it ends."""
    while session._thread.is_alive():
        if session.waits_for("SyncRep"):
            return True
    session.join()
    return False


@contextmanager
def running(dblog: Dblog) -> Iterator[subprocess.Popen[bytes]]:
    capture = dblog.start("capture")
    try:
        yield capture
    finally:
        kill(capture)


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text NOT NULL, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, 'old', '{BIG}' FROM generate_series(1, 9) i",
    )
    return database.config(tmp_path, dump={"chunk_size": 2}, state={"ttl": 4.0})


@pytest.fixture
def dblog(config: Config, tmp_path: Path) -> Iterator[Dblog]:
    commands = Dblog(config, tmp_path)
    yield commands
    commands.close()
    print(commands.output())  # pytest shows it where the test has failed


CHANGES = (
    "UPDATE t SET v = 'new' WHERE id = 1",
    "DELETE FROM t WHERE id = 2",
    "UPDATE t SET id = 30, v = 'moved' WHERE id = 3",  # its big value is left out, under a changed key
    "DELETE FROM t WHERE id = 4",
    "INSERT INTO t VALUES (4, 'again', 'small')",
    "INSERT INTO t VALUES (40, 'inserted', NULL)",
    "UPDATE t SET big = 'small too' WHERE id = 9",
)


def gap(database: Database, config: Config, session: Callable[[], Session], *statements: str) -> list[Session]:
    """One transaction that is staged and that nobody sees; two, where none is given: the second one changes again
    what nobody else has touched."""
    staged = len(list(lines(wiring.open_staging(config))))
    writer = session().start("BEGIN", *(statements or CHANGES), "COMMIT")
    others = [] if statements else [session().start("UPDATE t SET v = 'second' WHERE id = 5")]
    for waiting_session in (writer, *others):
        wait_until(lambda waiting_session=waiting_session: waiting_session.waits_for("SyncRep"), "a COMMIT that hangs")

    def is_logged() -> bool:
        staged_lines = list(lines(wiring.open_staging(config)))[staged:]
        return {line["transaction"] for line in staged_lines if line["origin"] == "log"} - {None} != set() and (
            bool(statements) or any(line["after"] and line["after"].get("v") == "second" for line in staged_lines)
        )

    wait_until(is_logged, "the log to show what hangs")
    return [writer, *others]


def source(database: Database) -> dict[Any, dict[str, Any]]:
    return {(row[0],): dict(zip(("id", "v", "big"), row, strict=True)) for row in database.query("SELECT * FROM t")}


def judge(database: Database, config: Config, before: dict[Any, dict[str, Any]]) -> list[dict[str, Any]]:
    """Replaying the lines gives the source; along the log, from `before` on, no dump has brought anything else than
    what the row was by then. Returns the dumps' rows."""
    staged_lines = list(lines(wiring.open_staging(config)))
    table = f"{database.schema}.t"
    assert Mirror({table: before}).follow(staged_lines).state.tables[table] == source(database)
    assert Consumer(staged_lines).rows(table) == source(database)
    return [line for line in staged_lines if line["origin"] == "dump" and line["op"] == "r"]


@pytest.mark.in_turn("request_of")
@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
@pytest.mark.parametrize(
    "request_of",
    [
        ("--table", "public.t"),
        ("--table", "public.t", "--key-from", "1", "--key-to", "5"),
        ("--table", "public.t", *(word for key in (1, 2, 3, 4, 5, 30, 40, 77) for word in ("--pk", str(key)))),
    ],
    ids=["table", "range", "keys"],
)
def test_a_dump_does_not_bring_back_what_the_log_has_changed(
    database: Database,
    config: Config,
    dblog: Dblog,
    session: Callable[[], Session],
    no_standby: Callable[[bool], None],
    request_of: tuple[str, ...],
    restart: bool,
) -> None:
    before = source(database)
    dblog.run("capture", "--until-current")
    no_standby(True)
    with running(dblog) as capture:
        gap(database, config, session)
        seen = source(database)
        assert seen[1,]["v"] == seen[5,]["v"] == "old" and (2,) in seen and (40,) not in seen, "no gap"
        if restart:
            capture.send_signal(signal.SIGTERM)
            assert capture.wait(PATIENCE_SECONDS) == 0
            capture = dblog.start("capture")
        dblog.run("dump", *request_of, "--wait", timeout=PATIENCE_SECONDS)
        assert source(database) == seen, "the gap was to last as long as the dump"
        # What the log has, and the rows that only a dump brings.
        no_standby(False)
        if request_of[-1] != "public.t":
            dblog.run("dump", "--table", "public.t", "--key-from", "6", "--key-to", "9", "--wait")
        dblog.run("capture", "--until-current")
        judge(database, config, before)
        kill(capture)


def test_a_truncate_that_nobody_sees_empties_the_chunk_that_was_read_before_it(
    database: Database,
    config: Config,
    dblog: Dblog,
    session: Callable[[], Session],
    no_standby: Callable[[bool], None],
) -> None:
    """The lock of a TRUNCATE keeps the chunk's SELECT waiting; its snapshot is older, and the table empty by then."""
    before = source(database)
    dblog.run("capture", "--until-current")
    no_standby(True)
    with running(dblog):
        writers = gap(database, config, session, "TRUNCATE t", "INSERT INTO t VALUES (1, 'after', 'x')")
        dump = dblog.start("dump", "--table", "public.t", "--wait")
        locked = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
        wait_until(lambda: database.query(locked) == [(1,)], "the chunk's SELECT to wait for the TRUNCATE")
        second = session().start("INSERT INTO t VALUES (2, 'last', NULL)")
        writers[0].cancel()
        wait_until(lambda: second.waits_for("SyncRep"), "the second COMMIT to hang")
        assert dump.wait(PATIENCE_SECONDS) == 0, dblog.output()
        no_standby(False)
        dblog.run("capture", "--until-current")
    judge(database, config, before)
    assert set(source(database)) == {(1,), (2,)}


def test_a_first_capture_does_not_wait_for_a_standby_that_is_away(
    config: Config, dblog: Dblog, no_standby: Callable[[bool], None]
) -> None:
    no_standby(True)
    capture = dblog.start("capture", "--until-current")
    assert capture.wait(PATIENCE_SECONDS) == 0, dblog.output()
    assert wiring.open_staging(config).head() is not None


@pytest.mark.parametrize("restart", [False, True], ids=["", "restart"])
def test_what_was_committed_before_the_slot_and_is_not_yet_seen_is_waited_for(
    database: Database,
    config: Config,
    dblog: Dblog,
    session: Callable[[], Session],
    no_standby: Callable[[bool], None],
    restart: bool,
) -> None:
    """Its commit lies before the slot: no log will ever tell of it, so a chunk that does not see it is never placed.

    A slot begins in two steps, each of which waits for the transactions that run at its start: between the two a third
    one may begin, and commit before the second step is done.
    """
    first = session()
    second = session()
    hidden = session()
    first.run("BEGIN", "SELECT pg_current_xact_id()")
    capture = dblog.start("capture", "--until-current")

    def awaits(other: Session) -> bool:
        locks = (
            f"SELECT pg_blocking_pids(pid) FROM pg_stat_activity WHERE query ~ 'create_logical' AND pid <> {first.pid}"
        )
        return any(other.pid in blocking for (blocking,) in database.query(locks))

    wait_until(lambda: awaits(first), "the slot to wait for the first transaction")
    second.run("BEGIN", "SELECT pg_current_xact_id()")
    first.run("COMMIT")
    wait_until(lambda: awaits(second), "the slot to wait for the second transaction")
    no_standby(True)
    hidden.start("UPDATE t SET v = 'hidden' WHERE id = 1")
    wait_until(lambda: hidden.waits_for("SyncRep"), "a COMMIT that hangs")
    second.run("SET LOCAL synchronous_commit = local", "COMMIT")
    assert capture.wait(PATIENCE_SECONDS) == 0, dblog.output()
    assert source(database)[1,]["v"] == "old"
    with running(dblog) as leader:
        dump = dblog.start("dump", "--table", "public.t", "--wait")
        if restart:
            wait_until(lambda: newest_attempt(config) >= 1, "an attempt to be refused")
            kill(leader)
            dblog.start("capture")
        wait_until(lambda: newest_attempt(config) >= 3, "chunks that do not see it to be refused")
        assert not [line for line in lines(wiring.open_staging(config)) if line["op"] == "r"]
        hidden.cancel()
        assert source(database)[1,]["v"] == "hidden"
        assert dump.wait(PATIENCE_SECONDS) == 0, dblog.output()
    assert len(judge(database, config, source(database))) == 9


MIGRATIONS = {
    "column": (
        "ALTER TABLE people RENAME COLUMN w TO w_old",
        "ALTER TABLE people ADD COLUMN w text",
        "UPDATE people SET w = 'encrypted'",
        "ALTER TABLE people DROP COLUMN w_old",
    ),
    "place": (
        "ALTER TABLE people DROP COLUMN v",
        "ALTER TABLE people RENAME COLUMN w TO v",
        "ALTER TABLE people ADD COLUMN w varchar(40)",
        "UPDATE people SET w = 'encrypted'",
    ),
    "table": ("ALTER TABLE u RENAME TO u_old", "ALTER TABLE people RENAME TO u", "UPDATE u SET id = 5"),
}
"""After the second one the same names, types and order stand for hidden values."""


@pytest.mark.in_turn
@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
@pytest.mark.parametrize("migration", MIGRATIONS)
def test_rows_stay_hidden_that_are_logged_before_a_select_sees_what_their_columns_are(
    database: Database,
    tmp_path: Path,
    session: Callable[[], Session],
    no_standby: Callable[[bool], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    migration: str,
    plugin: str,
) -> None:
    """The catalogue that the capture asks is of before the ALTER, and proves nothing of these rows."""
    monkeypatch.setattr(seen_log, "LONGEST_WAIT_SECONDS", 0.5)
    config = test_held_tables.ruled_config(database, directory := tmp_path / "written", plugin=plugin)
    test_held_tables.begin(database, config)
    no_standby(True)
    with capturing(config), closing(wiring.open_state(config)) as state:
        writer = session().start("BEGIN", *MIGRATIONS[migration], "COMMIT")
        wait_until(lambda: writer.waits_for("SyncRep"), "a COMMIT that hangs")

        def find_staged() -> list[dict[str, Any]]:
            return [line for line in lines(wiring.open_staging(config)) if line["origin"] == "log" and line["key"]]

        def has_met_the_gap() -> bool:
            return bool(find_staged()) or any("no SELECT sees" in error.error for error in recent_errors.read(state))

        wait_until(has_met_the_gap, "the capture has met the rows")
        assert test_held_tables.find_marks(directory, caplog) == []
        no_standby(False)
        wait_until(lambda: stop_reasons(config), "the table is held")
    assert test_held_tables.find_marks(directory, caplog) == []


def newest_attempt(config: Config) -> int:
    """The newest attempt of the only dump that cannot go on."""
    state = wiring.open_state(config)
    try:
        return max((task.progress.broken for dump in dump_store.list_dumps(state) for task in dump.tasks), default=0)
    finally:
        state.close()
