"""Signals of unit tests: a source with its state, who carries signals out, and signals to send."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core.clock import SystemClock
from dblog_core.signals import inbox
from dblog_core.signals.processor import SignalProcessor
from tests.unit.requests_world import World, make


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return make(tmp_path, monkeypatch)


@pytest.fixture
def desk(world: World) -> SignalProcessor:
    return SignalProcessor(world.config, world.state, SystemClock())


def execute(*tables: str, **more: Any) -> str:
    return json.dumps({"data-collections": tables or ("shop.orders",), **more})


class Dies(Exception):
    """The process is gone."""


class Fragile:
    """A state store whose user dies before or after the n-th change."""

    def __init__(self, state: Any, step: int, *, after: bool) -> None:
        self._state = state
        self._left = step
        self._after = after

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._state, name)
        return self._count_calls(attribute) if name in ("create", "update", "delete") else attribute

    def create_all(self, nodes: Any) -> None:
        for path, data in nodes.items():
            self.create(path, data)

    def _count_calls(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def count_change(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Dies
            result = change(*arguments)
            if self._left == 0:
                raise Dies
            return result

        return count_change


def line(id_: str, **more: Any) -> bytes:
    data = {"data-collections": ["shop.orders"]}
    return orjson.dumps({"id": id_, "type": "execute-snapshot", "data": data, **more}) + b"\n"


def ids(world: World) -> list[str]:
    return [r.id for r in inbox.list_signals(world.state)]
