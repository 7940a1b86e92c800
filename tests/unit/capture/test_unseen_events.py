"""After a restart the capture remembers, from staged segments, what a later SELECT may not see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.algorithm.visibility import Snapshots
from dblog_core.capture.sequencer import Sequencer
from dblog_core.model import watermark
from dblog_core.model.events import (
    LogBatch,
    SchemaSeen,
    Signal,
    TableChanges,
    Transaction,
    Truncated,
    Unreadable,
    WatermarkSeen,
)
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Heals, High, Low, Mark
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.table_guard import Hold
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.reader import lines
from tests.fake_source import ORDERS, Row, changes_batch

OPENED = "100:100:"


def row(key: int, name: str) -> Row:
    return {"id": key, "name": name, "big": "b"}


class Places:
    """A source whose log is read up to its end, and what a SELECT sees there."""

    horizon_now = OPENED

    def has_reached(self, position: str, target: str) -> bool:
        return True

    def lies_before(self, transaction: Transaction, position: str) -> bool:
        return False

    def horizon(self) -> str | None:
        return self.horizon_now


class Log:
    """A capture over PostgreSQL-like transactions, restarted at will; offsets begin with 1."""

    def __init__(self, path: Path) -> None:
        self.staging = Staging(str(path), source="shop")
        self.staging.publish(Manifest("shop", 1, 1, 1, 0, "0", 0, "", None, 0, unseen_after=0, start=OPENED))
        self.place = 0
        self.places = Places()
        self.restart()

    def restart(self) -> None:
        head = self.staging.head()
        assert head is not None
        self.sequencer = Sequencer(
            self.staging,
            source="shop",
            epoch=1,
            head=head,
            visibility=Snapshots(head.start, head.starts),
            rules=Rules({}),
            places=self.places,
        )

    def commit(self, xid: int, *rows: tuple[str, Row | None, Row | None, tuple[str, ...]]) -> None:
        changes = changes_batch(ORDERS, [(i + 1, 0, *r) for i, r in enumerate(rows)])
        self.take(xid, SchemaSeen(0, 0, ORDERS), changes=(changes,))

    def take(self, xid: int, *signals: Signal, changes: tuple[TableChanges, ...] = ()) -> None:
        self.place += 1
        transaction = Transaction(str(xid), str(self.place), self.place, xid)
        self.sequencer.process(LogBatch(changes, signals, (transaction,), str(self.place)))

    def publish(self) -> Manifest:
        manifest = self.sequencer.seal(0)
        self.staging.publish(manifest)
        self.sequencer.begin_next_segment()
        return manifest

    def dump(self, snapshot: str, *rows: Row, attempt: int = 1) -> None:
        """One chunk that holds the whole table, in a window of its own."""
        mark = Mark("shop", TaskId("d", 0), attempt, 0, f"w{attempt}", str(ORDERS.table), 1, Heals())
        changes = changes_batch(ORDERS, [(0, 0, "c", None, r, ()) for r in rows])
        self.staging.put_schema(ORDERS)
        images = changes.batch.column("after")
        chunk = pa.RecordBatch.from_arrays(images.flatten(), schema=ORDERS.arrow)
        file = self.staging.write_chunk("chunks/d/0", f"c{attempt}", chunk)
        high = High(
            mark, file.path, len(chunk), file.bytes, file.checksum, ORDERS.fingerprint, len(chunk), True, snapshot
        )
        for at in (Low(mark), high):
            self.take(900, WatermarkSeen(0, 0, watermark.encode(at)))
        self.publish()

    def refreshed(self) -> list[int]:
        return [line["key"]["id"] for line in lines(self.staging) if line["op"] == "r"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    return Log(tmp_path)


def test_an_unseen_event_of_before_the_restart_evicts(log: Log) -> None:
    log.commit(101, ("u", row(1, "old"), row(1, "new"), ()), ("c", None, row(2, "new"), ()))
    log.commit(102, ("u", row(3, "old"), row(3, "new"), ()))
    log.publish()
    log.restart()
    log.dump("101:103:101", row(1, "old"), row(3, "new"))
    assert log.refreshed() == [3]
    (finished,) = [line for line in lines(log.staging) if line["op"] == "f"]
    created = min(line["offset"] for line in lines(log.staging) if line["op"] in "cu")
    assert finished["since"] < created, "key 2 was logged, no SELECT saw it, and it lives"


def test_an_unseen_truncate_and_key_change_of_before_the_restart_evict(log: Log) -> None:
    log.commit(101, ("u", row(1, "old"), row(5, "new"), ("big",)))
    log.publish()
    log.restart()
    log.dump("101:102:101", row(1, "old"), row(2, "b"))
    refreshed = [line for line in lines(log.staging) if line["op"] == "r"]
    assert [(line["key"], line["after"], line["unchanged"]) for line in refreshed] == [
        ({"id": 2}, row(2, "b"), []),
        ({"id": 5}, {"id": 5, "big": "b"}, ["name"]),
    ]


def test_an_unseen_truncate_of_before_the_restart_evicts_all(log: Log) -> None:
    log.commit(101, ("c", None, row(1, "old"), ()))
    log.take(102, Truncated(0, 0, ORDERS.table))
    log.publish()
    log.restart()
    log.dump("102:103:102", row(1, "old"))
    assert log.refreshed() == []


def test_only_what_may_be_unseen_is_read_again(log: Log) -> None:
    log.commit(101, ("c", None, row(1, "a"), ()))
    log.commit(102, ("c", None, row(2, "a"), ()), ("c", None, row(3, "a"), ()))
    log.sequencer.advance_horizon("102:103:102")
    assert log.publish().unseen_after == 2, "the schema's mark and the row of 101 lie before"
    log.sequencer.advance_horizon("103:103:")
    log.commit(103)
    assert log.publish().unseen_after == log.sequencer.last_offset


def test_what_was_logged_before_the_log_was_opened_must_be_seen(log: Log) -> None:
    log.dump("99:101:99", row(1, "old"))
    assert log.refreshed() == [] and log.sequencer.dumps.progress()[TaskId("d", 0)].broken == 1
    log.restart()
    log.dump("99:101:99", row(1, "old"), attempt=2)
    assert log.refreshed() == []
    log.dump("100:101:", row(1, "new"), attempt=3)
    assert log.refreshed() == [1]


def test_a_horizon_settles_what_was_before_the_log_was_opened(log: Log) -> None:
    log.sequencer.advance_horizon("100:105:101")
    log.take(101)
    assert log.publish().start is None


@pytest.mark.parametrize("way", ["an unreadable value", "a table that waits"])
def test_what_was_passed_over_must_be_seen_by_every_later_chunk_also_after_a_restart(log: Log, way: str) -> None:
    log.commit(101, ("c", None, row(1, "old"), ()), ("c", None, row(2, "old"), ()))
    if way == "an unreadable value":
        log.take(102, Unreadable(0, 0, ORDERS.table, "a value has no form", "alter the table"))
    else:
        log.sequencer.tables.hold(Hold(ORDERS.table, None))
    passed_over = [(1, 0, "u", row(1, "old"), row(1, "new"), ()), (2, 0, "d", row(2, "old"), None, ())]
    log.take(103, changes=(changes_batch(ORDERS, passed_over),))
    log.places.horizon_now = "101:104:101,103"
    if way == "an unreadable value":
        log.take(104, SchemaSeen(0, 0, ORDERS))
    else:
        log.sequencer.tables.release(ORDERS.table, Transaction("", "4", 4))
    assert log.publish().starts == {str(ORDERS.table): "101:104:101,103"}
    log.dump("103:104:103", row(1, "old"), row(2, "old"))
    assert log.refreshed() == [], "its SELECT may not have seen what was passed over"
    log.restart()
    log.dump("103:104:103", row(1, "old"), row(2, "old"), attempt=2)
    assert log.refreshed() == []
    progress = log.sequencer.dumps.progress()[TaskId("d", 0)]
    assert (progress.broken, progress.parts) == (2, 0) and "before its table was shown" in progress.reason
    log.sequencer.advance_horizon("104:104:")
    log.dump("104:105:", row(1, "new"), attempt=3)
    assert log.refreshed() == [1] and log.publish().starts == {}


def test_a_dump_after_rows_were_passed_over_finds_out_what_was_deleted_meanwhile(log: Log) -> None:
    """A row that was logged and not yet visible would count as younger than the dump, and stay."""
    log.commit(101, ("c", None, row(2, "old"), ()))
    log.sequencer.tables.hold(Hold(ORDERS.table, None))
    log.take(102, changes=(changes_batch(ORDERS, [(1, 0, "d", row(2, "old"), None, ())]),))
    log.places.horizon_now = "101:103:101,102"
    log.sequencer.tables.release(ORDERS.table, Transaction("", "3", 3))
    log.dump("103:104:", row(1, "new"))
    log.sequencer.advance_horizon("103:104:")
    log.dump("103:104:", row(1, "new"), attempt=2)
    created, finished = ([line for line in lines(log.staging) if line["op"] == op] for op in "cf")
    assert len(finished) == 1 and finished[0]["since"] >= created[0]["offset"]
