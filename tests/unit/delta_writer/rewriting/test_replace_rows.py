"""All rows and columns of a table give way to others once, whatever dies and whoever commits meanwhile; and versions of
before stay as they were."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.delta_writer.altering.alterations import Change, SetProperties
from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.rewriting.replace_rows import Replacement, replace_rows
from dblog_core.delta_writer.shape import Shape
from dblog_core.errors import LeaseLost, StagingUnavailable
from dblog_core.storage.location import Location
from tests.unit.delta_writer.rivals import RIVALS, open_delta
from tests.unit.delta_writer.tables import (
    FIELDS,
    OFFSET,
    FaultyStorage,
    Row,
    Table,
    commit_of,
    live_adds,
    newest,
    row,
    schema_string,
    write_commit,
)

WIDE = {"id": "string", "note": "string", "at": "timestamp_ntz", OFFSET: "long"}
NEW: list[Row] = [{"id": f"k{i}", "note": f"new {i}", "at": None, OFFSET: i} for i in range(7)]


def wide_parts(shape: Shape) -> Iterable[pa.Table]:
    assert shape.names == list(WIDE)
    types = {"string": pa.string(), "long": pa.int64(), "timestamp_ntz": pa.timestamp("us")}
    for part in (NEW[:4], NEW[4:]):
        yield pa.table({name: pa.array([r[name] for r in part], types[kind]) for name, kind in WIDE.items()})


def replacement(
    fields: Mapping[str, str] = WIDE,
    parts: Callable[[Shape], Iterable[pa.Table]] = wide_parts,
    properties: Mapping[str, str] | None = None,
) -> Replacement:
    def plan(schema: Any, have: Mapping[str, str]) -> Sequence[Change]:
        return [SetProperties(properties)] if properties else []

    return Replacement(json.loads(schema_string(fields))["fields"], plan, parts)


def no_rows(shape: Shape) -> Iterable[pa.Table]:
    return ()


@pytest.fixture(params=["vectors", "copies", "mapped", "tracked"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Table:
    return make_table(tmp_path, request.param)


def make_table(tmp_path: Path, way: str) -> Table:
    filled = Table.create_at(tmp_path, vectors=way != "copies", mapped=way == "mapped", tracked=way == "tracked")
    writer = filled.writer()
    filled.merge(writer, [row(key, offset=1) for key in range(20)])
    filled.merge(writer, [row(key, "later", offset=2) for key in range(15, 30)], [row(1, offset=2)])
    return filled


def is_wide(table: Table) -> None:
    """The table has the new rows and columns, as two readers and the log say."""
    table.fields, table.keys = dict(WIDE), ("id",)
    table.rows = {(values["id"],): values for values in NEW}
    table.ids = {}
    if table.mapped or table.tracked:
        table.mapped = table.tracked = False  # which look for columns by their first names
    table.check()


def test_rows_and_columns_give_way_in_one_commit_and_the_version_before_stays(table: Table) -> None:
    version = newest(table.path)
    before = table.read()
    old = len(live_adds(table.path))
    done = replace_rows(table.writer(), replacement(properties={"dblog.key": "id"}), "app", 5)
    assert (done.version, done.inserted, newest(table.path)) == (version + 1, len(NEW), version + 1)
    rows = QueryBuilder().register("t", DeltaTable(str(table.path), version=version)).execute("select * from t")
    assert sorted(pa.table(rows).to_pylist(), key=lambda r: repr((r["id"],))) == before
    is_wide(table)
    actions = commit_of(table.path, version + 1)
    info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
    metrics = info["operationMetrics"]
    assert info["operation"] == "WRITE" and not info["isBlindAppend"]
    assert (metrics["numFiles"], metrics["numOutputRows"], metrics["numRemovedFiles"]) == ("2", "7", str(old))
    assert sum("remove" in action and action["remove"]["dataChange"] for action in actions) == old
    assert open_delta(table).metadata().configuration["dblog.key"] == "id"


def test_it_is_done_once(table: Table) -> None:
    replace_rows(table.writer(), replacement(), "app", 5)
    version = newest(table.path)
    for number in (4, 5):
        assert replace_rows(table.writer(), replacement(parts=no_rows), "app", number).already
    assert newest(table.path) == version
    is_wide(table)


def test_a_table_is_emptied_and_written_again(table: Table) -> None:
    writer = table.writer()
    writer.refresh()
    replace_rows(writer, replacement(FIELDS, no_rows), "app", 5)
    assert table.read() == [] and not live_adds(table.path)
    table.rows, table.ids = {}, {}
    table.merge(writer, [row(3, "again", offset=9)])
    if not table.mapped:
        table.check()
    assert table.read() == table.model()


def test_columns_that_stay_keep_their_names_in_files_and_others_get_ids_that_none_has_had(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path, mapped=True)
    table.merge(table.writer(), [row(1, offset=1)])
    replace_rows(table.writer(), replacement(), "app", 1)
    writer = table.writer()
    shape = writer.refresh()
    assert (shape["note"].physical, shape["note"].id) == ("col-1", 2)
    assert shape["id"].physical != "col-0", "of another type"
    assert {shape["id"].id, shape["at"].id} == {100, 101}
    assert writer.snapshot.metadata["configuration"]["delta.columnMapping.maxColumnId"] == "101"
    is_wide(table)


def test_a_table_that_gets_a_mapping_has_names_in_files_that_every_reader_takes(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    table.merge(table.writer(), [row(1, offset=1)])
    fields = {**FIELDS, "a b": "string"}

    def parts(shape: Shape) -> Iterable[pa.Table]:
        assert shape["a b"].physical.startswith("col-")
        yield table.arrow([row(1, offset=1)]).append_column("a b", pa.array(["x"]))

    mapped = {"delta.columnMapping.mode": "name"}
    replace_rows(table.writer(), replacement(fields, parts, mapped), "app", 1)
    protocol = table.writer()
    protocol.refresh()
    assert "columnMapping" in protocol.snapshot.protocol["readerFeatures"]
    assert table.read()[0]["a b"] == "x"


def test_a_table_gets_the_features_that_its_new_columns_need(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path, vectors=False)
    first = commit_of(table.path, 0)
    first[1]["protocol"] = {"minReaderVersion": 1, "minWriterVersion": 2}
    write_commit(table.path, 0, *first)
    replace_rows(table.writer(), replacement(), "app", 1)
    protocol = next(action["protocol"] for action in commit_of(table.path, 1) if "protocol" in action)
    assert protocol["readerFeatures"] == ["timestampNtz"] and protocol["minReaderVersion"] == 3
    is_wide(table)


def test_partitions_and_a_clustering_stay_by_columns_that_stay(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path, partitions=("note", "amount"))
    table.merge(table.writer(), [row(1, "a", offset=1), row(2, "b", offset=1)])
    replace_rows(table.writer(), replacement(), "app", 1)
    assert open_delta(table).metadata().partition_columns == ["note"]
    is_wide(table)
    (tmp_path / "other").mkdir()
    clustered = Table.create_at(tmp_path / "other")
    first = commit_of(clustered.path, 0)
    first[1]["protocol"]["writerFeatures"] += ["clustering", "domainMetadata"]
    about = {"clusteringColumns": [["amount"], ["note"]], "domainName": "delta.clustering"}
    domain = {"domain": "delta.clustering", "configuration": json.dumps(about), "removed": False}
    write_commit(clustered.path, 0, *first, {"domainMetadata": domain})
    replace_rows(clustered.writer(), replacement(), "app", 1)
    writer = clustered.writer()
    writer.refresh()
    assert writer.snapshot.clustered_by == ("note",)


@pytest.mark.parametrize("way", ["vectors", "copies"])
@pytest.mark.parametrize("name", RIVALS)
def test_what_another_program_commits_meanwhile_goes_too(tmp_path: Path, way: str, name: str) -> None:
    table = make_table(tmp_path, way)
    pending = [RIVALS[name]]

    def check() -> None:
        if pending:
            pending.pop()(table)

    replace_rows(table.writer(check=check), replacement(), "app", 5)
    assert not pending
    is_wide(table)


def test_a_property_that_is_set_meanwhile_stays_and_a_file_that_is_lost_meanwhile_is_written_again(
    tmp_path: Path,
) -> None:
    table = make_table(tmp_path, "copies")
    pending = [3]  # parts of rows, and the commit

    def check() -> None:
        pending[0] -= 1
        if not pending[0]:
            RIVALS["appends"](table)
            named = {add["path"] for add in live_adds(table.path)}
            unnamed = [path for path in table.path.glob("*.parquet") if path.name not in named]
            max(unnamed, key=lambda path: path.stat().st_mtime_ns).unlink()
        if pending[0] == -3:
            RIVALS["widens"](table)

    replace_rows(table.writer(check=check), replacement(), "app", 5)
    assert pending[0] < -3
    is_wide(table)
    assert open_delta(table).metadata().configuration["delta.logRetentionDuration"] == "interval 9 days"


@pytest.mark.parametrize("late", [False, True])
def test_a_replacement_that_died_anywhere_is_made_once_and_leaves_all_or_nothing(table: Table, late: bool) -> None:
    before = table.read()
    failed = 0
    for fail_at in range(1, 100):
        storage = FaultyStorage(table.lake, fail_at=fail_at, late=late)
        try:
            replace_rows(table.writer(Location(storage, "table")), replacement(), "app", 5)
        except StagingUnavailable:
            failed += 1
            assert table.read() == before or len(open_delta(table).file_uris()) == 2
        if len(storage.calls) < fail_at:
            break
    assert failed > 3
    is_wide(table)
    commits = [commit_of(table.path, version) for version in range(newest(table.path) + 1)]
    assert sum(any(action.get("txn", {}).get("appId") == "app" for action in commit) for commit in commits) == 1


def test_a_lease_that_is_lost_changes_nothing(table: Table) -> None:
    before = newest(table.path)

    def lost() -> None:
        raise LeaseLost("another merges")

    with pytest.raises(LeaseLost):
        replace_rows(table.writer(check=lost), replacement(), "app", 5)
    assert newest(table.path) == before


def test_a_table_of_which_a_data_file_or_the_key_is_lost_is_mended(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    table.merge(table.writer(), [row(1, offset=1)])
    (table.path / live_adds(table.path)[0]["path"]).unlink()
    table.keys = ("no longer there",)
    replace_rows(table.writer(), replacement(), "app", 5)
    is_wide(table)


def test_a_table_that_only_grows_stays_as_it_is(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path)
    open_delta(table).alter.set_table_properties({"delta.appendOnly": "true"}, raise_if_not_exists=False)
    version = newest(table.path)
    with pytest.raises(TableRefused, match="appended rows alone"):
        replace_rows(table.writer(), replacement(), "app", 5)
    assert newest(table.path) == version
