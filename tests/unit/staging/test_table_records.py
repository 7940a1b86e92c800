"""What is known of tables, as files that a manifest names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from dblog_core.errors import StagingUnavailable, VersionConflict
from dblog_core.staging import Staging, table_records
from dblog_core.staging.table_records import STAMPED_OFFSET, TableRecords
from dblog_core.storage import Bytes
from tests.unit.staged import manifest


def publish(staging: Staging, records: TableRecords, number: int) -> None:
    carried = records.write(staging.storage, segment=number, epoch=1)
    staging.publish(replace(manifest(number, 1, 0), records=carried))


def files(staging: Staging) -> set[str]:
    return {file.path for file in staging.storage.files(table_records.DIRECTORY)}


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(str(tmp_path), source="shop")


def test_what_has_not_changed_stays_where_it_is(staging: Staging) -> None:
    records = TableRecords()
    records.create("tables", b"a")
    records.create("owed", b"b")
    publish(staging, records, 1)
    first = files(staging)
    records.update("owed", b"c", 0)
    publish(staging, records, 2)
    assert len(files(staging) - first) == 2, "the changed entry, and an index"
    again = table_records.read_newest(staging, *table_records.NODES)
    assert [entry and entry.data for entry in map(again.get, ("tables", "owed", "shown"))] == [b"a", b"c", None]
    assert not again.has_news


def test_an_offset_alone_writes_no_file_and_asks_for_no_manifest(staging: Staging) -> None:
    records = TableRecords()
    records.create("tables", b"a")
    publish(staging, records, 1)
    before = files(staging)
    records.create(STAMPED_OFFSET, b"7")
    assert not records.has_news
    publish(staging, records, 2)
    assert files(staging) == before
    entry = table_records.read_newest(staging, STAMPED_OFFSET).get(STAMPED_OFFSET)
    assert entry is not None and entry.data == b"7"


def test_what_could_not_be_written_is_written_by_the_next_manifest(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(self: object, files: Mapping[str, Bytes]) -> None:
        raise StagingUnavailable("storage does not answer")

    records = TableRecords()
    records.create("tables", b"a")
    with monkeypatch.context() as patch:
        patch.setattr(type(staging.storage), "create_missing", away)
        with pytest.raises(StagingUnavailable):
            records.write(staging.storage, segment=1, epoch=1)
    assert records.has_news
    publish(staging, records, 1)
    entry = table_records.read_newest(staging, "tables").get("tables")
    assert entry is not None and entry.data == b"a"


def test_changes_name_the_version_that_they_change() -> None:
    records = TableRecords({"tables": b"a"})
    with pytest.raises(VersionConflict):
        records.create("tables", b"b")
    with pytest.raises(VersionConflict):
        records.update("tables", b"b", 1)
    with pytest.raises(VersionConflict):
        records.update("owed", b"b", 0)
    assert records.update("tables", b"b", 0) == 1


def test_files_that_the_newest_manifest_does_not_name_go_after_a_while(staging: Staging) -> None:
    records = TableRecords()
    records.create("tables", b"a")
    records.create("owed", b"b")
    publish(staging, records, 1)
    records.update("owed", b"c", 0)
    publish(staging, records, 2)
    records.update("owed", b"d", 1)
    records.write(staging.storage, segment=3, epoch=1)  # a capture is about to publish it
    assert list(table_records.find_unused(staging, before=0)) == []
    unused = set(table_records.find_unused(staging, before=float("inf")))
    assert len(unused) == 2 and all("/" + "1".zfill(20) in path for path in unused)
    for path in unused:
        staging.storage.remove(path)
    entry = table_records.read_newest(staging, "tables").get("tables")
    assert entry is not None and entry.data == b"a"


def test_tens_of_thousands_of_tables_leave_the_manifest_small(staging: Staging) -> None:
    names = [f"shop.orders_of_the_year_2026_part_{number:05}@{number}" for number in range(40_000)]
    records = TableRecords()
    records.create("shown", orjson.dumps(names))
    records.create("stopped", orjson.dumps({name: {"why": "x" * 200, "fix": "y", "by": "log"} for name in names}))
    publish(staging, records, 1)
    head = staging.head()
    assert head is not None and len(orjson.dumps(head.records)) < 200
    entry = table_records.read_newest(staging, "shown").get("shown")
    assert entry is not None and orjson.loads(entry.data) == names
