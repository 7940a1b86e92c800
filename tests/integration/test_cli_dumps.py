"""Dumps by the command line: controlled, slowed, paused and cancelled beside a log that goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from dblog_core.config.settings import Config
from dblog_core.staging.reader import lines as staged_lines
from dblog_core.wiring import open_staging
from tests.fix_servers import Database
from tests.integration.cli_world import Commands, config, customers, dblog, tables
from tests.waiting import wait_until

__all__ = ["config", "customers", "dblog", "tables"]

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(6)]


def test_dumps_are_requested_placed_and_controlled(dblog: Commands, tables: Database) -> None:
    capture = dblog.start("capture", "--json")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    name = f"{tables.schema}.a"

    whole = dblog("dump", "--all", "--chunk-size", "100", "--wait")
    assert whole.returncode == 0, whole.stderr
    dump = {d["id"]: d for d in dblog.json("dumps")}[whole.stdout.strip()]
    assert (dump["state"], dump["rows"]) == ("done", 502)
    assert dblog("pause", dump["id"]).returncode == 2, "it is over"

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
            wait_until(lambda code=code: code in self._staged_notes(), f"the log to go on with {code}")

    def _staged_notes(self) -> set[str]:
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
    with lock_table(tables, "a"):
        wait_until(selects.wait, "a SELECT to wait for the lock")
        rounds.go(3)
        wait_until(selects.wait, "a SELECT to wait again: the table is tried all the time")
    selects.grow(1)

    assert dblog.json("cancel", dump_id)["state"] == "cancelled"
    before = selects.count()
    rounds.go(enough)
    assert selects.count() <= before + 1
    assert dblog.end(slow).returncode == 1, "its dump did not come about"
    capture.terminate()
    assert dblog.end(capture).returncode == 0


@contextmanager
def lock_table(database: Database, table: str) -> Iterator[None]:
    """No SELECT of the table begins before this ends; who holds the lock has nothing in the log."""
    postgres = database.kind == "postgres"
    begin = ["BEGIN", f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"] if postgres else [f"LOCK TABLES {table} WRITE"]
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for statement in begin:
            cursor.execute(statement)
        yield
        cursor.execute("ROLLBACK" if postgres else "UNLOCK TABLES")


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
    held_dump = dblog.until(lambda status: status["dumps"][0]["held"])["dumps"][0]
    assert held_dump["state"] in {"running", "requested"}
    assert held_dump["rows"] <= 20, "it stands above the ceiling, if not at once then soon"
    assert f"held: {held_dump['held']}" in dblog("dumps").stdout
    tuned = dblog.json("set", dump_id, "max_retained=0", "delay=0", "adaptive=on", "workers=4", "chunk_size=50")
    assert (tuned["options"]["adaptive"], tuned["options"]["max_retained"]) == (True, 0)
    assert dblog.end(slow).returncode == 0
    done = dblog.json("dumps")[0]
    assert (done["state"], done["rows"], done["held"], done["seconds_left"]) == ("done", 1_000, None, 0.0)
    over = dblog("set", dump_id, "rate=5")
    assert (over.returncode, f"dump {dump_id} is done" in over.stderr) == (2, True)
    capture.terminate()
    assert dblog.end(capture).returncode == 0
