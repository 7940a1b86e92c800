"""What `check` finds of the settings, tables and rights of MySQL and MariaDB, and who is refused."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dblog_core.errors import SourceRefused, SourceUnavailable
from dblog_core.interfaces import Problem
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import check, execute

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


def test_wrong_password_is_refused_without_showing_it(config: Any) -> None:
    wrong = MysqlSource(type(config).model_validate({**config.model_dump(), "password": "not-the-one"}))
    with pytest.raises(SourceRefused) as raised:
        wrong.current_position()
    assert "not-the-one" not in str(raised.value)
    (problem,) = wrong.check()
    assert problem.fatal and "not-the-one" not in problem.what


def test_unreachable_server_is_transient(config: Any) -> None:
    with pytest.raises(SourceUnavailable) as raised:
        MysqlSource(config.model_copy(update={"port": 1})).current_position()
    assert raised.value.transient


def test_check_finds_nothing_on_a_good_server(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    assert check(source) == ""


def test_checks_at_the_same_time_do_not_end_each_others_look_at_the_log(
    database: Database, source: MysqlSource
) -> None:
    """As those of two containers, whose processes have the same number."""
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: check(source), range(8))) == [""] * 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "MINIMAL"),
        ("binlog_order_commits", "OFF"),
        ("binlog_row_value_options", "PARTIAL_JSON"),
    ],
)
def test_check_finds_wrong_settings(database: Database, source: MysqlSource, name: str, value: str) -> None:
    if name in ("binlog_order_commits", "binlog_row_value_options") and database.kind == "mariadb":
        assert name not in check(source)
        return
    good = database.query(f"SELECT @@GLOBAL.{name}")[0][0]
    try:
        execute(database, f"SET GLOBAL {name} = {value}")
        assert f"{name} is {value}" in check(source)
    finally:
        execute(database, f"SET GLOBAL {name} = {repr(good) if isinstance(good, str) else good}")


def test_check_finds_everything_wrong_with_tables_at_once(database: Database, config: Any) -> None:
    execute(
        database,
        "CREATE TABLE nokey (id int)",
        "CREATE TABLE loose (id int NULL, v int)",
        "CREATE TABLE old (s set('', 'a') PRIMARY KEY)",
    )
    changed = {
        "tables": (f"{database.schema}.*", f"{database.schema}.absent"),
        "keys": {f"{database.schema}.loose": ("id",)},
    }
    problems = MysqlSource(config.model_copy(update=changed)).check()
    text = "\n".join(problem.what for problem in problems)
    assert ".absent matches no table" in text and "old: column s: a SET with an empty label" in text
    assert "can be NULL" in text and "is not unique" in text
    assert [problem.fatal for problem in problems if "nokey has no primary key" in problem.what] == [False]


def test_check_refuses_a_table_that_keeps_all_versions_of_a_row(database: Database, source: MysqlSource) -> None:
    if database.kind == "mysql":
        return  # it has no such tables
    execute(
        database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY) WITH SYSTEM VERSIONING"
    )
    (problems,) = source.check()
    assert (
        problems.fatal
        and f"{database.schema}.b: it is system-versioned" in problems.what
        and "DROP SYSTEM" in problems.fix
    )


@pytest.mark.parametrize("grant", ["REPLICATION SLAVE ON *.*", "CLIENT", "SELECT", "WATERMARK"])
def test_check_names_each_missing_grant(database: Database, source: MysqlSource, grant: str) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", "DROP TABLE dblog_watermark")
    who = f"'{database.account.user}'@'127.0.0.1'"
    watermark = f"`{database.name}`.`dblog_watermark`"
    what, says = {
        "REPLICATION SLAVE ON *.*": ("REPLICATION SLAVE ON *.*", "GRANT REPLICATION SLAVE ON *.*"),
        "CLIENT": (("REPLICATION CLIENT" if database.kind == "mysql" else "BINLOG MONITOR") + " ON *.*", " ON *.* TO"),
        "SELECT": (f"SELECT ON `{database.name}`.*", "GRANT SELECT ON"),
        "WATERMARK": (f"CREATE, INSERT, UPDATE ON {watermark}", "CREATE, SELECT, INSERT, UPDATE ON"),
    }[grant]
    execute(database, f"REVOKE {what} FROM {who}")
    assert says in check(source)


def test_an_account_that_may_log_in_and_nothing_else_gets_all_that_it_lacks_from_check(
    database: Database, source: MysqlSource
) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)", "DROP TABLE dblog_watermark")
    execute(database, f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM '{database.account.user}'@'127.0.0.1'")
    for _ in range(3):  # what an account cannot see, it cannot be asked to read
        fixes = [problem.fix for problem in source.check() if problem.fatal]
        for fix in fixes:
            grant = re.search(r"GRANT [^;]+", fix)
            assert grant is not None, fix
            execute(database, grant[0])
        if not fixes:
            break
    assert [problem for problem in source.check() if problem.fatal] == []
    assert source.current_position()


def test_problems_are_records(config: Any) -> None:
    assert all(isinstance(problem, Problem) for problem in MysqlSource(config.model_copy(update={"port": 1})).check())


def test_a_missing_database_is_refused_with_a_fix(config: Any) -> None:
    with pytest.raises(SourceRefused) as raised:
        MysqlSource(config.model_copy(update={"database": "no_such_schema"})).current_position()
    assert raised.value.fix


def test_check_names_the_tables_that_a_merge_table_changes(database: Database, source: MysqlSource) -> None:
    shape = "(id int PRIMARY KEY, v int) ENGINE = MyISAM"
    execute(database, *(f"CREATE TABLE {name} {shape}" for name in ("a", "`b, ``c`", "d")))
    execute(database, f"CREATE TABLE m {shape.replace('MyISAM', 'MERGE')} UNION = (a, `b, ``c`)")
    problems = [problem for problem in source.check() if "through the MERGE table" in problem.what]
    assert {problem.table for problem in problems} == {f"{database.schema}.a", f"{database.schema}.b, `c"}
    assert all(f"MERGE table {database.schema}.m is in the log under that name" in problem.what for problem in problems)
    execute(database, "ALTER TABLE m ENGINE = InnoDB")
    assert "MERGE" not in check(source)


def test_a_table_that_the_server_cannot_open_is_named_and_no_other(database: Database, source: MysqlSource) -> None:
    shape = "(id int PRIMARY KEY) ENGINE ="
    execute(database, f"CREATE TABLE a {shape} InnoDB", *(f"CREATE TABLE {name} {shape} MyISAM" for name in "tu"))
    execute(database, f"CREATE TABLE m {shape} MERGE UNION = (u)", f"CREATE TABLE n {shape} MERGE UNION = (m)")
    assert {problem.table for problem in source.check() if problem.fatal} == {f"{database.schema}.{n}" for n in "mn"}
    execute(database, "DROP TABLE n", "DROP TABLE u", "FLUSH TABLES")
    index = Path(database.query("SELECT @@datadir")[0][0], database.name, "t.MYI")
    whole = index.read_bytes()
    index.write_bytes(whole[:100])
    problems = {problem.table: problem for problem in source.check() if problem.fatal}
    assert problems.keys() == {f"{database.schema}.m", f"{database.schema}.t"}
    unopened = problems[f"{database.schema}.t"]
    assert "cannot be opened" in unopened.what and f"REPAIR TABLE `{database.name}`.`t`" in unopened.fix
    assert "keeps no rows" in problems[f"{database.schema}.m"].what
    index.write_bytes(whole)
    execute(database, "FLUSH TABLES", "DROP TABLE m")
    assert check(source) == ""


def test_check_names_the_columns_that_could_be_the_key_of_a_table_without_one(
    database: Database, source: MysqlSource
) -> None:
    """Those of which the server itself chooses none."""
    unchosen = "int AS (id + 1) VIRTUAL" if database.kind == "mysql" else "text"
    execute(database, f"CREATE TABLE a (k {unchosen} NOT NULL, v int UNIQUE, UNIQUE (k), id int NOT NULL)")
    (problem,) = source.check()
    assert problem.table == f"{database.schema}.a" and not problem.fatal
    assert problem.fix.endswith(f'[source.keys] "{database.schema}.a" = ["k"]')
