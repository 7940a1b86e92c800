"""The suite of sources on the newest PostgreSQL too, and what only that has: slots that standbys keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.model.events import Unreadable
from dblog_core.sources.postgres.source import PostgresSource
from tests.contract import test_source
from tests.fix_servers import Database
from tests.integration.postgres_source.log_rows import lines, read_to

globals().update({name: test for name, test in vars(test_source).items() if name.startswith("test_")})


@pytest.fixture
def source_kind() -> str:
    return "postgres"


@pytest.fixture
def source_server(newest_postgres: PostgresServer) -> PostgresServer:
    return newest_postgres


@pytest.fixture
def preparation() -> dict[str, list[str]]:
    return {}  # it is built without ICU


def test_its_slot_is_one_that_standbys_keep(database: Database, tmp_path: Path) -> None:
    """Nothing is copied, and nobody waits, unless the servers are set up for it."""
    assert database.query("SELECT current_setting('server_version_num')::int >= 180000") == [(True,)]
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = database.config(tmp_path).source
    PostgresSource(config).prepare()
    slot = f"SELECT failover, two_phase, temporary FROM pg_replication_slots WHERE slot_name = '{config.slot}'"
    assert database.query(slot) == [(True, False, False)]
    assert PostgresSource(config).check() == []


def test_a_column_that_is_not_null_by_a_constraint_that_is_not_valid_is_no_part_of_a_key(
    database: Database, tmp_path: Path
) -> None:
    """Rows from before the constraint have no key, though the server takes the index as a replica identity."""
    database.execute(
        "CREATE TABLE t (id int, v text)",
        "INSERT INTO t VALUES (NULL, 'a'), (NULL, 'b')",
        "ALTER TABLE t ADD CONSTRAINT u UNIQUE (id), ADD CONSTRAINT n NOT NULL id NOT VALID",
        "ALTER TABLE t REPLICA IDENTITY USING INDEX u",
    )
    config = database.config(tmp_path, source={"keys": {"public.t": ["id"]}}).source
    (problem,) = PostgresSource(config).list_refusals()
    assert problem.what == '[source.keys] "public.t": column id may be null'
    database.execute("DELETE FROM t", problem.fix)
    assert PostgresSource(config).list_refusals() == ()


GENERATED = ("CREATE TABLE t (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (n * 2) STORED)",)
SHOW_GENERATED = "ALTER PUBLICATION {} SET (publish_generated_columns = stored)"


def test_a_publication_that_shows_generated_columns_is_set_right(database: Database, tmp_path: Path) -> None:
    """No dump reads them, so the log's rows must not have them either."""
    config = database.owner_config(tmp_path).source
    database.execute(*GENERATED)
    PostgresSource(config).prepare()
    database.execute(SHOW_GENERATED.format(config.publication))
    source = PostgresSource(config)
    assert source.list_refusals() == () and [problem for problem in source.check() if problem.fatal] == []
    source.prepare()
    log = source.open_log(source.start_position())
    database.execute("INSERT INTO t (id, n) VALUES (1, 2)")
    (line,) = lines(read_to(source, log, source.current_position()))
    log.close()
    assert line["after"] == {"id": 1, "n": 2}


def test_tables_whose_generated_columns_a_publication_of_others_shows_are_refused_alone(
    database: Database, tmp_path: Path
) -> None:
    config = database.config(tmp_path).source
    database.execute(*GENERATED, "CREATE TABLE u (id int PRIMARY KEY)")
    PostgresSource(config).prepare()
    database.execute(SHOW_GENERATED.format(config.publication))
    (problem,) = [problem for problem in PostgresSource(config).check() if problem.fatal]
    assert problem.what == "the log shows generated columns of public.t (g), which no dump reads"
    assert PostgresSource(config).prepare() == frozenset()
    assert PostgresSource(config).list_refusals() == (problem,)
    database.execute(problem.fix)
    assert [problem for problem in PostgresSource(config).check() if problem.fatal] == []
    assert PostgresSource(config).list_refusals() == ()


def test_a_table_stops_alone_while_the_log_shows_its_generated_columns(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path).source
    database.execute(*GENERATED, "CREATE TABLE u (id int PRIMARY KEY)")
    source = PostgresSource(config)
    source.prepare()
    log = source.open_log(source.start_position())
    database.execute("INSERT INTO t (id, n) VALUES (1, 1)", SHOW_GENERATED.format(config.publication))
    database.execute("INSERT INTO t (id, n) VALUES (2, 2)", "INSERT INTO u VALUES (3)")
    batches = read_to(source, log, source.current_position())
    (unreadable,) = [signal for batch in batches for signal in batch.signals if isinstance(signal, Unreadable)]
    assert str(unreadable.table) == "public.t" and "generated columns of public.t (g)" in unreadable.why
    assert [line["after"]["id"] for line in lines(batches)] == [1, 3]
    database.execute(unreadable.fix, "INSERT INTO t (id, n) VALUES (4, 4)")
    assert [line["after"] for line in lines(read_to(source, log, source.current_position()))] == [{"id": 4, "n": 4}]
    log.close()
