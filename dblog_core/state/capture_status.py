"""What the capture reports about itself, in the state store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import orjson

from dblog_core.interfaces import Json, StateStore
from dblog_core.state.compare_and_set import put_news

NODE = "capture/status"


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """What a capture reports about itself, about once a second; `leader` names the other one while it stands by."""

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


@dataclass(frozen=True, slots=True)
class ReportedWindow:
    """A window that is open: its table, its dump, and the commit time of its low watermark (microseconds UTC)."""

    table: str
    dump: str
    opened_us: int


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """What the leader writes about itself; `at_us`: when, in microseconds UTC; `answers`: whether it answers windows
    that are announced in the state store. None: a leader of an earlier version did not say."""

    at_us: int
    lag_seconds: float | None
    rows_per_second: float
    windows: tuple[ReportedWindow, ...]
    epoch: int | None
    answers: bool | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        windows = (ReportedWindow(w["table"], w["dump"], w["opened"]) for w in data.get("windows", ()))
        return cls(
            at_us=data.get("at", 0),
            lag_seconds=data.get("lag_seconds"),
            rows_per_second=data.get("rows_per_second") or 0.0,
            windows=tuple(windows),
            epoch=data.get("epoch"),
            answers=data.get("answers"),
        )

    def to_json(self) -> Json:
        return {
            "at": self.at_us,
            "lag_seconds": self.lag_seconds,
            "rows_per_second": self.rows_per_second,
            "windows": [{"table": w.table, "dump": w.dump, "opened": w.opened_us} for w in self.windows],
            "epoch": self.epoch,
            "answers": self.answers,
        }


def put_status(state: StateStore, report: LeaderReport) -> None:
    """What the leader writes about itself."""
    put_news(state, NODE, report.to_json())


def read_status(state: StateStore) -> LeaderReport | None:
    """What the leader has written last; None where there was none."""
    entry = state.get(NODE)
    return None if entry is None else LeaderReport.from_json(orjson.loads(entry.data))
