"""What an ALTER TABLE of MySQL and MariaDB makes of values that are there: the servers log no row for it. A change that
the capture takes for harmless must be one by the server's own word."""

from __future__ import annotations

import random

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source import altered_tables, conversions

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
DRAWN = 150


@pytest.fixture
def source(config: SourceConfig) -> MysqlSource:
    """One that takes dates that do not exist: conversions make some."""
    source = MysqlSource(config.model_copy(update={"zero_dates": "null"}))
    source.prepare()
    return source


@pytest.mark.parametrize("seed", range(2))
def test_no_drawn_conversion_changes_a_value_unnoticed(database: Database, source: MysqlSource, seed: int) -> None:
    cases = random.Random(seed).sample(list(conversions.pairs()), DRAWN)
    outcomes = conversions.run(database, source, cases)
    unnoticed = [outcome for outcome in outcomes if not outcome.same and not outcome.owed]
    assert not unnoticed, unnoticed
    assert sum(not outcome.same for outcome in outcomes) > DRAWN // 10


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
