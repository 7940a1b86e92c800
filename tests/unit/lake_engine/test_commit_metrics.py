"""What a merge did to a table is added up from Delta's own counts, commit by commit."""

from __future__ import annotations

import json
from pathlib import Path

from dblog_core.lake.lake_status import lake_at
from dblog_core.lake_engine.tables.commit_metrics import Counted


def commit(table: Path, number: int, operation: str, **counts: object) -> None:
    """A commit as Delta writes it, as far as it is read: counts are texts."""
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    info = {"operation": operation, "operationMetrics": {name: str(value) for name, value in counts.items()}}
    lines = [{"commitInfo": info}, {"txn": {"appId": "other", "version": number}}]
    (log / f"{number:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def test_only_commits_that_change_rows_count_and_only_those_after_the_place(tmp_path: Path) -> None:
    table = tmp_path / "shop" / "orders"
    commit(table, 0, "CREATE TABLE")
    commit(table, 1, "WRITE", numFiles=2, numOutputRows=50, numOutputBytes=900)
    commit(table, 2, "OPTIMIZE", numAddedFiles=1, numRemovedFiles=9, numOutputRows=50)
    commit(table, 3, "DELETE", numDeletedRows=5, numAddedFiles=1, numRemovedFiles=1, numAddedBytes=40)
    counts = {"Inserted": 3, "Updated": 4, "Deleted": 2}
    rows = {f"numTargetRows{name}": count for name, count in counts.items()}
    commit(table, 4, "MERGE", numSourceRows=20, **rows, numTargetFilesAdded=2, numTargetFilesRemoved=1)
    location = lake_at(str(tmp_path)) / "shop" / "orders"
    whole = Counted(location, None).upto(4)
    assert (whole.source, whole.inserted, whole.updated, whole.deleted) == (70, 53, 4, 7)
    assert (whole.files_added, whole.files_removed, whole.bytes) == (5, 2, 940)
    last = Counted(location, 3).upto(4)
    assert (last.source, last.inserted, last.deleted, last.deleted_by_merge) == (20, 3, 2, 2)
    assert Counted(location, 4).upto(4) == Counted(location, None).upto(None)


def test_a_commit_that_is_gone_or_tells_nothing_counts_nothing(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    commit(table, 2, "MERGE", numSourceRows="many")
    (table / "_delta_log" / f"{1:020d}.json").write_text(json.dumps({"add": {"path": "x"}}))
    assert Counted(lake_at(str(tmp_path)) / "orders", 0).upto(2).source == 0
