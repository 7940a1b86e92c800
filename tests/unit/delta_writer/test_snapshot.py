"""A snapshot is what the log tells: from any checkpoint, through any commit, and never older than it could be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.errors import LakeError
from tests.unit.delta_writer.tables import (
    APP,
    FIELDS,
    FaultyStorage,
    Table,
    commit_of,
    metadata,
    newest,
    protocol,
    row,
    schema_string,
    write_commit,
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    new_table = Table.create_at(tmp_path)
    writer = new_table.writer()
    new_table.merge(writer, [row(i, offset=1) for i in range(50)])
    new_table.merge(writer, [row(60, offset=2)], [row(3), row(4)])
    return new_table


def files_of(table: Table) -> TableFiles:
    return TableFiles.at(table.location())


def read(table: Table, known_snapshot: Snapshot | None = None) -> Snapshot:
    return snapshot.newest(files_of(table), known_snapshot)


def without_actions(table_snapshot: Snapshot) -> tuple[Any, ...]:
    """What two ways to a snapshot must agree on; a checkpoint tells `dataChange` anew."""
    files = {p: (f.size, f.rows, f.vector) for p, f in table_snapshot.files.items()}
    return (
        table_snapshot.version,
        files,
        dict(table_snapshot.txns),
        table_snapshot.metadata["id"],
        table_snapshot.metadata["schemaString"],
    )


def log(table: Table) -> Path:
    return table.path / "_delta_log"


def forget_commits(table: Table, upto: int) -> None:
    for version in range(upto + 1):
        (log(table) / f"{version:020d}.json").unlink()


def test_a_checkpoint_tells_the_same_as_the_commits(table: Table) -> None:
    by_commits = read(table)
    assert by_commits.version == 2 and by_commits.txns == {APP: 2}
    DeltaTable(str(table.path)).create_checkpoint()
    forget_commits(table, 1)
    assert without_actions(read(table)) == without_actions(by_commits)
    table.merge(table.writer(), [row(5, "after", offset=3)], [row(6)])
    assert table.read() == table.model()


def test_a_checkpoint_in_parts_is_read(table: Table) -> None:
    by_commits = read(table)
    DeltaTable(str(table.path)).create_checkpoint()
    whole = next(log(table).glob("*.checkpoint.parquet"))
    rows = pq.read_table(whole)
    for part in (1, 2, 3):
        chosen = rows.slice((part - 1) * len(rows) // 3, part * len(rows) // 3 - (part - 1) * len(rows) // 3)
        pq.write_table(chosen, log(table) / f"{2:020d}.checkpoint.{part:010d}.{3:010d}.parquet")
    whole.unlink()
    forget_commits(table, 1)
    for hint in ({"version": 2, "size": 9, "parts": 3}, {"version": 1, "size": 1}, {"version": "two"}, None):
        (log(table) / "_last_checkpoint").unlink(missing_ok=True)
        if hint is not None:
            (log(table) / "_last_checkpoint").write_text(json.dumps(hint))
        assert without_actions(read(table)) == without_actions(by_commits), hint
    next(log(table).glob("*.checkpoint.0000000002.*")).unlink()
    with pytest.raises(LakeError, match="no Delta table, or its log begins late"):
        read(table)


def test_an_old_checkpoint_that_is_said_to_be_the_newest_is_followed_to_the_end(table: Table) -> None:
    DeltaTable(str(table.path)).create_checkpoint()
    hint = (log(table) / "_last_checkpoint").read_text()
    writer = table.writer()
    table.merge(writer, [row(7, "later", offset=3)])
    table.merge(writer, [row(8, "later", offset=4)])
    by_commits = read(table)
    DeltaTable(str(table.path)).create_checkpoint()
    (log(table) / "_last_checkpoint").write_text(hint)
    forget_commits(table, 3)
    assert without_actions(read(table)) == without_actions(by_commits)
    (log(table) / f"{4:020d}.json").unlink()
    assert read(table).version == 4, "the checkpoint of a version tells of it as well"


def test_a_snapshot_of_a_log_that_was_cleaned_is_read_anew(table: Table) -> None:
    """Nothing behind version 2 is there, and it is still not the newest."""
    snapshot_before = read(table)
    writer = table.writer()
    for i in range(3):
        table.merge(writer, [row(i, "later", offset=3 + i)])
    DeltaTable(str(table.path)).create_checkpoint()
    forget_commits(table, 4)
    assert read(table, snapshot_before).version == 5


def test_a_table_in_the_place_of_one_that_a_checkpoint_told_of_is_read_anew(table: Table) -> None:
    DeltaTable(str(table.path)).create_checkpoint()
    files = TableFiles.at(table.location())
    of_checkpoint = snapshot.newest(files)
    shutil.rmtree(table.path)
    other = Table.create_at(table.lake)
    writer = other.writer()
    for i in range(4):
        other.merge(writer, [row(i, offset=1)])
    read_anew = snapshot.newest(files, of_checkpoint)
    assert read_anew.table_id != of_checkpoint.table_id
    assert read_anew.files.keys() == writer.snapshot.files.keys()


def test_a_snapshot_follows_commit_by_commit(table: Table) -> None:
    snapshot_before = read(table)
    files = dict(snapshot_before.files)
    write_deltalake(str(table.path), table.arrow([row(900)]), mode="append")
    later = read(table, snapshot_before)
    assert later.version == 3 and len(later.files) == len(files) + 1
    assert dict(snapshot_before.files) == files, "the one before stays as it was"
    assert without_actions(later) == without_actions(read(table))


def test_the_order_in_a_commit_means_nothing(table: Table) -> None:
    expected = without_actions(read(table))
    write_commit(table.path, 2, *reversed(commit_of(table.path, 2)))
    assert without_actions(read(table)) == expected


def test_the_vector_tells_which_file_is_removed(table: Table) -> None:
    snapshot_before = read(table)
    path, live = next((p, f) for p, f in snapshot_before.files.items() if f.vector)
    stale = {"remove": {"path": path, "dataChange": True, "deletionTimestamp": 0}}
    write_commit(table.path, 3, stale)
    assert path in read(table).files, "the file with another vector is another file"
    write_commit(table.path, 4, {"add": {**live.add, "deletionVector": {**live.add["deletionVector"], "offset": 99}}})
    with pytest.raises(LakeError, match="does not remove the file's previous entry"):
        read(table)


def test_paths_are_decoded_once(table: Table) -> None:
    snapshot_before = read(table)
    path, live = next(iter(snapshot_before.files.items()))
    (table.path / "a dir").mkdir()
    shutil.copy(table.path / path, table.path / "a dir" / "100%.parquet")
    add = {k: v for k, v in live.add.items() if k != "deletionVector"}
    write_commit(table.path, 3, {"add": {**add, "path": "a%20dir/100%25.parquet"}})
    assert "a dir/100%.parquet" in read(table).files
    upsert(table.writer(), table.changes([row(1, "new", offset=9)]), APP, 9)
    removed = [a["remove"]["path"] for a in commit_of(table.path, 4) if "remove" in a]
    assert "a%20dir/100%25.parquet" in removed, "as the log has it"
    assert [r["note"] for r in table.read("id = 1")] == ["new"]


@pytest.mark.parametrize(
    "action",
    [
        {"rename": {"from": "a"}},
        {"sidecar": {"path": "a"}},
        {"add": {"path": "s3://elsewhere/a.parquet", "size": 1, "partitionValues": {}}},
        {"add": {"path": "/elsewhere/a.parquet", "size": 1, "partitionValues": {}}},
    ],
)
def test_what_is_not_known_is_refused(table: Table, action: dict[str, Any]) -> None:
    write_commit(table.path, 3, action)
    with pytest.raises(TableRefused):
        read(table)


def test_a_damaged_commit_is_an_error(table: Table) -> None:
    (log(table) / f"{3:020d}.json").write_text('{"add": {"pa')
    with pytest.raises(LakeError, match=r"00003.json: a commit of the table's log cannot be read"):
        read(table)


def test_a_damaged_checkpoint_is_an_error(table: Table) -> None:
    DeltaTable(str(table.path)).create_checkpoint()
    next(log(table).glob("*.checkpoint.parquet")).write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(LakeError, match="a checkpoint of the table's log cannot be read"):
        read(table)


V2_NAME = f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"


@pytest.mark.parametrize("form", ["sidecar", "sidecar by its url", "inline"])
def test_a_checkpoint_of_the_v2_form_is_read(table: Table, form: str) -> None:
    """Made of the classic one as PROTOCOL.md describes it."""
    before = read(table)
    assert before.version == 2
    DeltaTable(str(table.path)).create_checkpoint()
    (classic,) = log(table).glob("*.checkpoint.parquet")
    (log(table) / "_last_checkpoint").unlink()
    actions = [
        {name: part for name, part in action.items() if name in ("txn", "metaData", "protocol")}
        for version in range(3)
        for action in commit_of(table.path, version)
    ]
    adds = [{"add": live.add} for live in before.files.values()]
    sidecar = log(table) / "_sidecars" / "part one.parquet"
    sidecar.parent.mkdir()
    pq.write_table(pq.read_table(classic, columns=["add", "remove"]), sidecar)
    path = "part%20one.parquet" if form == "sidecar" else str(sidecar)
    files = adds if form == "inline" else [{"sidecar": {"path": path, "sizeInBytes": 1, "modificationTime": 1}}]
    lines = [{"checkpointMetadata": {"version": 2}}, *filter(None, actions), *files]
    (log(table) / V2_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    classic.unlink()
    forget_commits(table, 2)
    assert {path: live.add["size"] for path, live in read(table).files.items()} == {
        path: live.add["size"] for path, live in before.files.items()
    }
    assert (read(table).txns, read(table).metadata["id"]) == (before.txns, before.metadata["id"])
    (log(table) / V2_NAME).write_text('{"sidecar": ')
    with pytest.raises(LakeError, match="a checkpoint of the table's log cannot be read"):
        read(table)


def test_no_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match="there is no Delta table"):
        read(Table(tmp_path))


REFUSED = {
    "a catalog": ([protocol(reader=["catalogManaged"])], "reader feature catalogManaged"),
    "Iceberg": ([protocol("icebergCompatV2")], "feature icebergCompatV2"),
    "what comes some day": ([protocol("fromTheFuture")], "feature fromTheFuture"),
    "a newer protocol": ([{"protocol": {"minReaderVersion": 4, "minWriterVersion": 8}}], "its protocol is 4, 8"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_protocol_that_is_not_known_is_refused(table: Table, what: str) -> None:
    actions, reason = REFUSED[what]
    write_commit(table.path, 3, *actions)
    with pytest.raises(TableRefused, match=reason):
        upsert(table.writer(), table.changes([row(1)]), APP, 9)
    assert newest(table.path) == 3


@pytest.mark.parametrize(
    ("configuration", "reason"),
    [
        ({"delta.appendOnly": "true"}, "appended rows alone"),
        ({"delta.enableRowTracking": "true"}, "its rows are tracked, and its property .*RowIdColumnName is missing"),
        ({"delta.constraints.positive": "id > 0"}, "constraint positive"),
        ({"delta.columnMapping.mode": "magic"}, "column mapping is magic"),
        ({"delta.parquet.compression.codec": "lz4"}, "compressed by lz4"),
        ({"delta.parquet.format.version": "2.12.0"}, "format 2.12.0"),
    ],
)
def test_a_property_that_asks_for_more_is_refused(table: Table, configuration: dict[str, str], reason: str) -> None:
    write_commit(table.path, 3, metadata(schema_string(FIELDS), **configuration))
    with pytest.raises(TableRefused, match=reason):
        upsert(table.writer(), table.changes([row(1)]), APP, 9)


@pytest.mark.parametrize(
    "about",
    [
        {"delta.invariants": "{}"},
        {"delta.generationExpression": "1"},
        {"delta.identity.start": 1},
        {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"},
        {"__COLLATIONS": {"note": "UNICODE_CI"}},
    ],
)
def test_a_column_that_asks_for_more_is_refused(table: Table, about: dict[str, Any]) -> None:
    write_commit(table.path, 3, metadata(schema_string(FIELDS, about=about)))
    with pytest.raises(TableRefused, match="column id has"):
        upsert(table.writer(), table.changes([row(1)]), APP, 9)


@pytest.mark.parametrize("kind", ["void", "interval year"])
def test_a_type_that_is_not_known_is_refused(table: Table, kind: str) -> None:
    write_commit(table.path, 3, metadata(schema_string({**FIELDS, "more": kind})))
    with pytest.raises(TableRefused, match=f"column more is of type {kind}"):
        upsert(table.writer(), table.changes([row(1)]), APP, 9)


def test_a_column_of_a_clustering_without_statistics_is_refused(table: Table) -> None:
    domain = {"domain": "delta.clustering", "configuration": '{"clusteringColumns":[["note"]]}', "removed": False}
    statistics = {"delta.dataSkippingStatsColumns": "id,_dblog_offset", "delta.enableDeletionVectors": "true"}
    features = protocol("clustering", "domainMetadata", vectors=True)
    write_commit(table.path, 3, features, metadata(schema_string(FIELDS), **statistics), {"domainMetadata": domain})
    with pytest.raises(TableRefused, match="clustered by columns without statistics: note"):
        upsert(table.writer(), table.changes([row(1)]), APP, 9)
    write_commit(table.path, 4, {"domainMetadata": {**domain, "removed": True}})
    assert upsert(table.writer(), table.changes([row(1)]), APP, 9).version == 5


@pytest.mark.parametrize(("column", "kind"), [("v", "binary"), ("v", "double"), ("v", '{"type":"array"}')])
def test_a_partition_whose_values_have_no_text_is_refused(table: Table, column: str, kind: str) -> None:
    changed = metadata(schema_string({**FIELDS, column: kind}))
    changed["metaData"]["partitionColumns"] = [column]
    write_commit(table.path, 3, changed)
    with pytest.raises(TableRefused, match=f"partitioned by {column}|column {column} is of type"):
        upsert(table.writer(), table.changes([row(1)]), APP, 9)


def test_names_of_features_without_their_use_are_fine(table: Table) -> None:
    """As Delta leaves them on a table that came from protocol 1, 2."""
    write_commit(table.path, 3, protocol("appendOnly", "invariants", "checkConstraints", "changeDataFeed"))
    table.merges = 8
    table.merge(table.writer(), [row(1, "new", offset=9)])
    table.check()


def test_a_warm_snapshot_costs_two_requests(table: Table) -> None:
    storage = FaultyStorage(table.lake)
    files = TableFiles(type(table.location())(storage, "table"))
    newest_version = snapshot.newest(files)
    storage.calls.clear()
    snapshot.newest(files, newest_version)
    assert len(storage.calls) == 2, storage.calls


def test_an_older_version_is_read_from_any_start(table: Table) -> None:
    """Of the log alone, from a checkpoint below it, and from an earlier snapshot; a newer one is of no use."""
    files = files_of(table)
    whole = [read_at(table, version) for version in range(3)]
    assert [(s.version, len(s.files)) for s in whole] == [(0, 0), (1, 1), (2, 2)]
    for earlier in whole:
        for version in range(3):
            again = snapshot.at_version(files, version, earlier)
            assert without_actions(again) == without_actions(whole[version])
    DeltaTable(str(table.path)).create_checkpoint()
    table.merge(table.writer(), [row(70, offset=3)])
    forget_commits(table, 1)
    assert without_actions(read_at(table, 2)) == without_actions(whole[2])
    assert read_at(table, 3).version == 3


def read_at(table: Table, version: int) -> Snapshot:
    return snapshot.at_version(files_of(table), version)


def test_an_older_version_of_another_table_in_its_place_is_not_mixed_in(table: Table, tmp_path: Path) -> None:
    before = read_at(table, 1)
    shutil.rmtree(table.path)
    other = Table.create_at(tmp_path)
    other.merge(other.writer(), [row(1, offset=1)])
    assert snapshot.at_version(files_of(other), 1, before).table_id == read(other).table_id


@pytest.mark.parametrize("version", [0, 5])
def test_a_version_that_the_log_does_not_show_is_an_error(table: Table, version: int) -> None:
    DeltaTable(str(table.path)).create_checkpoint()
    forget_commits(table, 1)
    with pytest.raises(LakeError, match=f"no longer shows version {version}"):
        read_at(table, version)
