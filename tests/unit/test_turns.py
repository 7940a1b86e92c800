"""What a run takes of the tests that come in turn: over the runs each of them on each
database, and none late in a slow run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fix_order import rank_of_work
from tests.fix_turns import has_turns_alone, out_of_turn

ROOT = Path(__file__).parents[2]
FIRST_SEEDS = range(60)
KINDS = ("mysql", "mariadb", "postgres")


def made_test(name: str, *marks: pytest.Mark, path: str = "tests/test_made.py", **params: object) -> Any:
    """What pytest knows of a test, as far as its turn goes."""
    by_name = {mark.name: mark for mark in marks}
    values = "-".join(str(value) for value in params.values())
    return SimpleNamespace(
        nodeid=f"{path}::{name}[{values}]",
        path=Path(path),
        name=f"{name}[{values}]",
        originalname=name,
        callspec=SimpleNamespace(params=params),
        get_closest_marker=by_name.get,
    )


MADE = [
    *(made_test("of_three", pytest.mark.one_of(3).mark, number=number) for number in range(12)),
    *(made_test("both", pytest.mark.in_turn.mark, pytest.mark.one_of(3).mark, source_kind=kind) for kind in KINDS),
    *(made_test("alike", source_kind=kind) for kind in KINDS),
    made_test("always"),
    *(
        made_test("on_servers", path="tests/integration/test_made.py", source_kind=kind, number=number)
        for kind in KINDS
        for number in range(5)
    ),
    made_test("one_value", path="tests/integration/test_made.py", number=1),
]


def runs(*, are_whole: bool) -> list[Counter[str]]:
    """The tests of each run, one for each first seed, by function."""
    waiting = [out_of_turn(MADE, first, is_whole=are_whole) for first in FIRST_SEEDS]
    return [Counter(test.originalname for test in MADE if test.nodeid not in ids) for ids in waiting]


def test_a_whole_run_takes_its_share_of_those_that_hold_in_more_detail() -> None:
    taken = runs(are_whole=True)

    assert {run["of_three"] for run in taken} == {4}
    assert {run["always"] for run in taken} == {1}
    assert {run["alike"] for run in taken} == {2}
    assert {run["on_servers"] for run in taken} == {5}
    assert {run["one_value"] for run in taken} == {1}


def test_over_the_runs_all_are_taken_and_each_on_every_database() -> None:
    waiting = [out_of_turn(MADE, first, is_whole=True) for first in FIRST_SEEDS]

    assert [test.nodeid for test in MADE if all(test.nodeid in ids for ids in waiting)] == []


def test_each_runs_where_a_file_is_named() -> None:
    every = Counter({"of_three": 12, "both": 1, "alike": 3, "always": 1, "on_servers": 15, "one_value": 1})
    assert runs(are_whole=False) == [every] * len(FIRST_SEEDS)


_FIRST = "@pytest.mark.one_of(3)\n@pytest.mark.in_turn\ndef test_first():\n    pass\n"
_SECOND = "def test_second():\n    pass\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (_FIRST, True),
        (_FIRST + _SECOND, False),
        (_SECOND, False),
        (_FIRST + "@pytest.mark.one_of(2)\n" + _SECOND, True),
        ("pytestmark = pytest.mark.one_of(2)\n" + _SECOND, True),
        ("pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(2)]\n" + _SECOND, True),
        ("pytestmark = pytest.mark.in_turn\n" + _SECOND, False),
        ('"""Tests with @pytest.mark.one_of(2) are others."""\n' + _SECOND, False),
    ],
)
def test_files_whose_tests_all_come_in_turn_are_the_last_of_a_run(text: str, expected: bool) -> None:
    assert has_turns_alone(text) is expected


def test_a_process_takes_what_each_run_has_before_what_comes_in_turn() -> None:
    merges_in_turn, merges, others = "tests/spark/test_ways.py", "tests/spark/test_merge.py", "tests/unit/test_turns.py"

    by_process = {
        process: sorted((merges_in_turn, merges, others), key=lambda scope: rank_of_work(scope, process))
        for process in ("gw0", "gw2")
    }

    assert by_process == {"gw0": [merges, others, merges_in_turn], "gw2": [others, merges, merges_in_turn]}


@pytest.mark.thorough
def test_a_smaller_run_leaves_out_what_is_thorough(tmp_path: Path) -> None:
    (tmp_path / "test_made.py").write_text(_LATE.replace("one_of(1)", "thorough"))
    (tmp_path / "conftest.py").write_text(_SEEDED)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:randomly -p tests.fix_turns\nmarkers = thorough\n")

    run = subprocess.run(
        (sys.executable, "-m", "pytest", "--smaller"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "1 passed, 1 deselected" in run.stdout


_LATE = """
import pytest

@pytest.mark.one_of(1)
def test_in_turn():
    pass

def test_always():
    pass
"""
_SEEDED = """
def pytest_addoption(parser):
    parser.addoption("--soak-first", type=int, default=1)
    parser.addoption("--soak-seeds", type=int, default=1)
"""


@pytest.mark.parametrize(
    ("minutes_ago", "arguments", "passed", "skipped"),
    [(1, (), 2, 0), (3, (), 1, 1), (3, ("test_made.py",), 2, 0), (3, ("--every-kind",), 2, 0)],
)
@pytest.mark.thorough
def test_a_whole_run_that_is_late_begins_only_what_each_run_has(
    minutes_ago: int, arguments: tuple[str, ...], passed: int, skipped: int, tmp_path: Path
) -> None:
    (tmp_path / "test_made.py").write_text(_LATE)
    (tmp_path / "conftest.py").write_text(_SEEDED)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:randomly -p tests.fix_turns\nmarkers = one_of\n")
    began = str(time.time() - 60 * minutes_ago)

    run = subprocess.run(
        (sys.executable, "-m", "pytest", "-rs", "--turn-minutes=2", *arguments),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "DBLOG_TESTS_BEGAN": began},
        capture_output=True,
        text=True,
        check=True,
    )

    assert f"{passed} passed" in run.stdout
    assert (f"{skipped} skipped" in run.stdout) == bool(skipped)
    assert ("more than 2 minutes: another run has it" in run.stdout) == bool(skipped)
