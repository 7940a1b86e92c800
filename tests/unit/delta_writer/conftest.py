"""A Delta table of one test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.delta_writer.tables import (
    Table,
)

FORMS: dict[str, dict[str, Any]] = {
    "vectors": {},
    "copies": {"vectors": False},
    "partitions": {"partitions": ("amount",)},
}


@pytest.fixture(params=FORMS)
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """One that takes deletion vectors, one of which files are copied, and one with partitions."""
    return Table.create_at(tmp_path, **FORMS[request.param])
