"""Rows get other values once, whatever dies and whoever commits meanwhile; rows that are dead stay so."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dblog_core.delta_writer.altering.alterations import AddColumn, SetProperties, WidenColumn
from dblog_core.delta_writer.altering.altered_table import AlteredTable
from dblog_core.delta_writer.rewriting import rewrite
from dblog_core.delta_writer.rewriting.update_rows import shift_orders, update_beyond, update_older, update_rows
from dblog_core.errors import LeaseLost, StagingUnavailable
from dblog_core.storage.location import Location
from tests.unit.delta_writer.rivals import RIVALS, open_delta
from tests.unit.delta_writer.tables import OFFSET, FaultyStorage, Table, commit_of, newest, read_tracked, row

FILL = update_older(OFFSET, 5, {"note": pa.scalar("filled")})
DISOWN = update_beyond(OFFSET, 5, {OFFSET: pa.scalar(0, pa.int64())})


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """Rows of the offsets 1 to 9 in three files; some of each file are replaced or deleted."""
    table = Table.create_at(tmp_path, vectors=request.param)
    writer = table.writer()
    table.merge(writer, [row(key, offset=1 + key % 4) for key in range(20)])
    table.merge(writer, [row(key, offset=4 + key % 3) for key in range(15, 30)])
    table.merge(writer, [row(key, offset=7 + key % 3) for key in range(28, 40)], [row(1, offset=8), row(27, offset=9)])
    return table


def fill_model(table: Table) -> None:
    for values in table.rows.values():
        if values[OFFSET] is not None and values[OFFSET] < 5:
            values["note"] = "filled"


def live_files(table: Table) -> set[str]:
    writer = table.writer()
    writer.refresh()
    return set(writer.snapshot.files)


def test_rows_of_older_orders_are_filled_once(table: Table) -> None:
    version = newest(table.path)
    done = update_rows(table.writer(), FILL, "app:filled", 5)
    fill_model(table)
    table.check()
    assert done.updated == sum(values["note"] == "filled" for values in table.rows.values()) > 0
    assert newest(table.path) == version + 1
    info = next(action["commitInfo"] for action in commit_of(table.path, version + 1) if "commitInfo" in action)
    assert (info["operation"], info["operationMetrics"]["numUpdatedRows"]) == ("UPDATE", str(done.updated))
    # A row of an older order that came since has its own value.
    table.merge(table.writer(), [row(100, "its own", offset=2)])
    assert update_rows(table.writer(), FILL, "app:filled", 5).already
    table.check()
    assert update_rows(table.writer(), FILL, "app:filled", 6).updated == done.updated + 1


def test_files_without_such_a_row_stay(table: Table) -> None:
    before = live_files(table)
    update_rows(table.writer(), update_older(OFFSET, 3, FILL.values), "app", 1)
    assert len(before & live_files(table)) == len(before) - 1
    assert sum("add" in action for action in commit_of(table.path, newest(table.path))) == 1


def test_rows_beyond_and_without_an_order_are_disowned(table: Table) -> None:
    RIVALS["appends"](table)
    table.rows[(10_000,)][OFFSET] = None
    open_delta(table).update({OFFSET: "null"}, predicate="id = 10000")
    update_rows(table.writer(), DISOWN, "app:others", newest(table.path))
    for values in table.rows.values():
        if values[OFFSET] is None or values[OFFSET] > 5:
            values[OFFSET] = 0
    assert table.read() == table.model()


def test_orders_of_all_rows_end_at_0_in_the_same_order_whatever_dead_rows_had(table: Table) -> None:
    table.merge(
        table.writer(), [], [row(key[0], offset=20) for key, values in table.rows.items() if values[OFFSET] == 9]
    )
    table.merge(table.writer(), [{**row(500), OFFSET: None}])
    for number in (1, 2):
        writer = table.writer()
        done = update_rows(writer, shift_orders(writer), "app:aged", number)
        assert (done.updated > 0) == (number == 1)
        for values in table.rows.values():
            if values[OFFSET] is not None and number == 1:
                values[OFFSET] -= 8
        table.check()


def test_an_update_of_no_row_counts_as_done(table: Table) -> None:
    before = live_files(table)
    done = update_rows(table.writer(), update_older(OFFSET, 1, FILL.values), "app", 1)
    assert (done.updated, done.already) == (0, False) and live_files(table) == before
    table.merge(table.writer(), [row(200, "later", offset=0)])
    assert update_rows(table.writer(), update_older(OFFSET, 1, FILL.values), "app", 1).already
    table.check()


def test_a_value_takes_the_type_that_the_column_has_now(table: Table) -> None:
    altered = AlteredTable(table.location(), mark="dblog")
    altered.alter(lambda have: [AddColumn("n", "integer"), SetProperties({"delta.enableTypeWidening": "true"})])
    altered.alter(lambda have: [WidenColumn(("n",), "long")])
    done = update_rows(table.writer(), update_older(OFFSET, 5, {"n": pa.scalar(7, pa.int32())}), "app", 5)
    assert done.updated
    writer = table.writer()
    assert writer.refresh()["n"].type == pa.int64()


@pytest.mark.parametrize("name", RIVALS)
def test_another_program_that_is_faster_neither_loses_nor_repeats_a_value(table: Table, name: str) -> None:
    pending = [RIVALS[name]]

    def check() -> None:
        if pending:
            pending.pop()(table)

    update_rows(table.writer(check=check), FILL, "app", 5)
    assert not pending
    fill_model(table)
    assert table.read() == table.model()


@pytest.mark.parametrize("late", [False, True])
def test_an_update_that_died_anywhere_is_made_once(table: Table, late: bool) -> None:
    failed = 0
    for fail_at in range(1, 100):
        storage = FaultyStorage(table.lake, fail_at=fail_at, late=late)
        try:
            update_rows(table.writer(Location(storage, "table")), FILL, "app", 5)
        except StagingUnavailable:
            failed += 1
        if len(storage.calls) < fail_at:
            break
    assert failed > 3
    fill_model(table)
    table.check()
    commits = [commit_of(table.path, version) for version in range(newest(table.path) + 1)]
    assert sum(any(action.get("txn", {}).get("appId") == "app" for action in commit) for commit in commits) == 1


def test_a_lease_that_is_lost_changes_nothing(table: Table) -> None:
    before = newest(table.path)

    def lost() -> None:
        raise LeaseLost("another merges")

    with pytest.raises(LeaseLost):
        update_rows(table.writer(check=lost), FILL, "app", 5)
    assert newest(table.path) == before
    table.check()


def test_a_large_file_becomes_several(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dblog_core.delta_writer.stored_rows._ROWS_AT_ONCE", 4)
    monkeypatch.setattr(rewrite, "_GROUP_BYTES", 1)
    monkeypatch.setattr(rewrite, "LARGEST_FILE", 1)
    before = len(live_files(table))
    update_rows(table.writer(), FILL, "app", 5)
    assert len(live_files(table)) > before
    fill_model(table)
    table.check()
    table.merge(table.writer(), [row(key, "after", offset=20) for key in range(0, 40, 3)])
    table.check()


def test_a_tracked_row_keeps_its_id_and_has_the_version_of_its_change(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path, vectors=False, tracked=True)
    table.merge(table.writer(), [row(key, offset=1 + key % 9) for key in range(20)])
    table.check()
    update_rows(table.writer(), FILL, "app:filled", 5)
    fill_model(table)
    table.check()
    tracked = read_tracked(table.path, table.fields, table.keys)
    assert {key[0]: version for key, _, version in tracked} == {key: 2 if key % 9 < 4 else 1 for key in range(20)}
