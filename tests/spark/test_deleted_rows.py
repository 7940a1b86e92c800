"""A row that is gone from the source is gone from every file of the lake after a while, and its old versions too."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dblog_core.lake import lake_tasks
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.lake_engine.tasks import file_upkeep
from dblog_core.maintenance import schedule
from dblog_core.maintenance.maintain_result import MaintainResult
from tests.spark.days import HOUR, ONE, Days

pytestmark = pytest.mark.one_of(6)

SECRET = "!secret"  # the smallest of its column, so that statistics name it


def _stored_values(days: Days) -> set[str]:
    """The values of v in all data files of the table's directory, live or not."""
    root = days.lake.path / days.lake.table(ONE).path
    return {v for file in root.glob("*.parquet") for v in pq.read_table(file, columns=["v"])["v"].to_pylist()}


def _files_with_secret(days: Days) -> set[str]:
    """Which kinds of files have it, below the table's directory."""
    root = days.lake.path / days.lake.table(ONE).path
    found = set[str]()
    for path in (path for path in root.rglob("*") if path.is_file()):
        name = path.name.partition(".")[2] if path.parent.name == "_delta_log" else "data"
        text = str(pq.read_table(path).to_pylist()) if path.suffix == ".parquet" else path.read_bytes().decode("latin1")
        # Parquet's own statistics may outlive a row, unlike its values.
        statistics = path.read_bytes().decode("latin1") if path.suffix == ".parquet" else ""
        found |= {name} if SECRET in text + statistics else set()
    return found


def _configure(days: Days, **settings: Any) -> None:
    lake = days.config.lake.model_copy(update=settings)
    days.config = days.config.model_copy(update={"lake": lake})


@pytest.mark.parametrize("purge_after", [None, "0s"])
def test_what_an_update_has_replaced_is_gone_from_every_file_by_its_age(
    days: Days, monkeypatch: pytest.MonkeyPatch, purge_after: str | None
) -> None:
    """One of a hundred rows: far below the share from which files are written anew at once."""
    monkeypatch.setattr(file_upkeep, "join_files", lambda table: 0)
    days.lake.vectors = True  # what a MERGE marks may be of a DELETE
    build = days.lake.build
    _configure(days, keep="2h", purge_after=purge_after)
    for n in range(100):
        build.create(ONE, {"id": n, "v": SECRET if n == 7 else f"v{n}"})
    days.merge()
    days.maintain()
    days.now += HOUR
    build.update(ONE, {"id": 7, "v": "changed"})
    days.merge()
    for hours, purged in ((0, purge_after is not None), (1, purge_after is None), (0.5, False)):
        days.now += hours * HOUR
        (table_result,) = days.maintain()["tables"]
        assert ("purged" in table_result["done"]) == purged, hours
    assert table_result["deleted"] == 0 and SECRET in _stored_values(days)  # a cut that is kept may be read still
    days.now += 3 * HOUR
    days.maintain()
    assert _files_with_secret(days) == set() and len(days.lake.rows(ONE)) == 100
    maintained = schedule.read_maintained(days.lake.location)
    assert maintained is not None and maintained.sizes[0].marked_at is None


@pytest.mark.parametrize("purge_after", [None, "forever"])
def test_a_deleted_row_leaves_the_table_with_the_next_maintenance_and_the_disk_after_keep(
    days: Days, monkeypatch: pytest.MonkeyPatch, purge_after: str | None
) -> None:
    """One of a hundred rows of a file, and its version from before an update, in another file. Files of which rows were
    updated only are not written again for it."""
    monkeypatch.setattr(file_upkeep, "join_files", lambda table: 0)
    days.lake.vectors = True
    build = days.lake.build
    _configure(days, keep="4h", purge_after=purge_after)
    for begin in (0, 100, 200):
        for n in range(begin, begin + 100):
            build.create(ONE, {"id": n, "v": f"{SECRET} first" if n == 107 else f"v{n}"})
        days.merge()
    days.maintain()
    days.now += HOUR
    for n in range(102, 108):
        build.update(ONE, {"id": n, "v": SECRET if n == 107 else "changed"})
    days.merge()
    before = _live_files(days)
    build.delete(ONE, {"id": 107})
    for n in (5, 108, 205, 206):
        build.update(ONE, {"id": n, "v": "changed"})
    days.merge()
    assert _files_with_secret(days) >= {"data", "json"}

    (table_result,) = days.maintain()["tables"]
    live = _live_files(days)
    assert not [v for file in live for v in pq.read_table(file)["v"].to_pylist() if SECRET in v]
    assert len(before - live) == 2 and len(before) == 4, "files with updates alone stay"
    assert (table_result["done"], table_result["deleted"]) == (["deletes purged"], 3)
    assert "data" in _files_with_secret(days), "a cut that is kept may be read still"

    days.now += HOUR
    assert days.maintain()["tables"][0]["done"] == []
    days.now += 3 * HOUR + 60
    (table_result,) = days.maintain()["tables"]
    assert _files_with_secret(days) == set()
    assert len(days.lake.rows(ONE)) == 299
    # What updates have replaced is as old as the delete.
    assert (table_result["deleted"] == 0) == (purge_after is None)


def _live_files(days: Days) -> set[str]:
    return set(DeltaTable(str(days.lake.table(ONE).local)).file_uris())


def test_a_maintenance_beside_merges_leaves_no_deleted_row_in_a_file(days: Days) -> None:
    """Merges continue while it is prepared; what they mark meanwhile is of the next one."""
    build = days.lake.build
    for n in range(100):
        build.create(ONE, {"id": n, "v": "secret" if n == 7 else f"v{n}"})
    days.merge()
    days.maintain()
    build.delete(ONE, {"id": 7})
    days.merge()
    days.now += 3 * HOUR
    task = lake_tasks.file_task(days.lake.location, MaintainRequest())
    merger = days.lake.merger(**days.options())
    assert merger.run_task(beside=True) is None
    build.update(ONE, {"id": 8, "v": "changed"})
    build.seal()
    merger.run_round(retry_stopped=False)
    while merger.run_task(beside=True) is None:
        merger.compact()
    outcome = lake_tasks.read_outcome(days.lake.location, task.id, MaintainResult)
    assert outcome is not None and outcome.error is None
    live = DeltaTable(str(days.lake.table(ONE).local)).file_uris()
    assert "secret" not in {v for file in live for v in pq.read_table(file, columns=["v"])["v"].to_pylist()}
    rows = {row["id"]: row["v"] for row in days.lake.rows(ONE)}
    assert rows == {n: "changed" if n == 8 else f"v{n}" for n in range(100) if n != 7}
