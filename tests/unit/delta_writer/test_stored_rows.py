"""Rows of data files by their numbers, in the order that they are asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dblog_core.delta_writer import data_file, stored_rows
from dblog_core.delta_writer.features import TableRefused
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


@pytest.mark.parametrize("at_once", [2_000, 64 << 20])
def test_all_rows_of_a_file_come_in_their_order_whatever_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Of a file with several row groups."""
    monkeypatch.setattr(stored_rows, "_AT_ONCE", at_once)
    monkeypatch.setattr(data_file, "_ROW_GROUP", 150)
    table = Table.create_at(tmp_path)
    writer = table.writer()
    rows = [row(i, offset=i) for i in range(500)]
    table.merge(writer, rows)
    (live,) = writer.snapshot.files.values()
    stretches = list(stored_rows.row_stretches(writer.files, live, writer.refresh(), ["note", "id"]))
    assert [first for first, _ in stretches] == np.cumsum([0, *(len(part) for _, part in stretches[:-1])]).tolist()
    assert len(stretches) > (4 if at_once == 2_000 else 3)
    assert pa.concat_tables([part for _, part in stretches]).to_pylist() == [
        {"note": each["note"], "id": each["id"]} for each in rows
    ]


OLD = {"org.apache.spark.legacyDateTime": "", "org.apache.spark.legacyINT96": "", "org.apache.spark.version": "2.4.8"}


@pytest.mark.parametrize("key", OLD)
def test_times_of_an_older_calendar_are_refused(tmp_path: Path, key: str) -> None:
    """Wherever rows are read: keys for the index, values that are kept or compared, whole files that are written again
    or hashed."""
    table = Table.create_at(tmp_path)
    writer = table.writer()
    table.merge(writer, [row(1, offset=1)])
    (live,) = writer.snapshot.files.values()
    shape = writer.refresh()
    file = table.path / live.path
    whole = pq.read_table(file)
    first = np.zeros(1, np.int64)
    reads: dict[str, Callable[[], Any]] = {
        "some": lambda: stored_rows.rows_at(writer.files, live, shape, ["id"], first),
        "all": lambda: list(stored_rows.row_stretches(writer.files, live, shape, ["id"])),
    }
    for version in ("3.1.0", "4.2.0"):
        pq.write_table(whole.replace_schema_metadata({"org.apache.spark.version": version}), file)
        assert all(read() for read in reads.values())
    pq.write_table(whole.replace_schema_metadata({"org.apache.spark.version": "4.2.0", key: OLD[key]}), file)
    for read in reads.values():
        with pytest.raises(TableRefused, match="another calendar"):
            read()
