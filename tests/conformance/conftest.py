"""What the suite's tests share: the world of a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog_core.capture import config_reload
from dblog_core.capture.healing import broken_tables
from tests.conformance import postgres_forms
from tests.conformance.cases import cases
from tests.conformance.world import World
from tests.fix_servers import Database
from tests.versions import logs_generated_columns


@pytest.fixture
def new_world(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int, int], World]]:
    """Makes the world of a seed, with cases of so many statements."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 0.5)
    monkeypatch.setattr(broken_tables, "STAMPS_SECONDS", 0.5)
    worlds = list[World]()
    if database.kind == "postgres":
        database.execute(*postgres_forms.FIRST)

    def make(seed: int, count: int) -> World:
        draw = random.Random(seed)
        logs_generated = logs_generated_columns(database.server)
        made_cases = cases(database.kind, database.name, draw, count, logs_generated=logs_generated)
        worlds.append(World(database, tmp_path, made_cases, draw))
        return worlds[-1]

    yield make
    for world in worlds:
        world.clean()
