"""PostgreSQL's log: order, transactions, resuming, watermarks, and slots that are lost or in use."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.errors import (
    LogPositionLost,
    SourceUnavailable,
)
from dblog_core.model.events import LogBatch, Unreadable, WatermarkSeen
from dblog_core.sources.postgres.source import PostgresSource
from tests.fix_servers import Database
from tests.integration.postgres_source.log_rows import begin, lines, read_to
from tests.waiting import PATIENCE_SECONDS


def test_changes_come_in_commit_order_with_what_the_log_knows_of_them(
    lab: Database, source: PostgresSource, read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute(
        "CREATE TABLE t (a int, b text, v text, big text, PRIMARY KEY (b, a))",
        "CREATE TABLE whole (id int PRIMARY KEY, v text, big text)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "ALTER TABLE whole ALTER big SET STORAGE EXTERNAL",
    )
    big = "x" * 5000
    position = begin(source)
    first = lab.connect()
    second = lab.connect()
    first.autocommit = second.autocommit = False
    with first.cursor() as first_cursor, second.cursor() as two:
        first_cursor.execute("INSERT INTO t VALUES (1, 'k', 'first', %s)", (big,))
        two.execute("INSERT INTO whole VALUES (1, 'v', %s)", (big,))
        second.commit()
        first_cursor.execute("SAVEPOINT s")
        first_cursor.execute("INSERT INTO t VALUES (9, 'gone', NULL, NULL)")
        first_cursor.execute("ROLLBACK TO s")
        first.commit()
        first_cursor.execute("UPDATE t SET v = 'lost'")
        first.rollback()
        first_cursor.execute("UPDATE t SET v = 'second'")
        first_cursor.execute("UPDATE t SET a = 2")
        two.execute("UPDATE whole SET v = 'w'")
        second.commit()
        first_cursor.execute("DELETE FROM t")
        first.commit()
        two.execute("DELETE FROM whole")
        second.commit()
        first_cursor.execute("TRUNCATE t, whole")
        first.commit()
    first.close()
    second.close()
    staged_lines = lines(read_log(source, position))
    operations = [
        (f["op"], f["table"], f.get("before"), f.get("after"), f.get("unchanged"), f.get("key_only"))
        for f in staged_lines
    ]
    key = {"v": None, "big": None}
    second_row = {"a": 1, "b": "k", "v": "second", "big": None}
    assert operations[:-2] == [
        ("c", "public.whole", None, {"id": 1, "v": "v", "big": big}, None, False),
        ("c", "public.t", None, {"a": 1, "b": "k", "v": "first", "big": big}, None, False),
        ("u", "public.whole", {"id": 1, "v": "v", "big": big}, {"id": 1, "v": "w", "big": big}, None, False),
        ("u", "public.t", None, second_row, ["big"], False),
        ("u", "public.t", {"a": 1, "b": "k", **key}, {**second_row, "a": 2}, ["big"], True),
        ("d", "public.t", {"a": 2, "b": "k", **key}, None, None, True),
        ("d", "public.whole", {"id": 1, "v": "w", "big": big}, None, None, False),
    ]
    assert sorted(line[:2] for line in operations[-2:]) == [("t", "public.t"), ("t", "public.whole")]


def test_the_key_is_in_key_order_and_transactions_are_described(
    lab: Database, source: PostgresSource, read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (a int, b text, PRIMARY KEY (b, a))")
    position = begin(source)
    lab.execute("INSERT INTO t VALUES (1, 'x')")
    ((xid, commit_time),) = lab.query("SELECT xmin::text::bigint, extract(epoch FROM now()) * 1000000 FROM t")
    batches = read_log(source, position)
    (transaction,) = [t for batch in batches for t in batch.transactions]
    assert (transaction.id, transaction.xid) == (str(xid), xid)
    assert abs(transaction.commit_time - float(commit_time)) < 60_000_000
    assert source.has_reached(transaction.position, position) and source.has_reached(
        batches[-1].position, transaction.position
    )
    assert source.tables()[0].key == ("b", "a")


def test_a_large_toasted_key_is_never_lost(
    lab: Database, source: PostgresSource, read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (k text PRIMARY KEY, v int)", "ALTER TABLE t ALTER k SET STORAGE EXTERNAL")
    position = begin(source)
    lab.execute("INSERT INTO t VALUES (repeat('k', 2500), 1)", "UPDATE t SET v = 2", "DELETE FROM t")
    created, updated, deleted = lines(read_log(source, position))
    assert updated["after"] == {"k": "k" * 2500, "v": 2} and updated["unchanged"] is None
    assert deleted["before"]["k"] == created["after"]["k"] == "k" * 2500


@pytest.mark.one_of(4)
def test_a_transaction_of_many_rows_resumes_inside_at_every_batch(
    lab: Database, source: PostgresSource, read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE other (id int PRIMARY KEY)")
    position = begin(source)
    connection = lab.connect()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO other VALUES (1)")
        cursor.execute(
            "BEGIN; TRUNCATE other; INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 50000) i; "
            "TRUNCATE other; COMMIT"
        )
        cursor.execute("INSERT INTO other VALUES (2)")
    connection.close()
    batches = read_log(source, position)
    everything = [(line["op"], line["table"], line.get("after")) for line in lines(batches)]
    assert len(everything) == 50_004 and len({str(line[2]) for line in everything if line[1] == "public.t"}) == 50_000
    assert all(sum(c.batch.num_rows for c in batch.changes) <= 10_000 for batch in batches)
    inside = [number for number, batch in enumerate(batches) if batch.partial]
    assert len(inside) >= 4
    for number in inside[:: max(1, len(inside) // 2)]:
        before = lines(batches[: number + 1])
        after = lines(read_log(source, batches[number].position, skip=batches[number].partial))
        assert [(line["op"], line["table"], line.get("after")) for line in before + after] == everything


def test_watermarks_are_signals_in_their_place(
    lab: Database, source: PostgresSource, read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    position = begin(source)
    writer = source.open_watermarks("worker 'one'")
    payload = '{"x": "' + "é\\u0000'" * 2000 + '"}'
    writer.write("first")
    lab.execute("INSERT INTO t VALUES (1)")
    writer.write(payload)
    writer.write(payload)
    writer.close()
    batches = read_log(source, position)
    assert [s.payload for batch in batches for s in batch.signals if isinstance(s, WatermarkSeen)][:2] == [
        "first",
        payload,
    ]
    assert [line["table"] for line in lines(batches)] == ["public.t"]
    assert not any(batch.partial for batch in batches)


def test_an_idle_source_moves_its_slot_and_nothing_is_confirmed_by_itself(
    lab: Database, source: PostgresSource
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    position = begin(source)
    log = source.open_log(position)
    confirmed = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE database = '{lab.name}'"
    for number in range(3):
        lab.execute("CHECKPOINT", f"CREATE SCHEMA s{number}", f"CREATE TABLE s{number}.elsewhere AS SELECT 1 AS a")
        batches = read_to(source, log, source.current_position())
        assert lab.query(confirmed) == [(source.show(position),)]
    log.acknowledge(batches[-1].position)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while lab.query(confirmed) != [(source.show(batches[-1].position),)]:
        assert time.monotonic() < deadline, "the slot did not move"
        log.read(0.05)
    log.close()


def test_a_lost_or_foreign_slot_says_what_is_lost(
    lab: Database,
    exact: PostgresSource,
    configure: Callable[..., SourceConfig],
    read_log: Callable[..., list[LogBatch]],
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    position = begin(exact)
    lab.execute("INSERT INTO t VALUES (1)")
    batches = read_log(exact, position, acknowledge=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while exact.start_position() != batches[-1].position:
        assert time.monotonic() < deadline, "the slot did not move"
    with pytest.raises(LogPositionLost, match="confirmed up to"):
        exact.open_log(position)
    with pytest.raises(LogPositionLost, match="of plugin pgoutput"):
        PostgresSource(configure(plugin="wal2json")).open_log(batches[-1].position)
    with pytest.raises(LogPositionLost, match="ends at"):
        exact.open_log("FFFF/0")
    lab.execute(f"SELECT pg_drop_replication_slot('dblog_{lab.name}')")
    with pytest.raises(LogPositionLost, match="does not exist") as caught:
        exact.open_log(batches[-1].position)
    assert "capture --fresh-start" in caught.value.fix


def test_a_slot_in_use_is_a_passing_trouble(lab: Database, source: PostgresSource) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY)")
    position = begin(source)
    log = source.open_log(position)
    with pytest.raises(SourceUnavailable, match=r"process \d+"):
        source.open_log(position)
    log.close()


def test_an_identity_that_is_not_the_key_is_told_and_its_rows_are_passed_over(
    lab: Database, source: PostgresSource, read_log: Callable[..., list[LogBatch]], plugin: str
) -> None:
    lab.execute("CREATE TABLE t (id int PRIMARY KEY, other int NOT NULL UNIQUE, v int)")
    position = begin(source)
    lab.execute(
        "ALTER TABLE t REPLICA IDENTITY USING INDEX t_other_key", "INSERT INTO t VALUES (1, 2, 3)", "DELETE FROM t"
    )
    assert any("identifies" in problem.what for problem in source.check())
    batches = read_log(source, position)
    (unreadable,) = [s for batch in batches for s in batch.signals if isinstance(s, Unreadable)]
    assert unreadable.table.name == "t" and "by (other), and the key is (id)" in unreadable.why
    # wal2json says nothing of an INSERT's identity.
    assert [line["op"] for line in lines(batches)] == ([] if plugin == "pgoutput" else ["c"])


def test_partitions_come_under_the_name_of_their_root(
    lab: Database, configure: Callable[..., SourceConfig], read_log: Callable[..., list[LogBatch]]
) -> None:
    lab.execute(
        "CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 (v text, id int NOT NULL)",
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)",
    )
    source = PostgresSource(configure())
    lab.execute(f"ALTER PUBLICATION dblog_{lab.name} SET (publish_via_partition_root = false)")
    assert [p for p in source.check() if p.fatal and "ALTER PUBLICATION" in p.fix]
    lab.execute(f"ALTER PUBLICATION dblog_{lab.name} SET (publish_via_partition_root = true)")
    position = begin(source)
    lab.execute("INSERT INTO p VALUES (1, 'a'), (11, 'b')", "UPDATE p SET id = 12 WHERE id = 1")
    operations = [(line["op"], line["table"], line["after"]) for line in lines(read_log(source, position))]
    assert {table for _, table, _ in operations} == {"public.p"} and operations[1][2] == {"id": 11, "v": "b"}
    chunk = source.open_reader().read(source.tables()[0], after=(11,), upto=None, limit=5)
    assert chunk.rows.to_pylist() == [{"id": 12, "v": "a"}]
    assert [p for p in PostgresSource(configure(plugin="wal2json")).check() if p.fatal and "partition" in p.what]
