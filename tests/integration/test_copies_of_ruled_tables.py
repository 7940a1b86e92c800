"""Rows of a table with column rules under a name that has none: copies that tools make, and tables that are renamed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dblog_core.capture import config_reload
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.monitoring.preflight import findings
from tests.fix_servers import Database
from tests.integration.test_column_rules import MARK, unpack
from tests.integration.test_held_tables import accept
from tests.integration.test_stopped_tables import stop_reasons
from tests.integration.test_swapped_tables import capturing, copies
from tests.waiting import wait_until

pytestmark = pytest.mark.one_of(4)


@pytest.mark.in_turn
def test_copies_that_tools_make_of_a_ruled_table_are_captured_with_rules_of_their_own_or_not_at_all(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gh-ost and pt-online-schema-change name them: a ghost that is filled and takes the table's place, and the old
    table under another name, which is written to once more."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)
    directory = tmp_path / "written"
    name = f"{database.schema}.people"
    config = database.config(directory, source={"columns": {name: {"mask": ["v"]}}})
    database.execute(*(f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(40))" for table in ("people", "u")))
    database.execute(f"INSERT INTO people VALUES (1, '{MARK}')")
    run_capture(config, stop=threading.Event(), until_current=True)
    postgres = database.kind == "postgres"
    swap = (
        ("ALTER TABLE people RENAME TO _people_old", "ALTER TABLE _people_gho RENAME TO people")
        if postgres
        else ("RENAME TABLE people TO _people_old, _people_gho TO people",)
    )
    made = "(LIKE people INCLUDING ALL)" if postgres else "LIKE people"
    with capturing(config) as wait:
        database.execute(
            f"CREATE TABLE _people_gho {made}",
            "ALTER TABLE _people_gho ADD more int",
            "INSERT INTO _people_gho (id, v) SELECT id, v FROM people",
            f"INSERT INTO people VALUES (2, '{MARK}')",
            f"INSERT INTO _people_gho (id, v) VALUES (2, '{MARK}')",
        )
        wait_until(lambda: "_people_gho" in stop_reasons(config), "the ghost is stopped")
        database.execute(
            *swap,
            f"INSERT INTO people (id, v) VALUES (3, '{MARK}')",
            f"UPDATE _people_old SET v = '{MARK} once more'",
            "INSERT INTO u VALUES (1, 'goes on')",
        )
        wait_until(lambda: copies(config).get("u") == {1: "goes on"}, "the other table goes on")
        reason = wait_until(lambda: stop_reasons(config).get("_people_old"), "the old table is held")
        wait_until(lambda: "people" in stop_reasons(config), "so is what has taken its name")
        accept(config, name)
        wait({"people": dict.fromkeys((1, 2, 3), "*****"), "u": {1: "goes on"}})
    for file in (path for path in directory.rglob("*") if path.is_file()):
        assert MARK.encode() not in file.read_bytes() + unpack(file.read_bytes()), file
    entry = f'[source.columns."{database.schema}._people_old"]'
    assert "is held, since columns of this source are hidden" in reason and entry in reason
    assert [f.problem.table for f in findings(config) if f.problem.fatal] == [f"{database.schema}._people_old"]

    database.execute("DELETE FROM _people_old")  # an empty entry says that nothing is to be hidden
    columns = {name: {"mask": ["v"]}, f"{database.schema}._people_old": {}}
    config = database.config(directory, source={"columns": columns})
    with capturing(config) as wait:
        database.execute("INSERT INTO _people_old VALUES (9, 'open')")
        wait({"people": dict.fromkeys((1, 2, 3), "*****"), "u": {1: "goes on"}, "_people_old": {9: "open"}})
    assert stop_reasons(config) == {}


def rename(database: Database, old: str, new: str) -> str:
    return f"ALTER TABLE {old} RENAME TO {new}" if database.kind == "postgres" else f"RENAME TABLE {old} TO {new}"


@pytest.mark.in_turn
def test_a_ruled_table_that_goes_on_under_another_name_is_captured_with_an_entry_or_not_at_all(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that says nothing of the old one, which is taken again: under a capture, and while none runs."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)
    directory = tmp_path / "written"
    ruled = f"{database.schema}.people"
    config = database.config(directory, source={"columns": {ruled: {"mask": ["v"]}}})
    people = "CREATE TABLE people (id int PRIMARY KEY, v varchar(40))"
    database.execute(people, people.replace("people", "u"), f"INSERT INTO people VALUES (1, '{MARK}')")
    run_capture(config, stop=threading.Event(), until_current=True)
    with capturing(config) as wait:
        database.execute(
            rename(database, "people", "kept"),
            f"UPDATE kept SET v = '{MARK} once more'",
            people,
            f"INSERT INTO people VALUES (2, '{MARK}')",
            "INSERT INTO u VALUES (1, 'goes on')",
        )
        wait({"people": {2: "*****"}, "u": {1: "goes on"}})
        reason = wait_until(lambda: stop_reasons(config).get("kept"), "the renamed table is stopped")
        with pytest.raises(RequestError, match="kept is held"):
            filing.submit(config, DumpRequest(tables=(f"{database.schema}.kept",)), requested_by="a test")
        database.execute(f"UPDATE kept SET v = '{MARK} at last'")
    assert "had another name before" in reason and f'[source.columns."{database.schema}.kept"]' in reason
    assert [f.problem.table for f in findings(config) if f.problem.fatal] == [f"{database.schema}.kept"]
    database.execute(rename(database, "people", "later"), f"INSERT INTO later VALUES (3, '{MARK}')", people)
    with capturing(config) as wait:
        database.execute(f"INSERT INTO later VALUES (4, '{MARK}')", "INSERT INTO u VALUES (2, 'goes on')")
        wait({"u": {1: "goes on", 2: "goes on"}})
        wait_until(lambda: stop_reasons(config).keys() == {"kept", "later"}, "both are stopped")
    for file in (path for path in directory.rglob("*") if path.is_file()):
        assert MARK.encode() not in file.read_bytes() + unpack(file.read_bytes()), file

    database.execute("DELETE FROM kept", "INSERT INTO kept VALUES (9, 'open')")
    columns = {ruled: {"mask": ["v"]}, f"{database.schema}.kept": {}, f"{database.schema}.later": {"mask": ["v"]}}
    config = database.config(directory, source={"columns": columns})
    with capturing(config) as wait:
        wait({"u": {1: "goes on", 2: "goes on"}, "kept": {9: "open"}, "later": dict.fromkeys((2, 3, 4), "*****")})
    assert stop_reasons(config) == {}


@pytest.mark.in_turn
def test_a_column_that_takes_the_name_of_a_ruled_one_does_not_bring_that_ones_values_into_the_open(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row comes between the statements, so that no shape shows them: under a capture, and while none runs."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.3)
    directory = tmp_path / "written"
    names = {name: f"{database.schema}.{name}" for name in ("people", "staff")}
    config = database.config(directory, source={"columns": {table: {"exclude": ["w"]} for table in names.values()}})
    for table in names:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(40), w varchar(40))",
            f"INSERT INTO {table} VALUES (1, 'open', '{MARK}')",
        )
    run_capture(config, stop=threading.Event(), until_current=True)

    def swap(table: str) -> tuple[str, ...]:
        return f"ALTER TABLE {table} RENAME COLUMN w TO old_w", f"ALTER TABLE {table} RENAME COLUMN v TO w"

    database.execute("INSERT INTO staff VALUES (2, 'open', 'x')", *swap("staff"))
    with capturing(config):
        wait_until(lambda: "staff" in stop_reasons(config), "the table is stopped that was altered before")
        database.execute(*swap("people"), "UPDATE people SET id = 3", "UPDATE staff SET id = id + 10")
        reason = wait_until(lambda: stop_reasons(config).get("people"), "the table is stopped")
        for table in names.values():
            with pytest.raises(RequestError, match="is held"):
                filing.submit(config, DumpRequest(tables=(table,)), requested_by="a test")
    assert "its columns are not those that were accepted" in reason
    assert {f.problem.table for f in findings(config) if f.problem.fatal} == set(names.values())
    for file in (path for path in directory.rglob("*") if path.is_file()):
        assert MARK.encode() not in file.read_bytes() + unpack(file.read_bytes()), file
    config = database.config(directory, source={"columns": {t: {"exclude": ["old_w"]} for t in names.values()}})
    database.execute(*(f"ALTER TABLE {table} RENAME COLUMN w TO v" for table in names))
    with capturing(config) as wait:
        wait({"people": {3: "open"}, "staff": {11: "open", 12: "open"}})
    assert stop_reasons(config) == {}
