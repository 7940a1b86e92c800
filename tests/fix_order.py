"""In which order the tests run, and which process takes which file."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.fix_turns import has_turns_alone

_ORDER = (
    "acceptance",
    "spark",
    "airflow",
    "integration",
    "nemesis",
    "contract",
    "conformance",
    "benchmarks",
    "simulation",
    "protocol",
    "unit",
)
"""Directories in the order in which the processes take them, file by file: the short files are last, so that all end
at about the same time. Behind these come the files of which every test comes in turn, in the same order."""

_ROOT = Path(__file__).parents[1]
_SPARK, _AIRFLOW = "gw0", "gw1"
"""The process that has the tests on Spark, so that one session serves them all, and the one that has Airflow's. Both
take others when they have no more of these; the others wait for servers more than they compute."""

_ASKS_FOR_SPARK = re.compile(r"\b(spark: SparkSession|(merge|merged|verify)_here: |read_lake: )")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    return _Files(config, log)


class _Files(LoadFileScheduling):  # type: ignore[misc]  # xdist tells no types
    """A file at a time for each process; the files on Airflow are one, since they share it, but the faults have another
    Airflow of their own."""

    def _split_scope(self, nodeid: str) -> str:
        directory, _, _ = nodeid.partition("/test_")
        shares = directory == "tests/airflow" and "/test_faults.py" not in nodeid
        return directory if shares else str(super()._split_scope(nodeid))

    def _assign_work_unit(self, node: Any) -> None:
        scope = min(self.workqueue, key=lambda scope: rank_of_work(scope, node.gateway.id))  # the first of the nearest
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)


def rank_of_work(scope: str, process: str) -> tuple[bool, int]:
    """What each run has comes first, since a slow run leaves out what comes in turn."""
    return _comes_in_turn(scope), _distance(scope, process)


def _distance(scope: str, process: str) -> int:
    """How far a file is from what a process is for."""
    owner = _AIRFLOW if scope == "tests/airflow" else _SPARK if _is_on_spark(scope) else None
    if owner is None:
        return 1
    return 0 if owner == process else 2


@functools.cache
def _comes_in_turn(scope: str) -> bool:
    return scope.endswith(".py") and has_turns_alone((_ROOT / scope).read_text())


@functools.cache
def _is_on_spark(file: str) -> bool:
    return file.startswith("tests/spark/") or bool(_ASKS_FOR_SPARK.search((_ROOT / file).read_text()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    directory = item.path.relative_to(_ROOT / "tests").parts[0]
    return _ORDER.index(directory) if directory in _ORDER else len(_ORDER)
