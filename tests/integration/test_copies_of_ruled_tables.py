"""Copies that tools make of a table with column rules: a pattern takes them in, and the rules are of another name."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dblog_core.capture import config_reload
from dblog_core.capture.run_capture import run_capture
from dblog_core.monitoring.preflight import findings
from tests.fix_servers import Database
from tests.integration.test_column_rules import MARK, unpack
from tests.integration.test_stopped_tables import stop_reasons
from tests.integration.test_swapped_tables import capturing
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
        wait({"people": dict.fromkeys((1, 2, 3), "*****"), "u": {1: "goes on"}})
        reason = wait_until(lambda: stop_reasons(config).get("_people_old"), "the old table is stopped")
    for file in (path for path in directory.rglob("*") if path.is_file()):
        assert MARK.encode() not in file.read_bytes() + unpack(file.read_bytes()), file
    entry = f'[source.columns."{database.schema}._people_old"]'
    assert "all columns that the rules of" in reason and entry in reason
    assert [f.problem.table for f in findings(config) if f.problem.fatal] == [f"{database.schema}._people_old"]

    database.execute("DELETE FROM _people_old")  # an empty entry says that nothing is to be hidden
    columns = {name: {"mask": ["v"]}, f"{database.schema}._people_old": {}}
    config = database.config(directory, source={"columns": columns})
    with capturing(config) as wait:
        database.execute("INSERT INTO _people_old VALUES (9, 'open')")
        wait({"people": dict.fromkeys((1, 2, 3), "*****"), "u": {1: "goes on"}, "_people_old": {9: "open"}})
    assert stop_reasons(config) == {}
