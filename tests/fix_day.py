"""What `make test` takes of a large number, others from day to day."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

import pytest

Item = TypeVar("Item")


class OfADay(Protocol):
    """Picks so many of what a test could take, in their order, by the first seed; all of them in a soak."""

    def __call__(self, all_of_them: Sequence[Item], count: int) -> list[Item]: ...


@pytest.fixture
def of_a_day(pytestconfig: pytest.Config) -> OfADay:
    option = pytestconfig.option

    def pick(all_of_them: Sequence[Item], count: int) -> list[Item]:
        if option.every_kind or option.soak_seeds > 1:
            return list(all_of_them)
        count = -(-count // 5) if option.smaller else count
        places = random.Random(option.soak_first).sample(range(len(all_of_them)), count)
        return [all_of_them[place] for place in sorted(places)]

    return pick
