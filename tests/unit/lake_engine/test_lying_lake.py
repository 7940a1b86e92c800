"""A merge over a lake whose storage lies: a record that it has made was there already, or it does not answer and makes
the record later, whoever merges then. Nothing is lost or repeated by it."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from dblog_core.errors import DblogError, LeaseLost, StagingUnavailable
from dblog_core.lake import lake_tasks
from dblog_core.lake.task_requests import ResetRequest
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging.fence import Fence
from dblog_core.lake_engine.merging.merge_records import Records
from tests.unit.lake_engine.test_late_tables import check_all_is_merged
from tests.unit.lying_storage import Lying, land
from tests.unit.merge_world import NAMES, NOTE, World, a_world

SEEDS = 12
STEPS = 40


@pytest.mark.thorough
def test_walks_over_a_storage_that_lies_lose_and_repeat_nothing() -> None:
    happened = _walk_all(SEEDS)
    assert happened.keys() >= {"denied", "landed", "no answer", "died at work", "task"}, happened


def _asks_no_record_before_it_begins(patch: pytest.MonkeyPatch) -> None:
    """Whose merge got no answer plans another one of that number, and takes the refusal for its own record."""
    begin = Records.begin

    def mistaken_begin(self: Records, *arguments: Any) -> bool:
        begin(self, *arguments)
        return True

    patch.setattr(Records, "begin", mistaken_begin)
    patch.setattr(Merger, "_unfinished_merge", lambda self: None)


def _takes_a_claim_that_was_denied(patch: pytest.MonkeyPatch) -> None:
    """A merger believes that it leads where another one's claim has the number."""

    def mistaken_claim(self: Fence, staging: str | None = None) -> None:
        self.epoch = max(self._numbers(), default=1)

    patch.setattr(Fence, "claim", mistaken_claim)


@pytest.mark.parametrize("mistake", [_asks_no_record_before_it_begins, _takes_a_claim_that_was_denied])
@pytest.mark.thorough
def test_a_mistake_is_found(mistake: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mistake(patch)
        with pytest.raises((AssertionError, DblogError)):
            _walk_all(5 * SEEDS)


def test_a_task_is_filed_once_though_its_file_is_said_to_be_there() -> None:
    with a_world(random.Random(0)) as world:
        liar = _liar(world)
        with mock.patch.object(liar, "_dice", mock.Mock(random=lambda: 0.3)):
            task = lake_tasks.file_task(world.location, NOTE)
        assert liar.denied == 1 and [t.id for t in lake_tasks.waiting_tasks(world.location)] == [task.id]


def test_a_task_of_anothers_name_is_refused() -> None:
    with a_world() as world:
        lake_tasks.file_task(world.location, NOTE, clock=mock.Mock(time=lambda: 1.0), new_id=lambda: "a")
        with pytest.raises(DblogError, match="of this name"):
            lake_tasks.file_task(
                world.location, ResetRequest("shop.other"), clock=mock.Mock(time=lambda: 1.0), new_id=lambda: "a"
            )


def _liar(world: World) -> Lying:
    assert isinstance(world.storage, Lying)
    return world.storage


def _walk_all(count: int) -> Counter[str]:
    return sum((_walk(seed) for seed in range(count)), Counter[str]())


def _walk(seed: int) -> Counter[str]:
    dice = random.Random(f"lying lake {seed}")
    happened = Counter[str]()
    with a_world(dice) as world:
        liar = _liar(world)
        for _ in range(STEPS):
            happened[_take_step(world, dice)] += 1
        happened["denied"] += liar.denied
        liar.truthful = True
        while world.late:
            happened["landed"] += land(liar.disk, dice, world.late)
        check_all_is_merged(world)
    return happened


def _take_step(world: World, dice: random.Random) -> str:
    """What happened."""
    name = dice.choice(NAMES)
    step = dice.random()
    if step < 0.3:
        world.write(dice.sample(NAMES, dice.randint(1, 3)), dice.randint(1, 2), emptied=dice.choice((name, None, None)))
        return "written"
    if step < 0.4:
        return "landed" if land(world.storage.disk, dice, world.late) else "nothing"
    if step < 0.5:
        world.hold(name)
        return "held"
    if step < 0.58:
        world.release(name)
        return "released"
    if step < 0.62:
        world.die(lambda: dice.choice(("dies", "dies after its commit")))
        return "died at work"
    if step < 0.66:
        world.take_over()
        return "taken over"
    return _merge(world, dice)


def _merge(world: World, dice: random.Random) -> str:
    """A merge, or a lake task; the process ends where the storage gives it no answer, or shows it the claim of one that
    has got none, and another one goes on."""
    is_task = dice.random() < 0.15
    with contextlib.suppress(StagingUnavailable, LeaseLost):
        if not is_task:
            world.round(retry=dice.random() < 0.3)
            return "merged"
        lake_tasks.file_task(world.location, NOTE)
        world.release_all()
        while world.merger.run_task() is not None:
            pass
        return "task"
    world.die(lambda: dice.choice(("dies", "dies after its commit")))
    return "no answer"
