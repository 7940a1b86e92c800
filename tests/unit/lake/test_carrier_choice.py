"""Who carries a share: by sizes and cores alone."""

from __future__ import annotations

import pytest

from dblog_core.lake import merge_plan
from dblog_core.lake.carrier_choice import (
    ONE_MACHINE_ROWS,
    SPREAD_SPAN_ROWS,
    WORTH_ROWS,
    Means,
    choose_carrier,
    executor_cores,
)


@pytest.mark.parametrize(
    ("master", "conf", "cores"),
    [
        ("local[*]", {"spark.executor.instances": "4"}, 0),
        ("local", {}, 0),
        ("local-cluster[2, 3, 1024]", {}, 6),
        ("spark://host:7077", {}, None),
        ("spark://host:7077", {"spark.cores.max": "12"}, 12),
        ("yarn", {"spark.executor.instances": "4", "spark.executor.cores": "3"}, 12),
        ("k8s://https://host", {"spark.executor.instances": "4"}, 4),
        ("yarn", {"spark.dynamicAllocation.maxExecutors": "5", "spark.executor.cores": "2"}, 10),
        ("yarn", {"spark.executor.instances": "some"}, None),
    ],
)
def test_cores_of_executors_are_those_of_the_settings(master: str, conf: dict[str, str], cores: int | None) -> None:
    assert executor_cores(master, conf) == cores


@pytest.mark.parametrize(
    ("rows", "means", "is_spread", "reason"),
    [
        (10**12, Means(2, 0), False, "no executors of its own"),
        (WORTH_ROWS - 1, Means(2, 64), False, "fewer than the 4,000,000"),
        (WORTH_ROWS, Means(2, 64), True, "by 64 cores against 2 of the driver"),
        (WORTH_ROWS, Means(2, None), True, "by all cores of the cluster"),
        (WORTH_ROWS, Means(8, 8), False, "it has 8 cores, and the executors have 8"),
        (ONE_MACHINE_ROWS - 1, Means(8, 2), False, "the executors have 2"),
        (ONE_MACHINE_ROWS, Means(8, 2), True, "more than the 50,000,000 of one machine"),
    ],
)
def test_the_choice_says_its_reason(rows: int, means: Means, is_spread: bool, reason: str) -> None:
    choice = choose_carrier(rows, means)
    assert choice.is_spread == is_spread
    assert reason in choice.reason
    assert choice.reason.startswith("executors: " if is_spread else "the driver: ")


def test_a_merge_that_may_be_spread_takes_what_has_gathered() -> None:
    assert Means(2, 0).span_rows == merge_plan.MAX_ROWS < WORTH_ROWS < Means(2, None).span_rows == SPREAD_SPAN_ROWS
