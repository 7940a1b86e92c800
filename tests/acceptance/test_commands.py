"""Every command of `dblog` as a user runs it, with a password in every place that takes one.

`SCENARIOS` says which test runs which command, and one test compares it with `dblog --help`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.acceptance import judge, shapes
from tests.acceptance.accounts import REFUSED
from tests.acceptance.conftest import NewWorld
from tests.acceptance.scenarios import SCENARIOS
from tests.acceptance.secret_texts import AWKWARD, BEYOND_LATIN_1, WITHOUT_BRACES, new_secret, shown_in
from tests.acceptance.world import HASH_KEY, SOURCE_PASSWORD, STATE_PASSWORD, TOKEN, Running, World
from tests.waiting import wait_until

_ROWS = 200


@pytest.mark.in_turn
def test_every_command_of_a_session(new_world: NewWorld) -> None:
    world = new_world("zookeeper")
    listen = _configure(world)
    world.admin(
        *shapes.create("orders", "note VARCHAR(20), paid DECIMAL(10,2)", _ROWS, "'note {i}', {i}.25"),
        *shapes.create(
            "customers", "email VARCHAR(40), iban VARCHAR(40), note VARCHAR(20)", 20, "'c{i}@x.de', 'DE{i}', 'private'"
        ),
    )
    world.follow_check()
    assert "properties" in world.json("config", "schema")
    world.dblog("capture", "--until-current")
    with world.capture():
        merging = world.start("merge", "--continuous")
        _dump_in_every_way(world)
        _control_dumps(world)
        _send_signals(world, listen)
        world.admin("INSERT INTO orders VALUES (1001, 'late', 1.50)", "DELETE FROM orders WHERE id = 2")
        _await_merge(world)
        _assert_lake(world)
        _assert_job_has_no_source_password(world, merging)
        _ask_about_it(world)
        _relay(world)
        _repair_the_lake(world)
        merging.stop()
        plan = world.json("merge", "--dry-run")
        assert plan["stopped"] == []
        world.dblog("merge")
        _assert_lake(world)
        world.assert_all_ok()
    assert world.dblog("work", "--once").returncode == 0


def _configure(world: World) -> str:
    """Sections with secrets of their own; returns the address of `dblog serve`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    world.new_token(TOKEN)
    world.new_token(HASH_KEY)
    world.write_config(
        source={"hash_key": f"${{{HASH_KEY}}}"},
        dump={"chunk_size": 50},
        signals={"file": str(world.directory / "requests.jsonl")},
        **{
            f'source.columns."{world.table("customers")}"': {"exclude": ["note"], "mask": ["iban"], "hash": ["email"]},
            "signals.http": {"listen": listen, "token": f"${{{TOKEN}}}"},
            "output.archive": {"kind": "files", "path": str(world.directory / "archive"), "start": "earliest"},
        },
    )
    return listen


def _assert_lake(world: World) -> None:
    """Also with what the rules of `customers` make of its columns."""
    world.assert_equal("orders")
    key = world.variables[HASH_KEY].text.encode()
    expected = [
        {"id": row["id"], "email": hmac.new(key, row["email"].encode(), hashlib.sha256).hexdigest(), "iban": "*****"}
        for row in world.source_rows("customers")
    ]
    judge.compare("customers", expected, world.lake_rows("customers"))


def _await_merge(world: World) -> None:
    """Returns when the merge that runs has all that is committed now."""
    world.catch_up()
    offset = world.status()["offset"]
    world.until_status(lambda status: (status["merge"]["offset"] or 0) >= offset, f"a merge up to {offset}")


def _dump_in_every_way(world: World) -> None:
    orders = world.table("orders")
    plan = world.json("dump", "--all", "--dry-run")
    assert {t["table"] for t in plan["tables"]} == {orders, world.table("customers")}
    assert world.json("dumps") == []
    dump_id = world.dblog("dump", "--all", "--wait").stdout.strip()
    (dump,) = world.json("dumps")
    assert (dump["id"], dump["state"], dump["rows"]) == (dump_id, "done", _ROWS + 20)
    for options, rows in (
        (["--pk", "1", "--pk", "9999"], 2),
        (["--key-from", "100", "--key-to", "149", "--ranges", "2"], 50),
        (["--filter", "note", "in", '["note 7", "nothing"]'], 1),
    ):
        part = world.json("dump", "--table", orders, *options, "--wait")
        assert (part["state"], part["rows"]) == ("done", rows), options
    lines = [json.loads(line) for line in world.dblog("log", "--table", orders, "--from", "1").stdout.splitlines()]
    assert {"r", "f"} <= {line["op"] for line in lines}
    assert [line["op"] for line in lines if line["key"] == {"id": 9999}] == ["d"]


def _start_slow_dump(world: World) -> tuple[Running, str]:
    """A dump that rests for a minute after its first chunk, and its id."""
    slow = world.start("dump", "--table", world.table("orders"), "--chunk-size", "20", "--delay", "60", "--ranges", "1")
    dump_id = wait_until(lambda: slow.out.read_text().strip(), "the id of the dump")
    world.until_status(lambda s: any(d["id"] == dump_id and d["rows"] for d in s["dumps"]), "its first chunk")
    return slow, dump_id


def _control_dumps(world: World) -> None:
    slow, dump_id = _start_slow_dump(world)
    assert world.json("pause", dump_id)["state"] == "paused"
    assert "paused" in world.dblog("dumps").stdout
    assert world.json("set", dump_id, "chunk_size=500", "delay=0", "rate=0")["options"]["chunk_size"] == 500
    world.json("resume", dump_id)
    slow.wait()
    assert world.json("dumps")[-1]["rows"] == _ROWS

    slow, dump_id = _start_slow_dump(world)
    assert world.json("cancel", dump_id)["state"] == "cancelled"
    slow.wait(ok=(1,))
    world.dblog("pause", dump_id, ok=(2,))

    slow, dump_id = _start_slow_dump(world)
    slow.kill()
    world.dblog("set", dump_id, "delay=0")
    world.dblog("work", "--once")
    ended = next(d for d in world.json("dumps") if d["id"] == dump_id)
    assert (ended["state"], ended["rows"]) == ("done", _ROWS)


def _send_signals(world: World, listen: str) -> None:
    serving = world.start("serve")
    signal = {"type": "execute-snapshot", "data": {"data-collections": [world.table("customers")]}}
    with (world.directory / "requests.jsonl").open("a") as file:
        file.write(json.dumps({"id": "by-file", **signal}) + "\n")
    wait_until(lambda: _answers(listen), "dblog serve to listen", describe=serving.err.read_text)
    assert _post(listen, world.variables[TOKEN].text, {"id": "by-http", **signal}) == 202
    assert _post(listen, "another token, which is wrong", {"id": "by-nobody", **signal}) == 401

    def carried_out() -> bool:
        return {s["id"]: s["state"] for s in world.json("signals")} == {"by-file": "done", "by-http": "done"}

    wait_until(carried_out, "the signals to be carried out", describe=lambda: world.json("signals"))
    serving.stop()
    world.until_status(lambda s: {d["state"] for d in s["dumps"]} <= {"done", "cancelled"}, "dumps of the signals")


def _answers(listen: str) -> bool:
    host, _, port = listen.partition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def _post(listen: str, token: str, signal: dict[str, object]) -> int:
    request = urllib.request.Request(
        f"http://{listen}/signals", json.dumps(signal).encode(), {"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def _assert_job_has_no_source_password(world: World, merging: Running) -> None:
    """Neither the arguments nor the environment of spark-submit and of what it starts show it."""
    arguments: list[str] = []
    environments: list[str] = []
    for job in psutil.Process(merging.process.pid).children(recursive=True):
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # one of the short programs that start Java
            arguments.append(" ".join(job.cmdline()))
            environments.append("\n".join(job.environ().values()))
    has_spark = any("SparkSubmit" in text for text in arguments)
    assert has_spark == (world.sections["lake"].get("engine") != "local"), arguments
    assert shown_in("\n".join(arguments), world.secrets) == []
    source = [world.variables[name] for name in (SOURCE_PASSWORD, HASH_KEY, TOKEN)]
    assert shown_in("\n".join(environments), source) == []
    # The job has run from the installed package: the interpreter has written its modules' bytecode there.
    assert list((world.site / "dblog_core" / "lake_engine" / "merging" / "__pycache__").glob("*.pyc"))


def _ask_about_it(world: World) -> None:
    orders = world.table("orders")
    text = world.dblog("status").stdout
    assert f"source    {world.name}" in text and "leader" in text
    metrics = world.dblog("metrics").stdout
    assert f'dblog_up{{source="{world.name}"}} 1.0' in metrics
    cut = world.json("cut")
    assert cut["tables"].keys() == {orders, world.table("customers")}
    (version,) = world.json("schema", orders)["versions"]
    assert [column["name"] for column in version["columns"]] == ["id", "note", "paid"]


def _relay(world: World) -> None:
    world.dblog("relay", "archive", "--once")
    archived = "".join(file.read_text() for file in sorted((world.directory / "archive").rglob("*.jsonl")))
    logged = world.dblog("log").stdout
    assert archived.splitlines() == logged.splitlines()[: len(archived.splitlines())] != []
    assert world.status()["outputs"][0]["output"] == "archive"


def _repair_the_lake(world: World) -> None:
    """Differences that the log does not have are named and repaired; so is the lake, by every command that does it."""
    orders = world.table("orders")
    certificate = str(world.directory / "certificate.json")
    compared = world.json("verify", "--all", "--certificate", certificate)
    assert compared["equal"]
    not_compared = {table["table"]: [c["column"] for c in table["not_compared"]] for table in compared["tables"]}
    assert not_compared == {orders: [], world.table("customers"): ["email", "note"]}
    _damage_a_hash(world)
    _add_a_row_without_a_key(world)
    assert world.json("verify", "--check", certificate)["equal"]
    missing, extra = _damage(world)
    (table,) = world.json("verify", "--table", orders, ok=(1,))["tables"]
    assert (table["missing"], table["extra"]) == (missing, extra)
    assert table["different"] == [{"key": 10, "columns": ["note"]}]
    world.dblog("verify", "--table", orders, "--repair")
    world.assert_equal("orders")
    for command in (("replay", "--from", "1"), ("rebuild", orders), ("reset", orders), ("maintain",)):
        world.dblog(*command)
    world.until_status(lambda s: {t["state"] for t in s["tables"]} == {"ok"}, "the reset table to be whole again")
    _await_merge(world)
    assert world.json("verify", "--all")["equal"]


def _damage_a_hash(world: World) -> None:
    """NULL in place of a keyed hash is found and repaired; no server can compare the hashes themselves."""
    customers = world.table("customers")
    DeltaTable(world.lake.joinpath(*customers.split("."))).update(updates={"email": "NULL"}, predicate="id = 3")
    certificate = str(world.directory / "damaged.json")
    (table,) = world.json("verify", "--table", customers, "--certificate", certificate, ok=(1,))["tables"]
    assert table["different"] == [{"key": 3, "columns": ["email"]}]
    check = world.json("verify", "--check", certificate, ok=(1,))
    assert [t["table"] for t in check["tables"]] == [customers] and "1 keys differ" in check["tables"][0]["error"]
    world.dblog("verify", "--table", customers, "--repair")
    _assert_lake(world)
    # The merge takes another program's UPDATE for damage, and has the whole table dumped. Its end would remove the row
    # without a key of the next step, before or while that is compared.
    world.until_status(lambda s: {t["state"] for t in s["tables"]} == {"ok"}, "the dump of the damaged table")


def _add_a_row_without_a_key(world: World) -> None:
    """Another program's row with NULL in its key: a difference, which a repair removes."""
    customers = world.table("customers")
    lake_table = DeltaTable(world.lake.joinpath(*customers.split(".")))
    shape = pa.schema(lake_table.schema().to_arrow())
    write_deltalake(lake_table, pa.Table.from_pylist([{"id": None, "iban": "?"}], schema=shape), mode="append")
    (table,) = world.json("verify", "--table", customers, ok=(1,))["tables"]
    assert (table["extra"], table["missing"], table["different"]) == ([None], [], [])
    assert world.json("verify", "--table", customers, "--repair")["equal"]
    _assert_lake(world)


def _damage(world: World) -> tuple[list[int], list[int]]:
    """Changes a row, and lets rows be in the source or in the lake alone; the log has nothing of it. Returns the keys
    that the lake then lacks, and those that it has beside the source."""
    if world.kind != "postgres":
        world.admin(
            "SET SESSION sql_log_bin = 0",
            "UPDATE orders SET note = 'damaged' WHERE id = 10",
            "DELETE FROM orders WHERE id = 11",
            "INSERT INTO orders VALUES (2001, 'added', 0.50)",
        )
        return [2001], [11]
    # PostgreSQL logs all rows, and a table whose publication leaves some out is dumped at once. So another program
    # changes the lake.
    orders = DeltaTable(world.lake.joinpath(*world.table("orders").split(".")))
    orders.update(updates={"note": "'damaged'"}, predicate="id = 10")
    orders.delete("id = 11")
    orders.update(updates={"id": "2001"}, predicate="id = 12")
    return [11, 12], [2001]


@pytest.mark.in_turn
@pytest.mark.one_of(2)
def test_a_damaged_line_of_a_history_is_named_and_a_reset_writes_it_again(new_world: NewWorld) -> None:
    world = new_world("sqlite")
    orders = world.table("orders")
    world.write_config(lake={"history": True})
    world.admin(*shapes.create("orders", "note VARCHAR(20)", 20, "'n {i}'"))
    world.follow_check()
    world.dblog("capture", "--until-current")
    with world.capture():
        world.dblog("dump", "--all", "--wait")
        world.dblog("merge")
        path = world.lake.joinpath(*f"{orders}__history".split("."))
        DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
        DeltaTable(path).update(updates={"note": "'of nobody'"}, predicate="id = 20")
        (table,) = world.json("verify", "--all", ok=(1,))["tables"]
        assert (table["missing"], table["extra"], table["different"]) == ([], [], [])
        assert table["history"]["different"] == [{"key": 20, "columns": ["note"]}]
        assert "another program (UPDATE" in table["history"]["gap"]
        assert f"`dblog reset {orders}`" in table["history"]["fix"]
        world.dblog("reset", orders)
        world.until_status(lambda s: {d["state"] for d in s["dumps"]} == {"done"}, "the dump of the reset")
        world.dblog("merge")
        compared = world.json("verify", "--all")
        history = compared["tables"][0]["history"]
        assert compared["equal"] and history["not_compared"] is None and history["gap"] is None
        shutil.rmtree(path)
        history = world.json("verify", "--all", ok=(1,))["tables"][0]["history"]
        assert "it is gone" in history["gap"] and f"`dblog reset {orders}`" in history["fix"]


@pytest.mark.in_turn
def test_a_held_table_is_accepted_as_it_is_now(new_world: NewWorld) -> None:
    """A new column of a table with hidden ones: it might be one of them, under another name."""
    world = new_world("sqlite")
    table = world.table("customers")
    world.write_config(**{f'source.columns."{table}"': {"mask": ["iban"]}})
    world.admin(*shapes.create("customers", "iban VARCHAR(40), note VARCHAR(20)", 20, "'DE{i}', 'n {i}'"))
    world.follow_check()
    world.dblog("capture", "--until-current")
    with world.capture():
        world.dblog("dump", "--all", "--wait")
        world.admin(
            "ALTER TABLE customers ADD COLUMN vat VARCHAR(40)",
            "INSERT INTO customers VALUES (21, 'DE21', 'n 21', 'VAT21')",
        )
        world.until_status(lambda s: [t["state"] for t in s["tables"]] == ["stopped"], "the table to be held")
        (problem,) = [p for p in world.json("check", ok=(1,))["problems"] if p["fatal"]]
        assert "is held" in problem["what"] and f"dblog rules accept {table}" in problem["fix"]
        assert "is held" in world.dblog("dump", "--table", table, ok=(2,)).stderr
        as_now = {"id": "as it is", "iban": "masked", "note": "as it is", "vat": "as it is"}
        assert world.json("rules", "accept", table) == {"accepted": {table: as_now}}
        world.until_status(
            lambda s: not s["tables"] and [d["state"] for d in s["dumps"]] == ["done", "done"],
            "the dump of the accepted table",
        )
        lines = [json.loads(line) for line in world.dblog("log", "--table", table).stdout.splitlines()]
        rows = [line["after"] for line in lines if line["key"] == {"id": 21}]
        assert rows == [{"id": 21, "iban": "*****", "note": "n 21", "vat": "VAT21"}]
        assert "is not held" in world.dblog("rules", "accept", table, ok=(2,)).stderr


def test_a_command_of_the_help_runs_in_a_scenario(installed_dblog: Path, tmp_path: Path) -> None:
    """A command that no test runs with passwords is a gap: name it in SCENARIOS, and run it there."""
    texts = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    tests = set(re.findall(r"^def (test_\w+)", texts, re.MULTILINE))
    assert SCENARIOS.keys() <= tests
    assert _commands_of_help(installed_dblog, tmp_path) == {c for commands in SCENARIOS.values() for c in commands}


def _commands_of_help(site: Path, directory: Path) -> set[str]:
    """The commands, and the members of groups, as the help names them."""
    commands: set[str] = set()
    groups: list[list[str]] = [[]]
    while groups:
        members: list[list[str]] = []
        for group, text in zip(groups, _help_texts(site, directory, groups), strict=True):
            _, _, listed = text.partition("\nCommands:\n")
            names = re.findall(r"^  (\w[\w-]*)", listed, re.MULTILINE)
            members += [[*group, name] for name in names]
            # `schema` has its member as a word before its argument: `{[accept] TABLE}`.
            words = re.findall(r"^Usage: dblog .*\{\[(\w+)\] [A-Z]+\}", text, re.MULTILINE)
            commands |= {" ".join([*group, *more]) for more in ([] if names else [[], *([word] for word in words)])}
        groups = members
    return commands


_PRINT_HELP = """
import contextlib, io, json, sys
from dblog_core.cli import main

texts = []
for group in json.loads(sys.argv[1]):
    sys.argv = ["dblog", *group, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        main()
    texts.append(text.getvalue())
print(json.dumps(texts))
"""


def _help_texts(site: Path, directory: Path, groups: list[list[str]]) -> list[str]:
    """What `dblog GROUP --help` prints, all of them by one process."""
    program = [sys.executable, "-c", _PRINT_HELP, json.dumps(groups)]
    done = subprocess.run(
        program, env={"PYTHONPATH": str(site)}, cwd=directory, check=True, capture_output=True, text=True
    )
    texts: list[str] = json.loads(done.stdout)
    return texts


@pytest.mark.in_turn
def test_no_account_gets_in_with_another_password(new_world: NewWorld) -> None:
    world = new_world("zookeeper")
    accounts = {world.user: world.password.text, world.server.user: world.server.password}
    for user, password in accounts.items():
        world.server.connect(user=user, password=password).close()
        for wrong in ("", "another", password[:-1]):
            with pytest.raises(REFUSED):
                world.server.connect(user=user, password=wrong).close()
    right = dict(world.variables)
    for name, area in ((SOURCE_PASSWORD, "source"), (STATE_PASSWORD, "state")):
        world.variables = {**right, name: new_secret(form=WITHOUT_BRACES)}
        assert f"ERROR: {area}: " in world.dblog("check", ok=(1,)).stdout
    world.variables = right
    world.sections["state"] = {"url": world.sections["state"]["url"]}
    world.write_config()
    assert "ERROR: state: " in world.dblog("check", ok=(1,)).stdout, "ZooKeeper lets a client in without a login"


@pytest.mark.in_turn
def test_check_tells_an_account_without_rights_what_it_needs(new_world: NewWorld) -> None:
    """An account that may log in and nothing else: the administrator finds the next statement in the fix."""
    world = new_world("sqlite")
    world.admin(*shapes.create("orders", "note VARCHAR(20)", 1, "'{i}'"))
    fixes = [problem["fix"] for problem in world.json("check", ok=(1,))["problems"]]
    assert any(re.search(r"GRANT [A-Z, ]+ ON |ALTER ROLE ", fix) for fix in fixes), fixes


@pytest.mark.in_turn
def test_a_password_has_letters_beyond_latin_1(new_world: NewWorld) -> None:
    world = new_world("sqlite", password=new_secret(form=AWKWARD + BEYOND_LATIN_1))
    world.server.connect(user=world.user, password=world.password.text).close()
    world.admin(*shapes.create("orders", "note VARCHAR(20)", 3, "'{i}'"))
    world.follow_check()
    with world.capture():
        world.dblog("dump", "--all", "--wait")
