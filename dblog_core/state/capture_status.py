"""What the capture tells about itself, in the state store."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from dblog_core.interfaces import Json, StateStore
from dblog_core.state.compare_and_set import put_news

_NODE = "capture/status"


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """What a capture tells about itself about once a second; `leader` names the other one while it stands by."""

    leading: bool
    epoch: int | None
    segment: int
    offset: int
    position: str
    lag_seconds: float | None
    rows_per_second: float
    windows: int
    leader: str | None
    error: str | None = None


def put_status(state: StateStore, status: Json) -> None:
    """What the leader tells about itself."""
    put_news(state, _NODE, status)


def read_status(state: StateStore) -> Json | None:
    """What the leader has told last; None where there was none."""
    entry = state.get(_NODE)
    return None if entry is None else orjson.loads(entry.data)
