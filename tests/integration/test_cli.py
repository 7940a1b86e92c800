"""The commands as a person runs them: real processes on real servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core.config.loader import load
from dblog_core.config.settings import Config
from dblog_core.monitoring.status import read_source_status
from dblog_core.staging.reader import lines as staged_lines
from dblog_core.wiring import open_source, open_staging
from tests.contract.test_starts import end_of
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(2)]

DEADLINE = PATIENCE_SECONDS


class Commands:
    """Runs `dblog` on one configuration."""

    def __init__(self, file: Path, password: str, *, patience: float = DEADLINE) -> None:
        self.file = file
        self._password = password
        self._patience = patience
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dblog_core.cli", "--config", str(self.file), *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self._started.append(subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **pipes))
        return self._started[-1]

    def end(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        """Waits for it; whatever it said, it was neither a traceback nor the password."""
        stdout, stderr = process.communicate(timeout=self._patience)
        assert "Traceback" not in stdout + stderr
        assert self._password not in stdout + stderr
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.end(self.start(*arguments))

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def until(self, condition: Callable[[Any], bool]) -> Any:
        """The status once it is so: what `dblog status --json` prints, without a process for each look."""
        config = load(self.file)

        def look() -> Any:
            found = json.loads(orjson.dumps(read_source_status(config).to_json()))
            return found if condition(found) else None

        return wait_until(
            look, "the status is so", timeout=self._patience, describe=lambda: read_source_status(config).to_json()
        )

    def kill(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()  # not for the end of its output: what it has started may hold that for longer
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def tables(database: Database) -> Database:
    """An integer key, a text key, and a table without a key."""
    database.execute(
        "CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, note VARCHAR(50))",
        "CREATE TABLE b (code VARCHAR(50) NOT NULL PRIMARY KEY, amount DECIMAL(10,2))",
        "CREATE TABLE plain (x INTEGER)",
        "INSERT INTO a VALUES " + ", ".join(f"({n}, 'note {n}')" for n in range(1, 501)),
        "INSERT INTO b VALUES ('x', 1.10), ('y', 2.20)",
    )
    if database.kind == "postgres":
        database.execute("ALTER TABLE plain REPLICA IDENTITY FULL")
    return database


def write(config: Config, file: Path, **changes: str) -> None:
    """The configuration as TOML; `changes` replace values of the source."""
    source = {
        **config.source.model_dump(mode="json", include={"name", "kind", "host", "port", "user", "database", "tables"}),
        "password": config.source.password.get_secret_value(),
        **changes,
    }
    sections = {"source": source, "staging": {"path": config.staging.path}, "state": {"url": config.state.url}}
    sections["lake"] = {"path": config.lake.path}
    lines = [
        f"[{name}]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in keys.items()) for name, keys in sections.items()
    ]
    file.touch(mode=0o600)
    file.write_text("\n".join(lines))


@pytest.fixture
def config(tables: Database, tmp_path: Path, zookeeper_url: str) -> Config:
    return tables.config(tmp_path, state={"url": zookeeper_url})


@pytest.fixture
def dblog(config: Config, tmp_path: Path) -> Iterator[Commands]:
    write(config, tmp_path / "source.toml")
    commands = Commands(tmp_path / "source.toml", config.source.password.get_secret_value())
    yield commands
    commands.kill()


def test_from_check_to_the_log(dblog: Commands, tables: Database) -> None:
    checked = dblog.json("check")
    assert checked["ok"]
    assert any("plain" in p["what"] for p in checked["problems"]), "a table without a key is named"
    assert checked["capture_runs"] is False
    assert dblog("check").stdout.splitlines()[-1].startswith("no capture is running yet: `dblog capture`, or unpause")

    first = dblog("capture", "--until-current", "--json")
    assert first.returncode == 0, first.stderr
    tables.execute(
        "INSERT INTO a VALUES (501, 'live')", "UPDATE a SET id = 502 WHERE id = 501", "DELETE FROM b WHERE code = 'y'"
    )
    assert dblog("capture", "--until-current").returncode == 0
    lines = [json.loads(line) for line in dblog("log", "--table", f"{tables.schema}.a").stdout.splitlines()]
    assert [(x["op"], x["key"]) for x in lines if x["op"] != "s"] == [
        ("c", {"id": 501}),
        ("d", {"id": 501}),
        ("c", {"id": 502}),
    ]
    assert lines[-1]["moved_from"] == {"id": 501}
    again = dblog("log", "--from", str(lines[-1]["offset"]))
    assert json.loads(again.stdout.splitlines()[0]) == lines[-1]


def test_a_first_capture_begins_in_the_past_and_ends_where_it_is_told(
    dblog: Commands, tables: Database, config: Config
) -> None:
    open_source(config.source).prepare()  # PostgreSQL keeps no log before there is a slot
    ends = [end_of(tables)]
    for key in (601, 602):
        tables.execute(f"INSERT INTO a VALUES ({key}, 'past')")
        ends.append(end_of(tables))
    write(config, dblog.file, start="1999-01-01T00:00:00Z")
    problems = json.loads(dblog("check", "--json").stdout)["problems"]
    assert any(p["fatal"] and "1999" in p["what"] for p in problems)
    assert dblog("capture").returncode == 1
    write(config, dblog.file, start=ends[0])
    assert dblog("capture", "--until", ends[1], "--json").returncode == 0
    assert 601 in keys_of(dblog, tables)
    assert dblog("capture", "--until", "1999-01-01T00:00:00Z").returncode == 0
    assert dblog("capture", "--until-current").returncode == 0
    assert keys_of(dblog, tables) == [601, 602]
    assert dblog("capture", "--until", "soon").returncode == 2


def keys_of(dblog: Commands, tables: Database) -> list[int]:
    lines = map(json.loads, dblog("log", "--table", f"{tables.schema}.a").stdout.splitlines())
    return [line["key"]["id"] for line in lines if line["op"] != "s"]


def test_dumps_are_requested_placed_and_controlled(dblog: Commands, tables: Database) -> None:
    capture = dblog.start("capture", "--json")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    name = f"{tables.schema}.a"

    whole = dblog("dump", "--all", "--chunk-size", "100", "--wait")
    assert whole.returncode == 0, whole.stderr
    found = {d["id"]: d for d in dblog.json("dumps")}[whole.stdout.strip()]
    assert (found["state"], found["rows"]) == ("done", 502)
    assert dblog("pause", found["id"]).returncode == 2, "it is over"

    some = dblog.json("dump", "--table", name, "--pk", "1", "--pk", "9999", "--wait")
    assert (some["state"], some["rows"]) == ("done", 2)
    lines = [json.loads(line) for line in dblog("log", "--table", name).stdout.splitlines()]
    assert [(x["op"], x["key"]["id"], x["origin"]) for x in lines[-2:]] == [("r", 1, "dump"), ("d", 9999, "dump")]

    capture.terminate()
    ended = dblog.end(capture)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["outcome"] == "stopped"


@dataclass(frozen=True, slots=True)
class Selects:
    """The SELECTs of a table that a user has sent, as the server has recorded them; PostgreSQL: in `file`."""

    database: Database
    table: str
    file: Path

    def count(self) -> int:
        if self.database.kind == "postgres":
            return self.file.read_text(errors="replace").count(f'FROM ONLY "public"."{self.table}"')
        where = f"user_host LIKE '{self.database.account.user}[%' AND command_type = 'Query'"
        text = f"LOCATE('FROM `{self.database.schema}`.`{self.table}`', CONVERT(argument USING utf8mb4))"
        return int(self.database.query(f"SELECT COUNT(*) FROM mysql.general_log WHERE {where} AND {text} > 0")[0][0])

    def wait(self) -> bool:
        """Whether one waits for a lock of the table."""
        if self.database.kind == "postgres":
            waiting = f"SELECT 1 FROM pg_locks WHERE relation = '{self.table}'::regclass AND NOT granted"
            return self.database.query(waiting) != []
        sessions = self.database.query("SHOW PROCESSLIST")
        return any(state == "Waiting for table metadata lock" for *_, state, _ in (row[:8] for row in sessions))

    def grow(self, by: int) -> None:
        """Returns when there are so many more."""
        before = self.count()
        wait_until(lambda: self.count() >= before + by, f"{by} SELECTs of {self.table}")


@pytest.fixture
def selects(tables: Database, server_root: Path) -> Iterator[Selects]:
    """The server records the statements of the user. Of PostgreSQL: those of sessions that begin from now on."""
    user = tables.account.user
    begin, end = {
        "postgres": ([f"ALTER ROLE \"{user}\" SET log_statement = 'all'"], []),
        **dict.fromkeys(
            ("mysql", "mariadb"),
            (
                ["SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON"],
                ["SET GLOBAL general_log = OFF", "SET GLOBAL log_output = 'FILE'", "TRUNCATE mysql.general_log"],
            ),
        ),
    }[tables.kind]
    tables.execute(*begin)
    yield Selects(tables, "a", server_root / "postgres" / "log")
    tables.execute(*end)


@dataclass(slots=True)
class Rounds:
    """Rows of table b, each staged before the next is written: the log goes on."""

    database: Database
    config: Config
    written: int = 0

    def go(self, count: int) -> None:
        for _ in range(count):
            self.written += 1
            code = f"round {self.written}"
            self.database.execute(f"INSERT INTO b VALUES ('{code}', 1)")
            wait_until(lambda code=code: code in self._staged(), f"the log to go on with {code}")

    def _staged(self) -> set[str]:
        rows = (line for line in staged_lines(open_staging(self.config)) if line["op"] == "c")
        return {line["key"]["code"] for line in rows if line["table"].endswith(".b")}


def test_the_log_goes_on_while_a_select_hangs_and_none_follows_once_a_dump_is_paused_or_cancelled(
    dblog: Commands, tables: Database, config: Config, selects: Selects
) -> None:
    capture = dblog.start("capture")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    options = ["--chunk-size", "1", "--workers", "1", "--delay", "0.1"]
    slow = dblog.start("dump", "--table", f"{tables.schema}.a", *options)
    assert slow.stdout is not None
    dump_id = slow.stdout.readline().strip()
    rounds = Rounds(tables, config)
    selects.grow(1)

    before = selects.count()
    while selects.count() < before + 10:
        rounds.go(1)
    enough = rounds.written + 2  # rounds in which a dump that goes on sends ten SELECTs

    assert dblog.json("pause", dump_id)["state"] == "paused"
    before = selects.count()
    rounds.go(enough)
    assert selects.count() <= before + 1, "the chunk that was begun ends, and no other one is read"

    assert dblog.json("set", dump_id, "chunk_size=2", "delay=0.2")["options"]["chunk_size"] == 2
    assert dblog.json("resume", dump_id)["state"] != "paused"
    selects.grow(3)
    with locked(tables, "a"):
        wait_until(selects.wait, "a SELECT to wait for the lock")
        rounds.go(3)
        assert selects.wait(), "the chunk is being read all the time"
    selects.grow(1)

    assert dblog.json("cancel", dump_id)["state"] == "cancelled"
    before = selects.count()
    rounds.go(enough)
    assert selects.count() <= before + 1
    assert dblog.end(slow).returncode == 1, "its dump did not come about"
    capture.terminate()
    assert dblog.end(capture).returncode == 0


@contextmanager
def locked(database: Database, table: str) -> Iterator[None]:
    """No SELECT of the table begins before this ends; who holds the lock has nothing in the log."""
    postgres = database.kind == "postgres"
    begin = ["BEGIN", f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"] if postgres else [f"LOCK TABLES {table} WRITE"]
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for statement in begin:
            cursor.execute(statement)
        yield
        cursor.execute("ROLLBACK" if postgres else "UNLOCK TABLES")


@pytest.fixture
def customers(tables: Database) -> Database:
    """Two tables that one pattern matches, with skewed keys, text that differs in case, dates and money."""
    for name in ("cust_a", "cust_b"):
        tables.execute(
            f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, city VARCHAR(20), born DATE, paid DECIMAL(10,2))",
            f"INSERT INTO {name} VALUES "
            + ", ".join(
                f"({n if n < 900 else n * n}, '{('Oslo', 'Rome', '42')[n % 3]}', '20{n % 30:02}-01-15', {n}.50)"
                for n in range(1, 1001)
            ),
            f"ANALYZE {name}" if tables.kind == "postgres" else f"ANALYZE TABLE {name}",
        )
    return tables


def test_requests_of_every_kind_bring_the_rows_that_they_name(customers: Database, dblog: Commands) -> None:
    capture = dblog.start("capture")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    schema = customers.schema
    offset = 0

    def dumped(*arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
        """The finished dump, the rows that it brought, and what it says of ghosts."""
        nonlocal offset
        status = dblog.json("dump", *arguments, "--chunk-size", "10", "--wait")
        assert status["state"] == "done", status
        new = [json.loads(line) for line in dblog("log", "--from", str(offset + 1)).stdout.splitlines()]
        offset = new[-1]["offset"]
        brought = [x for x in new if x["op"] == "r"]
        assert len({(x["table"], x["key"]["id"]) for x in brought}) == len(brought) == status["rows"]
        return status, brought, [x for x in new if x["op"] == "f"]

    plan = dblog.json("dump", "--table", f"{schema}.cust*", "--chunk-size", "10", "--workers", "3", "--dry-run")
    assert [t["table"] for t in plan["tables"]] == [f"{schema}.cust_a", f"{schema}.cust_b"]
    for table in plan["tables"]:
        assert table["index"] and table["ranges"] == 12 and table["warnings"] == [], table
        assert table["rows"] == pytest.approx(1_000, rel=0.1)
    assert dblog.json("dumps") == []

    whole, rows, ends = dumped("--table", f"{schema}.cust*", "--workers", "3")
    assert (whole["rows"], whole["tasks_done"], len(whole["tasks"])) == (2_000, 24, 24)
    assert all(t["done"] and 50 <= t["rows"] <= 150 for t in whole["tasks"]), "balanced although the keys are not"
    assert {x["table"] for x in rows} == {x["table"] for x in ends} == {f"{schema}.cust_a", f"{schema}.cust_b"}
    assert len(ends) == 2, "one end for all ranges of a table"
    assert whole["rows_per_second"] > 0

    name = f"{schema}.cust_a"
    for tests, condition in (
        (["city", "=", "Oslo"], "city = 'Oslo'"),
        (["city", "=", "42", "born", ">=", "2010-01-15"], "city = '42' AND born >= '2010-01-15'"),
        (["city", "in", '["Rome", "nowhere"]', "paid", "<=", "500.50"], "city = 'Rome' AND paid <= 500.50"),
        (["city", "=", "x' OR '1'='1", "id", "<", "-5"], "1 = 0"),
    ):
        options = [w for i in range(0, len(tests), 3) for w in ("--filter", *tests[i : i + 3])]
        _, rows, ends = (
            dumped("--table", name, *options, "--ranges", "2")
            if condition != "1 = 0"
            else (dblog.json("dump", "--table", name, *options, "--wait"), [], [])
        )
        wanted = [row[0] for row in customers.query(f"SELECT id FROM cust_a WHERE {condition} ORDER BY id")]
        assert (sorted(x["key"]["id"] for x in rows), ends) == (wanted, []), "a filtered dump tells of no ghosts"

    part, rows, ends = dumped("--table", name, "--key-from", "100", "--key-to", "899", "--ranges", "5")
    assert (len(part["tasks"]), sorted(x["key"]["id"] for x in rows)) == (5, list(range(100, 900)))
    assert [(x["key_from"], x["key_to"]) for x in ends] == [(100, 899)]
    both, rows, _ = dumped("--table", name, "--key-to", "300", "--filter", "city", "=", "Rome", "--ranges", "3")
    assert sorted(x["key"]["id"] for x in rows) == [n for n in range(1, 301) if n % 3 == 1], both
    empty = dblog.json("dump", "--table", name, "--key-from", "9", "--key-to", "5", "--wait")
    assert empty["state"] == "done"
    capture.terminate()
    assert dblog.end(capture).returncode == 0


def test_requests_that_the_catalogue_refuses_are_told_before_anything_is_filed(
    customers: Database, dblog: Commands
) -> None:
    schema = customers.schema
    for arguments, words in (
        (["--table", f"{schema}.nothing*"], "matches no captured table"),
        (["--table", f"{schema}.plain"], "[source.keys]"),
        (["--table", f"{schema}.cust_a", "--filter", "city; DROP TABLE cust_a", "=", "1"], "no column"),
        (["--table", f"{schema}.cust*", "--table", f"{schema}.a", "--filter", "city", "=", "1"], "no column city"),
        (["--table", f"{schema}.cust_a", "--filter", "born", "<", "yesterday"], "born"),
        (["--table", f"{schema}.cust_a", "--pk", "1", "--filter", "id", "=", "1"], "both keys and filters"),
    ):
        refused = dblog("dump", *arguments)
        assert (refused.returncode, refused.stdout) == (2, ""), arguments
        assert words in refused.stderr and "fix: " in refused.stderr, (arguments, refused.stderr)
    assert dblog.json("dumps") == []


def test_a_table_that_is_dropped_during_its_dump_fails_alone(customers: Database, dblog: Commands) -> None:
    capture = dblog.start("capture")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    slow = dblog.start("dump", "--table", f"{customers.schema}.cust*", "--chunk-size", "10", "--delay", "60", "--json")
    dblog.until(lambda status: status["dumps"] and status["dumps"][0]["rows"])
    customers.execute("DROP TABLE cust_b")
    dump_id = dblog.json("dumps")[0]["id"]
    dblog.json("set", dump_id, "delay=0", "workers=8")
    ended = dblog.end(slow)
    assert ended.returncode == 1
    assert "cust_b" in ended.stderr and "fix: " in ended.stderr
    status = dblog.json("dumps")[0]
    assert status["state"] == "failed"
    assert f"{customers.schema}.cust_b: " in status["error"] and "cust_a: " not in status["error"]
    whole = [t for t in status["tasks"] if t["table"].endswith("cust_a")]
    assert all(t["done"] for t in whole)
    assert sum(t["rows"] for t in whole) == 1_000
    assert dblog("resume", dump_id).returncode == 2
    capture.terminate()
    assert dblog.end(capture).returncode == 0


def test_a_dump_is_slowed_and_let_go_again_while_it_runs(customers: Database, dblog: Commands) -> None:
    capture = dblog.start("capture")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    name = f"{customers.schema}.cust_a"
    slow = dblog.start("dump", "--table", name, "--chunk-size", "10", "--delay", "60", "--max-retained", "1")
    assert slow.stdout is not None
    dump_id = slow.stdout.readline().strip()
    held = dblog.until(lambda status: status["dumps"][0]["held"])["dumps"][0]
    assert held["state"] in {"running", "requested"}
    assert held["rows"] <= 20, "it stands above the ceiling, if not at once then soon"
    assert f"held: {held['held']}" in dblog("dumps").stdout
    tuned = dblog.json("set", dump_id, "max_retained=0", "delay=0", "adaptive=on", "workers=4", "chunk_size=50")
    assert (tuned["options"]["adaptive"], tuned["options"]["max_retained"]) == (True, 0)
    assert dblog.end(slow).returncode == 0
    done = dblog.json("dumps")[0]
    assert (done["state"], done["rows"], done["held"], done["seconds_left"]) == ("done", 1_000, None, 0.0)
    over = dblog("set", dump_id, "rate=5")
    assert (over.returncode, f"dump {dump_id} is done" in over.stderr) == (2, True)
    capture.terminate()
    assert dblog.end(capture).returncode == 0


def test_what_looks_like_sql_is_refused_or_bound(dblog: Commands, tables: Database) -> None:
    capture = dblog.start("capture")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    for table in (f"{tables.schema}.a; DROP TABLE a", f"{tables.schema}.a`", f'{tables.schema}."a"', "x.y' OR '1'='1"):
        refused = dblog("dump", "--table", table)
        assert (refused.returncode, refused.stdout) == (2, "")
    for key in ('"1; DROP TABLE a"', '"1 OR 1=1"', "[1, 2]", "{}"):
        refused = dblog("dump", "--table", f"{tables.schema}.a", "--pk", key)
        assert (refused.returncode, refused.stdout) == (2, "")
    bound = dblog.json("dump", "--table", f"{tables.schema}.b", "--pk", json.dumps("x'; DROP TABLE b; --"), "--wait")
    assert (bound["state"], bound["rows"]) == ("done", 1)
    assert [row[0] for row in tables.query("SELECT count(*) FROM b")] == [2]
    assert [row[0] for row in tables.query("SELECT count(*) FROM a")] == [500]
    capture.terminate()
    assert dblog.end(capture).returncode == 0


@pytest.mark.parametrize("command", ["check", "capture"])
def test_wrong_settings_are_told_with_their_fix(
    dblog: Commands, config: Config, tables: Database, command: str
) -> None:
    wrong = {
        "password": {"password": "not-the-password"},
        "host": {"host": "127.0.0.2"},
        "database": {"database": "no_such_database", "tables": ["no_such_database.*"]},
        "tables": {"tables": [f"{tables.schema}.a", f"{tables.schema}.nothing*"]},
    }
    for changes in wrong.values():
        write(config, dblog.file, **changes)  # type: ignore[arg-type]
        arguments = ["check"] if command == "check" else ["capture", "--for", "1"]
        done = dblog(*arguments)
        assert done.returncode == 1, (changes, done)
        told = done.stdout if command == "check" else done.stderr
        assert "fix: " in told, (changes, told)
        assert "not-the-password" not in done.stdout + done.stderr


def test_a_user_without_grants_is_told_which_to_ask_for(dblog: Commands, config: Config, tables: Database) -> None:
    user = f"weak_{tables.name}"[:30]
    password = "weak-password-1"
    who = f'"{user}"' if tables.kind == "postgres" else f"'{user}'@'{config.source.host}'"
    create = (
        f"CREATE ROLE {who} LOGIN PASSWORD '{password}'"
        if tables.kind == "postgres"
        else f"CREATE USER {who} IDENTIFIED BY '{password}'"
    )
    tables.execute(create)
    if tables.kind != "postgres":
        tables.execute(f"GRANT CREATE ON `{tables.name}`.`nothing` TO {who}")  # enough to connect to the database
    try:
        write(config, dblog.file, user=user, password=password)
        done = dblog("check")
        assert done.returncode == 1
        assert "GRANT" in done.stdout or "REPLICATION" in done.stdout
        assert password not in done.stdout
    finally:
        tables.execute(f"DROP {'ROLE' if tables.kind == 'postgres' else 'USER'} {who}")
