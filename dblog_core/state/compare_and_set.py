"""Changing what a node of the state store holds while others change it too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from dblog_core.errors import StateError, VersionConflict
from dblog_core.interfaces import Nodes, StateStore

_AGAIN = 100  # tries: that many others in a row are a fault of the state store


def change(state: Nodes, path: str, to: Callable[[Any], Any]) -> Any:
    """Writes what `to` makes of the node's JSON (None: there is no node), unless it is the same, and returns it.

    `to` is asked again where somebody else was first, so it must do nothing else. Raises StateError, StateUnavailable.
    """
    for _ in range(_AGAIN):
        entry = state.get(path)
        before = None if entry is None else orjson.loads(entry.data)
        if (after := to(before)) == before:
            return after
        try:
            if entry is None:
                state.create(path, orjson.dumps(after))
            else:
                state.update(path, orjson.dumps(after), entry.version)
        except VersionConflict:
            continue
        return after
    raise StateError("the node cannot be written: others write it all the time", where=path)


def put_news(state: StateStore, path: str, value: Any) -> None:
    """Writes what is only ever news: where another writes at the same moment, the next news tells."""
    data = orjson.dumps(value)
    entry = state.get(path)
    try:
        if entry is None:
            state.create(path, data)
        else:
            state.update(path, data, entry.version)
    except VersionConflict:
        return
