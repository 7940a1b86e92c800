"""MariaDB's uuid, inet4 and inet6, which its log calls binary, where the table is altered, gone or locked by the time
that the log is read. What each value becomes is in `tests/contract/test_every_type.py`."""

from __future__ import annotations

import base64
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.locks import renaming
from tests.integration.test_stopped_tables import newcomers, stop_reasons
from tests.integration.test_swapped_tables import capturing, healing
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.usefixtures("newcomers"),
    pytest.mark.parametrize("source_kind", ["mariadb"], indirect=True),
]
__all__ = ["newcomers"]
ONE = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
TWO = "6ccd780c-baba-1026-9564-5b8c656024db"
BYTES = base64.b64encode(bytes.fromhex(ONE.replace("-", ""))).decode()


def stage(config: Config) -> None:
    run_capture(config, stop=threading.Event(), until_current=True)


def read_rows(config: Config, table: str) -> dict[int, dict[str, Any]]:
    """What a keyed consumer of `log` holds of the table, without the key."""
    rows: dict[int, dict[str, Any]] = {}
    seen: dict[int, int] = {}
    for line in (line for line in lines(wiring.open_staging(config)) if line["table"].endswith(f".{table}")):
        if line["op"] in "cur":
            key = line["key"]["id"]
            rows[key] = {name: value for name, value in line["after"].items() if name != "id"}
            seen[key] = line["offset"]
        elif line["op"] == "f":
            rows = {key: row for key, row in rows.items() if seen[key] > line["since"]}
    return rows


def test_a_column_that_becomes_a_uuid_and_binary_again_is_staged_as_what_it_is(
    database: Database, tmp_path: Path
) -> None:
    config = database.config(tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v binary(16))")
    stage(config)
    with capturing(config):
        database.execute(f"INSERT INTO t VALUES (1, UNHEX(REPLACE('{ONE}', '-', '')))")
        wait_until(lambda: read_rows(config, "t") == {1: {"v": BYTES}}, "bytes")
        database.execute("ALTER TABLE t MODIFY v uuid", f"INSERT INTO t VALUES (2, '{TWO}')")
        wait_until(lambda: read_rows(config, "t") == {1: {"v": ONE}, 2: {"v": TWO}}, "text, also of the first row")
        database.execute(
            "ALTER TABLE t ADD w inet6 FIRST, ADD x inet4", "INSERT INTO t VALUES ('::7', 3, NULL, '0.0.0.1')"
        )
        wait_until(lambda: read_rows(config, "t").get(3) == {"w": "::7", "v": None, "x": "0.0.0.1"}, "new columns")


def test_rows_from_before_a_statement_that_the_catalogue_shows_already(database: Database, tmp_path: Path) -> None:
    """Neither guessed nor lost: where columns have other names by now, a dump brings the table."""
    config = database.config(tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v uuid, b binary(16))", "CREATE TABLE u (id int PRIMARY KEY)")
    database.execute("CREATE TABLE gone (id int PRIMARY KEY, v uuid)")
    stage(config)
    database.execute(
        f"INSERT INTO t VALUES (1, '{ONE}', 'a')",
        f"INSERT INTO gone VALUES (1, '{ONE}')",
        "INSERT INTO u VALUES (1)",
        "ALTER TABLE t RENAME COLUMN v TO w",
        "DROP TABLE gone",
        f"INSERT INTO t VALUES (2, '{TWO}', 'b')",
    )
    with capturing(config):
        b = [base64.b64encode(letter + bytes(15)).decode() for letter in (b"a", b"b")]
        expected = {1: {"w": ONE, "b": b[0]}, 2: {"w": TWO, "b": b[1]}}
        wait_until(lambda: read_rows(config, "t") == expected, "both rows, as the server prints them")
        assert read_rows(config, "u") == {1: {}}
        assert read_rows(config, "gone") == {1: {"v": BYTES}}
    assert stop_reasons(config) == {}


def test_an_answer_of_after_a_statement_that_the_log_has_yet_to_show_is_mended_by_a_dump(
    database: Database, tmp_path: Path
) -> None:
    config = database.config(tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v binary(16))", "CREATE TABLE u (id int PRIMARY KEY, v uuid)")
    stage(config)
    database.execute(
        f"INSERT INTO t VALUES (1, UNHEX(REPLACE('{ONE}', '-', '')))",
        f"INSERT INTO u VALUES (1, '{ONE}')",
        "ALTER TABLE t MODIFY v uuid",
        "ALTER TABLE u MODIFY v binary(16)",
        f"INSERT INTO t VALUES (2, '{TWO}')",
    )
    with capturing(config):
        wait_until(lambda: set(healing(config)) == {"t", "u"}, "both owe a dump")
        wait_until(lambda: read_rows(config, "t") == {1: {"v": ONE}, 2: {"v": TWO}}, "text")
        wait_until(lambda: read_rows(config, "u") == {1: {"v": BYTES}}, "bytes")
    assert stop_reasons(config) == {}


def test_a_table_whose_definition_is_locked_stops_alone_until_its_types_are_known(
    database: Database, tmp_path: Path
) -> None:
    config = database.config(tmp_path)
    database.execute("CREATE TABLE u (id int PRIMARY KEY)", "CREATE TABLE z (id int PRIMARY KEY)")
    stage(config)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v uuid)", f"INSERT INTO t VALUES (1, '{ONE}')")
    with contextlib.ExitStack() as stack:
        with renaming(database, "t"):
            stack.enter_context(capturing(config))
            wait_until(lambda: "its definition is locked" in stop_reasons(config).get("t", ""), "the table is held")
            database.execute("INSERT INTO u VALUES (1)")
            wait_until(lambda: read_rows(config, "u") == {1: {}}, "the other goes on")
        database.execute(f"INSERT INTO t VALUES (2, '{TWO}')")
        wait_until(lambda: read_rows(config, "t") == {1: {"v": ONE}, 2: {"v": TWO}}, "both rows, by a dump")
    assert stop_reasons(config) == {}
