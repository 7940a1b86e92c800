"""What a change left out stays as the table has it; where nobody has it, the row is withheld."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from dblog_core.delta_writer import order_guard
from dblog_core.delta_writer.changes import Changes, Upserted
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.stored_rows import rows_at
from dblog_core.delta_writer.upserting.upsert import upsert
from tests.unit.delta_writer.tables import APP, OFFSET, Row, Table, newest, row


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create_at(tmp_path)


class Keeping:
    """A writer whose changes keep columns."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.writer = table.writer()
        self.told = list[int]()
        first = [row(i, f"kept {i}", amount=Decimal(i), offset=1) for i in range(30)]
        table.merge(self.writer, first[:15])
        table.merge(self.writer, first[15:])
        table.merge(self.writer, [row(3, "kept anew", amount=Decimal(33), offset=2)], [row(4), row(20)])

    def merge(self, puts: list[Row], kept_masks: dict[str, list[bool]], **options: object) -> Upserted:
        """Commits; the numbers of the rows that are withheld are in `told`."""
        changes = self.table.changes(puts)
        masks = {name: np.array(mask) for name, mask in kept_masks.items()}
        whole = Changes(changes.rows, changes.deleted, changes.guarded, unchanged_toast=masks, **options)  # type: ignore[arg-type]
        self.table.merges += 1
        return upsert(self.writer, whole, APP, self.table.merges, withhold=lambda rows: self.told.extend(rows.tolist()))


def test_values_come_from_the_row_of_the_key(table: Table) -> None:
    work = Keeping(table)
    puts = [row(3, offset=9), row(17, offset=9), row(5, "own", amount=Decimal(5), offset=9), row(18, offset=9)]
    done = work.merge(puts, {"note": [True, True, False, False], "amount": [True, False, False, True]})
    assert done.updated == 4 and work.told == []
    table.expect(
        [
            row(3, "kept anew", amount=Decimal(33), offset=9),
            row(17, "kept 17", offset=9),
            row(5, "own", amount=Decimal(5), offset=9),
            row(18, "note 18", amount=Decimal(18), offset=9),
        ]
    )
    table.check()


def test_a_value_that_nobody_has_withholds_the_row(table: Table) -> None:
    work = Keeping(table)
    puts = [row(4, offset=9), row(500, offset=9), row(6, offset=9)]
    done = work.merge(puts, {"note": [True, True, True]})
    assert (done.withheld, done.updated, done.inserted) == (2, 1, 0) and work.told == [0, 1]
    table.expect([row(6, "kept 6", offset=9)])
    table.check()


def test_a_key_that_changed_keeps_what_its_old_key_had(table: Table) -> None:
    work = Keeping(table)
    origins = pa.table({"id": [7, 700, 9]})
    puts = [row(107, offset=9), row(8, offset=9), row(10, "own", offset=9)]
    done = work.merge(puts, {"note": [True, True, False]}, origins=origins)
    assert (done.inserted, done.withheld) == (1, 1) and work.told == [1]
    table.expect([row(107, "kept 7", offset=9), row(10, "own", offset=9)], [row(8)])
    table.check()


def test_of_two_rows_the_newest_is_kept(table: Table) -> None:
    work = Keeping(table)
    for note, offset in (("newest", 50), ("older", 40)):
        write_deltalake(str(table.path), table.arrow([row(5, note, offset=offset)]), mode="append")
    write_deltalake(str(table.path), table.arrow([{"id": 5, "note": "foreign"}]), mode="append")
    work.merge([row(5, offset=60)], {"note": [True]})
    table.expect([row(5, "newest", offset=60)])
    table.check()


def test_what_is_kept_is_that_of_the_newest_version(table: Table) -> None:
    work = Keeping(table)
    rival: OpenTable = table.writer()

    def between() -> None:
        work.writer.check = lambda: None
        upsert(rival, table.changes([row(5, "of the rival", offset=8)]), "rival", 1)

    work.writer.check = between
    work.merge([row(5, offset=9)], {"note": [True]})
    assert newest(table.path) == 5
    table.expect([row(5, "of the rival", offset=9)])
    table.check()


def test_a_value_that_memory_has_no_room_for_is_taken_alone(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Keeping(table)
    monkeypatch.setattr("dblog_core.delta_writer.upserting.upsert.MOST_BYTES", 1)
    done = work.merge([row(i, offset=9) for i in (5, 21, 6)], {"note": [True] * 3})
    assert (done.updated, done.withheld) == (3, 0)
    table.expect([row(i, f"kept {i}", offset=9) for i in (5, 21, 6)])
    table.check()


def test_values_that_have_no_room_at_once_are_taken_in_pieces(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has the changes whose values lie side by side, so no file is read for all pieces."""
    work = Keeping(table)
    numbers = [5, 21, 6, 22, 500, 7, 23, 501, 8, 24]
    monkeypatch.setattr("dblog_core.delta_writer.upserting.upsert.MOST_BYTES", 90)
    before = set(table.path.glob("*.parquet"))
    done = work.merge([row(i, offset=9) for i in numbers], {"note": [True] * len(numbers)})
    assert (done.updated, done.withheld, done.inserted) == (8, 2, 0)
    assert sorted(numbers[at] for at in work.told) == [500, 501], "they are numbered as they came"
    table.expect([row(i, f"kept {i}", offset=9) for i in numbers if i < 500])
    table.check()
    files = [pq.read_table(path)["id"].to_pylist() for path in set(table.path.glob("*.parquet")) - before]
    assert len(files) > 2, "a file for each piece"
    assert len([ids for ids in files if min(ids) < 20 <= max(ids)]) <= 1, "none but the middle one needs both files"


def test_pieces_take_what_old_keys_had_and_are_planned_again(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Keeping(table)
    monkeypatch.setattr("dblog_core.delta_writer.upserting.upsert.MOST_BYTES", 90)
    rival: OpenTable = table.writer()

    def between() -> None:
        work.writer.check = lambda: None
        upsert(rival, table.changes([row(22, "of the rival", offset=8)]), "rival", 1)

    work.writer.check = between
    numbers = [105, 121, 106, 122, 107, 123, 108, 124]
    origins = pa.table({"id": [number - 100 for number in numbers]})
    done = work.merge([row(i, offset=9) for i in numbers], {"note": [True] * len(numbers)}, origins=origins)
    assert (done.inserted, done.withheld) == (8, 0) and work.told == []
    notes = {i: f"kept {i - 100}" for i in numbers} | {122: "of the rival"}
    table.expect([row(22, "of the rival", offset=8), *(row(i, notes[i], offset=9) for i in numbers)])
    table.check()


def test_rows_that_are_compared_have_no_room_at_once_either(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Keeping(table)
    monkeypatch.setattr(order_guard, "rows_at", partial(rows_at, most=90))
    numbers = [5, 21, 6, 22, 7, 23]
    changes = table.changes([row(i, f"kept {i}" if i > 6 else "new", amount=Decimal(i), offset=9) for i in numbers])
    names = ("id", "note", "amount")
    guarded = Changes(changes.rows, changes.deleted, np.ones(len(numbers), np.bool_), same=names)
    done = upsert(work.writer, guarded, APP, 50)
    assert (done.updated, done.unchanged) == (2, 4)
    assert [(r["id"], r["note"]) for r in table.read("_dblog_offset = 9")] == [(5, "new"), (6, "new")]


def test_withheld_rows_are_numbered_through_all_parts(table: Table) -> None:
    keeping = Keeping(table)
    parts = []
    for numbers, kept in (((1, 2, 900), (False, False, False)), ((5, 901), (True, True))):
        changes = table.changes([row(i, "new", offset=9) for i in numbers])
        masks = {"amount": np.array(kept)}
        parts.append(Changes(changes.rows, changes.deleted, changes.guarded, unchanged_toast=masks))
    told: list[int] = []
    done = upsert(keeping.writer, parts, APP, 9, withhold=lambda rows: told.extend(rows.tolist()))
    assert told == [4] and done.withheld == 1
    assert [(r["id"], r["amount"]) for r in table.read("note = 'new'")] == [
        (1, None),
        (2, None),
        (5, Decimal(5)),
        (900, None),
    ]


@pytest.mark.parametrize("key", [0.0, float("nan")])
def test_a_key_that_is_printed_otherwise_is_no_other_key(tmp_path: Path, key: float) -> None:
    """The table is ahead of the change: a later row of another key would have no values for it, and its own has."""
    fields = {"ratio": "double", "note": "string", OFFSET: "long"}
    table = Table.create_at(tmp_path, fields=fields, keys=("ratio",))
    writer = table.writer()
    table.merge(writer, [{"ratio": key, "note": "kept", OFFSET: 50}])
    changes = replace(
        table.changes([{"ratio": -key, "note": None, OFFSET: 60}]),
        unchanged_toast={"note": np.array([True])},
        origins=pa.table({"ratio": pa.array([key], pa.float64())}),
        origins_before=20,
    )
    done = upsert(writer, changes, APP, 2)
    assert (done.updated, done.withheld) == (1, 0)
    (stored,) = table.read()
    assert (repr(stored["ratio"]), stored["note"]) == (repr(-key), "kept")
