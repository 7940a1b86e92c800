"""The page that compares us with others: a test shows whatever it says that we do, in the run that the page names."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
BENCHMARKS = PAGE.parents[1] / "tests" / "benchmarks"
_LINK = re.compile(r'\[yes\]\(([^ )]+) "(\w+)"\)(?: in (soak|bench))?')
ROWS = [
    cells
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and (cells := [cell.strip() for cell in line.strip("|").split("|")])[0]
]


@dataclass(frozen=True, slots=True)
class Shown:
    """A test that a cell links, and the run that the cell says has it: "" is `make test`."""

    file: Path
    name: str
    run: str

    def fault(self) -> str | None:
        """Why the test shows nothing in that run."""
        module = ast.parse(self.file.read_text())
        tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == self.name]
        if not tests:
            return f"{self.file.name} has no test {self.name}"
        run = _run_of({*_marks(tests[0].decorator_list), *_marks_of(module)}, self.file)
        return (
            None if run == self.run else f"{self.name} runs in {run or 'make test'}, not in {self.run or 'make test'}"
        )


def shown_by(cell: str) -> list[Shown]:
    return [Shown((PAGE.parent / file).resolve(), name, run) for file, name, run in _LINK.findall(cell)]


def _run_of(marks: set[str], file: Path) -> str:
    """Which run has a test with these marks; conftest.py marks all benchmarks but the guard."""
    if "soak" in marks:
        return "soak"
    measured = file.is_relative_to(BENCHMARKS) and "guard" not in marks
    return "bench" if measured or marks & {"bench", "full"} else ""


def _marks_of(module: ast.Module) -> set[str]:
    """Of all tests of the module, by its `pytestmark`."""
    assigned = [node for node in module.body if isinstance(node, ast.Assign)]
    values = [n.value for n in assigned if any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in n.targets)]
    return _marks(values)


def _marks(nodes: list[ast.expr]) -> set[str]:
    """The names after `pytest.mark.`, in decorators or in a list of marks."""
    inner = [part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Attribute)]
    return {part.attr for part in inner if isinstance(part.value, ast.Attribute) and part.value.attr == "mark"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_yes_of_ours_names_a_test_and_the_run_that_has_it(row: list[str]) -> None:
    assert len(row) == 6
    proofs = shown_by(row[1])
    assert bool(proofs) == ("yes" in row[1]) and row[1]
    assert [fault for test in proofs if (fault := test.fault())] == []


@pytest.mark.parametrize(
    ("text", "run"),
    [
        ("def test_it(): ...", ""),
        ("@pytest.mark.in_turn\n@pytest.mark.timeout(9)\ndef test_it(): ...", ""),
        ("@pytest.mark.soak\ndef test_it(): ...", "soak"),
        ("pytestmark = [pytest.mark.soak]\ndef test_it(): ...", "soak"),
        ("@pytest.mark.full\ndef test_it(): ...", "bench"),
    ],
)
def test_a_test_that_make_test_leaves_out_shows_nothing_unless_the_cell_says_so(
    text: str, run: str, tmp_path: Path
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(text)
    faults = {word: Shown(file, "test_it", word).fault() for word in ("", "soak", "bench")}
    assert [word for word, fault in faults.items() if fault is None] == [run]
    assert shown_by(f'[yes]({file} "test_it"){run and " in " + run}') == [Shown(file, "test_it", run)]


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 25
