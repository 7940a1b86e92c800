"""A configuration that changes while its capture runs, or between two captures: what is dumped, and what ends."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import orjson
import pytest

from dblog_core import wiring
from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.capture import term_start
from dblog_core.capture.healing import new_tables
from dblog_core.capture.run_capture import run_capture
from dblog_core.capture.term_parts import Parts
from dblog_core.clock import SystemClock, spawn_thread
from dblog_core.commands.status import text
from dblog_core.dumps import dump_store, filing, task_store
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import SegmentTaken
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, own_directory
from dblog_core.model.task_id import TaskId
from dblog_core.monitoring.status import read_source_status
from dblog_core.rows.table_guard import TableGuard
from dblog_core.staging.manifest import Probed
from dblog_core.state import recent_errors, settings_in_force
from tests.fake_source import FakeSource
from tests.records import change_records
from tests.unit.reload_world import A, B, Crash, World, world
from tests.waiting import wait_until

__all__ = ["world"]


def finished(world: World, count: int) -> bool:
    return [state for state, _ in world.dumps()] == ["done"] * count


@pytest.mark.thorough
def test_a_table_comes_goes_and_comes_back_while_the_capture_runs(world: World) -> None:
    world.put(B, *range(20))
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.wait(0.01):
            number += 1
            world.put(A, number, v=f"a{number}")
            world.put(B, number % 30, v=f"b{number}")

    def in_force(*tables: str) -> bool:
        now = settings_in_force.read_in_force(world.records)
        return now is not None and now.tables == list(tables)

    world.capture()
    writer = threading.Thread(target=write)
    with world.capturing():
        writer.start()
        try:
            leader = wait_until(lambda: world.state.leader("capture"), "a capture leads")
            wait_until(lambda: len(world.lines(A)) > 50, "more than 50 lines of a are staged")
            assert world.lines(B) == []
            world.write("shop.a", "shop.b*")
            wait_until(
                lambda: finished(world, 1) and any(line["op"] == "u" for line in world.lines(B)),
                "the first dump is done, and b is written",
            )
            world.write("shop.a")
            wait_until(lambda: in_force("shop.a"), "the capture uses the new settings")
            ended, count = len(world.lines(B)), len(world.lines(A))
            wait_until(lambda: len(world.lines(A)) > count + 50, "50 more lines of a are staged")
            assert len(world.lines(B)) == ended, "its log goes on"
            world.write("shop.?")
            wait_until(lambda: finished(world, 2), "the second dump is done")
        finally:
            over.set()
            writer.join()
        world.put(A, 0, v="last")
        wait_until(lambda: world.lines(A)[-1]["after"]["v"] == "last", "the last row is staged")
        assert world.state.leader("capture") == leader, "the lease was given up"
    assert world.replay(A) == world.source_rows(A) and world.replay(B) == world.source_rows(B)
    staged = [line["after"]["v"] for line in world.lines(A) if line["op"] == "c"]
    assert staged == [*(f"a{n}" for n in range(1, len(staged))), "last"], "each row of the other table, once, in order"
    assert [names for _, names in world.dumps()] == [("shop.b",)] * 2


def test_rows_deleted_while_a_table_was_not_captured_are_gone_when_it_is_back(world: World) -> None:
    world.write("shop.*")
    world.capture()
    world.put(B, 1, 2, 3)
    world.capture()
    world.write("shop.a")
    world.capture()
    world.remove(B, 2)
    world.write("shop.*")
    with world.capturing():
        wait_until(lambda: finished(world, 1), "the dump is done")
    assert world.replay(B) == world.source_rows(B) and (2,) not in world.source_rows(B)


def test_a_change_between_two_captures_is_seen_by_the_next(world: World) -> None:
    world.put(B, 1)
    world.capture()
    world.write("shop.?")
    world.capture()
    assert world.dumps() == [("requested", ("shop.b",))]
    world.capture()
    assert len(world.dumps()) == 1, "once"


def test_a_first_capture_dumps_nothing(world: World) -> None:
    world.put(A, 1)
    world.capture()
    assert world.dumps() == [] and settings_in_force.read_in_force(world.records) == settings_in_force.LiveSettings.of(
        world.config.source
    )


def test_a_table_made_under_an_old_pattern_needs_no_dump(world: World) -> None:
    del world.database.schemas[B.table]
    world.write("shop.*")
    world.capture()
    world.database.schemas[B.table] = B
    world.put(B, 1)
    world.write("shop.*", "shop.b")
    world.capture()
    assert world.dumps() == [] and world.replay(B) == world.source_rows(B)


def test_a_crash_between_the_request_and_the_record_dumps_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put(B, 1)
    world.capture()
    world.write("shop.?")

    def die(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(settings_in_force, "put_in_force", die)
        with pytest.raises(Crash):
            world.capture()
    world.capture()
    assert [names for _, names in world.dumps()] == [("shop.b",)] * 2
    world.capture()
    assert len(world.dumps()) == 2


def test_a_changed_rule_or_key_has_the_table_dumped(world: World) -> None:
    world.write("shop.?")
    world.capture()
    world.write("shop.?", more='columns."shop.a".mask = ["v"]')
    world.capture()
    assert [names for _, names in world.dumps()] == [("shop.a",)]
    world.write("shop.?", more='columns."shop.a".mask = ["v"]\nkeys."shop.b" = ["id"]')
    world.capture()
    assert [names for _, names in world.dumps()] == [("shop.a",), ("shop.b",)]


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.thorough
def test_a_transaction_that_is_staged_in_part_is_read_by_the_tables_of_its_beginning(world: World, live: bool) -> None:
    """How much of it is staged was counted without the new table."""
    world.batch = 20
    world.capture()
    rows = [world.database.put({"id": n, "v": "x" * 2_000}, s.table) for n in range(150) for s in (A, B)]
    world.database.commit(*rows)
    world.put(A, 1000)
    partial, pause = threading.Event(), threading.Event()

    def reading() -> None:
        head = wiring.open_staging(world.config).head()
        if not partial.is_set() and head is not None and head.partial:
            partial.set()
            world.write("shop.?")
            if not live:
                raise Crash
        if live and partial.is_set():
            pause.wait(0.3)  # the file is looked at once a second: the transaction must last for longer

    world.on_read = reading
    if not live:
        with pytest.raises(Crash):
            world.capture()
    with world.capturing():
        wait_until(lambda: finished(world, 1), "the dump is done")
    assert partial.is_set()
    staged = [line["key"]["id"] for line in world.lines(A) if line["op"] == "c"]
    assert staged == [*range(150), 1000]
    assert world.replay(B) == world.source_rows(B)


def test_dumps_of_a_table_that_is_no_longer_captured_end(world: World) -> None:
    world.put(A, 1)
    world.put(B, 1)
    world.write("shop.?")
    world.capture()
    filing.submit(world.config, DumpRequest(("shop.a", "shop.b"), ranges=1))
    world.write("shop.a")
    world.capture()
    (dump,) = dump_store.list_dumps(world.state)
    assert [(t.table, t.error) for t in dump.tasks] == [
        ("shop.a", None), ("shop.b", "shop.b is no longer captured"),
    ]  # fmt: skip


def test_the_status_tells_of_tables_in_the_lake_that_are_no_longer_captured(world: World) -> None:
    world.write("shop.a")
    world.capture()
    known_status = TableStatus(State.OK, None, 1, 1)
    head = wiring.open_staging(world.config).head()
    assert head is not None
    lake = LakeStatus(
        merge=1,
        segment=head.segment,
        offset=head.last_offset,
        position=head.log_position,
        tables={"shop.a": known_status, "shop.b": known_status},
    )
    (own_directory(wiring.open_lake(world.config)) / "status.json").replace(orjson.dumps(lake.to_json()))
    status = read_source_status(world.config)
    assert [(table.table, table.captured) for table in status.tables] == [("shop.a", True), ("shop.b", False)]
    status_text = text(status)
    assert "table     shop.a: ok\n" in status_text and "table     shop.b: ok, no longer captured\n" in status_text


@pytest.mark.thorough
def test_a_standby_takes_the_change_over(world: World) -> None:
    world.put(B, 1)
    lease = world.state.acquire("capture", "another", ttl=10)
    assert lease is not None
    messages: list[Any] = []
    with world.capturing(on_status=messages.append):
        wait_until(lambda: messages, "the file is refused")
        world.write("shop.?")
        seen = len(messages)
        wait_until(lambda: len(messages) > seen + 2, "the file is looked at again")
        lease.release()
        wait_until(
            lambda: (now := settings_in_force.read_in_force(world.records)) is not None and now.tables == ["shop.?"],
            "the corrected file is used",
        )


def test_a_new_table_of_postgres_waits_for_what_its_log_has_not_told(world: World) -> None:
    """A manifest says so before the tables are in force: a crash in between must not lose it."""
    world.capture()
    world.put(B, 1)
    world.write("shop.?")

    class Source(FakeSource):
        def horizon(self) -> str | None:
            return "100:120:"

    lease = world.state.acquire("capture", "us", ttl=10)
    staging, head = wiring.open_staging(world.config), wiring.open_staging(world.config).head()
    assert lease is not None and head is not None and head.start is None
    parts = Parts(
        world.config, Source(world.database), staging, world.state, SystemClock(), spawn_thread, records=world.records
    )
    probed = replace(head, probes=(Probed(head.last_offset, "shop.a", "one", None, head.position),))
    after = new_tables.put_in_force(parts, lease, probed, TableGuard({}, {}), shown_tables=None)
    assert after == staging.head() and after.probes == (), "they stand at offsets of the segment before"
    assert after == replace(
        head, segment=head.segment + 1, epoch=lease.epoch, first_offset=head.last_offset + 1,
        sealed_at=after.sealed_at, files=(), chunks=(), marks=(), unseen_after=head.last_offset, start="100:120:",
        records=after.records, state_age=after.state_age,
    )  # fmt: skip
    assert new_tables.put_in_force(parts, lease, after, TableGuard({}, {}), shown_tables=None) == after


def test_a_table_whose_log_is_not_shown_yet_is_dumped_by_the_term_that_is_shown_it(world: World) -> None:
    """Somebody keeps it locked, so that the publication cannot take it in: a dump of before would miss changes."""
    world.put(A, 1)
    world.put(B, 1)
    world.write("shop.a")
    world.capture()
    world.write("shop.?")
    lease = world.state.acquire("capture", "us", ttl=10)
    staging, head = wiring.open_staging(world.config), wiring.open_staging(world.config).head()
    assert lease is not None and head is not None
    source = world.source(world.config.source)
    source.kind = "postgres"
    parts = Parts(world.config, source, staging, world.state, SystemClock(), spawn_thread, records=world.records)

    def put_in_force(locked: frozenset[str]) -> list[tuple[str, ...]]:
        before = {dump.id for dump in dump_store.list_dumps(world.state)}
        shown_tables = new_tables.find_shown_tables(parts)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source, "prepare", lambda: locked)
            shown_tables = new_tables.prepare_source(parts, shown_tables)
        newest = staging.head()
        assert newest is not None and lease is not None
        new_tables.put_in_force(parts, lease, newest, TableGuard({}, {}), shown_tables=shown_tables)
        return [dump.tables for dump in dump_store.list_dumps(world.state) if dump.id not in before]

    assert put_in_force(frozenset({"shop.b"})) == []
    assert settings_in_force.read_shown(world.records) == {"shop.a@1"}
    assert put_in_force(frozenset({"shop.b"})) == []
    assert put_in_force(frozenset()) == [("shop.b",)]
    assert put_in_force(frozenset()) == []


def test_a_first_capture_dumps_no_table_whose_log_is_not_shown_yet(world: World) -> None:
    world.write("shop.?", more='start = "initial"')
    lease = world.state.acquire("capture", "us", ttl=10)
    source = world.source(world.config.source)
    source.kind = "postgres"
    parts = Parts(
        world.config, source, wiring.open_staging(world.config), world.state, SystemClock(), spawn_thread
    )  # fmt: skip
    assert lease is not None
    term_start.publish_first_manifest(parts, lease, None, frozenset({"shop.a@1"}))
    assert [dump.tables for dump in dump_store.list_dumps(world.state)] == [("shop.a",)]


def test_a_leader_that_was_overtaken_puts_no_older_settings_into_force(world: World) -> None:
    world.capture()
    world.write("shop.?")
    lease = world.state.acquire("capture", "us", ttl=10)
    staging, head = wiring.open_staging(world.config), wiring.open_staging(world.config).head()
    assert lease is not None and head is not None
    source = world.source(world.config.source)
    overtaken = Parts(world.config, source, staging, world.state, SystemClock(), spawn_thread, records=world.records)
    other = replace(settings_in_force.LiveSettings.of(world.config.source), tables=["shop.c"])
    change_records(world.config, lambda records: settings_in_force.put_in_force(records, other))
    with pytest.raises(SegmentTaken):
        new_tables.put_in_force(overtaken, lease, head, TableGuard({}, {}), shown_tables=None)
    assert settings_in_force.read_in_force(world.records) == other


def test_task_progress_is_kept_over_a_change(world: World) -> None:
    """What is placed of a dump of a table that stays is not read again."""
    world.put(A, *range(30))
    world.capture()
    dump_id = filing.submit(world.config, DumpRequest(("shop.a",), ranges=1, chunk_size=10))
    task_store.put_progress(world.state, TaskId(dump_id, 0), TaskProgress("shop.a", attempt=1, ordinal=2))
    world.write("shop.?")
    world.capture()
    assert task_store.read_progress(world.state, TaskId(dump_id, 0), "shop.a").ordinal == 2


def test_a_fresh_start_tells_of_tables_without_a_key_that_no_dump_heals(world: World) -> None:
    plain = replace(B, key=())
    world.database.schemas[B.table] = plain
    world.write("shop.?")
    world.capture()
    world.put(A, 1)
    world.put(plain, 1)
    world.capture()
    world.put(plain, 2)
    run_capture(world.config, stop=threading.Event(), until_current=True, fresh_start=True)
    marks = [mark for m in wiring.open_staging(world.config).manifests() for mark in m.marks if mark.op == "s"]
    assert [(mark.whole, mark.dump is None) for mark in marks if mark.table == "shop.b"] == [
        (None, True),
        (False, True),
    ]
    (error,) = [e for e in recent_errors.read(world.state) if "without a key" in e.error]
    assert "shop.b" in error.error and "shop.a" not in error.error and "primary key" in error.fix
