"""XA transactions on real servers: rows count from XA COMMIT's place in the log, whatever lies before it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from dblog_core.sources.mysql.row_events import change_batch
from dblog_core.sources.mysql.source import MysqlSource
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import batches, execute
from tests.integration.mysql_xa.transactions import Ids, finish, ops_and_ids, owners

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


def test_rows_stand_where_the_second_phase_commits_them(
    database: Database, source: MysqlSource, ids: Ids, memory: str
) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (2)", "INSERT INTO a VALUES (3, 3)")
    ids.prepare("two", "INSERT INTO a VALUES (4, 4)")
    execute(database, "INSERT INTO a VALUES (5, 5)")
    ids.prepare("three", "INSERT INTO a VALUES (6, 6)")
    before = source.current_position()
    ids.commit("one")
    execute(database, "INSERT INTO a VALUES (7, 7)", "UPDATE a SET v = 0 WHERE id = 1")
    ids.rollback("two")
    ids.commit("three")
    log_batches = list(batches(source, start))
    assert ops_and_ids(log_batches) == [("c", 5), ("c", 1), ("c", 2), ("c", 3), ("c", 7), ("u", 1), ("c", 6)]
    transactions = dict(owners(log_batches))
    assert transactions[2] == transactions[3] and len(set(transactions.values())) == 5
    assert "prepared" not in json.loads(log_batches[-1].position)
    first = next(t for batch in log_batches for t in batch.transactions if t.id == transactions[2])
    place = json.loads(before)
    assert first.position == f"{place['file']}:{place['offset']}" or database.kind == "mariadb"
    assert abs(first.commit_time / 1e6 - time.time()) < 600


def test_an_outstanding_transaction_lives_in_the_position(database: Database, source: MysqlSource, ids: Ids) -> None:
    start = source.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    ids.prepare("two", "INSERT INTO a VALUES (2, 2)")
    log_batches = list(batches(source, start))
    assert ops_and_ids(log_batches) == []
    execute(database, "FLUSH BINARY LOGS", "INSERT INTO a VALUES (3, 3)")
    ids.commit("two")
    more = list(batches(source, log_batches[-1].position))
    assert ops_and_ids(more) == [("c", 3), ("c", 2)]
    ids.commit("one")
    ids.prepare("one", "INSERT INTO a VALUES (4, 4)")  # the same id again
    ids.commit("one")
    last = list(batches(source, more[-1].position))
    assert ops_and_ids(last) == [("c", 1), ("c", 4)]
    assert ops_and_ids(list(batches(source, start))) == [("c", 3), ("c", 2), ("c", 1), ("c", 4)]


def test_one_phase_counts_at_once(database: Database, source: MysqlSource, memory: str) -> None:
    start = source.current_position()
    execute(database, "XA START 'x'", "INSERT INTO a VALUES (1, 1)", "XA END 'x'", "XA COMMIT 'x' ONE PHASE")
    execute(database, "INSERT INTO a VALUES (2, 2)")
    assert ops_and_ids(list(batches(source, start))) == [("c", 1), ("c", 2)]


@pytest.mark.parametrize("xid", ["X'00ff27','b',LARGEST", "'it''s','',0", "X'0a',X'5c25'", "'x'"])
def test_ids_of_every_form(database: Database, source: MysqlSource, xid: str) -> None:
    xid = xid.replace("LARGEST", "4294967295" if database.kind == "mysql" else "2147483647")
    start = source.current_position()
    execute(database, f"XA START {xid}", "INSERT INTO a VALUES (1, 1)", f"XA END {xid}", f"XA PREPARE {xid}")
    finish(database, f"XA COMMIT {xid}")
    assert ops_and_ids(list(batches(source, start))) == [("c", 1)]


def test_resuming_inside_the_rows_neither_loses_nor_repeats(
    database: Database, source: MysqlSource, ids: Ids, monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    monkeypatch.setattr(change_batch, "EVENTS", 2)  # a batch ends after so many
    start = source.current_position()
    many = [
        "INSERT INTO a VALUES " + ", ".join(f"({i}, 1)" for i in range(low, low + 50)) for low in range(0, 1000, 50)
    ]
    ids.prepare("one", *many, "UPDATE a SET v = 2 WHERE id < 300")
    execute(database, "INSERT INTO a VALUES (5000, 1)")
    ids.commit("one")
    execute(database, "INSERT INTO a VALUES (5001, 1)")
    one_phase = ids.of("two")
    execute(
        database,
        f"XA START {one_phase}",
        "UPDATE a SET v = 3",
        f"XA END {one_phase}",
        f"XA COMMIT {one_phase} ONE PHASE",
    )
    target = source.current_position()
    whole = list(batches(source, start, upto=target))
    rows = ops_and_ids(whole)
    assert len(rows) == 2304 and sum(1 for batch in whole if batch.partial) > 10
    seen = 0
    for batch in whole[:-1]:
        seen += sum(change.batch.num_rows for change in batch.changes)
        changes_after = ops_and_ids(list(batches(source, batch.position, skip=batch.partial, upto=target)))
        assert changes_after == rows[seen:]


def test_compressed_rows(database: Database, source: MysqlSource, memory: str) -> None:
    start = source.current_position()
    setting = "SESSION binlog_transaction_compression = ON"
    if database.kind == "mariadb":
        setting = "GLOBAL log_bin_compress = ON, GLOBAL log_bin_compress_min_len = 10"
    values = ", ".join(f"({i}, 0)" for i in range(200))
    try:
        for xid, end in (("x", "XA PREPARE 'x'"), ("y", "XA COMMIT 'y' ONE PHASE")):
            low = 1000 if xid == "y" else 0
            execute(
                database,
                f"SET {setting}", f"XA START '{xid}'", f"INSERT INTO a VALUES {values}" if not low
                else "INSERT INTO a VALUES (1000, 1)", f"XA END '{xid}'", end,
            )  # fmt: skip
        finish(database, "XA COMMIT 'x'")
    finally:
        if database.kind == "mariadb":
            execute(database, "SET GLOBAL log_bin_compress = OFF")
    assert ops_and_ids(list(batches(source, start))) == [("c", 1000), *(("c", i) for i in range(200))]


def test_rows_of_other_tables_do_not_count(database: Database, config: Any, source: MysqlSource, ids: Ids) -> None:
    source_of_b = MysqlSource(config.model_copy(update={"tables": (f"{database.schema}.b",)}))
    start = source_of_b.current_position()
    ids.prepare("one", "INSERT INTO a VALUES (1, 1)")
    ids.prepare("two")
    ids.prepare("three", "INSERT INTO a VALUES (2, 1)", "INSERT INTO b VALUES (1)")
    for xid in ("one", "three"):
        ids.commit(xid)
    ids.rollback("two")
    log_batches = list(batches(source_of_b, start))
    assert ops_and_ids(log_batches) == [("c", 1)] and "prepared" not in json.loads(log_batches[-1].position)
