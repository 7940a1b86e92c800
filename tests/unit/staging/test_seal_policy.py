"""The age of segments: short while sealing is cheap, stretched under load, within its bounds."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dblog_core.staging.seal_policy import Sealing

_SECONDS = st.floats(0.0001, 60)


def test_before_anything_is_known_the_age_is_the_smallest() -> None:
    assert Sealing(0.1, 1.0, 0.1).age == 0.1


@pytest.mark.parametrize(("cost", "age"), [(0.001, 0.1), (0.01, 0.1), (0.03, 0.3), (0.2, 1.0), (5.0, 1.0)])
def test_sealing_takes_its_share_of_the_time_and_no_more(cost: float, age: float) -> None:
    assert Sealing(0.1, 1.0, 0.1).after(cost).age == pytest.approx(age)


def test_one_slow_seal_is_not_the_rule_and_many_are() -> None:
    usual = Sealing(0.1, 1.0, 0.1).after(0.004)
    slow = usual.after(0.1)
    assert usual.age == 0.1 and slow.age < 0.3
    for _ in range(20):
        slow = slow.after(0.1)
    assert slow.age == pytest.approx(1.0, rel=0.01)
    for _ in range(20):
        slow = slow.after(0.004)
    assert slow.age == 0.1


@given(low=_SECONDS, high=_SECONDS, share=st.floats(0.01, 1), costs=st.lists(st.floats(0, 100)))
def test_the_age_never_leaves_its_bounds(low: float, high: float, share: float, costs: list[float]) -> None:
    sealing = Sealing(low, high, share)
    for cost in costs:
        sealing = sealing.after(cost)
        assert min(low, high) <= sealing.age <= high
