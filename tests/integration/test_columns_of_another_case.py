"""A column whose name comes back in other upper and lower case: the lake cannot keep both, and follows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.lake.lake_status import table_location
from dblog_core.model.schema import TableName
from dblog_core.monitoring.status import read_source_status
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.integration.test_swapped_tables import capturing
from tests.waiting import wait_until

ReadLake = Callable[[Any], list[dict[str, Any]]]
Merge = Callable[[Config], None]
SHAPE = "(id int PRIMARY KEY, gone int, name varchar(20), x int)"
RENAMED = 'ALTER TABLE t RENAME name TO "Name"'
CHANGES = {
    "proven": ("postgres", "pgoutput", (RENAMED,)),
    "after a drop": ("postgres", "pgoutput", ("ALTER TABLE t DROP gone", RENAMED)),
    "wal2json": ("postgres", "wal2json", (RENAMED,)),
    "replaced in one statement": (
        "mysql",
        "pgoutput",
        ("ALTER TABLE t DROP COLUMN name, ADD COLUMN Name varchar(20) DEFAULT 'new'",),
    ),
    "replaced": (
        "mysql",
        "pgoutput",
        ("ALTER TABLE t DROP COLUMN name", "ALTER TABLE t ADD COLUMN Name varchar(20) NOT NULL DEFAULT 'new'"),
    ),
}


def table_status(config: Config) -> dict[str, Any]:
    (table,) = read_source_status(config).to_json()["tables"]
    return dict(table)


@pytest.mark.in_turn("way")
@pytest.mark.parametrize(
    ("source_kind", "way"),
    [
        (kind, way)
        for way, (server, *_) in CHANGES.items()
        for kind in (["postgres"] if server == "postgres" else ["mysql", "mariadb"])
    ],
    indirect=["source_kind"],
)
def test_a_column_whose_name_comes_back_in_another_case_goes_on_with_the_values_of_the_source(
    database: Database, tmp_path: Path, merge_here: Merge, verify_here: Verify, read_lake: ReadLake, way: str
) -> None:
    _, plugin, statements = CHANGES[way]
    source = {"plugin": plugin} if database.kind == "postgres" else {}
    config = database.config(tmp_path, source=source, lake={"path": str(tmp_path / "lake"), "history": True})
    database.execute(f"CREATE TABLE t {SHAPE}")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO t VALUES (1, 1, 'a', 1), (2, 2, 'b', 2), (3, 3, 'c', 3)")
    run_capture(config, stop=threading.Event(), until_current=True)
    merge_here(config)
    with capturing(config):
        database.execute("UPDATE t SET name = 'd' WHERE id = 2", *statements, "UPDATE t SET x = 9 WHERE id = 3")

        def is_ok() -> bool:
            merge_here(config)
            return table_status(config)["state"] == "ok"

        wait_until(is_ok, "the table is whole again", describe=lambda: table_status(config))
        name = '"Name"' if database.kind == "postgres" else "Name"
        place = table_location(wiring.open_lake(config), TableName(database.schema, "t"))
        rows = {(row["id"], row["Name"], row["x"]) for row in read_lake(place)}
        assert rows == set(database.query(f"SELECT id, {name}, x FROM t"))
        (report,) = verify_here(config).tables
        assert report.equal, report


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_a_table_of_two_columns_whose_names_differ_only_in_case_stops_and_says_so(
    database: Database, tmp_path: Path, merged_here: Callable[[Config], int]
) -> None:
    config = database.config(tmp_path)
    database.execute(f"CREATE TABLE t {SHAPE}")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO t VALUES (1, 1, 'a', 1)")
    run_capture(config, stop=threading.Event(), until_current=True)
    assert merged_here(config) == 0
    database.execute('ALTER TABLE t ADD "Name" varchar(20)', "UPDATE t SET x = 9")
    run_capture(config, stop=threading.Event(), until_current=True)
    merged_here(config)
    status = table_status(config)
    assert status["state"] == "stopped" and "columns name and Name differ in upper and lower case" in status["error"]
