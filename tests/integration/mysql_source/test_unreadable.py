"""Changes and values of MySQL and MariaDB that cannot be read stop what they must, by name."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.errors import ValueOutOfRange
from dblog_core.model.events import ChangedByStatement, Unreadable
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import batches, changes, check, execute

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


def unreadable(source: MysqlSource, start: str) -> list[Unreadable]:
    """What the log from `start` on says of tables that stop alone."""
    return [s for batch in batches(source, start) for s in batch.signals if isinstance(s, Unreadable)]


def test_a_change_in_statement_form_names_its_verb_and_no_value(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 1)")
    start = source.current_position()
    execute(database, "SET SESSION binlog_format = 'STATEMENT'", "UPDATE a SET v = 4711 WHERE id = 1")
    signals = [signal for batch in batches(source, start) for signal in batch.signals]
    (changed,) = [signal for signal in signals if isinstance(signal, ChangedByStatement)]
    assert changed.what == "statement UPDATE: rows were changed in statement form"
    assert "binlog_format = ROW" in changed.fix


DOCUMENT = "INSERT INTO {} VALUES (1, JSON_OBJECT('k', 1, 'long', REPEAT('x', 1000)), 'text')"


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("binlog_row_image = 'MINIMAL'", "binlog_row_image = FULL"),
        ("binlog_row_image = 'NOBLOB'", "binlog_row_image = FULL"),
        ("binlog_row_value_options = 'PARTIAL_JSON'", "binlog_row_value_options = ''"),
    ],
)
def test_rows_that_a_session_logs_in_part_stop_their_table_alone(
    database: Database, source: MysqlSource, setting: str, fix: str
) -> None:
    if database.kind == "mariadb" and "JSON" in setting:
        return  # it has no such form
    execute(database, *(f"CREATE TABLE {name} (id int PRIMARY KEY, j json, t text)" for name in "ab"))
    execute(database, DOCUMENT.format("a"), DOCUMENT.format("b"))
    start = source.current_position()
    changed = "UPDATE a SET j = JSON_SET(j, '$.k', id + 1)" if "JSON" in setting else "UPDATE a SET id = 3"
    execute(database, f"SET SESSION {setting}", "BEGIN", changed, "INSERT INTO b VALUES (7, NULL, '')", "COMMIT")
    execute(database, "UPDATE b SET id = 9 WHERE id = 7")
    (signal,) = unreadable(source, start)
    assert signal.table.name == "a" and "binlog." in signal.why and fix in signal.fix and not signal.refused
    assert "start the capture again, which dumps the table" in signal.fix
    logged = changes(list(batches(source, start)))
    assert [row["after"]["id"] for row in logged][-1:] == [9] and {len(row["after"]) for row in logged} == {3}


def test_a_delete_in_part_has_its_key_and_a_row_may_lack_what_is_excluded(
    database: Database, source: MysqlSource, config: SourceConfig
) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, n int, j json, t text)")
    execute(database, "INSERT INTO a VALUES (1, 10, '[]', 'text'), (2, 20, '[]', 'text')")
    start = source.current_position()
    execute(database, "SET SESSION binlog_row_image = 'MINIMAL'", "DELETE FROM a WHERE id = 1")
    execute(database, "SET SESSION binlog_row_image = 'NOBLOB'", "UPDATE a SET n = 21 WHERE id = 2")
    assert [signal.table.name for signal in unreadable(source, start)] == ["a"]
    (delete,) = changes(list(batches(source, start)))
    nothing = {"n": None, "j": None, "t": None}
    assert (delete["op"], delete["key_only"], delete["before"]) == ("d", True, {"id": 1, **nothing})
    rules = {f"{database.schema}.a": ColumnRules(exclude=("j", "t"))}
    excluding = MysqlSource(config.model_copy(update={"columns": rules}))
    assert not unreadable(excluding, start)
    delete, update = changes(list(batches(excluding, start)))
    assert (delete["key_only"], update["key_only"]) == (True, False)
    assert [(update[side]["id"], update[side]["n"]) for side in ("before", "after")] == [(2, 20), (2, 21)]


def test_a_label_that_is_no_text_is_told_with_its_column(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, e enum(x'ff','b') CHARACTER SET binary)")
    start = source.current_position()
    execute(database, "INSERT INTO a VALUES (1, 1)")
    (signal,) = unreadable(source, start)
    assert "column e: a label is no text" in signal.why and not signal.refused


@pytest.mark.parametrize("declared", ["varchar(900) COMPRESSED", "longtext COMPRESSED", "datetime", "time(3)"])
def test_a_form_of_mariadb_that_is_not_read_is_told_with_its_column(
    database: Database, source: MysqlSource, declared: str
) -> None:
    """By the preflight, and in the log."""
    if database.kind == "mysql":
        return  # it has neither
    try:
        execute(
            database, "SET GLOBAL mysql56_temporal_format = OFF", f"CREATE TABLE a (id int PRIMARY KEY, v {declared})"
        )
    finally:
        execute(database, "SET GLOBAL mysql56_temporal_format = ON")
    start = source.current_position()
    execute(database, "INSERT INTO a VALUES (1, '2024-01-01 10:00:00')")
    assert f"{database.schema}.a: column v: " in check(source)
    (signal,) = unreadable(source, start)
    assert "column v: type" in signal.why and "is not supported" in signal.why and signal.refused
    assert not source.tables() and [problem.table for problem in source.list_refusals()] == [str(signal.table)]


def test_zero_dates_are_errors_or_null(database: Database, config: Any) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, d date, t datetime, s timestamp NULL)")
    strict = MysqlSource(config)
    lenient = MysqlSource(config.model_copy(update={"zero_dates": "null"}))
    start = strict.current_position()
    execute(database, "INSERT INTO a VALUES (1, '2024-00-10', '0000-00-00', 0), (2, '2024-01-10', NULL, '2024-01-01')")
    (signal,) = unreadable(strict, start)
    assert str(signal.table) == f"{database.schema}.a" and "zero date" in signal.why and "zero_dates" in signal.fix
    logged = [row["after"] for row in changes(list(batches(lenient, start)))]
    reader = lenient.open_reader()
    schema = reader.schema(TableName(database.schema, "a"))
    assert reader.read(schema, after=None, upto=None, limit=9).rows.to_pylist() == logged
    assert logged[0] == {"id": 1, "d": None, "t": None, "s": None} and logged[1]["d"] == dt.date(2024, 1, 10)
    reader.close()
    reader = strict.open_reader()
    with pytest.raises(ValueOutOfRange, match="column d"):
        reader.read(schema, after=None, upto=None, limit=9)
    reader.close()
