"""What an ALTER TABLE of MySQL and MariaDB makes of values that are there: the servers log no row for it. A change that
the capture takes for harmless must be one by the server's own word."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.model.events import Rewritten
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source import altered_tables, conversions
from tests.integration.mysql_source.log_rows import batches, execute, until

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
DRAWN = 150


@pytest.fixture
def source(config: SourceConfig) -> MysqlSource:
    """One that takes dates that do not exist: conversions make some."""
    source = MysqlSource(config.model_copy(update={"zero_dates": "null"}))
    source.prepare()
    return source


@pytest.mark.one_of(2)
@pytest.mark.parametrize("seed", range(2))
def test_no_drawn_conversion_changes_a_value_unnoticed(database: Database, source: MysqlSource, seed: int) -> None:
    cases = random.Random(seed).sample(list(conversions.pairs()), DRAWN)
    outcomes = conversions.run(database, source, cases)
    unnoticed = [outcome for outcome in outcomes if not outcome.same and not outcome.owed]
    assert not unnoticed, unnoticed
    assert sum(not outcome.same for outcome in outcomes) > DRAWN // 10


@pytest.mark.one_of(2)
def test_no_conversion_of_the_manuals_changes_a_value_unnoticed(database: Database, source: MysqlSource) -> None:
    cases = [*altered_tables.TELLING, *(altered_tables.MARIADB if database.kind == "mariadb" else ())]
    outcomes = conversions.run(database, source, cases)
    unnoticed = [outcome for outcome in outcomes if not outcome.same and not outcome.owed]
    assert not unnoticed, unnoticed
    errors = [(outcome.case.alter, outcome.error) for outcome in outcomes if outcome.error]
    assert sum(not outcome.same for outcome in outcomes) > 60 and not errors, errors


def test_usual_migrations_need_no_dump(database: Database, source: MysqlSource) -> None:
    outcomes = conversions.run(database, source, altered_tables.HARMLESS)
    assert [outcome for outcome in outcomes if outcome.error or not outcome.same] == []
    assert [outcome.case.alter for outcome in outcomes if outcome.owed] == []


@pytest.mark.parametrize(
    ("columns", "alter"),
    [("c DECIMAL(50,10)", "MODIFY c DECIMAL(50,2)"), ("c VARCHAR(9)", "MODIFY c CHAR(9)")],
)
def test_a_table_that_was_altered_without_a_statement_in_the_log_is_dumped_if_its_next_row_shows_it(
    database: Database, source: MysqlSource, columns: str, alter: str
) -> None:
    execute(database, f"CREATE TABLE t (id INT PRIMARY KEY, {columns})")
    start = source.current_position()
    execute(database, "INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (2, 1)")
    execute(database, "ALTER TABLE t ADD COLUMN d VARCHAR(80) DEFAULT 'd'", "INSERT INTO t VALUES (4, 1, 'x')")
    execute(database, "SET sql_log_bin = 0", f"ALTER TABLE t {alter}")
    execute(database, "INSERT INTO t VALUES (3, 1, 'x')", "UPDATE t SET c = 2 WHERE id = 3")
    signals = [signal for batch in batches(source, start) for signal in batch.signals]
    assert [signal.table.name for signal in signals if isinstance(signal, Rewritten)] == ["t"]


def test_an_alter_that_keeps_values_is_no_surprise_to_the_next_row(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE t (id INT PRIMARY KEY, c VARCHAR(80), d TEXT) CHARACTER SET utf8mb3")
    execute(database, "INSERT INTO t VALUES (1, 'a', 'a')")
    start = source.current_position()
    log = source.open_log(start)
    with closing(log):
        execute(
            database,
            "SET sql_mode = 'STRICT_ALL_TABLES'",
            "INSERT INTO t VALUES (2, 'a', 'a')",
            "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4",
            "INSERT INTO t VALUES (3, 'a', 'a')",
            "ALTER TABLE t ADD INDEX (c), ENGINE = InnoDB",
            "INSERT INTO t VALUES (4, 'a', 'a')",
        )
        signals = [signal for batch in until(source, log, source.current_position()) for signal in batch.signals]
    assert [signal for signal in signals if isinstance(signal, Rewritten)] == []
