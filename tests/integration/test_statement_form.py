"""Rows that change without row events, by statements or by rollbacks over two engines: their tables are dumped, and no
other table notices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.monitoring.status import read_source_status
from dblog_core.state import recent_errors
from tests.fix_servers import Database
from tests.integration.test_swapped_tables import Wait, capturing, copies, healing, source_rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(4)]
both = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
of_mariadb = pytest.mark.parametrize("source_kind", ["mariadb"], indirect=True)
STATEMENTS = "SET SESSION binlog_format = 'STATEMENT'"
TABLES = ("t", "u", "w")


@pytest.fixture
def elsewhere(database: Database) -> Iterator[str]:
    """A database of which no table is captured."""
    name = f"{database.name}_tools"
    database.execute(f"CREATE DATABASE {name}", f"CREATE TABLE {name}.checks (id int PRIMARY KEY, v varchar(60))")
    yield name
    database.execute(f"DROP DATABASE {name}")


@pytest.fixture
def sees_all(database: Database) -> None:
    """The account sees triggers and functions."""
    database.execute(f"GRANT SELECT, TRIGGER, EXECUTE ON *.* TO '{database.account.user}'@'{database.server.host}'")


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    """A capture has rows of three tables; others of that database are not captured."""
    config = database.config(tmp_path, source={"tables": [f"{database.schema}.{name}" for name in TABLES]})
    for name in (*TABLES, "x"):
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(60))")
    stage(config)
    for name in (*TABLES, "x"):
        database.execute(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    stage(config)
    assert copies(config) == source_rows(database, *TABLES)
    return config


def stage(config: Config) -> None:
    """All that is committed."""
    run_capture(config, stop=threading.Event(), until_current=True)


def session(database: Database, *statements: str) -> None:
    """In one session, which writes statements instead of rows."""
    with database.connect() as connection, connection.cursor() as cursor:
        for statement in (STATEMENTS, *statements):
            cursor.execute(statement)


def dumped_tables(config: Config) -> list[str]:
    """The tables of all dumps so far, without their schema."""
    dumps = dump_store.list_dumps(wiring.open_state(config))
    return sorted(table.partition(".")[2] for dump in dumps for table in dump.tables)


def assert_no_secret(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    """No value of a statement is where people look for errors."""
    staging = Path(config.staging.path)
    status = str(read_source_status(config).to_json())
    files = [*staging.parent.glob("state.db*"), *staging.rglob("*.json")]
    texts = [caplog.text, status, *(file.read_bytes().decode(errors="replace") for file in files)]
    # A small segment's rows are in its manifest, in the open where no rule hides them: statements hold other values.
    assert not [text[:200] for text in texts if "SECRET-" in text]


def assert_dumped(database: Database, config: Config, tables: list[str], wait: Wait) -> None:
    database.execute("INSERT INTO u VALUES (3, 'goes on')")
    wait(source_rows(database, *TABLES))
    assert sorted(set(dumped_tables(config))) == sorted(tables)
    assert set(healing(config)) == set(tables)


HARMLESS = [
    "INSERT INTO {} VALUES (7, 'SECRET-1')",
    "REPLACE /* a tool's */ INTO {} (id, v) SELECT id, v FROM t WHERE v <> 'SECRET-1'",
    "INSERT INTO {} SELECT id + 100, v FROM t ON DUPLICATE KEY UPDATE v = 'SECRET-1'",
    "DELETE FROM {} WHERE v = 'SECRET\\'-1'",
    "UPDATE {} AS x SET v = 'SECRET-1' WHERE id = 1",
]


@both
@pytest.mark.parametrize("statement", HARMLESS)
@pytest.mark.usefixtures("sees_all")
def test_a_statement_on_a_table_that_nobody_captures_is_passed_over(
    database: Database, config: Config, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    session(database, statement.format("x"))
    with capturing(config) as wait:
        assert_dumped(database, config, [], wait)
    assert_no_secret(config, caplog)


@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_mysql_itself_says_which_databases_a_statement_opens(
    database: Database, config: Config, elsewhere: str
) -> None:
    session(database, f"USE {elsewhere}", "REPLACE INTO checks VALUES (1, 'SECRET-1')", "UPDATE checks SET v = 'b'")
    with capturing(config) as wait:
        assert_dumped(database, config, [], wait)


@both
@pytest.mark.usefixtures("sees_all")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET v = 'SECRET-2' WHERE id = 1",
        "INSERT INTO t VALUES (9, 'SECRET-2')",
        "REPLACE INTO `t` VALUES (1, 'SECRET-2')",
        "DELETE FROM t WHERE v <> 'SECRET-2' LIMIT 1",
        "UPDATE x JOIN t USING (id) SET t.v = 'SECRET-2'",
        "DELETE t FROM x JOIN t USING (id)",
        "DELETE FROM y USING x JOIN t AS y ON x.id = y.id",
        "UPDATE t, (SELECT 1 AS one) AS o SET t.v = 'SECRET-2'",
    ],
)
def test_the_table_that_a_statement_changes_is_dumped_and_no_other(
    database: Database, config: Config, statement: str, caplog: pytest.LogCaptureFixture
) -> None:
    session(database, statement)
    with capturing(config) as wait:
        assert_dumped(database, config, ["t"], wait)
    assert_no_secret(config, caplog)
    assert "binlog_format = ROW" in str(read_source_status(config).to_json())


REACHES: dict[str, tuple[list[str], str]] = {
    "a trigger": (
        ["CREATE TRIGGER tr AFTER INSERT ON x FOR EACH ROW UPDATE t SET v = NEW.v"],
        "INSERT INTO x VALUES (7, 'by a trigger')",
    ),
    "a trigger of another database": (
        ["CREATE TRIGGER {tools}.tr AFTER INSERT ON {tools}.checks FOR EACH ROW UPDATE {ours}.t SET v = NEW.v"],
        "INSERT INTO {tools}.checks VALUES (7, 'by a trigger')",
    ),
    "a function": (
        [
            "CREATE FUNCTION wRites(n int) RETURNS int DETERMINISTIC MODIFIES SQL DATA "
            "BEGIN UPDATE t SET v = 'by a function'; RETURN n; END"
        ],
        "INSERT INTO x VALUES (`writeS`(7), 'b')",
    ),
    "a function alone": (
        [
            "CREATE FUNCTION writes(n int) RETURNS int DETERMINISTIC MODIFIES SQL DATA "
            "BEGIN UPDATE t SET v = 'by a function'; RETURN n; END"
        ],
        "DO writes(1)",
    ),
    "a view": (["CREATE VIEW vw AS SELECT * FROM t"], "UPDATE vw SET v = 'by a view' WHERE id = 1"),
    "a foreign key": (
        [
            "CREATE TABLE parent (id int PRIMARY KEY)",
            "INSERT INTO parent VALUES (1), (2)",
            "ALTER TABLE t ADD FOREIGN KEY (id) REFERENCES parent (id) ON DELETE CASCADE",
        ],
        "DELETE FROM parent WHERE id = 1",
    ),
}


@both
@pytest.mark.parametrize("way", REACHES)
@pytest.mark.parametrize(("sight", "stays"), [(True, True), (True, False), (False, True)])
def test_a_table_that_a_statement_reaches_by_another_is_dumped(
    database: Database, config: Config, elsewhere: str, way: str, sight: bool, stays: bool
) -> None:
    definitions, statement = REACHES[way]
    names = {"tools": elsewhere, "ours": database.name}
    if sight:
        database.execute(f"GRANT SELECT, TRIGGER, EXECUTE ON *.* TO '{database.account.user}'@'{database.server.host}'")
    if database.kind == "mysql":
        database.execute("SET GLOBAL log_bin_trust_function_creators = 1")
    database.execute(*(definition.format(**names) for definition in definitions))
    session(database, statement.format(**names))
    if not stays:  # the catalogue no longer shows how the statement has reached the table
        database.execute(
            "DROP TRIGGER IF EXISTS tr", f"DROP TRIGGER IF EXISTS {elsewhere}.tr", "DROP VIEW IF EXISTS vw"
        )
        database.execute("DROP FUNCTION IF EXISTS writes")
    with capturing(config) as wait:
        wait(source_rows(database, *TABLES))
    assert "t" in dumped_tables(config)


@both
@pytest.mark.usefixtures("sees_all")
def test_many_statements_in_a_row_cost_one_dump(database: Database, config: Config) -> None:
    session(database, *(f"UPDATE t SET v = '{number}'" for number in range(50)))
    with capturing(config) as wait:
        assert_dumped(database, config, ["t"], wait)
    assert dumped_tables(config) == ["t"]


@both
def test_statements_while_the_capture_runs_cost_few_dumps(database: Database, config: Config) -> None:
    with capturing(config) as wait:
        for number in range(100):
            session(database, f"UPDATE t SET v = '{number}'")
        wait(source_rows(database, *TABLES))
    assert dumped_tables(config).count("t") < 10
    assert len(recent_errors.read(wiring.open_state(config))) == 1


@both
@pytest.mark.usefixtures("sees_all")
def test_a_load_of_a_file_in_statement_form(database: Database, config: Config, tmp_path: Path) -> None:
    file = tmp_path / "rows.txt"
    file.write_text("".join(f"{number}\tSECRET-{number}\n" for number in range(10, 40_000)))
    with database.server.connect(database.name) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL local_infile = 1")
    session_by_file(database, f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE t")
    with capturing(config) as wait:
        assert_dumped(database, config, ["t"], wait)


def session_by_file(database: Database, statement: str) -> None:
    server = database.server
    admin = server.admin
    connection = pymysql.connect(
        host=server.host, port=server.port, user=admin.user, password=admin.password, database=database.name,
        local_infile=True, autocommit=True,
    )  # fmt: skip
    with connection, connection.cursor() as cursor:
        cursor.execute(STATEMENTS)
        cursor.execute(statement)


MIXED = "INSERT INTO m VALUES (1, 'x')"  # of an engine without transactions: what is rolled back stays in the log
GONE = "UPDATE {} SET v = 'gone'"
STAYS = "UPDATE {} SET v = 'stays'"
ROLLBACKS: dict[str, tuple[list[str], str]] = {
    "one savepoint": (["SAVEPOINT a", MIXED, GONE.format("t"), "ROLLBACK TO a"], "t"),
    "another case, in quotes": (["SAVEPOINT `Ab c`", MIXED, "DELETE FROM t", "ROLLBACK TO SAVEPOINT `aB C`"], "t"),
    "the outer of two": (
        ["SAVEPOINT a", GONE.format("t"), "SAVEPOINT b", MIXED, GONE.format("w"), "ROLLBACK TO a"],
        "t w",
    ),
    "the inner of two": (
        ["SAVEPOINT a", STAYS.format("t"), "SAVEPOINT b", MIXED, GONE.format("w"), "ROLLBACK TO b"],
        "w",
    ),
    "a name used twice": (
        ["SAVEPOINT a", STAYS.format("t"), "SAVEPOINT a", MIXED, GONE.format("w"), "ROLLBACK TO a"],
        "w",
    ),
    "after a release": (
        ["SAVEPOINT a", GONE.format("t"), "SAVEPOINT b", "RELEASE SAVEPOINT b", MIXED, "ROLLBACK TO a"],
        "t",
    ),
    "twice": (["SAVEPOINT a", MIXED, GONE.format("t"), "ROLLBACK TO a", GONE.format("w"), "ROLLBACK TO a"], "t w"),
    "a captured table without transactions": (
        ["SAVEPOINT a", "INSERT INTO n VALUES (1, 'stays')", GONE.format("t"), "ROLLBACK TO a"],
        "t",  # the other's rows are logged on their own
    ),
    "all of it": ([MIXED, GONE.format("t"), "ROLLBACK"], ""),
    "many rows": (
        [
            *("SAVEPOINT a", MIXED),
            "INSERT INTO t SELECT seq + 10, REPEAT('gone', 15) FROM seq_1_to_40000",
            "ROLLBACK TO a",
        ],
        "t",
    ),
}


@of_mariadb
@pytest.mark.parametrize("way", ROLLBACKS)
def test_a_rollback_over_two_engines_has_the_tables_dumped_whose_rows_were_undone(
    database: Database, tmp_path: Path, way: str
) -> None:
    tables = (*TABLES, "n")
    config = database.config(
        tmp_path,
        source={"tables": [f"{database.schema}.{name}" for name in tables]},
        staging={"path": str(tmp_path / "staging"), "max_bytes": 1 << 20},
    )
    for name in (*tables, "m"):
        kind = "InnoDB" if name in TABLES else ("Aria", "MyISAM")[len(way) % 2]
        database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(60)) ENGINE = {kind}")
    stage(config)
    for name in TABLES:
        database.execute(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b')")
    stage(config)
    statements, broken_tables = ROLLBACKS[way]
    with database.connect() as connection, connection.cursor() as cursor:
        for statement in ("BEGIN", "INSERT INTO u VALUES (7, 'x')", *statements, "COMMIT"):
            cursor.execute(statement)
    with capturing(config) as wait:
        database.execute("INSERT INTO u VALUES (3, 'goes on')")
        wait(source_rows(database, *tables))
    if way != "all of it":  # which the server may log, or not
        assert dumped_tables(config) == broken_tables.split()


@both
@pytest.mark.parametrize("form", ["STATEMENT", "MIXED"])
@pytest.mark.parametrize(
    "statements",
    [
        ("TRUNCATE TABLE t", "DROP TABLE t"),
        ("DROP TABLE t, u",),
        ("ALTER TABLE t RENAME TO t3",),
        ("ALTER TABLE t RENAME TO u", "TRUNCATE u"),
        ("ALTER TABLE t ADD COLUMN z int", "DROP TEMPORARY TABLE t"),
    ],
    ids="; ".join,
)
def test_a_temporary_table_of_the_same_name_empties_nothing(
    database: Database, config: Config, statements: tuple[str, ...], form: str
) -> None:
    made = [f"CREATE TEMPORARY TABLE {name} (id int PRIMARY KEY, v varchar(60))" for name in ("t", "u")]
    made = [statement for statement in made if "RENAME TO u" not in statements[0] or " t " in statement]
    session(database, f"SET SESSION binlog_format = '{form}'", *made, *statements)
    with capturing(config) as wait:
        database.execute("INSERT INTO w VALUES (3, 'goes on')")
        wait(source_rows(database, *TABLES))


@both
@pytest.mark.parametrize(
    "statement", ["TRUNCATE TABLE t", "DROP TABLE t", "DROP TABLE x2, t", "ALTER TABLE t RENAME TO t3"]
)
def test_a_table_is_emptied_by_a_session_that_has_temporary_ones(
    database: Database, config: Config, statement: str
) -> None:
    session(database, "CREATE TEMPORARY TABLE x2 (id int PRIMARY KEY)", "INSERT INTO x2 VALUES (1)", statement)
    with capturing(config):
        wait_until(lambda: copies(config) == source_rows(database, "u", "w"), "its rows are gone")
