"""PostgreSQL: descriptions that were others only while rows were logged. No two looks at the catalogue show that."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.healing import broken_tables
from dblog_core.capture.healing.unlogged_rewrites import Stamps
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.test_swapped_tables import capturing, healing
from tests.records import read_records
from tests.waiting import wait_until

pytestmark = [pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)]
PLUGINS = pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
MOMENTS = pytest.mark.parametrize("moment", ["while it runs", "between two captures"])
SWAP = "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME w TO v; ALTER TABLE t RENAME x TO w"
"""The names of two columns change places; the second time they are back."""
MEANWHILE = {
    "names that are swapped": f"{SWAP}; UPDATE t SET n = 1 WHERE id = 1; {SWAP}",
    "names that are swapped, of other types": (
        "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME m TO v; ALTER TABLE t RENAME x TO m;"
        "UPDATE t SET n = 1 WHERE id = 1;"
        "ALTER TABLE t RENAME v TO x; ALTER TABLE t RENAME m TO v; ALTER TABLE t RENAME x TO m"
    ),
    "a name that is another column's": (
        "ALTER TABLE t RENAME v TO x; ALTER TABLE t ADD v text DEFAULT 'new'; UPDATE t SET n = 1 WHERE id = 1;"
        "ALTER TABLE t DROP v; ALTER TABLE t RENAME x TO v"
    ),
    "a column that is dropped and added again": (
        "ALTER TABLE t ADD d int; UPDATE t SET d = 1 WHERE id = 1; ALTER TABLE t DROP d; ALTER TABLE t ADD d int"
    ),
    "a type that prints otherwise": (
        "ALTER TABLE t ALTER o TYPE regclass; UPDATE t SET n = 1 WHERE id = 1; ALTER TABLE t ALTER o TYPE oid"
    ),
}
LABELS = {
    "a label that gets its name back": (
        "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
        "INSERT INTO t (id, v, m) VALUES (3, 'v3', 'fine'), (4, 'v4', 'bad')",
        "ALTER TYPE mood RENAME VALUE 'fine' TO 'ok'",
    ),
    "a label that is renamed as soon as it is there": (
        "ALTER TYPE mood ADD VALUE 'new'",
        "INSERT INTO t (id, v, m) VALUES (3, 'v3', 'new')",
        "ALTER TYPE mood RENAME VALUE 'new' TO 'newer'",
    ),
}


HARMLESS = {
    "NOT NULL": "ALTER TABLE t ALTER v SET NOT NULL; ALTER TABLE t ALTER v DROP NOT NULL",
    "a default": "ALTER TABLE t ALTER w SET DEFAULT 'none'",
    "rights on a column": "GRANT SELECT (v) ON t TO public",
    "statistics": "ALTER TABLE t ALTER v SET STATISTICS 50",
    "a column that is dropped": "ALTER TABLE t DROP w",
    "another length": "ALTER TABLE t ALTER k TYPE varchar(40)",
    "a label more": "ALTER TYPE shade ADD VALUE 'new'",
}
BETWEEN = "INSERT INTO t (id, v, s) VALUES ({}, 'between', 'red'); UPDATE t SET n = {} WHERE id = 1"


@pytest.fixture
def config(database: Database, tmp_path: Path, plugin: str, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A capture that has been there, of a table with two rows."""
    monkeypatch.setattr(broken_tables, "STAMPS_SECONDS", 0.3)
    database.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'bad')",
        "CREATE TYPE shade AS ENUM ('red')",
        "CREATE TABLE t (id int PRIMARY KEY, v text, w text, m mood, a mood[], n int, o oid DEFAULT 1259,"
        " k varchar(20), s shade)",
    )
    config = database.config(tmp_path, source={"tables": ["public.t"], "plugin": plugin})
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(
        "INSERT INTO t (id, v, w, m, a) VALUES (1, 'v1', 'w1', 'ok', '{ok}'), (2, 'v2', 'w2', 'bad', '{bad}')"
    )
    run_capture(config, stop=threading.Event(), until_current=True)
    with capturing(config):
        wait_until_same(config, database)
        wait_until_looked(config)
    return config


def copy(config: Config) -> dict[int, dict[str, str]]:
    """What a keyed consumer of `log` holds of the table, without NULL."""
    rows: dict[int, dict[str, str]] = {}
    seen: dict[int, int] = {}
    for line in lines(wiring.open_staging(config)):
        if line["op"] in "cur":
            key = line["key"]["id"]
            rows[key] = {name: str(value) for name, value in line["after"].items() if value is not None}
            seen[key] = line["offset"]
        elif line["op"] == "d":
            rows.pop(line["key"]["id"], None)
        elif line["op"] == "f":
            rows = {key: row for key, row in rows.items() if seen[key] > line["since"]}
    return rows


def wait_until_same(config: Config, database: Database) -> None:
    """Waits until the consumer holds what the source prints, and no dump is going on."""

    def source_rows() -> dict[int, dict[str, str]]:
        found = database.query("SELECT row_to_json(t)::text FROM t")
        parsed = [json.loads(row) for (row,) in found]
        return {row["id"]: {name: _text(value) for name, value in row.items() if value is not None} for row in parsed}

    def columns() -> set[str]:  # the log keeps the values of dropped ones
        return {n for (n,) in database.query("SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass")}

    def is_same() -> bool:
        with closing(wiring.open_state(config)) as state:
            over = all(dump.state == "done" for dump in dump_store.list_dumps(state))
        kept = {key: {n: v for n, v in row.items() if n in columns()} for key, row in copy(config).items()}
        return over and kept == source_rows()

    wait_until(is_same, "the copy is as the source", timeout=40, describe=lambda: (copy(config), source_rows()))


def _text(value: Any) -> str:
    return "{" + ",".join(value) + "}" if isinstance(value, list) else str(value)


def wait_until_looked(config: Config) -> None:
    """Waits until the capture remembers the catalogue as it is, without a doubt."""
    source = wiring.open_source(config.source)

    def is_remembered() -> bool:
        remembered = Stamps(read_records(config))
        stamps = source.stamps()
        assert stamps is not None
        remembered.look(stamps)
        return remembered.before == stamps

    wait_until(is_remembered, "the catalogue is known")


@pytest.mark.in_turn("plugin", "moment")
@PLUGINS
@MOMENTS
@pytest.mark.parametrize("what", MEANWHILE)
def test_rows_under_other_names_and_types_are_dumped(
    database: Database, config: Config, what: str, moment: str
) -> None:
    if moment == "between two captures":
        for statement in MEANWHILE[what].split(";"):
            database.execute(statement)
    with capturing(config):
        if moment == "while it runs":
            database.execute(MEANWHILE[what])
        database.execute("UPDATE t SET n = 5 WHERE id = 2")
        wait_until_same(config, database)


@pytest.mark.in_turn("plugin", "moment")
@PLUGINS
@MOMENTS
@pytest.mark.parametrize("what", LABELS)
def test_rows_with_other_labels_are_dumped(database: Database, config: Config, what: str, moment: str) -> None:
    if moment == "between two captures":
        database.execute(*LABELS[what])
    with capturing(config):
        if moment == "while it runs":
            database.execute(*LABELS[what])
        wait_until_same(config, database)


@PLUGINS
def test_a_transaction_that_was_open_while_a_label_got_another_name_is_dumped_again(
    database: Database, config: Config
) -> None:
    with capturing(config), closing(database.connect()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN; INSERT INTO t (id, v, m, a) VALUES (3, 'v3', 'ok', '{ok}')")
        database.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'")
        wait_until(lambda: "t" in healing(config), "a dump is requested")
        wait_until_same(config, database)
        cursor.execute("COMMIT")
        wait_until_same(config, database)
        wait_until_looked(config)
    assert copy(config)[3]["m"] == "fine"


@pytest.mark.in_turn("plugin", "rows")
@PLUGINS
@pytest.mark.parametrize("rows", ["with rows", "without rows"])
@pytest.mark.parametrize("what", HARMLESS)
def test_what_changes_no_row_is_followed_by_no_dump(
    database: Database, config: Config, what: str, rows: str, plugin: str
) -> None:
    with capturing(config):
        for number, statement in enumerate(HARMLESS[what].split("; ")):
            if rows == "with rows":
                database.execute(BETWEEN.format(10 + number, number))
            database.execute(statement)
        if rows == "with rows":
            database.execute(BETWEEN.format(20, 20))
        wait_until_same(config, database)
        wait_until_looked(config)
    if plugin == "pgoutput" or rows == "without rows":  # wal2json does not list the columns of a table
        assert healing(config) == {}


@PLUGINS
def test_a_restart_forgets_no_doubt(database: Database, config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are published before the capture has looked at the catalogue, and it looks after a restart."""
    monkeypatch.setattr(broken_tables, "STAMPS_SECONDS", 1e9)
    with capturing(config):
        database.execute("UPDATE t SET n = 7 WHERE id = 2")
        wait_until_same(config, database)
        database.execute(f"{SWAP}; UPDATE t SET n = 1 WHERE id = 1")
        wait_until(lambda: copy(config)[1].get("n") == "1", "the row is staged")
        database.execute(SWAP)
    with capturing(config):
        wait_until_same(config, database)
