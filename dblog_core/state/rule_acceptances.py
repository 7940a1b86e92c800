"""Tables that somebody has accepted (`dblog rules accept`), until the capture has taken that up.

Node `accept` of the state store: {table: {"entry": digest, "shape": digest, "version": text, "place": text}}: the
entry in [source.columns] that the person had, what the table was then, and the `Acceptance.version` that the manifest
had. What is another one by the time that the capture looks is not accepted. Where the log tells, `place` is a place in
it before the person's look, from which on the table counts as accepted: a later statement holds it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from dblog_core.interfaces import StateStore
from dblog_core.state import compare_and_set

_NODE = "accept"


def read(state: StateStore) -> dict[str, dict[str, str]]:
    """What is accepted and not taken up yet, by table."""
    entry = state.get(_NODE)
    return {} if entry is None else dict(orjson.loads(entry.data))


def add(state: StateStore, accepted: Mapping[str, Mapping[str, str]]) -> None:
    """Files what a person has accepted. Raises StateError."""
    compare_and_set.change(state, _NODE, lambda data: {**(data or {}), **{t: dict(a) for t, a in accepted.items()}})


def forget(state: StateStore, taken: Mapping[str, Mapping[str, str]]) -> None:
    """What the capture has taken up, as it was read. Raises StateError."""

    def leave(data: Any) -> Any:
        left = {table: values for table, values in (data or {}).items() if taken.get(table) != values}
        return left if data is not None else None

    if taken:
        compare_and_set.change(state, _NODE, leave)
