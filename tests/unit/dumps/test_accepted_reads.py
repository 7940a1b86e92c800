"""Where columns are hidden and the log alone tells what a table is: a chunk is written once the capture confirms it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.capture.healing.confirmed_reads import ConfirmedReads
from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.dumps import control
from dblog_core.errors import RequestError
from dblog_core.model.events import RowsMoved
from dblog_core.model.schema import TableName
from dblog_core.rows.acceptance import Acceptance, Held
from dblog_core.rows.table_guard import TableGuard
from dblog_core.state import read_confirmations
from dblog_core.state.read_confirmations import Question
from tests.unit.worker_moments import at_read
from tests.unit.workers_world import DUMP, DrawnClock, World, world

__all__ = ["world"]

TABLE = "shop.orders"


@pytest.fixture(autouse=True)
def hidden(world: World) -> None:
    """The column `name` of the table is masked."""
    usual = world.config.source.model_dump()
    source = SourceConfig.model_validate({**usual, "columns": {TABLE: {"mask": ["name"]}}})
    world.config = world.config.model_copy(update={"source": source})
    world.take_rules(world.config)
    world.fill(*range(1, 26))
    world.request({}, chunk_size=10)


def hold(world: World) -> None:
    world.sequencer._guard.follow(RowsMoved(0, 0, (TableName.parse(TABLE),)))


def written(world: World) -> list[str]:
    files = Path(world.config.staging.path).rglob("*")
    return sorted(path.name for path in files if path.is_file() and "chunks" in path.parts)


def test_a_dump_goes_on_as_its_chunks_are_confirmed(world: World) -> None:
    world.work()
    assert (world.status().state, world.placed_keys()) == ("done", list(range(1, 26)))
    assert world.state.children("confirmations") == []


def test_nothing_is_written_of_a_table_that_was_altered_before_its_rows_were_read(world: World) -> None:
    """The worker has begun before: by the manifest that it knows the table is what was accepted."""
    at_read(world, 2, lambda: hold(world))
    with pytest.raises(RequestError, match="is held"):
        world.work()
    assert world.status().state == "failed" and "is held" in (world.status().error or "")
    assert len(written(world)) == 1
    assert world.state.children("confirmations") == []


def test_nothing_is_written_while_nobody_reads_the_log(world: World) -> None:
    def cancel() -> None:
        if world.status().state == "running":
            control.cancel(world.state, DUMP)

    def end() -> None:
        world.capturing = False
        until = world.clock.now + 60
        world.clock.hooks.append(lambda: cancel() if world.clock.now > until else None)

    at_read(world, 2, end)
    world.work()
    assert world.status().state == "cancelled"
    assert len(written(world)) == 1


def test_a_worker_that_is_asked_to_stop_writes_nothing(world: World) -> None:
    def end() -> None:
        world.capturing = False
        world.clock.hooks.append(world.stop.set)

    at_read(world, 2, end)
    world.work()
    assert len(written(world)) == 1
    assert world.state.children("confirmations") == []


# The capture's side ---------------------------------------------------------------------------------------------------


@pytest.fixture
def guard() -> TableGuard:
    guard = TableGuard({TABLE: ColumnRules(mask=("name",))}, {})
    guard.accept(TABLE, Acceptance())
    return guard


def test_an_answer_waits_for_the_place_and_for_the_end_of_a_transaction(world: World, guard: TableGuard) -> None:
    reads = ConfirmedReads(world.state, world.source, clock := DrawnClock(), guard)
    read_confirmations.ask(world.state, "a", Question(TABLE, "5"))
    for position, is_inside in (("4", False), ("5", True), ("9", True)):
        clock.now += 1
        reads.look(position, is_inside=is_inside)
        assert read_confirmations.read_answer(world.state, "a") is None
    clock.now += 1
    reads.look("5", is_inside=False)
    assert read_confirmations.read_answer(world.state, "a") is True


@pytest.mark.parametrize("acceptance", [None, Acceptance(why_held=Held.RESHAPED)])
def test_a_table_that_is_not_accepted_is_not_confirmed(
    world: World, guard: TableGuard, acceptance: Acceptance | None
) -> None:
    if acceptance is None:
        guard.forget([TABLE])
    else:
        guard.accept(TABLE, acceptance)
    read_confirmations.ask(world.state, "a", Question(TABLE, "5"))
    ConfirmedReads(world.state, world.source, DrawnClock(), guard).look("5", is_inside=False)
    assert read_confirmations.read_answer(world.state, "a") is False


def test_a_table_that_waits_for_its_place_is_answered_when_its_rows_pass(world: World, guard: TableGuard) -> None:
    reads = ConfirmedReads(world.state, world.source, clock := DrawnClock(), guard)
    guard.accept(TABLE, Acceptance(since="8"))
    read_confirmations.ask(world.state, "a", Question(TABLE, "5"))
    reads.look("7", is_inside=False)
    assert read_confirmations.read_answer(world.state, "a") is None
    guard.release(lambda place: int(place) <= 8)
    clock.now += 1
    reads.look("8", is_inside=False)
    assert read_confirmations.read_answer(world.state, "a") is True


def test_questions_of_workers_that_are_gone_or_newer_go_after_a_while(world: World, guard: TableGuard) -> None:
    reads = ConfirmedReads(world.state, world.source, clock := DrawnClock(), guard)
    read_confirmations.ask(world.state, "a", Question(TABLE, "99"))
    world.state.create("confirmations/b", b"from another version")
    for _ in range(3):
        reads.look("5", is_inside=False)
        assert world.state.children("confirmations") == ["a", "b"]
        clock.now += 700
    reads.look("5", is_inside=False)
    assert world.state.children("confirmations") == []
