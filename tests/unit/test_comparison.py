"""The page that compares us with others: whatever it says that we do is shown by a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "comparison.md"
_LINK = re.compile(r'\[yes\]\(([^ )]+) "(\w+)"\)')
ROWS = [
    cells
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and (cells := [cell.strip() for cell in line.strip("|").split("|")])[0]
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_yes_of_ours_names_a_test(row: list[str]) -> None:
    assert len(row) == 6
    found = _LINK.findall(row[1])
    assert bool(found) == ("yes" in row[1]) and row[1]
    for file, name in found:
        defined = ast.parse((PAGE.parent / file).read_text()).body
        assert name in {node.name for node in defined if isinstance(node, ast.FunctionDef)}


def test_the_page_has_rows() -> None:
    assert len(ROWS) > 25
