"""Changing a node of the state store beside others who do so too."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from dblog_core.errors import StateError
from dblog_core.state import compare_and_set
from dblog_core.state.memory import MemoryState


def stored_value(state: MemoryState) -> tuple[Any, int] | None:
    entry = state.get("node")
    return None if entry is None else (orjson.loads(entry.data), entry.version)


def test_it_is_made_changed_and_left_alone_where_nothing_changes() -> None:
    state = MemoryState()
    assert compare_and_set.change(state, "node", lambda value: value) is None
    assert stored_value(state) is None
    assert compare_and_set.change(state, "node", lambda value: [*(value or []), 1]) == [1]
    assert compare_and_set.change(state, "node", lambda value: [*value, 2]) == [1, 2]
    before = stored_value(state)
    assert compare_and_set.change(state, "node", list) == [1, 2]
    assert stored_value(state) == before


@pytest.mark.parametrize("exists", [True, False])
def test_who_was_first_is_taken_into_account(exists: bool) -> None:
    state = MemoryState()
    others = iter(("x", "y"))
    if exists:
        state.create("node", b"[]")

    def mine(value: list[str] | None) -> list[str]:
        if (other := next(others, None)) is not None:  # between our read and our write
            compare_and_set.change(state, "node", lambda their_value: [*(their_value or []), other])
        return [*(value or []), "mine"]

    assert compare_and_set.change(state, "node", mine) == ["x", "y", "mine"]
    assert stored_value(state) == (["x", "y", "mine"], 3 if exists else 2)


def test_a_store_in_which_others_are_always_first_is_named() -> None:
    state = MemoryState()
    count = iter(range(1000))

    def change_first(_: int | None) -> str:
        compare_and_set.change(state, "node", lambda _: next(count))
        return "mine"

    with pytest.raises(StateError, match="others write it all the time") as refused:
        compare_and_set.change(state, "node", change_first)
    assert refused.value.where == "node"
