"""What was accepted of tables, in the table records."""

from __future__ import annotations

from pathlib import Path

from dblog_core.rows.acceptance import Acceptance, Held
from dblog_core.staging import Staging, table_records
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import accepted_shapes
from tests.unit.staged import manifest

MANY = {f"shop.t{number}": Acceptance("", f"{number}:") for number in range(300)}


def test_all_acceptances_come_back_and_each_alone() -> None:
    records = TableRecords()
    held = {"shop.people": Acceptance("entry", "7:a", "c", "3", "9", Held.RESHAPED), "shop.plain": Acceptance()}
    accepted_shapes.save(records, held)
    assert accepted_shapes.read(records) == held
    assert [accepted_shapes.find(records, table) for table in (*held, "shop.other")] == [*held.values(), None]


def test_none_accepted_is_not_the_same_as_nothing_to_accept() -> None:
    """With new rules all tables are accepted as they are; behind a lost acceptance none is."""
    records = TableRecords()
    assert accepted_shapes.read(records) is None
    accepted_shapes.save(records, None)
    assert accepted_shapes.read(records) is None and not records.has_news
    accepted_shapes.save(records, MANY)
    accepted_shapes.save(records, {})
    assert accepted_shapes.read(records) == {}
    accepted_shapes.save(records, None)
    assert accepted_shapes.read(records) is None


def test_the_names_of_the_entries_are_those_that_a_manifest_carries() -> None:
    assert set(accepted_shapes.NODES) <= set(table_records.NODES)


def test_a_table_that_changes_has_one_entry_written_again(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path), source="shop")
    records = TableRecords()

    def publish() -> set[str]:
        carried = records.write(staging.storage, segment=1, epoch=1)
        assert len(str(manifest(1, 1, 0).to_json() | carried)) < 2_000, "the manifest stays small"
        return {file.path for file in staging.storage.files(table_records.DIRECTORY)}

    accepted_shapes.save(records, MANY)
    before = publish()
    assert len(before) == 1 + 64
    accepted_shapes.save(records, {**MANY, "shop.t7": Acceptance("", "7:", why_held=Held.ARRIVED)})
    assert len(publish() - before) == 2, "the entry and an index"
