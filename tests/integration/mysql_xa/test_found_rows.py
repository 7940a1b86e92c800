"""Rows of prepared XA transactions are found again, wherever they lie, or lost by name."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dblog_core.errors import LogPositionLost, SourceRefused, UnknownLogEvent
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import batches, execute
from tests.integration.mysql_xa.transactions import Ids, ops_and_ids
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


def test_rows_without_gtids_are_found_by_their_place(
    database: Database, source: MysqlSource, ids: Ids, memory: str
) -> None:
    if database.kind == "mariadb":  # it always has GTIDs
        return
    position = json.loads(source.current_position())
    position.update(gtids=None, server=database.query("SELECT @@server_uuid")[0][0])
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    execute(database, "INSERT INTO a VALUES (2, 2)", "FLUSH BINARY LOGS")
    ids.commit("one")
    execute(database, "SET SESSION binlog_transaction_compression = ON", "INSERT INTO a VALUES (3, 3)")
    assert ops_and_ids(list(batches(source, json.dumps(position)))) == [("c", 2), ("c", 1), ("c", 3)]


def misplace_prepared(position: str) -> str:
    """The position as of a server whose files have other names and lengths."""
    data = json.loads(position)
    data["prepared"] = [[xid, "other.000077", 4, *gtids] for xid, _, _, *gtids in data["prepared"]]
    return json.dumps(data)


def test_with_gtids_rows_are_found_on_another_server_too(database: Database, source: MysqlSource, ids: Ids) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    execute(database, "INSERT INTO a VALUES (2, 2)")
    position = list(batches(source, start))[-1].position
    execute(database, "INSERT INTO a VALUES (3, 3)")
    ids.commit("one")
    assert ops_and_ids(list(batches(source, misplace_prepared(position)))) == [("c", 3), ("c", 1)]


def test_without_gtids_another_transaction_at_the_place_is_an_error(
    database: Database, source: MysqlSource, ids: Ids
) -> None:
    if database.kind == "mariadb":
        return
    position = json.loads(source.current_position())
    position.update(gtids=None, server=database.query("SELECT @@server_uuid")[0][0])
    execute(database, "INSERT INTO a VALUES (2, 2)")
    wrong = position["file"], position["offset"]
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    position = json.loads(list(batches(source, json.dumps(position)))[-1].position)
    position["prepared"][0][1:3] = wrong
    ids.commit("one")
    with pytest.raises(LogPositionLost, match="at that place"):
        list(batches(source, json.dumps(position)))


def test_rows_that_are_purged_are_lost_by_name(database: Database, source: MysqlSource, ids: Ids) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    position = list(batches(source, start))[-1].position
    file = json.loads(position)["file"]
    execute(database, "FLUSH BINARY LOGS", "INSERT INTO a VALUES (2, 2)")
    position = list(batches(source, position))[-1].position
    deadline = time.monotonic() + PATIENCE_SECONDS
    while database.query("SHOW BINARY LOGS")[0][0] == file or any(f == file for f, *_ in logs(database)):
        assert time.monotonic() < deadline
        execute(database, f"PURGE BINARY LOGS TO '{logs(database)[-1][0]}'", "FLUSH BINARY LOGS")
    ids.commit("one")
    with pytest.raises(LogPositionLost) as raised:
        list(batches(source, position))
    assert database.name.encode().hex() in str(raised.value) and file in str(raised.value)
    assert "--fresh-start" in raised.value.fix


def logs(database: Database) -> list[Any]:
    return database.query("SHOW BINARY LOGS")


def test_rows_that_a_first_start_did_not_find_stop_the_capture(
    database: Database, source: MysqlSource, ids: Ids
) -> None:
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    ids.prepare("two", "INSERT INTO a VALUES (2, 1)")
    start = source.current_position()
    ids.rollback("two")
    ids.commit("one")
    with pytest.raises(UnknownLogEvent, match="before this capture") as raised:
        list(batches(source, start))
    assert f"X'{database.name.encode().hex()}'" in str(raised.value) and "--fresh-start" in raised.value.fix


def test_a_restart_of_the_server_between_the_phases(
    database: Database, source: MysqlSource, ids: Ids, memory: str
) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO b VALUES (1)", "INSERT INTO a VALUES (1, 1)")
    database.server.stop()
    database.server.start()
    execute(database, "INSERT INTO a VALUES (2, 2)")
    ids.commit("one")
    assert ops_and_ids(list(batches(source, start))) == [("c", 2), ("c", 1), ("c", 1)]


def test_rows_prepared_before_the_first_start_are_found(
    database: Database, source: MysqlSource, ids: Ids, config: Any
) -> None:
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    execute(database, "FLUSH BINARY LOGS")
    ids.prepare("two", "INSERT INTO a VALUES (2, 1)")
    ids.prepare("three", "INSERT INTO a VALUES (3, 1)")
    ids.prepare("four", "INSERT INTO a VALUES (4, 1)")
    ids.commit("three")
    capture = MysqlSource(config)
    start = capture.start_position()
    places = {entry[0]: entry[1:] for entry in json.loads(start)["prepared"]}
    assert len(places) == 3 and len({place[0] for place in places.values()}) == 2
    assert any("3 XA transactions are prepared" in problem.what for problem in capture.check())
    ids.rollback("four")
    ids.commit("one")
    ids.commit("two")
    assert ops_and_ids(list(batches(capture, start))) == [("c", 1), ("c", 2)]
    assert capture.check() == [] and "prepared" not in json.loads(capture.start_position())


def test_a_missing_grant_is_a_warning_and_stops_nothing_without_xa(
    database: Database, source: MysqlSource, ids: Ids
) -> None:
    grant = "XA_RECOVER_ADMIN" if database.kind == "mysql" else "PROCESS"
    execute(database, f"REVOKE {grant} ON *.* FROM '{database.account.user}'@'127.0.0.1'")
    (problem,) = source.check()
    assert grant in problem.what and f"GRANT {grant} ON *.*" in problem.fix and not problem.fatal
    reader = source.open_reader()
    schema = reader.schema(TableName(database.schema, "a"))
    assert reader.last_key(schema) is None
    ids.prepare("one", "INSERT INTO b VALUES (1)")
    source.start_position()
    if database.kind == "mariadb":
        with pytest.raises(SourceRefused, match="PROCESS"):
            reader.read(schema, after=None, upto=None, limit=9)
    else:
        reader.read(schema, after=None, upto=None, limit=9)
    reader.close()
    ids.rollback("one")
