"""A checkpoint is whole or absent, whatever fails, dies or lies while it is made."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from deltalake import DeltaTable

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.checkpoints.checkpoint_writer import write_checkpoint
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.errors import LakeError, StagingError
from dblog_core.storage.location import Location
from tests.simulation.storage import Disk
from tests.unit.delta_writer.checkpoints.logs import (
    DAY_MS,
    NOW_MS,
    check,
    checkpoint_file,
    forget_before,
    hint,
    log,
    random_log,
    state_of,
    write,
)
from tests.unit.delta_writer.tables import (
    APP,
    FaultyStorage,
    Table,
    fill_table,
    row,
    write_commit,
)
from tests.unit.lying_storage import Lying, land


def test_a_checkpoint_that_is_there_stays_and_the_hint_never_goes_back(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_table(table)
    write(table)
    first = checkpoint_file(table).read_bytes()
    write(table, NOW_MS + 30 * DAY_MS)
    assert checkpoint_file(table).read_bytes() == first
    for hinted in ({"version": 9, "size": 1}, {"version": 2, "size": 99, "parts": 2}):
        (log(table) / "_last_checkpoint").write_text(json.dumps(hinted))
        write(table)
        assert hint(table) == hinted
    for stale in ('{"version": 1, "size": 1}', "nothing", None):
        (log(table) / "_last_checkpoint").unlink()
        if stale is not None:
            (log(table) / "_last_checkpoint").write_text(stale)
        (log(table) / "._last_checkpoint.crc").write_text("of the stale one")
        write(table)
        assert hint(table)["version"] == 2 and not (log(table) / "._last_checkpoint.crc").exists()
        assert checkpoint_file(table).read_bytes() == first


def test_a_log_without_commits_of_the_newest_version_has_nothing_to_write(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_table(table)
    write(table)
    for commit in log(table).glob("*.json"):
        commit.unlink()
    before = sorted(log(table).iterdir())
    write(table)
    assert sorted(log(table).iterdir()) == before


def test_a_log_with_a_gap_has_no_checkpoint(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_table(table)
    (log(table) / f"{1:020d}.json").unlink()
    with pytest.raises(LakeError, match=r"the table's log lacks _delta_log/0+1\.json"):
        write(table)
    shutil.rmtree(log(table))
    with pytest.raises(LakeError, match="there is no Delta table"):
        write(table)


def test_a_log_that_is_cleaned_meanwhile_is_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table.create_at(tmp_path)
    writer = fill_table(table)
    read = TableFiles.read

    def read_late(files: TableFiles, path: str) -> bytes | None:
        if path.endswith("01.json"):
            DeltaTable(str(table.path)).create_checkpoint()
            forget_before(table, 2)
            write_commit(table.path, 3, {"txn": {"appId": "b", "version": 1}})
        return read(files, path)

    monkeypatch.setattr(TableFiles, "read", read_late)
    write(table)
    assert hint(table)["version"] == 3
    writer.refresh()
    assert writer.snapshot.txns == {APP: 2, "b": 1} and table.read() == table.model()


def test_a_table_that_was_replaced_meanwhile_gets_no_checkpoint_of_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was stopped for long."""
    table = Table.create_at(tmp_path)
    fill_table(table)
    create = TableFiles.create
    other = Table(tmp_path)

    def create_late(files: TableFiles, path: str, data: Any) -> bool:
        monkeypatch.undo()
        shutil.rmtree(table.path)
        other.merge(Table.create_at(tmp_path).writer(), [row(1, "of the other table")])
        return create(files, path, data)

    monkeypatch.setattr(TableFiles, "create", create_late)
    with pytest.raises(LakeError, match="commit 2 was replaced or removed"):
        write(table)
    check(other)
    assert {file.suffix for file in log(other).iterdir()} == {".json"}


@pytest.mark.parametrize("late", [False, True])
def test_whatever_fails_the_table_is_read_and_the_next_checkpoint_is_made(tmp_path: Path, late: bool) -> None:
    """At every call of the storage, before it has done anything, and after all of it."""
    base = Table.create_at(tmp_path / "base")
    writer = fill_table(base)
    write(base)
    base.merge(writer, [row(1, "new", offset=2)], [row(2)])
    counted = FaultyStorage(shutil.copytree(base.lake, tmp_path / "counted"))
    write_checkpoint(TableFiles.at(Location(counted, "table")), NOW_MS)
    calls = counted.calls
    changes = [call.split()[0] for call in calls if call.split()[0] not in ("read", "names")]
    assert changes == ["create", "remove", "replace"]
    for number in range(1, len(calls) + 1):
        for error in (Killed(), None):
            table = Table(tmp_path / f"{number}-{error is None}", rows=base.rows, merges=base.merges)
            shutil.copytree(base.lake, table.lake)
            faulty = FaultyStorage(table.lake, fail_at=number, late=late, error=error)
            with pytest.raises((Killed, StagingError)):
                write_checkpoint(TableFiles.at(Location(faulty, "table")), NOW_MS)
            check(table)
            write(table)
            assert hint(table)["version"] == 3
            forget_before(table, 3)
            check(table)


class Killed(BaseException):
    """The process died here."""


def test_a_storage_that_lies_spoils_no_checkpoint() -> None:
    """A file that it has made is denied, or comes later, when the log has gone on."""
    dice = random.Random(4)
    count = 0
    for _ in range(20):
        disk = Disk()
        late: list[tuple[str, bytes]] = []
        storage = Lying(disk, dice, late)
        files = TableFiles(Location(storage, "table"))
        for version, commit in enumerate(random_log(dice, 12)):
            path = f"table/_delta_log/{version:020d}.json"
            disk.put(path, b"".join(orjson.dumps(action) + b"\n" for action in commit), durable=True)
            if dice.random() < 0.5:
                try:
                    write_checkpoint(files, NOW_MS)
                except StagingError:
                    land(disk, dice, late)
        by_commits = _by_commits_alone(disk)
        count += any(path.endswith(".parquet") for path in disk.files)
        assert state_of(snapshot.newest(files)) == state_of(by_commits)
        while late:
            land(disk, dice, late)
        assert state_of(snapshot.newest(files)) == state_of(by_commits)
    assert count > 10


def _by_commits_alone(disk: Disk) -> Snapshot:
    commits = Disk()
    for path, data in disk.files.items():
        if path.endswith(".json"):
            commits.put(path, data, durable=True)
    return snapshot.newest(TableFiles(Location(Lying(commits, random.Random(0), []), "table")))
