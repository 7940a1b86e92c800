"""Generated columns, which PostgreSQL shows in its log from version 18 on where a publication says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.dumps import filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.local.servers.postgres import PostgresServer
from tests.fix_servers import Database
from tests.integration.test_stopped_tables import SHAPE, begin_capture, newcomers, stop_reasons
from tests.integration.test_swapped_tables import capturing, source_rows
from tests.waiting import wait_until

__all__ = ["newcomers"]
pytestmark = [pytest.mark.usefixtures("newcomers")]
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(20), g int GENERATED ALWAYS AS (id * 2) STORED)",
    f"CREATE TABLE u {SHAPE}",
)


@pytest.fixture
def source_server(newest_postgres: PostgresServer) -> PostgresServer:
    return newest_postgres


@pytest.mark.one_of(2)
def test_a_table_whose_generated_columns_the_log_shows_stops_alone(database: Database, tmp_path: Path) -> None:
    """From version 18 on a publication may show them. A capture that may not change it leaves the others alone."""
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u"]})
    database.execute(*TABLES)
    before = begin_capture(database, config)
    publication = f"ALTER PUBLICATION dblog_{database.name} SET (publish_generated_columns = {{}})"
    database.execute(publication.format("stored"), "INSERT INTO t VALUES (3, 'missed')")
    for key in (2, 3):  # the second one begins with such a publication
        with capturing(config) as wait:
            database.execute(f"INSERT INTO u VALUES ({key}, 'other')", f"INSERT INTO t VALUES ({key + 10}, 'missed')")
            wait({**before, **source_rows(database, "u")})
            wait_until(lambda: bool(stop_reasons(config)), "the table is stopped")
            assert "the log shows generated columns of public.t (g), which no dump reads" in stop_reasons(config)["t"]
            with pytest.raises(RequestError, match="generated columns of public"):
                filing.submit(config, DumpRequest(("public.t",)))
    with capturing(config) as wait:
        database.execute(publication.format("none"), "INSERT INTO t VALUES (4, 'after')")
        wait(source_rows(database, "t", "u"))
    assert stop_reasons(config) == {}


@pytest.mark.one_of(2)
def test_a_capture_that_owns_its_publication_takes_generated_columns_out_of_it_again(
    database: Database, tmp_path: Path
) -> None:
    config = database.owner_config(tmp_path, tables=["public.t", "public.u"])
    database.execute(*TABLES)
    begin_capture(database, config)
    with capturing(config) as wait:
        database.execute("ALTER PUBLICATION own SET (publish_generated_columns = stored)")
        database.execute("INSERT INTO t VALUES (3, 'passed over')", "INSERT INTO u VALUES (2, 'other')")
        wait(source_rows(database, "t", "u"))
        database.execute("INSERT INTO t VALUES (4, 'after')", "DELETE FROM t WHERE id = 1")
        wait(source_rows(database, "t", "u"))
    assert stop_reasons(config) == {}
