"""The log of MySQL and MariaDB: order, transactions, resuming, positions, and logs that are lost."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dblog_core.errors import LogPositionLost, SourceUnavailable
from dblog_core.model.events import Truncated
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import END, batches, changes, execute

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


def test_before_and_after_images_keep_order_over_tables(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY, v varchar(9))")
    start = source.current_position()
    execute(
        database,
        "BEGIN", "INSERT INTO a VALUES (1, 10)", "INSERT INTO b VALUES (1, 'x')", "UPDATE a SET v = NULL",
        "DELETE FROM b",
        "COMMIT",
        "UPDATE a SET id = 7",
    )  # fmt: skip
    log_batches = list(batches(source, start))
    operations = [(r["op"], r["before"], r["after"]) for r in changes(log_batches)]
    assert operations == [
        ("c", None, {"id": 1, "v": 10}),
        ("c", None, {"id": 1, "v": "x"}),
        ("u", {"id": 1, "v": 10}, {"id": 1, "v": None}),
        ("d", {"id": 1, "v": "x"}, None),
        ("u", {"id": 1, "v": None}, {"id": 7, "v": None}),
    ]


def test_rolled_back_changes_are_absent(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    start = source.current_position()
    execute(
        database,
        "BEGIN", "INSERT INTO a VALUES (1)", "ROLLBACK",
        "BEGIN", "INSERT INTO a VALUES (2)", "SAVEPOINT s", "INSERT INTO a VALUES (3)", "ROLLBACK TO SAVEPOINT s",
        "INSERT INTO a VALUES (4)", "COMMIT",
    )  # fmt: skip
    assert [row["after"]["id"] for row in changes(list(batches(source, start)))] == [2, 4]


def test_resuming_at_any_batch_neither_loses_nor_repeats(database: Database, source: MysqlSource) -> None:
    execute(
        database,
        "CREATE TABLE a (id int PRIMARY KEY AUTO_INCREMENT, v varchar(40))",
        "INSERT INTO a (v) VALUES ('seed')",
    )
    start = source.current_position()
    copies = ["INSERT INTO a (v) SELECT CONCAT(v, id % 7) FROM a LIMIT 25000"] * 16
    execute(
        database, "INSERT INTO a (v) VALUES ('before')", "BEGIN", *copies, "COMMIT", "UPDATE a SET v = 'u' WHERE id < 9"
    )
    target = source.current_position()
    whole = list(batches(source, start, upto=target))
    ids = [(row["op"], row["after"]["id"]) for row in changes(whole)]
    assert len(ids) > 50_000 and any(batch.partial for batch in whole)
    seen = 0
    for number, batch in enumerate(whole[:-1]):
        seen += sum(c.batch.num_rows for c in batch.changes)
        rest = batches(source, batch.position, skip=batch.partial, upto=target)
        if (
            number < len(whole) - 3
        ):  # enough to see that the next rows are right; the last resumes read all that is left
            rest = iter([next(rest)])
        rest_of_rows = [(row["op"], row["after"]["id"]) for row in changes(list(rest))]
        assert rest_of_rows and rest_of_rows == ids[seen : seen + len(rest_of_rows)]


def test_a_batch_joins_small_transactions(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    start = source.current_position()
    execute(database, *(f"INSERT INTO a VALUES ({i})" for i in range(300)))
    log_batches = list(batches(source, start))
    assert len(log_batches) < 30 and sum(len(batch.transactions) for batch in log_batches) == 300


def test_idle_log_moves_on_with_other_tables(database: Database, config: Any) -> None:
    execute(database, "CREATE TABLE mine (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    source = MysqlSource(config.model_copy(update={"tables": (f"{database.schema}.mine",)}))
    start = source.current_position()
    execute(database, "INSERT INTO other VALUES (1)")
    log_batches = list(batches(source, start))
    assert changes(log_batches) == [] and source.has_reached(log_batches[-1].position, source.current_position())


def test_emptied_tables_are_signals(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE `a``b` (id int PRIMARY KEY)", "CREATE TABLE c (id int PRIMARY KEY)")
    start = source.current_position()
    execute(database, "TRUNCATE /* now */ TABLE `a``b`", f"TRUNCATE {database.name} . c -- all", "DROP TABLE c")
    signals = [s for b in batches(source, start) for s in b.signals]
    assert [s.table.name for s in signals if isinstance(s, Truncated)] == ["a`b", "c", "c"]


def test_purged_log_is_lost_with_a_way_on(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    start = source.current_position()
    execute(database, "INSERT INTO a VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (2)")
    last = json.loads(source.current_position())["file"]
    execute(database, f"PURGE BINARY LOGS TO '{last}'")
    with pytest.raises(LogPositionLost) as raised:
        list(batches(source, start))
    assert "fresh" in str(raised.value) or "full dump" in raised.value.fix


def test_a_position_that_the_server_has_not_reached_is_lost(database: Database, source: MysqlSource) -> None:
    position = json.loads(source.current_position())
    if database.kind == "mysql":
        uuid, _, last = position["gtids"].rpartition("-")
        position["gtids"] = f"{uuid}-{int(last) + 1000}"
    else:
        domain, server, number = position["gtids"].split("-")
        position["gtids"] = f"{domain}-{server}-{int(number) + 1000}"
    with pytest.raises(LogPositionLost):
        list(batches(source, json.dumps(position)))


def test_a_second_reader_ends_the_first(database: Database, source: MysqlSource) -> None:
    start = source.current_position()
    first = source.open_log(start)
    first.read(0.2)
    second = source.open_log(start)
    second.read(0.2)
    deadline = time.monotonic() + END
    with pytest.raises(SourceUnavailable):  # noqa: PT012  # it may take a few reads
        while time.monotonic() < deadline:
            first.read(0.5)
    first.close()
    second.close()


def test_compressed_transactions_are_read(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY, v longtext)")
    start = source.current_position()
    setting = "binlog_transaction_compression" if database.kind == "mysql" else "log_bin_compress"
    scope = "SESSION" if database.kind == "mysql" else "GLOBAL"
    try:
        execute(
            database,
            f"SET {scope} {setting} = ON",
            "INSERT INTO a VALUES (1, REPEAT('x', 100000))",
            "UPDATE a SET id = 2",
        )
    finally:
        execute(database, f"SET {scope} {setting} = OFF")
    assert [(r["op"], r["after"]["id"], len(r["after"]["v"])) for r in changes(list(batches(source, start)))] == [
        ("c", 1, 100_000),
        ("u", 2, 100_000),
    ]


def test_file_positions_work_without_gtids(database: Database, source: MysqlSource, config: Any) -> None:
    if database.kind == "mariadb":  # it always has GTIDs
        return
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    position = json.loads(source.current_position())
    position.update(gtids=None, server=database.query("SELECT @@server_uuid")[0][0])
    execute(database, "INSERT INTO a VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (2)")
    log_batches = list(batches(source, json.dumps(position)))
    assert [row["after"]["id"] for row in changes(log_batches)] == [1, 2]
    position["server"] = "00000000-0000-0000-0000-000000000000"
    with pytest.raises(LogPositionLost):
        source.open_log(json.dumps(position))

    assert abs(log_batches[0].transactions[0].commit_time / 1e6 - time.time()) < 600
    execute(database, "INSERT INTO a VALUES (3)")
    assert [row["after"]["id"] for row in changes(list(batches(source, log_batches[-1].position)))] == [3]


def test_positions_behind_an_event_larger_than_a_packet_may_be_compare(database: Database, source: MysqlSource) -> None:
    """The server itself cannot tell the GTIDs of a place there: MariaDB's BINLOG_GTID_POS answers nothing."""
    size = (16 << 20) + 1
    allowed = database.query("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    database.execute("SET GLOBAL max_allowed_packet = 67108864", "FLUSH BINARY LOGS")
    try:
        execute(database, "CREATE TABLE a (id int PRIMARY KEY, v longtext)")
        execute(database, f"INSERT INTO a VALUES (1, REPEAT('x', {size}))")
        database.execute("SET GLOBAL max_allowed_packet = 16777216")
        before = source.current_position()
        execute(database, "INSERT INTO a VALUES (2, 'y')")
        after = source.current_position()
        assert source.has_reached(after, before) and not source.has_reached(before, after)
    finally:
        # A file of its own: MariaDB refuses to begin by GTID behind such an event.
        database.execute(f"SET GLOBAL max_allowed_packet = {allowed}", "FLUSH BINARY LOGS")
