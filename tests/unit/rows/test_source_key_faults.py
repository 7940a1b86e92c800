"""An entry in [source.keys] beside a primary key: the same columns in any order, and in any case if case is ignored."""

from __future__ import annotations

import pytest

from dblog_core.model.schema import TableName
from dblog_core.rows.source_key_faults import explain_contradiction

T = TableName("shop", "orders")


@pytest.mark.parametrize(
    ("entry", "primary", "ignore_case", "is_contradiction"),
    [
        ((), ("id",), False, False),
        (("id",), (), False, False),
        (("b", "a"), ("a", "b"), False, False),
        (("a",), ("a", "b"), False, True),
        (("ID",), ("id",), False, True),
        (("ID",), ("id",), True, False),
        (("ID", "no"), ("id",), True, True),
    ],
)
def test_it_names_the_same_columns_or_contradicts(
    entry: tuple[str, ...], primary: tuple[str, ...], ignore_case: bool, is_contradiction: bool
) -> None:
    text = explain_contradiction(T, entry, primary, ignore_case=ignore_case)
    assert bool(text) == is_contradiction
    if is_contradiction:
        assert f"({', '.join(entry)})" in text and f"({', '.join(primary)})" in text
