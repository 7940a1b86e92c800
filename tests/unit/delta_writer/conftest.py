"""A Delta table of one test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.delta_writer.tables import (
    Table,
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create_at(tmp_path)
