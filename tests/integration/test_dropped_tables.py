"""Tables that were dropped before the capture read their last rows, or that leave a pattern without a table."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import CaptureOutcome, run_capture
from dblog_core.config.settings import Config
from dblog_core.errors import SourceRefused
from dblog_core.monitoring.preflight import findings
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.test_swapped_tables import copies


def capture(config: Config) -> None:
    assert run_capture(config, stop=threading.Event(), until_current=True) is CaptureOutcome.CURRENT


def lines_of(config: Config, table: str) -> list[dict[str, Any]]:
    return [line for line in lines(wiring.open_staging(config)) if line["table"] == table]


def patterns_without_tables(config: Config) -> list[str | None]:
    return [finding.problem.pattern for finding in findings(config) if finding.problem.fatal]


def test_who_drops_the_only_table_of_a_pattern_stops_no_other(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    t, u, w = (f"{database.schema}.{name}" for name in ("t", "u", "w"))
    config = database.config(tmp_path, source={"tables": [t, u]})
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(20))" for name in ("t", "u")))
    capture(config)
    database.execute("INSERT INTO t VALUES (1, 'a')", "INSERT INTO u VALUES (1, 'a')")
    capture(config)
    database.execute("DROP TABLE t", "INSERT INTO u VALUES (2, 'b')")
    capture(config)
    assert [line["key"]["id"] for line in lines_of(config, u) if line["op"] == "c"] == [1, 2]
    assert f"no table fits {t}" in caplog.text
    assert patterns_without_tables(config) == [t], "check says it, as for a pattern that is mistyped"
    wrong = database.config(tmp_path, source={"tables": [t, u, w]})
    with pytest.raises(SourceRefused) as refused:
        capture(wrong)
    assert w in str(refused.value) and f"{t} " not in str(refused.value)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))", "INSERT INTO t VALUES (3, 'c')")
    capture(config)
    assert [line["key"]["id"] for line in lines_of(config, t) if line["op"] == "c"] == [1, 3]
    database.execute("DROP TABLE t", "DROP TABLE u")
    capture(config)
    assert sorted(map(str, patterns_without_tables(config))) == [t, u]


@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json"])
@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
def test_the_last_rows_of_a_table_that_is_gone_have_the_key_of_the_others(
    database: Database, tmp_path: Path, plugin: str
) -> None:
    """With REPLICA IDENTITY FULL pgoutput does not tell which columns are the key, and the catalogue no longer does."""
    t = f"{database.schema}.t"
    config = database.config(tmp_path, source={"plugin": plugin})
    create = ("CREATE TABLE t (b text, a int, PRIMARY KEY (a, b))", "ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute(*create, "CREATE TABLE other (id int PRIMARY KEY)")
    capture(config)
    database.execute("INSERT INTO t VALUES ('x', 1)")
    capture(config)
    database.execute("INSERT INTO t VALUES ('y', 2)", "UPDATE t SET b = 'z' WHERE a = 1", "DROP TABLE t")
    capture(config)
    keys = [(line["op"], line["key"]) for line in lines_of(config, t) if line["op"] in "cud"]
    assert keys == [
        ("c", {"a": 1, "b": "x"}),
        ("c", {"a": 2, "b": "y"}),
        ("d", {"a": 1, "b": "x"}),
        ("c", {"a": 1, "b": "z"}),
    ]
    database.execute("CREATE TABLE t (a int, b text)", "ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute("INSERT INTO t VALUES (5, 'keyless')")
    capture(config)
    assert lines_of(config, t)[-1]["key"] is None, "a table that is there has the key that it has"


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("goes", ["DROP TABLE t", "RENAME TABLE t TO u", "TRUNCATE TABLE t"])
def test_mysql_a_stopped_table_that_goes_takes_its_rows_along(database: Database, tmp_path: Path, goes: str) -> None:
    """Its capture has stopped at a value; only the statement that follows tells that the rows before it are gone."""
    config = database.config(tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v date)", "CREATE TABLE other (id int PRIMARY KEY, v int)")
    capture(config)
    database.execute("INSERT INTO t VALUES (1, '2024-02-29')", "INSERT INTO other VALUES (1, 1)")
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("INSERT INTO t VALUES (2, '0000-00-00')")
        cursor.execute("INSERT INTO t VALUES (3, '2024-03-01')")
        cursor.execute(goes)
    capture(config)
    assert copies(config) == {"other": {1: 1}}
