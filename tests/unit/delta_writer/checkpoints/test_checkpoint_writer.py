"""Our checkpoints say what the log before them says: to our snapshot, to delta-rs and to DuckDB."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.features import TableRefused
from dblog_core.lake_engine.tables import checkpoints
from dblog_core.storage.location import Location
from tests.unit.delta_writer.checkpoints.logs import (
    CLUSTERED,
    DAY_MS,
    NOW_MS,
    SETTINGS,
    actions,
    addition,
    check,
    checkpoint_file,
    content,
    files_in,
    files_of,
    forget_before,
    hint,
    log,
    removal,
    state_of,
    write,
)
from tests.unit.delta_writer.tables import (
    FaultyStorage,
    Table,
    commit_of,
    fill_table,
    metadata,
    protocol,
    row,
    schema_string,
    write_commit,
)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_checkpoint_stands_for_the_log_before_it(tmp_path: Path, settings: str) -> None:
    """One that is made of commits alone, and one that is made of the first and of later commits."""
    table = Table.create_at(tmp_path, **SETTINGS[settings])
    writer = fill_table(table)
    table.merge(writer, [row(5, "new", offset=2), row(200, "a/b %20=", offset=2)], [row(7), row(80)])
    for number in range(2):
        by_commits = snapshot.newest(files_of(table))
        write(table)
        shutil.copytree(table.path, tmp_path / f"by-rust-{number}" / "table")
        by_rust = Table(tmp_path / f"by-rust-{number}")
        for file in (checkpoint_file(by_rust), log(by_rust) / "_last_checkpoint"):
            file.unlink()
        DeltaTable(str(by_rust.path)).create_checkpoint()
        assert content(checkpoint_file(table)) == content(checkpoint_file(by_rust))
        forget_before(table, by_commits.version)
        assert state_of(snapshot.newest(files_of(table))) == state_of(by_commits)
        check(table)
        table.merge(writer, [row(5, f"later {number}", offset=3 + number), row(200, offset=3)], [row(9 + number)])
        table.merge(writer, [row(300 + number, offset=3 + number)])
        check(table)


def test_every_file_that_was_removed_is_remembered_for_a_week(tmp_path: Path) -> None:
    """VACUUM asks for it. A file with another vector is another file, and one that came back is not removed."""
    table = Table.create_at(tmp_path)
    names = ("old", "young", "untimed", "back", "same")
    write_commit(table.path, 1, *map(addition, names))
    removals = [removal("old", days=8), removal("young", days=6), removal("untimed"), removal("back", days=0)]
    write_commit(table.path, 2, *removals, addition("young", 1))
    tagged = [addition("same"), removal("same", days=0)]  # the order means nothing
    write_commit(table.path, 3, *tagged, removal("young", 1, days=6), addition("young", 9), addition("back"))
    write(table)
    assert files_in(table, "add") == {("young", 9), ("back", None), ("same", None)}
    assert files_in(table, "remove") == {("young", None), ("young", 1)}
    assert not [a for kind in ("add", "remove") for a in actions(table, kind) if a["dataChange"]]
    write_commit(
        table.path, 4, addition("y%6Fung", 1), removal("y%6Fung", 9, days=0)
    )  # the same path, written otherwise
    write(table)
    assert files_in(table, "add") == {("y%6Fung", 1), ("back", None), ("same", None)}
    assert files_in(table, "remove") == {("young", None), ("y%6Fung", 9)}
    write_commit(table.path, 5, {"txn": {"appId": "b", "version": 1}})
    write(table, NOW_MS + 2 * DAY_MS)
    assert files_in(table, "remove") == {("y%6Fung", 9)}, "those of the older checkpoint expire too"


@pytest.mark.parametrize(
    ("interval", "days"),
    [("interval 2 days", 2), ("INTERVAL 1 week 1 day", 8), ("interval 36 hours", 1.5), ("whenever", 10_000)],
)
def test_removed_files_and_transactions_are_remembered_as_the_table_says(
    tmp_path: Path, interval: str, days: float
) -> None:
    table = Table.create_at(tmp_path)
    settings = dict.fromkeys(("deletedFileRetentionDuration", "setTransactionRetentionDuration"), interval)
    ages = {"younger": days - 0.1, "older": days + 0.1 if interval != "whenever" else 19_000}
    txns = [
        {"txn": {"appId": name, "version": 1, "lastUpdated": NOW_MS - int(age * DAY_MS)}} for name, age in ages.items()
    ]
    changed = metadata(schema_string(table.fields), **{f"delta.{name}": text for name, text in settings.items()})
    write_commit(table.path, 1, changed, *txns, *(removal(name, days=age) for name, age in ages.items()))
    write(table)
    expected = {"younger"} if interval != "whenever" else {"younger", "older"}
    assert {path for path, _ in files_in(table, "remove")} == expected
    assert {txn["appId"] for txn in actions(table, "txn")} == expected


def test_what_is_forgotten_and_what_is_carried(tmp_path: Path) -> None:
    """Removed domains, old metadata and provenance are in no checkpoint; each field of a file is."""
    table = Table.create_at(tmp_path, reader=["clustering", "domainMetadata"])
    fields = {
        "stats": '{"numRecords":1}', "tags": {"a": "b", "c": None}, "baseRowId": 4, "defaultRowCommitVersion": 2,
        "clusteringProvider": "liquid", "partitionValues": {"p": None, "q": "x"},
    }  # fmt: skip
    domains = [{**CLUSTERED, "domain": name} for name in ("delta.clustering", "gone", "back")]
    write_commit(table.path, 1, addition("f", 3, **fields), *({"domainMetadata": domain} for domain in domains))
    for version in (2, 3, 4):
        write(table)
        is_removed = version == 2
        changed = [
            {"domainMetadata": {**d, "removed": is_removed}} for d in domains[1:] if is_removed or d != domains[1]
        ]
        write_commit(table.path, version, *changed, {"cdc": {"path": "c", "partitionValues": {}, "size": 1}})
    write(table)
    (add,) = actions(table, "add")
    maps = {name: sorted(pairs.items()) for name, pairs in fields.items() if isinstance(pairs, dict)}
    assert {name: sorted(v) if isinstance(v, list) else v for name, v in add.items() if name in fields} == fields | maps
    assert {a["domain"] for a in actions(table, "domainMetadata")} == {"delta.clustering", "back"}
    assert pq.read_schema(checkpoint_file(table)).names == pq.read_schema(checkpoint_file(table, 1)).names
    assert len(actions(table, "metaData")) == len(actions(table, "protocol")) == 1
    assert hint(table) == {
        "version": 4,
        "size": 5,
        "sizeInBytes": checkpoint_file(table).stat().st_size,
    }


UNKNOWN = {
    "a feature": ([protocol("fromTheFuture")], "feature fromTheFuture"),
    "a feature of readers": ([protocol(reader=["catalogManaged"])], "feature catalogManaged"),
    "a protocol": ([{"protocol": {"minReaderVersion": 4, "minWriterVersion": 8}}], "its protocol is 4, 8"),
    "an action": ([{"rename": {"from": "a"}}], "has the action rename"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_no_checkpoint_is_made_of_what_is_not_known(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table.create_at(tmp_path)
    commit, reason = UNKNOWN[what]
    write_commit(table.path, 1, *commit)
    with pytest.raises(TableRefused, match=reason):
        write(table)
    checkpoints.write(table.location())
    (line,) = caplog.messages
    assert reason in line and "\n" not in line
    assert [file.name for file in log(table).iterdir() if file.suffix != ".json"] == []


def test_an_action_of_an_older_checkpoint_that_is_not_known_is_refused(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    fill_table(table)
    write(table)
    rows = pq.read_table(checkpoint_file(table))
    unknown = [None] * (len(rows) - 1) + [{"x": 1}]
    for values, is_known in ((unknown, False), ([None] * len(rows), True)):
        pq.write_table(rows.append_column("rename", [values]), checkpoint_file(table))
        table.merge(table.writer(), [row(9, offset=table.merges)]) if is_known else write_commit(table.path, 3)
        if is_known:
            write(table)
            check(table)
            continue
        with pytest.raises(TableRefused, match="has the action rename"):
            write(table)
        (log(table) / f"{3:020d}.json").unlink()


def test_a_checkpoint_without_statistics_as_text_is_refused(tmp_path: Path) -> None:
    """Another program has made it, by a property of the table. Ours would lose them."""
    table = Table.create_at(tmp_path)
    fill_table(table)
    write(table)
    rows = pq.read_table(checkpoint_file(table))
    fields = [field for field in rows.schema.field("add").type if field.name != "stats"]
    without = rows["add"].cast(pa.struct(fields))
    pq.write_table(rows.set_column(rows.schema.names.index("add"), "add", without), checkpoint_file(table))
    write_commit(table.path, 3, {"txn": {"appId": "b", "version": 1}})
    with pytest.raises(TableRefused, match="no statistics as text"):
        write(table)


def test_storage_that_fails_is_one_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = Table.create_at(tmp_path)
    checkpoints.write(Location(FaultyStorage(table.lake, fail_at=1), "table"))
    (line,) = caplog.messages
    assert line.startswith("no checkpoint is made: ") and "storage does not answer" in line


def test_old_protocols_have_no_lists_of_features(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    write_commit(
        table.path, 0, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, commit_of(table.path, 0)[2]
    )
    write(table)
    (about,) = actions(table, "protocol")
    assert about == {
        "minReaderVersion": 1, "minWriterVersion": 2, "readerFeatures": None, "writerFeatures": None
    }  # fmt: skip


def test_the_codec_is_that_of_the_table(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    codecs = {"snappy": "SNAPPY", "none": "UNCOMPRESSED", "lz4": "ZSTD"}
    for version, (codec, written) in enumerate(codecs.items(), 1):
        schema = schema_string(table.fields)
        write_commit(table.path, version, metadata(schema, **{"delta.parquet.compression.codec": codec}))
        write(table)
        assert pq.ParquetFile(checkpoint_file(table)).metadata.row_group(0).column(0).compression == written
