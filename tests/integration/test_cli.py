"""The command line from check to the log, on a real server: starts, requests of every kind, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dblog_core.config.settings import Config
from dblog_core.wiring import open_source
from tests.contract.test_starts import end_of
from tests.fix_servers import Database
from tests.integration.cli_world import Commands, config, customers, dblog, tables, write

__all__ = ["config", "customers", "dblog", "tables"]

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(4)]


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
    log_again = dblog("log", "--from", str(lines[-1]["offset"]))
    assert json.loads(log_again.stdout.splitlines()[0]) == lines[-1]


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


@pytest.mark.one_of(6)
def test_requests_of_every_kind_bring_the_rows_that_they_name(customers: Database, dblog: Commands) -> None:
    capture = dblog.start("capture")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    schema = customers.schema
    offset = 0

    def run_dump(*arguments: str) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
        """The finished dump, the rows that it brought, and what it says of ghosts."""
        nonlocal offset
        status = dblog.json("dump", *arguments, "--chunk-size", "10", "--wait")
        assert status["state"] == "done", status
        new = [json.loads(line) for line in dblog("log", "--from", str(offset + 1)).stdout.splitlines()]
        offset = new[-1]["offset"]
        dumped_lines = [x for x in new if x["op"] == "r"]
        assert len({(x["table"], x["key"]["id"]) for x in dumped_lines}) == len(dumped_lines) == status["rows"]
        return status, dumped_lines, [x for x in new if x["op"] == "f"]

    plan = dblog.json("dump", "--table", f"{schema}.cust*", "--chunk-size", "10", "--workers", "3", "--dry-run")
    assert [t["table"] for t in plan["tables"]] == [f"{schema}.cust_a", f"{schema}.cust_b"]
    for table in plan["tables"]:
        assert table["index"] and table["ranges"] == 12 and table["warnings"] == [], table
        assert table["rows"] == pytest.approx(1_000, rel=0.1)
    assert dblog.json("dumps") == []

    whole, rows, ends = run_dump("--table", f"{schema}.cust*", "--workers", "3")
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
            run_dump("--table", name, *options, "--ranges", "2")
            if condition != "1 = 0"
            else (dblog.json("dump", "--table", name, *options, "--wait"), [], [])
        )
        expected_ids = [row[0] for row in customers.query(f"SELECT id FROM cust_a WHERE {condition} ORDER BY id")]
        assert (sorted(x["key"]["id"] for x in rows), ends) == (expected_ids, []), "a filtered dump tells of no ghosts"

    part, rows, ends = run_dump("--table", name, "--key-from", "100", "--key-to", "899", "--ranges", "5")
    assert (len(part["tasks"]), sorted(x["key"]["id"] for x in rows)) == (5, list(range(100, 900)))
    assert [(x["key_from"], x["key_to"]) for x in ends] == [(100, 899)]
    both, rows, _ = run_dump("--table", name, "--key-to", "300", "--filter", "city", "=", "Rome", "--ranges", "3")
    assert sorted(x["key"]["id"] for x in rows) == [n for n in range(1, 301) if n % 3 == 1], both
    capture.terminate()
    assert dblog.end(capture).returncode == 0


def test_requests_that_the_catalogue_refuses_are_told_before_anything_is_filed(
    customers: Database, dblog: Commands
) -> None:
    schema = customers.schema
    for arguments, words in (
        (["--table", f"{schema}.nothing*"], "matches no captured table"),
        (["--table", f"{schema}.plain"], "has no key"),
        (["--table", f"{schema}.cust_a", "--filter", "city; DROP TABLE cust_a", "=", "1"], "no column"),
        (["--table", f"{schema}.cust*", "--table", f"{schema}.a", "--filter", "city", "=", "1"], "no column city"),
        (["--table", f"{schema}.cust_a", "--filter", "born", "<", "yesterday"], "born"),
        (["--table", f"{schema}.cust_a", "--pk", "1", "--filter", "id", "=", "1"], "both keys and filters"),
        (["--table", f"{schema}.cust_a", "--key-from", "9", "--key-to", "5"], "ends before it begins: from 9 to 5"),
    ):
        refused = dblog("dump", *arguments)
        assert (refused.returncode, refused.stdout) == (2, ""), arguments
        assert words in refused.stderr and "fix: " in refused.stderr, (arguments, refused.stderr)
    assert dblog.json("dumps") == []


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
        output = done.stdout if command == "check" else done.stderr
        assert "fix: " in output, (changes, output)
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
