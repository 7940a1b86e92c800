"""Signals on real servers: through the log of the source, a file and HTTP, with captures that are killed."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from dblog_core.capture.run_capture import run_capture
from dblog_core.capture.signal_rows import MOST_OF_A_TRANSACTION
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.local.servers.kafka import KafkaServer
from dblog_core.signals import inbox
from dblog_core.signals.http import Endpoint, Signals
from dblog_core.state.sqlite import SqliteState
from dblog_core.wiring import open_source, open_staging, open_state
from tests.fix_servers import Database
from tests.integration.cli_world import Commands
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.in_turn
TOKEN = "a-token-of-the-test"


@pytest.fixture(params=["pgoutput", "wal2json"])
def plugin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lab(database: Database) -> Database:
    database.execute(
        "CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, note VARCHAR(50), price DECIMAL(10,2))",
        "CREATE TABLE b (id INTEGER NOT NULL PRIMARY KEY)",
        "INSERT INTO a VALUES " + ", ".join(f"({n}, 'note {n % 3}', {n}.50)" for n in range(1, 201)),
        "INSERT INTO b VALUES (1), (2)",
        "CREATE TABLE dblog_signal (id VARCHAR(255) PRIMARY KEY, type VARCHAR(64) NOT NULL, data TEXT)",
    )
    return database


def signals_config(
    lab: Database, tmp_path: Path, plugin: str = "pgoutput", *, kafka: dict[str, str] | None = None, **sections: Any
) -> Config:
    settings: dict[str, Any] = {} if kafka is None else {"kafka": kafka}
    settings |= {
        "table": f"{lab.schema}.dblog_signal",
        "file": str(tmp_path / "requests.jsonl"),
        "http": {"token": TOKEN},
    }
    source = {"plugin": plugin} if lab.kind == "postgres" else {}
    return lab.config(tmp_path, signals=settings, source=source, **sections)


def row(lab: Database, id_: str, type_: str, data: Any) -> str:
    text = orjson.dumps(data).decode().replace("'", "''")
    return f"INSERT INTO dblog_signal VALUES ('{id_}', '{type_}', '{text}')"


@contextmanager
def capturing(config: Config) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run_capture, args=(config,), kwargs={"stop": stop})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def dumps(config: Config) -> list[DumpStatus]:
    state = open_state(config)
    try:
        return dump_store.list_dumps(state)
    finally:
        state.close()


def over(config: Config, signal_id: str) -> Any:
    state = open_state(config)
    try:
        record = inbox.read_signal(state, inbox.node_name(signal_id))
        return record if record and record.state.is_over else None
    finally:
        state.close()


@pytest.mark.in_turn("source_kind")
def test_a_transaction_of_very_many_signals_is_taken_in_in_part_and_told_of(lab: Database, tmp_path: Path) -> None:
    config = signals_config(lab, tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    ignored = ", ".join(f"('many {n}', 'snapshot-window-open', NULL)" for n in range(MOST_OF_A_TRANSACTION + 50))
    stop_all = row(lab, "after them", "stop-snapshot", {"data-collections": [f"{lab.schema}.a"]})
    with capturing(config):
        lab.execute(f"INSERT INTO dblog_signal VALUES {ignored}", stop_all)
        wait_until(lambda: over(config, "after them"), "the signal of the next transaction")
        with closing(open_state(config)) as state:
            (refused,) = (record for record in inbox.list_signals(state) if record.state == "refused")
    assert "more than 1,000 rows" in refused.error


@pytest.mark.one_of(2)
@pytest.mark.in_turn("source_kind", "plugin")
def test_all_channels_give_the_same_request(lab: Database, tmp_path: Path, plugin: str, kafka: KafkaServer) -> None:
    topic = f"t_{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": kafka.address()})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    config = signals_config(lab, tmp_path, plugin, kafka={"servers": kafka.address(), "topic": topic})
    assert [p for p in open_source(config.source).check() if p.fatal] == []
    table = f"{lab.schema}.a"
    condition = "note = 'note 1' AND price >= 10.50 AND id BETWEEN 5 AND 100"
    conditions = [{"data-collection": table, "filter": condition}]
    data = {"data-collections": [table], "additional-conditions": conditions}
    run_capture(config, stop=threading.Event(), until_current=True)
    with capturing(config):
        lab.execute(row(lab, "by table", "execute-snapshot", data))
        wait_until(lambda: over(config, "by table"), "the row was not seen")
        lines = [{"id": "by file", "type": "execute-snapshot", "data": data}]
        (tmp_path / "requests.jsonl").write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
        by_http(config, {"id": "by http", "type": "execute-snapshot", "data": data})
        producer = Producer({"bootstrap.servers": kafka.address()})
        signal = {"id": "by topic", "type": "execute-snapshot", "data": data}
        producer.produce(topic, orjson.dumps(signal), config.source.name)
        assert producer.flush(30) == 0
        others = ("by file", "by http", "by topic")
        wait_until(lambda: all(over(config, signal_id) for signal_id in others), "a signal was not carried out")
        settings = ("note", "=", "note 1"), ("price", ">=", "10.50"), ("id", ">=", 5), ("id", "<=", 100)
        filing.submit(config, DumpRequest((table,), filters=settings), requested_by=dump_records.SIGNAL)
        done = wait_until(
            lambda: [d for d in dumps(config) if d.state == "done"][4:] and dumps(config), "not all are done"
        )
    assert sorted(str(d.signal) for d in done) == ["None", "by file", "by http", "by table", "by topic"]
    records = [[task.record for task in dump.tasks] for dump in done]
    requests_by_signal = [
        [(r.table, r.filters, r.parts, r.heals, r.key_from, r.key_to) for r in each] for each in records
    ]
    assert requests_by_signal[0][0][1] and all(
        request_lists == requests_by_signal[0] for request_lists in requests_by_signal
    )
    expected = lab.query(f"SELECT count(*) FROM a WHERE {condition}")
    assert {d.rows for d in done} == {expected[0][0]} and all(d.options == done[0].options for d in done)
    staged = {m.table for manifest in open_staging(config).manifests(after=0) for m in manifest.marks}
    staged |= {f.table for manifest in open_staging(config).manifests(after=0) for f in manifest.files}
    assert f"{lab.schema}.dblog_signal" not in staged, "signals are no lines of the super-changelog"


def by_http(config: Config, body: Any) -> Any:
    import http.client

    from dblog_core.clock import SystemClock

    state = open_state(config)
    endpoint = Endpoint(Signals(config, state, SystemClock()), "127.0.0.1", 0, tokens={None: TOKEN})
    try:
        connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=PATIENCE_SECONDS)
        connection.request("POST", "/signals", orjson.dumps(body), {"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        assert answer.status == 202, answer.read()
        return orjson.loads(answer.read())
    finally:
        endpoint.close()
        state.close()


CHILD = """
import json, sys, threading
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.signals import table
from dblog_core.staging import Staging

point, config = sys.argv[1], Config.model_validate_json(sys.stdin.read())

def pause(name):
    if point == name:
        print("at", flush=True)
        threading.Event().wait()

put_row, publish = table.put_row, Staging.publish

def taken(state, seen, *, at_us):
    pause("before the inbox")
    put_row(state, seen, at_us=at_us)
    pause("before the manifest")

def published(self, manifest):
    publish(self, manifest)
    if seen:
        pause("before the desk")

from dblog_core.capture import signal_rows
from dblog_core.signals import processor

seen = []
def counted(state, one, *, at_us):
    seen.append(one)
    taken(state, one, at_us=at_us)
signal_rows.put_row = counted
Staging.publish = published
if point == "before the desk":
    processor.SignalProcessor.carry_out_waiting = lambda self: None
print("up", flush=True)
run_capture(config, stop=threading.Event())
"""
POINTS = ("before the inbox", "before the manifest", "before the desk")


@pytest.mark.one_of(2)
@pytest.mark.in_turn("source_kind", "point")
@pytest.mark.parametrize("point", POINTS)
def test_a_capture_that_is_killed_neither_misses_a_row_nor_repeats_it(
    lab: Database, tmp_path: Path, point: str
) -> None:
    """kill -9 right after the row has committed, wherever the capture is with it."""
    config = signals_config(lab, tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    child = subprocess.Popen([sys.executable, "-c", CHILD, point], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(_secret(config))
        child.stdin.close()
        assert child.stdout.readline() == b"up\n"
        lab.execute(row(lab, "one", "execute-snapshot", {"data-collections": [f"{lab.schema}.a"]}))
        assert child.stdout.readline() == b"at\n"
        assert dumps(config) == []
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with capturing(config):
        wait_until(lambda: over(config, "one"), "the signal is missed")
        lab.execute(row(lab, "two", "execute-snapshot", {"data-collections": [f"{lab.schema}.b"]}))
        wait_until(lambda: over(config, "two"), "the next signal is missed")
        awaited = wait_until(lambda: [d for d in dumps(config) if d.state == "done"][1:] and dumps(config), "not done")
    assert [(d.signal, d.rows) for d in awaited] == [("one", 200), ("two", 2)]


def _secret(config: Config) -> bytes:
    plain = config.model_dump(mode="json")
    plain["source"]["password"] = config.source.password.get_secret_value()
    plain["signals"]["http"]["token"] = TOKEN
    return json.dumps(plain).encode()


def test_check_tells_how_to_make_the_signal_table(lab: Database, tmp_path: Path) -> None:
    lab.execute("DROP TABLE dblog_signal")
    config = signals_config(lab, tmp_path)
    (missing,) = [p for p in open_source(config.source).check() if p.fatal]
    assert "signal table" in missing.what and "CREATE TABLE" in missing.fix and "GRANT INSERT" in missing.fix
    lab.execute("CREATE TABLE dblog_signal (id INTEGER PRIMARY KEY, data BLOB)".replace(
        "BLOB", "BYTEA" if lab.kind == "postgres" else "BLOB"))  # fmt: skip
    (wrong,) = [p for p in open_source(config.source).check() if p.fatal]
    assert "no signal table" in wrong.what


@pytest.mark.one_of(4)
def test_the_commands_take_a_signal_show_it_and_tell_of_its_dump(lab: Database, tmp_path: Path) -> None:
    """One life of a request as a person sees it: posted, carried out, listed, told to a log."""
    file = tmp_path / "shop.toml"
    file.write_text(
        f"""
[source]
name = "{lab.name}"
kind = "{lab.kind}"
host = "{lab.server.host}"
port = {lab.server.port}
user = "{lab.account.user}"
password = "{lab.account.password}"
database = "{lab.name}"
tables = ["{lab.schema}.*"]
[staging]
path = "staging"
[state]
url = "sqlite:///{tmp_path}/state.db"
[lake]
path = "lake"
[signals.http]
token = "{TOKEN}"
[[notify]]
name = "ops"
to = "log"
"""
    )
    run = Commands(file, lab.account.password)
    try:
        serving = run.start("serve", "--listen", "127.0.0.1:0")
        capture = run.start("capture")
        assert serving.stderr is not None
        where = serving.stderr.readline().split()[-1]
        body = {"id": "one", "type": "execute-snapshot", "data": {"data-collections": [f"{lab.schema}.a"]}}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with urlopen(Request(where, orjson.dumps(body), headers), timeout=30) as answer:
            assert answer.status == 202
        (dump,) = wait_until(lambda: [d for d in run.json("dumps") if d["state"] == "done"], "not done")
        (listed,) = run.json("signals")
        assert (dump["signal"], dump["id"]) == ("one", listed["dump"])
        assert (listed["state"], listed["channel"]) == ("done", "http")
        assert dump["id"] in run("signals").stdout
        wait_until(lambda: told_of(tmp_path, lab, dump["id"]), "its end is not told")
        for process in (capture, serving):
            process.terminate()
        output = run.end(capture)
        assert (output.returncode, run.end(serving).returncode) == (0, 0)
        events = [orjson.loads(text)["event"] for text in output.stderr.splitlines() if text.startswith("{")]
        assert events == ["requested", "started", "chunk", "table", "completed"]
        assert TOKEN not in output.stderr
    finally:
        run.kill()


def told_of(directory: Path, lab: Database, dump_id: str) -> bool:
    state = SqliteState(str(directory / "state.db"), prefix=lab.name)
    try:
        entry = state.get(f"dumps/{dump_id}/told/ops")
        return entry is not None and bool(orjson.loads(entry.data)["over"])
    finally:
        state.close()
