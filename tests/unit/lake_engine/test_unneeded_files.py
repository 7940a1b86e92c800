"""What no version from a given one on names is removed, and every such version is read as it was, by other readers."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.files import TableFiles
from dblog_core.errors import LakeError
from dblog_core.lake_engine.tables.unneeded_files import find_needed, nearest_readable_version, remove_unneeded
from tests.unit.delta_writer.rivals import RIVALS
from tests.unit.delta_writer.tables import Row, Table, metadata, newest, protocol, row, schema_string, write_commit

DAY = 86_400
_LEFT_OUT = ("vacuums", "truncates")  # the first takes what we should


@pytest.fixture(params=[True, False], ids=["vectors", "copies"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    """One that takes deletion vectors, and one of which files are copied."""
    return Table.create_at(tmp_path, vectors=request.param)


def read_version(table: Table, version: int) -> list[Row]:
    query = QueryBuilder().register("t", DeltaTable(str(table.path), version=version))
    rows: list[Row] = pa.table(query.execute("select * from t")).to_pylist()
    return sorted(rows, key=lambda r: (r["id"], str(r["note"])))


def age(table: Table, seconds: float = DAY) -> None:
    """All files were written that long ago."""
    written = time.time() - seconds
    for path in table.path.rglob("*"):
        os.utime(path, (written, written))


def data_files(table: Table) -> set[str]:
    return {p.relative_to(table.path).as_posix() for p in table.path.rglob("*") if p.suffix in (".parquet", ".bin")} - {
        p.relative_to(table.path).as_posix() for p in (table.path / "_delta_log").rglob("*")
    }


def remove(table: Table, since: int, *, older_than: float = DAY / 2) -> int:
    return remove_unneeded(TableFiles.at(table.location()), since, before=time.time() - older_than)


@pytest.mark.parametrize("seed", range(12))
def test_every_version_that_is_kept_is_read_as_it_was(table: Table, seed: int) -> None:
    dice = random.Random(seed)
    writer = table.writer()
    rivals = [work for name, work in RIVALS.items() if name not in _LEFT_OUT]
    seen: dict[int, list[Row]] = {}
    for step in range(12):
        if dice.random() < 0.7:
            puts = [row(dice.randrange(60), f"{step}", offset=step) for _ in range(dice.randrange(1, 20))]
            puts = list({put["id"]: put for put in puts}.values())
            table.merge(writer, puts)
        else:
            dice.choice(rivals)(table)
        version = newest(table.path)
        seen[version] = read_version(table, version)
    since = dice.choice(list(seen))
    (table.path / "part-never-committed.parquet").write_bytes(b"left by a writer that died")
    age(table)
    before = data_files(table)
    needed = find_needed(TableFiles.at(table.location()), since)
    removed = remove(table, since)
    assert data_files(table) == before & needed and removed == len(before - needed) >= 1
    kept = [version for version in seen if version >= since]
    assert {version: read_version(table, version) for version in kept} == {version: seen[version] for version in kept}
    assert remove(table, since) == 0


def test_what_is_young_stays_since_its_commit_may_come(table: Table) -> None:
    writer = table.writer()
    table.merge(writer, [row(n) for n in range(10)])
    table.merge(writer, [row(n, "again", offset=1) for n in range(10)])
    version = newest(table.path)
    before = data_files(table)
    assert remove(table, version) == 0 and data_files(table) == before
    age(table)
    assert remove(table, version) > 0
    table.check()


def test_what_readers_pass_over_stays_and_checksums_go_with_their_files(table: Table) -> None:
    table.merge(table.writer(), [row(1)])
    others = ["_symlink_format_manifest/manifest", ".hidden/file.parquet", "_temporary/0/part.parquet"]
    gone = ["old.parquet", ".old.parquet.crc", "note=_x/part.parquet", "_change_data/cdc-1.parquet", "ab/d.bin"]
    for name in (*others, *gone):
        (table.path / name).parent.mkdir(parents=True, exist_ok=True)
        (table.path / name).write_bytes(b"x")
    age(table)
    assert remove(table, newest(table.path)) == len(gone) - 1
    assert all((table.path / name).exists() for name in others)
    assert not any((table.path / name).exists() for name in gone)
    table.check()


def test_change_data_of_a_kept_version_stays(table: Table) -> None:
    table.merge(table.writer(), [row(1)])
    since = newest(table.path)
    for name in ("kept", "old"):
        (table.path / "_change_data").mkdir(exist_ok=True)
        (table.path / "_change_data" / f"{name}.parquet").write_bytes(b"x")
    change = {"path": "_change_data/kept.parquet", "partitionValues": {}, "size": 1, "dataChange": False}
    write_commit(table.path, since + 1, {"cdc": change})
    age(table)
    assert remove(table, since) == 1
    assert (table.path / "_change_data" / "kept.parquet").exists()


def test_the_feed_behind_the_oldest_version_is_read_and_older_change_data_goes(tmp_path: Path) -> None:
    """That of the oldest version, too: it has rows that were deleted before."""
    table = Table.create_at(tmp_path, vectors=False)
    conf = {"delta.enableDeletionVectors": "false", "delta.enableChangeDataFeed": "true"}
    features = protocol("changeDataFeed", vectors=False)
    write_commit(table.path, 1, features, metadata(schema_string(table.fields), **conf))
    writer = table.writer()
    table.merge(writer, [row(n) for n in range(10)])
    for step in range(3):
        table.merge(writer, [row(step, "new", offset=step)])
    age(table)
    before = {path for path in data_files(table) if path.startswith("_change_data")}
    assert len(before) == 3 and remove(table, 4) > 0
    assert len(before & data_files(table)) == 1
    feed = pa.table(DeltaTable(str(table.path)).load_cdf(starting_version=5))
    kinds = sorted(zip(feed["_commit_version"].to_pylist(), feed["_change_type"].to_pylist(), strict=True))
    assert kinds == [(5, "update_postimage"), (5, "update_preimage")]


def test_nothing_goes_where_the_log_cannot_tell(table: Table) -> None:
    writer = table.writer()
    for n in range(4):
        table.merge(writer, [row(n)])
    age(table)
    before = data_files(table)
    log = table.path / "_delta_log"
    commit = (log / f"{3:020d}.json").read_bytes()
    (log / f"{3:020d}.json").unlink()
    with pytest.raises(LakeError, match="lacks commit 3"):
        remove(table, 1)
    (log / f"{3:020d}.json").write_bytes(commit + b'{"newKind": {"path": "x.parquet"}}\n')
    with pytest.raises(TableRefused, match="newKind"):
        remove(table, 1)
    (log / f"{3:020d}.json").write_bytes(commit + b'{"add": {"path": "s3://other/x.parquet"}}\n')
    with pytest.raises(TableRefused, match="outside"):
        remove(table, 1)
    assert data_files(table) == before


def test_a_version_that_is_gone_is_the_oldest_that_can_be_read(table: Table) -> None:
    writer = table.writer()
    for n in range(3):
        table.merge(writer, [row(n)])
    files = TableFiles.at(table.location())
    assert [nearest_readable_version(files, number) for number in (-1, 0, 2, 3, 9)] == [0, 0, 2, 3, 0]
    DeltaTable(str(table.path)).create_checkpoint()
    version = newest(table.path)
    for number in range(version):
        Path(table.path / "_delta_log" / f"{number:020d}.json").unlink()
    assert [nearest_readable_version(files, number) for number in (-1, 1, version, 9)] == [version] * 4
    with pytest.raises(LakeError, match="no longer shows version 1"):
        find_needed(files, 1)
