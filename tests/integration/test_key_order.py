"""A key whose order is altered while its dump is paused, from the command line."""

from __future__ import annotations

import pytest

from dblog_core.config.settings import Config
from tests.fix_servers import Database
from tests.integration.cli_world import Commands, config, dblog, tables

__all__ = ["config", "dblog", "tables"]

ALTER = {
    "mysql": "ALTER TABLE mixed MODIFY code VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL",
    "postgres": 'ALTER TABLE mixed ALTER code TYPE varchar(20) COLLATE "C"',
}
ALTER["mariadb"] = ALTER["mysql"]
CASELESS = {"mysql": "COLLATE utf8mb4_general_ci", "postgres": 'COLLATE "und-x-icu"'}
CASELESS["mariadb"] = CASELESS["mysql"]


@pytest.mark.one_of(4)
@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_a_paused_dump_whose_key_gets_another_order_fails_and_a_new_one_is_whole(
    tables: Database, config: Config, dblog: Commands
) -> None:
    """By the new order all keys with a capital letter come before those that the dump has read: it would skip them."""
    codes = [f"{letter}{number:03}" for letter in "aB" for number in range(100)]
    tables.execute(
        f"CREATE TABLE mixed (code VARCHAR(20) {CASELESS[tables.kind]} NOT NULL PRIMARY KEY)",
        "INSERT INTO mixed VALUES " + ", ".join(f"('{code}')" for code in codes),
    )
    name = f"{tables.schema}.mixed"
    capture = dblog.start("capture")
    dblog.until(lambda status: status["leader"] and status["offset"] is not None)
    slow = dblog.start("dump", "--table", name, "--chunk-size", "10", "--ranges", "1", "--delay", "60", "--json")
    dblog.until(lambda status: status["dumps"] and status["dumps"][0]["rows"])
    dump_id = dblog.json("dumps")[0]["id"]
    assert dblog.json("pause", dump_id)["state"] == "paused"
    tables.execute(ALTER[tables.kind])
    dblog.json("set", dump_id, "delay=0")
    dblog.json("resume", dump_id)

    ended = dblog.end(slow)
    assert ended.returncode == 1
    assert name in ended.stderr and "fix: request it again: `dblog dump --table " in ended.stderr
    status = dblog.json("dumps")[0]
    assert status["state"] == "failed"
    assert f"the order of the key of {name} has changed" in status["error"]
    assert "fix: request it again: `dblog dump --table " in status["error"]
    assert status["rows"] < len(codes)

    second_dump = dblog.json("dump", "--table", name, "--chunk-size", "10", "--wait")
    assert (second_dump["state"], second_dump["rows"]) == ("done", len(codes))
    capture.terminate()
    assert dblog.end(capture).returncode == 0
