"""Rows that change their key again before each look: a dump ends all the same. It reads a table that fits into a chunk
whole, and fails by name over a larger one."""

from __future__ import annotations

import pytest

from dblog_core.algorithm import arriving_rows
from dblog_core.algorithm.arriving_rows import LOOKS, LOOKS_BY_KEYS, LOOKS_IN_VAIN, LookWay, choose_look
from dblog_core.dumps import control
from dblog_core.dumps.reading.window_reader import WHOLE_ROWS
from dblog_core.errors import RequestError
from dblog_core.model.watermark import High
from tests.fake_source import ORDERS
from tests.unit.workers_world import DUMP, World
from tests.unit.workers_world import world as world

HEALS = {"heals": {"key_from": None, "key_to": None}}
WIDE = "w" * 1_000


class RestlessRows:
    """Rows that leave a range that is still to be read, and move again whenever the capture has published: where the
    progress says that they are, no SELECT finds them. The log leaves a column out each time."""

    def __init__(self, world: World, *keys: int) -> None:
        self._world = world
        self._keys = keys
        self._next = 0
        self.moves = 0
        self.rests = False
        world.source.on_read = self._begin
        world.clock.hooks.append(self._go_on)

    def _begin(self) -> None:
        if len(self._world.source.begun) == 2:
            self._move()

    def _go_on(self) -> None:
        if self.moves and not self.rests:
            self._move()

    def _move(self) -> None:
        database = self._world.database
        rows = database.rows[ORDERS.table]
        moves = []
        for key in self._keys:
            self._next -= 1
            moves.append(database.move((key,), {**rows[(key,)], "id": self._next}, unchanged=("big",)))
        database.commit(*moves)
        self._keys = tuple(change.after["id"] for change in moves if change.after)
        self.moves += 1


def whole_reads(world: World) -> int:
    """SELECTs of the whole table."""
    return sum(isinstance(read, tuple) and read[2:] == (WHOLE_ROWS,) for read in world.source.reads)


def stop_at_another_whole_read(world: World) -> None:
    """A worker that reads the table whole again and again would do so for ever."""
    world.clock.hooks.append(lambda: world.stop.set() if whole_reads(world) > 2 else None)


def looks(world: World) -> list[High]:
    return [high for high in world.highs() if high.arrived]


def test_a_table_of_more_rows_than_a_chunk_has_is_read_whole_where_its_bytes_fit(world: World) -> None:
    world.fill(*range(1, 1_501))
    RestlessRows(world, 1_400)
    world.request(HEALS, chunk_size=100)
    world.work()
    assert world.status().state == "done"
    assert world.status().tasks[0].progress.looks == LOOKS_BY_KEYS + 1
    assert [high.whole for high in looks(world)] == [False] * LOOKS_BY_KEYS + [True]
    assert looks(world)[-1].rows == 1_500


def test_a_table_that_does_not_fit_is_read_whole_in_vain_once_and_its_chunks_stay_as_they_are(world: World) -> None:
    """Its wide rows come first: what of it arrives says nothing of the rows that are looked for."""
    world.fill(*range(1, 4), name=20 * WIDE)
    world.fill(*range(4, 151))
    restless = RestlessRows(world, *range(121, 141))
    world.clock.hooks.append(lambda: rest_after(world, restless, LOOKS_BY_KEYS + 3))
    stop_at_another_whole_read(world)
    world.request(HEALS, chunk_size=10, chunk_bytes=50_000)
    world.work()
    assert world.status().state == "done"
    assert whole_reads(world) == 1
    assert {len(high.arrived) for high in looks(world)[LOOKS_BY_KEYS:]} == {20}, "fewer keys than fit were looked for"
    assert not any(high.whole for high in looks(world))


def rest_after(world: World, restless: RestlessRows, count: int) -> None:
    restless.rests = len(looks(world)) >= count


def test_a_table_of_too_many_rows_is_read_whole_in_vain_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dblog_core.dumps.reading.window_reader.WHOLE_ROWS", 100)
    world.fill(*range(1, 102))
    restless = RestlessRows(world, 90)
    world.clock.hooks.append(lambda: rest_after(world, restless, LOOKS_BY_KEYS + 3))
    world.request(HEALS, chunk_size=10)
    world.work()
    assert world.status().state == "done"
    assert sum(isinstance(read, tuple) and read[2:] == (100,) for read in world.source.reads) == 1
    assert not any(high.whole for high in looks(world))


def test_a_dump_of_a_larger_table_whose_rows_never_rest_fails_by_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving_rows, "LOOKS_IN_VAIN", 20)
    stop_at_another_whole_read(world)
    world.fill(*range(1, 61), name=WIDE)
    RestlessRows(world, 50, 51)
    world.request(HEALS, chunk_size=10, chunk_bytes=30_000)
    with pytest.raises(RequestError, match="change their keys faster"):
        world.work()
    (task,) = world.status().tasks
    assert world.status().state == "failed"
    assert task.error is not None
    for part in ("2 row(s) of shop.orders", "the last 20 looks", "REPLICA IDENTITY FULL", "chunk_bytes in [dump]"):
        assert part in task.error
    assert len(looks(world)) == task.progress.looks == 20
    assert (task.progress.done, task.progress.forgotten) == (False, False)


def test_looks_that_meet_a_row_now_and_then_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only looks in vain, in a row, end them."""
    monkeypatch.setattr(arriving_rows, "LOOKS_IN_VAIN", 8)
    stop_at_another_whole_read(world)
    world.fill(*range(1, 61), name=WIDE)
    restless = RestlessRows(world, 50, 51, 52, 53)
    world.clock.hooks.append(lambda: leave_one_behind(world, restless))
    world.request(HEALS, chunk_size=10, chunk_bytes=30_000)
    world.work()
    assert world.status().state == "done"
    assert world.status().tasks[0].progress.looks > 8


def leave_one_behind(world: World, restless: RestlessRows) -> None:
    """One of four rows more rests after every fourth look."""
    moving = max(0, 4 - len(looks(world)) // 4)
    restless._keys = restless._keys[len(restless._keys) - moving :]


def test_a_larger_chunk_is_tried_once_somebody_allows_it(world: World) -> None:
    world.fill(*range(1, 61), name=WIDE)
    restless = RestlessRows(world, 50)
    world.clock.hooks.append(
        lambda: control.retune(world.state, DUMP, chunk_bytes=1 << 20) if len(looks(world)) == 6 else None
    )
    stop_at_another_whole_read(world)
    world.request(HEALS, chunk_size=10, chunk_bytes=30_000)
    world.work()
    assert world.status().state == "done" and not restless.rests
    assert [high.whole for high in looks(world)][5:] == [False, True]
    assert whole_reads(world) == 2


def test_a_table_that_is_read_whole_in_vain_as_often_is_given_up_too() -> None:
    """Where the order of the log judges, a SELECT of all rows may miss one that moves inside its window."""
    ways = [choose_look(looks, looks, may_fit=True) for looks in range(LOOKS_IN_VAIN + 1)]
    assert ways[:LOOKS_BY_KEYS] == [LookWay.BY_KEYS] * LOOKS_BY_KEYS
    assert ways[LOOKS_BY_KEYS:] == [LookWay.WHOLE] * (LOOKS_IN_VAIN - LOOKS_BY_KEYS) + [LookWay.GIVE_UP]


def test_the_worker_gives_up_before_the_capture_ends_the_claim_to_heal() -> None:
    assert LOOKS_BY_KEYS < LOOKS_IN_VAIN < LOOKS
