"""The log through a whole capture: each change staged once in order, whatever is restarted or full."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.dumps import dump_records, dump_store
from dblog_core.errors import LogPositionLost, SegmentTaken, SourceUnavailable, StagingUnavailable
from dblog_core.model import watermark
from dblog_core.model.events import LogBatch
from dblog_core.model.schema import TableName
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Low, Mark
from dblog_core.rows.column_rules import Rules
from dblog_core.staging import Staging, segment
from dblog_core.staging.manifest import Manifest
from dblog_core.storage.local import LocalStorage
from tests.fake_source import ORDERS, Change, FakeSource, FakeStream
from tests.unit.engine_world import World, world

__all__ = ["world"]


def test_the_first_capture_begins_at_the_present_end(world: World) -> None:
    world.put(1)
    world.capture()
    world.put(2)
    world.capture()
    assert set(world.replay()) == {2}


def test_every_change_is_staged_once_in_order(world: World) -> None:
    world.capture()
    for i in range(50):
        world.put(i % 7, name=str(i))
        world.capture() if i % 10 == 0 else None
    world.capture()
    lines = world.lines()
    assert [line["after"]["name"] for line in lines if line["op"] in "cu"] == [str(i) for i in range(50)]
    assert [line["offset"] for line in lines] == sorted({line["offset"] for line in lines})
    assert world.replay() == world.rows()


LOW = watermark.encode(Low(Mark("shop", TaskId("d", 0), 1, 0, "w", "shop.orders")))


@pytest.mark.parametrize(
    "payload",
    ["", "scrambled", "[]", LOW.replace('"dblog":1', '"dblog":99'), LOW.replace('"attempt":1', '"attempt":"one"'),
     LOW.replace('"shop.orders"', '"no_schema"'), LOW.replace('"shop"', '"other"').replace("}}", ',"new":1}}')],
    ids=["empty", "scrambled", "array", "newer", "type", "table", "another source's"],
)  # fmt: skip
def test_a_row_of_the_watermark_table_that_is_no_watermark_stops_nothing(world: World, payload: str) -> None:
    world.capture()
    world.put(1)
    poison = Change("w", TableName("shop", "dblog_watermark"), after={"payload": payload})
    world.database.commit(poison, poison)
    world.put(2)
    world.capture()
    assert world.replay() == world.rows() and set(world.replay()) == {1, 2}


def test_the_source_is_acknowledged_up_to_what_is_published_and_never_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.capture()
    world.put(1)
    real = Staging.publish
    calls = 0

    def publish(self: Staging, manifest: Manifest) -> None:
        nonlocal calls
        calls += 1
        assert world.source.acknowledged < int(manifest.position)
        real(self, manifest)

    monkeypatch.setattr(Staging, "publish", publish)
    world.capture()
    head = world.staging.head()
    assert calls and head is not None and world.source.acknowledged == int(head.position)


def test_what_somebody_waits_for_is_published_before_its_segment_is_old(world: World) -> None:
    world.capture()
    patient = world.config.staging.model_copy(update={"min_age": 120.0, "max_age": 120.0})
    world.config = world.config.model_copy(update={"staging": patient})
    world.put(1, 2)
    began = time.monotonic()
    world.capture()
    assert time.monotonic() - began < 60 and set(world.replay()) == {1, 2}


def test_a_restart_inside_a_large_transaction_goes_on_after_the_staged_rows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.capture()
    world.source._batch = 10
    tight = world.config.staging.model_copy(update={"max_bytes": 1})
    world.config = world.config.model_copy(update={"staging": tight})
    world.put(*range(95))
    real = FakeStream.read
    calls = 0

    def break_every_fourth(self: FakeStream, timeout: float, *, linger: float = 0.0) -> LogBatch | None:
        nonlocal calls
        calls += 1
        if calls % 4 == 0:
            raise SourceUnavailable("the connection broke")
        return real(self, timeout, linger=linger)

    monkeypatch.setattr(FakeStream, "read", break_every_fourth)
    world.capture()
    created = [line["key"]["id"] for line in world.lines() if line["op"] == "c"]
    assert created == list(range(95))
    partial = [m.partial for m in world.staging.manifests()]
    assert max(partial) > 0 and partial[-1] == 0


def test_an_initial_start_dumps_all_tables_by_itself(world: World) -> None:
    with world.database.lock:
        world.database.rows[ORDERS.table] = {(i,): {"id": i, "name": "old", "big": "b"} for i in range(5)}
    initial = world.config.source.model_copy(update={"start": "initial"})
    world.config = world.config.model_copy(update={"source": initial})
    world.capture_until_dumped(fresh_start=False)
    assert [d.requested_by for d in dump_store.list_dumps(world.state)] == [dump_records.SYSTEM]
    assert world.replay() == world.rows()


def test_a_fresh_start_whose_answer_was_lost_is_not_done_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one would give up log that nobody has lost."""
    world.capture()
    publish = Staging.publish
    lost = list[int]()

    def publish_unanswered(self: Staging, manifest: Manifest) -> None:
        publish(self, manifest)
        if not lost:
            lost.append(manifest.segment)
            world.put(4)
            raise StagingUnavailable("the answer is lost")

    monkeypatch.setattr(Staging, "publish", publish_unanswered)
    world.capture_until_dumped(fresh_start=True)
    assert lost == [2]
    assert [(line["op"], line["key"]["id"]) for line in world.lines() if line["origin"] == "log" and line["key"]] == [
        ("c", 4)
    ]
    assert len(dump_store.list_dumps(world.state)) == 1
    assert world.replay() == world.rows()


def test_a_fresh_start_gives_up_lost_log_though_a_dead_capture_s_segment_lands_late(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That segment looks as if another capture had gone on, and the log after it is as lost as the log before it."""
    world.capture()
    world.put(1, 2)
    publish = Staging.publish
    late = list[Manifest]()

    def landing_late(self: Staging, manifest: Manifest) -> None:
        if not late:
            head = self.head()
            assert head is not None
            late.append(replace(head, segment=head.segment + 1, sealed_at=manifest.sealed_at))
            publish(self, late[0])
            raise StagingUnavailable("the storage does not answer")
        publish(self, manifest)

    def open_purged_log(self: FakeSource, position: str, **options: Any) -> FakeStream:
        if late and position == late[0].position:
            raise LogPositionLost("the log begins later", fix="start afresh")
        return open_log(self, position, **options)

    open_log = FakeSource.open_log
    monkeypatch.setattr(Staging, "publish", landing_late)
    monkeypatch.setattr(FakeSource, "open_log", open_purged_log)
    world.capture_until_dumped(fresh_start=True)
    assert late and world.replay() == world.rows() and world.rows()


def test_a_fresh_start_gives_up_lost_log_and_dumps_all_that_is_there(world: World) -> None:
    world.capture()
    world.put(1, 2, 3)
    world.capture()
    world.put(4)
    world.database.commit(world.database.remove((1,)))
    world.capture_until_dumped(fresh_start=True)
    # The second s says that the table is not right before the end of the dump.
    assert [line["op"] for line in world.lines()] == ["s", "c", "c", "c", "s", "r", "r", "r", "f"]
    assert world.replay() == world.rows()


@pytest.mark.parametrize(
    ("what", "inline"),
    [("write_directory", 0), ("create", segment.INLINE_BYTES), ("create_missing", segment.INLINE_BYTES)],
)
@pytest.mark.thorough
def test_a_full_disk_stops_the_acknowledgements_and_nothing_is_lost_when_there_is_room_again(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str, inline: int
) -> None:
    monkeypatch.setattr(segment, "INLINE_BYTES", inline)
    world.capture()
    acknowledged = world.source.acknowledged
    world.put(1, 2, 3)
    real = getattr(LocalStorage, what)
    calls = 0

    def full(self: LocalStorage, *files: Any) -> Any:
        nonlocal calls
        calls += 1
        assert world.source.acknowledged == acknowledged
        if calls <= 3:
            raise StagingUnavailable("no space left on device", where=str(self), fix="make room")
        return real(self, *files)

    monkeypatch.setattr(LocalStorage, what, full)
    world.capture()
    assert calls > 3
    assert world.replay() == world.rows()
    assert [line["op"] for line in world.lines()] == ["s", "c", "c", "c"]


def test_two_leaders_publish_each_segment_once(world: World) -> None:
    world.capture()
    world.put(1)
    head = world.staging.head()
    assert head is not None
    zombie = Sequencer(world.staging, source="shop", epoch=1, head=head, visibility=LogOrder(), rules=Rules({}))
    batch = world.source.open_log(head.position).read(0)
    assert batch is not None
    zombie.process(batch)
    late = zombie.seal(0)
    world.capture()
    with pytest.raises(SegmentTaken):
        world.staging.publish(late)
    assert [line["op"] for line in world.lines()] == ["s", "c"]


def test_a_truncate_is_a_line_and_clears(world: World) -> None:
    world.capture()
    world.put(1, 2)
    world.database.commit(Change("t", ORDERS.table))
    world.put(3)
    world.capture()
    assert [line["op"] for line in world.lines()] == ["s", "c", "c", "t", "c"]
    assert world.replay() == world.rows()
