"""What is removed of a table's log, no version is read by that may still be asked for."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.lake_engine.tables import log, log_cleanup
from tests.unit.delta_writer.rivals import open_delta
from tests.unit.delta_writer.tables import APP, Row, Table, newest, row


def rows_of(table: Table, version: int) -> list[Row]:
    read = QueryBuilder().register("t", DeltaTable(str(table.path), version=version)).execute("select * from t")
    rows: list[Row] = pa.table(read).to_pylist()
    return sorted(rows, key=lambda row: int(row["id"]))


def fill_log(table: Table, commits: int, checkpoints: set[int]) -> None:
    writer = table.writer()
    for number in range(1, commits + 1):
        table.merge(writer, [row(100 + number), row(number % 3, f"again {number}")])
        if number in checkpoints:
            open_delta(table).create_checkpoint()


def numbers(table: Table) -> list[int]:
    return sorted(int(path.name[:20]) for path in (table.path / "_delta_log").glob("*.json") if path.name[0].isdigit())


def test_every_version_that_may_be_asked_for_is_read_as_before(tmp_path: Path, soak_seed: int) -> None:
    dice = random.Random(soak_seed)
    table = Table.create_at(tmp_path)
    fill_log(table, 12, set(dice.sample(range(1, 13), 4)))
    before = {version: rows_of(table, version) for version in range(13)}
    oldest = 0
    for _ in range(4):
        oldest = dice.randint(oldest, 12)
        log_cleanup.clean(table.location(), oldest)
        assert {version: rows_of(table, version) for version in range(oldest, 13)} == {
            version: before[version] for version in range(oldest, 13)
        }
        writer = table.writer()
        assert writer.refresh() and writer.snapshot.version == 12
    table.merge(table.writer(), [row(999)])
    assert table.read() == table.model()


def test_all_below_the_newest_checkpoint_that_suffices_goes(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_log(table, 9, {3, 6, 9})
    (table.path / "_delta_log" / f"{5:020d}.crc").write_text("{}")
    assert log_cleanup.clean(table.location(), 8) == 6 + 1 + 1
    assert numbers(table) == [6, 7, 8, 9]
    assert log_cleanup.clean(table.location(), 8) == 0
    assert table.read() == table.model()


def test_only_a_checkpoint_of_the_newest_version_counts(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_log(table, 3, {2})
    assert not log_cleanup.has_checkpoint(table.location())
    open_delta(table).create_checkpoint()
    assert log_cleanup.has_checkpoint(table.location())


def test_without_a_checkpoint_that_is_old_enough_all_stays(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_log(table, 5, {4})
    assert log_cleanup.clean(table.location(), 3) == 0
    assert numbers(table) == list(range(6))


@pytest.mark.parametrize("damage", ["cut short", "of the v2 form"])
def test_a_checkpoint_that_cannot_stand_for_all_before_it_removes_nothing(tmp_path: Path, damage: str) -> None:
    table = Table.create_at(tmp_path)
    fill_log(table, 5, {4})
    (checkpoint,) = (table.path / "_delta_log").glob("*.checkpoint.parquet")
    if damage == "cut short":
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    else:
        named = checkpoint.with_name(f"{5:020d}.checkpoint.{'a' * 8}-0000-0000-0000-{'b' * 12}.parquet")
        named.write_bytes(checkpoint.read_bytes())
    assert log_cleanup.clean(table.location(), 5) == 0
    assert numbers(table) == list(range(6))


def test_the_last_merge_is_known_though_its_commit_was_removed(tmp_path: Path) -> None:
    """A merge that is repeated after that would otherwise write its rows again."""
    table = Table.create_at(tmp_path)
    fill_log(table, 3, set())
    writer = table.writer()
    for number in range(3):
        upsert(writer, table.changes([row(50 + number)]), "another", number)
    open_delta(table).create_checkpoint()
    upsert(writer, table.changes([row(60)]), "another", 3)
    place = table.location()
    assert log.newest_transaction(place, APP) == 3
    assert log_cleanup.clean(place, newest(table.path)) > 0
    assert log.newest_transaction(place, APP) == 3
    assert log.newest_transaction(place, "another") == 3
    assert log.newest_transaction(place, "nobody") is None
