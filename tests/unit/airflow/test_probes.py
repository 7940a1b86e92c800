"""A verification's watermarks: from which offset on its SELECT may have missed an event, and when nobody can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.algorithm.visibility import LogOrder, Snapshots
from dblog_core.capture.sequencer import Sequencer
from dblog_core.model import watermark
from dblog_core.model.events import LogBatch, SchemaSeen, TableChanges, Transaction, WatermarkSeen
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.watermark import Probe
from dblog_core.rows.column_rules import Rules
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest, Probed, join_manifests
from dblog_core.staging.reader import lines
from tests.fake_source import ORDERS, changes_batch
from tests.unit.capture.test_unseen_events import OPENED

TABLE = str(ORDERS.table)


class Log:
    """A capture that is told one transaction after the other."""

    def __init__(self, path: Path, *, snapshots: bool = False) -> None:
        self.staging = Staging(str(path), source="shop")
        self.snapshots = snapshots
        self.place = 0
        self.keys = 0
        start = OPENED if snapshots else None
        self.staging.publish(Manifest("shop", 1, 1, 1, 0, "0", 0, "", None, 0, unseen_after=0, start=start))
        self.restart()

    def restart(self) -> None:
        head = self.staging.head()
        assert head is not None
        visibility = Snapshots(head.start) if self.snapshots else LogOrder()
        self.sequencer = Sequencer(
            self.staging, source="shop", epoch=1, head=head, visibility=visibility, rules=Rules({})
        )

    def change(self, xid: int | None = None) -> int:
        """A row of the table; returns its offset."""
        self.keys += 1
        row = {"id": self.keys, "name": "n", "big": "b"}
        self.take(xid, SchemaSeen(0, 0, ORDERS), changes=(changes_batch(ORDERS, [(1, 0, "c", None, row, ())]),))
        return self.sequencer.last_offset

    def probe(self, window: str, *, high: bool, snapshot: str | None = None, source: str = "shop") -> None:
        payload = watermark.encode(Probe(source, window, TABLE, high, snapshot))
        self.take(900, WatermarkSeen(0, 0, payload))

    def alter(self) -> None:
        wider = TableSchema(ORDERS.table, (*ORDERS.columns, Column("new", "text", ORDERS.columns[1].type)), ORDERS.key)
        self.take(None, SchemaSeen(0, 0, wider))

    def expire(self) -> None:
        """Two looks at which the windows are open, very long after each other."""
        for now in (10.0, 1_000.0):
            self.sequencer.dumps.expire_windows(now, 900.0)

    def take(self, xid: int | None, signal: object, changes: tuple[TableChanges, ...] = ()) -> None:
        self.place += 1
        transaction = Transaction(str(xid or self.place), str(self.place), self.place, xid)
        self.sequencer.process(LogBatch(changes, (signal,), (transaction,), str(self.place)))  # type: ignore[arg-type]

    def publish(self) -> tuple[Probed, ...]:
        manifest = self.sequencer.seal(0)
        self.staging.publish(manifest)
        self.sequencer.begin_next_segment()
        manifest_read = self.staging.manifest(manifest.segment)
        assert manifest_read == manifest
        return manifest_read.probes


def test_in_log_order_a_select_has_seen_all_up_to_its_low_watermark(tmp_path: Path) -> None:
    log = Log(tmp_path)
    before = log.change()
    log.probe("w", high=False)
    log.change()
    log.probe("w", high=True)
    (probed,) = log.publish()
    assert (probed.window, probed.table, probed.since) == ("w", TABLE, before)
    assert probed.offset == log.sequencer.last_offset == before + 2
    assert [line["offset"] for line in lines(log.staging) if line["op"] == "c"] == [before, before + 1]


def test_an_event_that_was_logged_and_invisible_lies_after_since(tmp_path: Path) -> None:
    log = Log(tmp_path, snapshots=True)
    hidden = log.change(xid=101)
    log.change(xid=102)
    log.probe("w", high=False)
    log.probe("w", high=True, snapshot="101:103:101")
    log.probe("v", high=False)
    log.probe("v", high=True, snapshot="103:103:")
    first, second = log.publish()
    assert first.since == hidden - 1
    assert second.since == hidden + 2, "the last one before its low watermark: the offset of the other window's end"


def test_an_event_of_before_the_restart_may_be_unseen(tmp_path: Path) -> None:
    log = Log(tmp_path, snapshots=True)
    hidden = log.change(xid=101)
    log.publish()
    log.restart()
    log.probe("w", high=False)
    log.probe("w", high=True, snapshot="101:103:101")
    (probed,) = log.publish()
    assert probed.since == hidden - 1


@pytest.mark.parametrize("fault", ["restart", "alter", "expire", "unseen start"])
def test_where_nobody_can_tell_the_window_is_void(tmp_path: Path, fault: str) -> None:
    log = Log(tmp_path, snapshots=fault == "unseen start")
    log.change(xid=101)
    log.probe("w", high=False)
    if fault == "restart":
        log.publish()
        log.restart()
    elif fault == "alter":
        log.alter()
    elif fault == "expire":
        log.expire()
    log.probe("w", high=True, snapshot="99:103:99" if fault == "unseen start" else None)
    (probed,) = log.publish()
    assert probed.since is None


def test_a_window_that_is_void_is_not_remembered(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.probe("w", high=False)
    assert log.sequencer.dumps.wants(ORDERS.table)
    log.expire()
    assert not log.sequencer.dumps.wants(ORDERS.table)


def test_another_sources_verification_is_not_ours(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.probe("w", high=False, source="other")
    log.probe("w", high=True, source="other")
    assert log.publish() == ()


def test_a_low_watermark_that_the_log_repeats_opens_one_window(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.probe("w", high=False)
    log.probe("w", high=False)
    log.probe("w", high=True)
    (probed,) = log.publish()
    assert probed.since == 0


def test_joined_segments_keep_where_windows_lie(tmp_path: Path) -> None:
    log = Log(tmp_path)
    published_probes = []
    for window in ("a", "b"):
        log.probe(window, high=False)
        log.change()
        log.probe(window, high=True)
        published_probes += log.publish()
    both = join_manifests([log.staging.manifest(2), log.staging.manifest(3)], ())
    assert list(both.probes) == published_probes
    assert list(both.cut(after=2).probes) == published_probes[1:]
    assert Manifest.from_json(both.to_json()) == both


def test_a_manifest_without_a_verification_is_as_it_always_was(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.change()
    log.publish()
    head = log.staging.head()
    assert head is not None and "probes" not in head.to_json()
