"""Faults of Spark as people read them."""

from __future__ import annotations

import pytest

from dblog_core.lake_engine.merging.faults import first_lines

VIOLATED = "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint short (v < 3) violated by row"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (f"An error occurred while calling o7211.execute.\n: x.E: {VIOLATED}\n\tat x.Y", f"x.E: {VIOLATED}"),
        (f"{VIOLATED}\n\nJVM stacktrace:\norg.x.Y", VIOLATED),
        ("[USER_RAISED_EXCEPTION] our own words SQLSTATE: P0001", "our own words"),
    ],
)  # fmt: skip
def test_the_stack_and_the_bridge_are_left_out(text: str, lines: str) -> None:
    assert first_lines(Exception(text)) == lines
