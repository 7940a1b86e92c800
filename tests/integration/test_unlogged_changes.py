"""Changes that PostgreSQL keeps out of the log, for a while or for good: by the publication, or since the table is
UNLOGGED. The tables stop, and are dumped afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.capture import config_reload
from dblog_core.capture.healing import broken_tables
from dblog_core.config.settings import Config
from tests.fix_servers import Database
from tests.integration.test_stopped_tables import SHAPE, begin_capture, runs, stop_reasons
from tests.integration.test_swapped_tables import capturing, healing, source_rows
from tests.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("looking"), pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)]
MISSED = "INSERT INTO t VALUES (3, 'missed'); UPDATE t SET v = 'missed' WHERE id = 1; DELETE FROM t WHERE id = 2"
ALL_CHANGES = "insert, update, delete, truncate"


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue is looked at all the time."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)
    monkeypatch.setattr(broken_tables, "STAMPS_SECONDS", 0.1)


def begin(database: Database, config: Config) -> dict[str, dict[int, str]]:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", f"CREATE TABLE u {SHAPE}")
    begin_capture(database, config)
    return source_rows(database, "t", "u")


@pytest.mark.one_of(2)
@pytest.mark.in_turn("moment")
@pytest.mark.parametrize("moment", ["while it runs", "between two captures"])
def test_rows_that_the_publication_of_others_did_not_show_are_dumped(
    database: Database, tmp_path: Path, moment: str
) -> None:
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u"]})
    before = begin(database, config)
    set_option = f"ALTER PUBLICATION {config.source.publication} SET (publish = '{{}}')"
    statements = (set_option.format("insert"), MISSED, set_option.format(ALL_CHANGES))
    if moment == "between two captures":
        with capturing(config) as wait:  # which looks at the catalogue, as each capture does
            runs(database, wait, before)
        database.execute(*statements)
    with capturing(config) as wait:
        if moment == "while it runs":
            runs(database, wait, before)
            database.execute(*statements)
        wait(source_rows(database, "t", "u"))
        assert set(healing(config)) == {"t", "u"} and stop_reasons(config) == {}


@pytest.mark.one_of(2)
def test_tables_stop_while_the_publication_of_others_does_not_show_all_changes(
    database: Database, tmp_path: Path
) -> None:
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u"]})
    before = begin(database, config)
    publication = config.source.publication
    with capturing(config) as wait:
        runs(database, wait, before)
        database.execute(f"ALTER PUBLICATION {publication} SET (publish = 'insert')", MISSED)
        wait_until(lambda: set(stop_reasons(config)) == {"t", "u"}, "both are stopped")
        why, _, fix = stop_reasons(config)["t"].partition("\n  fix: ")
        assert why.endswith(f"publication {publication} does not show all changes of public.t")
        database.execute(fix)
        wait_until(lambda: not stop_reasons(config), "nothing is stopped")
        wait(source_rows(database, "t", "u"))
        assert set(healing(config)) == {"t", "u"}


@pytest.mark.one_of(2)
@pytest.mark.in_turn("alter")
@pytest.mark.parametrize(
    "alter", ["DROP TABLE t", "SET TABLE u, public.dblog_watermark", "SET (publish = 'insert, delete')"]
)
def test_the_capture_repairs_its_own_publication_and_dumps_what_it_did_not_show(
    database: Database, tmp_path: Path, alter: str
) -> None:
    config = database.owner_config(tmp_path, tables=["public.t", "public.u"])
    before = begin(database, config)
    with capturing(config) as wait:
        runs(database, wait, before)
        database.execute(f"ALTER PUBLICATION own {alter}", MISSED)
        wait(source_rows(database, "t", "u"))
        wait_until(lambda: not stop_reasons(config), "nothing is stopped")
        assert "t" in healing(config)
        database.execute("INSERT INTO t VALUES (4, 'shown'); UPDATE t SET v = 'shown' WHERE id = 3")
        wait(source_rows(database, "t", "u"))


@pytest.mark.one_of(4)
def test_a_table_with_a_filter_stops_alone(database: Database, tmp_path: Path) -> None:
    config = database.owner_config(tmp_path, tables=["public.t", "public.u"])
    before = begin(database, config)
    with capturing(config) as wait:
        runs(database, wait, before)
        database.execute("ALTER PUBLICATION own DROP TABLE t; ALTER PUBLICATION own ADD TABLE t WHERE (id < 3)", MISSED)
        wait_until(lambda: set(stop_reasons(config)) == {"t"}, "it is stopped alone")
        assert "publication own leaves out rows or columns of public.t" in stop_reasons(config)["t"]
        database.execute("ALTER PUBLICATION own DROP TABLE t")  # the capture adds it as it should be
        wait(source_rows(database, "t", "u"))
        assert set(healing(config)) == {"t"} and stop_reasons(config) == {}


@pytest.mark.one_of(4)
def test_a_publication_that_has_another_owner_costs_no_dump(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u"]})
    before = begin(database, config)
    publication = config.source.publication
    with capturing(config) as wait:
        runs(database, wait, before)
        owner = f"heir_{database.name}"
        database.execute(f"CREATE ROLE {owner} SUPERUSER", f"ALTER PUBLICATION {publication} OWNER TO {owner}")
        database.execute("INSERT INTO t VALUES (3, 'shown')")
        wait(source_rows(database, "t", "u"))
    with capturing(config) as wait:
        database.execute("INSERT INTO t VALUES (4, 'shown')")
        wait(source_rows(database, "t", "u"))
    database.execute(f"REASSIGN OWNED BY {owner} TO CURRENT_USER", f"DROP ROLE {owner}")
    assert healing(config) == {} and stop_reasons(config) == {}


@pytest.mark.one_of(2)
@pytest.mark.in_turn("moment")
@pytest.mark.parametrize("moment", ["while it runs", "between two captures"])
def test_rows_of_a_bulk_load_without_a_log_are_dumped(database: Database, tmp_path: Path, moment: str) -> None:
    config = database.config(tmp_path, source={"tables": ["public.t", "public.u"]})
    before = begin(database, config)
    load = ("ALTER TABLE t SET UNLOGGED", MISSED, "ALTER TABLE t SET LOGGED")
    with capturing(config) as wait:
        runs(database, wait, before)
        if moment == "while it runs":
            database.execute(*load)
            wait(source_rows(database, "t", "u"))
    if moment == "between two captures":
        database.execute(*load)
        with capturing(config) as wait:
            wait(source_rows(database, "t", "u"))
    assert set(healing(config)) == {"t"} and stop_reasons(config) == {}
