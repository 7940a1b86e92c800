"""The tree of errors is the one that its docstring draws."""

from __future__ import annotations

import re

from dblog_core import errors
from dblog_core.errors import DblogError

LINE = re.compile(r"^    ((?:│   |    )*)(?:[├└]── )?([A-Z]\w+)  +(\S.*)$")


def draw_lines() -> list[tuple[int, str, str]]:
    """Depth, name and words of each line of the drawing."""
    tree = (errors.__doc__ or "").partition("Drivers' errors")[0]
    matches = [match for line in tree.splitlines() if (match := LINE.match(line))]
    return [(len(m[1]) // 4 + (0 if m[2] == "DblogError" else 1), m[2], m[3]) for m in matches]


def list_classes(error: type[DblogError], depth: int = 0) -> list[tuple[int, str]]:
    """The same of the classes of the module, in the order in which they are defined."""
    children = [child for child in error.__subclasses__() if child.__module__ == errors.__name__]
    return [(depth, error.__name__), *(line for child in children for line in list_classes(child, depth + 1))]


def test_the_drawing_has_every_error_below_the_one_that_it_is() -> None:
    assert [(depth, name) for depth, name, _ in draw_lines()] == list_classes(DblogError)


def test_the_drawing_says_which_errors_are_transient() -> None:
    marked = {name for _, name, words in draw_lines() if words.startswith("transient")}
    inherits = {"NoWatermarkTable", "TableLocked", "SegmentReplaced"}
    transient = {name for _, name, _ in draw_lines() if getattr(errors, name).transient}
    assert marked | inherits == transient
