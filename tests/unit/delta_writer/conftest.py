"""A Delta table of one test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.delta_writer.tables import (
    Table,
)


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """One that takes deletion vectors, and one of which files are copied."""
    return Table.create_at(tmp_path, vectors=request.param)
