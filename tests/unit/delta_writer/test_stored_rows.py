"""Rows of data files by their numbers, in the order that they are asked for."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from dblog_core.delta_writer import stored_rows
from tests.unit.delta_writer.tables import Table, row


@pytest.mark.parametrize("at_once", [1, 2_000, 64 << 20])
def test_rows_are_the_same_whether_a_group_is_read_whole_or_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(stored_rows, "_AT_ONCE", at_once)
    table, dice = Table.create_at(tmp_path), random.Random(at_once)
    writer = table.writer()
    rows = [row(i, f"note {dice.random()}", amount=Decimal(i), offset=i) for i in range(500)]
    table.merge(writer, rows)
    (live,) = writer.snapshot.files.values()
    for count in (1, 7, 500):
        row_numbers = np.array(dice.sample(range(500), count), np.int64)
        read_rows = stored_rows.rows_at(writer.files, live, writer.refresh(), ["note", "id"], row_numbers)
        assert read_rows.to_pylist() == [{"note": rows[i]["note"], "id": i} for i in row_numbers.tolist()]
