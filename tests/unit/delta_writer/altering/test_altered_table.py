"""Changed columns and properties: every reader sees them, each change is one commit, and is made once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dblog_core.delta_writer.altering.alterations import (
    FIRST,
    AddColumn,
    Change,
    DropColumns,
    RenameColumn,
    SetProperties,
    UnsetProperties,
    WidenColumn,
)
from dblog_core.delta_writer.altering.altered_table import AlteredTable, Described
from dblog_core.delta_writer.features import TableRefused
from dblog_core.errors import LakeError, LeaseLost, StagingUnavailable
from dblog_core.storage.location import Location
from tests.duckdb_reader import read_delta
from tests.unit.delta_writer.tables import (
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

MAPPING = SetProperties({"delta.columnMapping.mode": "name"})
WIDENING = SetProperties({"delta.enableTypeWidening": "true"})
TIMES = {"type": "array", "elementType": "timestamp_ntz", "containsNull": True}
FIRST_PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """With two rows, and no feature but deletion vectors."""
    table = Table.create_at(
        tmp_path, fields={"id": "long", "small": "integer", "note": "string", "_dblog_offset": "long"}
    )
    table.merge(table.writer(), [row(1, small=7), row(2, small=None)])
    return table


def alter(table: Table, *changes: Change, **options: Any) -> bool:
    return open_altered(table, **options).alter(lambda have: changes)


def open_altered(table: Table, location: Location | None = None, **options: Any) -> AlteredTable:
    return AlteredTable(location or table.location(), mark="dblog", **options)


def newest_action(table: Table, kind: str) -> dict[str, Any]:
    for version in range(newest(table.path), -1, -1):
        for action in commit_of(table.path, version):
            if kind in action:
                return dict(action[kind])
    raise AssertionError(f"the log has no {kind}")


def fields_of(table: Table) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for field in json.loads(newest_action(table, "metaData")["schemaString"])["fields"]}


def check_by_duckdb(table: Table) -> None:
    """delta-rs reads no table with widened types."""
    rows = read_delta(table.path).select(list(table.fields)).to_pylist()
    assert sorted(rows, key=lambda values: values["id"]) == table.model()


def test_an_added_column_holds_null_and_stands_where_it_should(table: Table) -> None:
    assert alter(table, AddColumn("big", "long", "id"), AddColumn("zero", "string", FIRST), AddColumn("end", "date"))
    assert list(fields_of(table)) == ["zero", "id", "big", "small", "note", "_dblog_offset", "end"]
    table.fields = {name: field["type"] for name, field in fields_of(table).items()}
    for values in table.rows.values():
        values |= {"zero": None, "big": None, "end": None}
    table.check()
    table.merge(table.writer(), [row(3, small=1, big=2**40, zero="0")])
    table.check()


def test_a_wider_type_has_the_values_of_both(table: Table) -> None:
    assert alter(table, WIDENING, WidenColumn(("small",), "long"))
    steps = [{"toType": "long", "fromType": "integer"}]
    assert fields_of(table)["small"]["metadata"] == {"delta.typeChanges": steps}
    table.fields["small"] = "long"
    table.merge(table.writer(), [row(3, small=2**40)])
    check_by_duckdb(table)
    assert "typeWidening" in newest_action(table, "protocol")["readerFeatures"]
    assert alter(table, WidenColumn(("small",), "decimal(20,4)"))
    steps.append({"toType": "decimal(20,4)", "fromType": "long"})
    assert fields_of(table)["small"]["metadata"] == {"delta.typeChanges": steps}
    assert not alter(table, WIDENING, WidenColumn(("small",), "decimal(20,4)"))


def test_columns_are_renamed_dropped_and_added_again_in_one_commit(table: Table) -> None:
    before = newest(table.path)
    changes = [MAPPING, RenameColumn(("small",), "between"), RenameColumn(("note",), "small"), DropColumns(("small",)),
               RenameColumn(("between",), "note"), AddColumn("small", "string")]  # fmt: skip
    assert alter(table, *changes) and newest(table.path) == before + 1
    about = {name: field["metadata"] for name, field in fields_of(table).items()}
    assert {name: about[name]["delta.columnMapping.id"] for name in about} == {
        "id": 1, "note": 2, "_dblog_offset": 4, "small": 5,
    }  # fmt: skip
    assert about["note"]["delta.columnMapping.physicalName"] == "small"
    assert about["small"]["delta.columnMapping.physicalName"].startswith("col-")
    assert newest_action(table, "metaData")["configuration"]["delta.columnMapping.maxColumnId"] == "5"
    assert "columnMapping" in newest_action(table, "protocol")["readerFeatures"]
    for values in table.rows.values():
        values |= {"note": values["small"], "small": None}
    table.fields = {"id": "long", "note": "integer", "_dblog_offset": "long", "small": "string"}
    table.check()
    table.merge(table.writer(), [{"id": 3, "note": 5, "small": "new", "_dblog_offset": 9}])
    table.check()


def test_an_id_of_a_dropped_column_is_not_given_again(table: Table) -> None:
    assert alter(table, MAPPING, AddColumn("last", "string"), DropColumns(("last",)), AddColumn("again", "string"))
    assert fields_of(table)["again"]["metadata"]["delta.columnMapping.id"] == 6


def test_fields_of_structs_are_mapped_widened_and_renamed(tmp_path: Path) -> None:
    inner = {"type": "struct", "fields": [{"name": "k", "type": "integer", "nullable": True, "metadata": {}}]}
    listed = {"type": "array", "elementType": inner, "containsNull": True}
    table = Table(tmp_path)
    plain = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in {"id": "long", "from": inner, "list": listed, "_dblog_offset": "long"}.items()
    ]
    schema = json.dumps({"type": "struct", "fields": plain})
    write_commit(table.path, 0, {"protocol": FIRST_PROTOCOL}, metadata(schema))
    assert alter(table, MAPPING, WIDENING, WidenColumn(("from", "k"), "long"), RenameColumn(("from", "k"), "key"))
    fields = fields_of(table)
    (key,) = fields["from"]["type"]["fields"]
    assert (key["name"], key["type"]) == ("key", "long")
    assert key["metadata"] == {
        "delta.columnMapping.id": 3,
        "delta.columnMapping.physicalName": "k",
        "delta.typeChanges": [{"toType": "long", "fromType": "integer"}],
    }
    (element,) = fields["list"]["type"]["elementType"]["fields"]
    assert element["metadata"] == {"delta.columnMapping.id": 5, "delta.columnMapping.physicalName": "k"}


@pytest.mark.parametrize(
    ("changes", "reader", "features"),
    [
        ([SetProperties({"dblog.key": "[]"})], 1, None),
        ([MAPPING], 2, {"columnMapping"}),
        ([AddColumn("at", "timestamp_ntz")], 3, {"timestampNtz"}),
        ([AddColumn("all", TIMES)], 3, {"timestampNtz"}),
        ([WIDENING, MAPPING], 3, {"typeWidening", "columnMapping"}),
    ],
)  # fmt: skip
def test_a_table_gets_the_features_that_it_needs_and_keeps_what_its_version_implies(
    tmp_path: Path, changes: Sequence[Change], reader: int, features: set[str] | None
) -> None:
    table = Table(tmp_path, vectors=False)
    conf = {"delta.enableDeletionVectors": "false"}
    write_commit(table.path, 0, {"protocol": FIRST_PROTOCOL}, metadata(schema_string(table.fields), **conf))
    table.merge(table.writer(), [row(1)])
    assert alter(table, *changes)
    now = newest_action(table, "protocol")
    assert now["minReaderVersion"] == reader
    assert set(now.get("readerFeatures", ())) == (features if reader == 3 else set())
    if features is not None:
        assert now["minWriterVersion"] == 7
        assert set(now["writerFeatures"]) == {"appendOnly", "invariants", *features}
    assert set(table.fields) <= set(table.writer().refresh().names)
    check_by_duckdb(table)
    if WIDENING not in changes:
        assert [values["note"] for values in table.read()] == ["note 1"], "as delta-rs reads it"


def test_columns_with_statistics_follow_their_names(table: Table) -> None:
    alter(table, MAPPING, SetProperties({"delta.dataSkippingStatsColumns": "id,`small`, note,_dblog_offset"}))
    alter(table, RenameColumn(("small",), "a b"), DropColumns(("note",)))
    configuration = newest_action(table, "metaData")["configuration"]
    assert configuration["delta.dataSkippingStatsColumns"] == "id,`a b`,_dblog_offset"
    assert alter(table, UnsetProperties(("delta.dataSkippingStatsColumns",)))
    assert "delta.dataSkippingStatsColumns" not in newest_action(table, "metaData")["configuration"]


def test_what_is_done_already_is_no_commit(table: Table) -> None:
    before = newest(table.path)
    text = json.loads(json.dumps(newest_action(table, "metaData")))["schemaString"]
    assert not alter(table, SetProperties({"delta.enableDeletionVectors": "true"}), UnsetProperties(("other",)))
    assert not alter(table)
    assert newest(table.path) == before
    assert alter(table, SetProperties({"dblog.key": '["id"]'}))
    assert newest_action(table, "metaData")["schemaString"] == text, "no reader sees other columns"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([DropColumns(("note",))], "a column cannot be dropped: the table does not map its columns"),
        ([RenameColumn(("note",), "x")], "a column cannot be renamed: the table does not map its columns"),
        ([WidenColumn(("small",), "long")], "column small cannot get another type"),
        ([AddColumn("NOTE", "string")], "has a column note already"),
        ([MAPPING, RenameColumn(("note",), "ID")], "has a column id already"),
        ([MAPPING, RenameColumn(("other",), "x")], "has no column other"),
        ([MAPPING, SetProperties({"delta.columnMapping.mode": "none"})], "column mapping cannot become none"),
    ],
)
def test_a_change_that_the_table_cannot_have_is_an_error(table: Table, changes: list[Change], reason: str) -> None:
    before = newest(table.path)
    with pytest.raises(LakeError, match=reason):
        alter(table, *changes)
    assert newest(table.path) == before


@pytest.mark.parametrize(
    "actions",
    [
        [protocol("icebergCompatV2")],
        [metadata(schema_string(Table(Path()).fields), **{"delta.constraints.positive": "id > 0"})],
        [metadata(schema_string(Table(Path()).fields, about={"delta.generationExpression": "id + 1"}))],
    ],
)
def test_a_table_with_what_is_not_known_is_left_to_spark(table: Table, actions: list[dict[str, Any]]) -> None:
    write_commit(table.path, newest(table.path) + 1, *actions)
    before = newest(table.path)
    with pytest.raises(TableRefused):
        alter(table, AddColumn("x", "string"))
    assert newest(table.path) == before


def _cluster_by(table: Table, *physical: str) -> None:
    domain = {"domain": "delta.clustering", "removed": False}
    domain["configuration"] = json.dumps({"clusteringColumns": [[name] for name in physical]})
    features = protocol("clustering", "domainMetadata", reader=["columnMapping"])
    write_commit(table.path, newest(table.path) + 1, features, {"domainMetadata": domain})


def test_a_column_that_a_table_is_clustered_by_stays(table: Table) -> None:
    alter(table, MAPPING)
    _cluster_by(table, "note")
    assert alter(table, RenameColumn(("note",), "remark")), "its name in files stays"
    before = newest(table.path)
    with pytest.raises(LakeError, match="the table is clustered by remark, which cannot be dropped") as error_info:
        alter(table, DropColumns(("remark",)))
    assert "CLUSTER BY NONE" in str(error_info.value.fix) and newest(table.path) == before
    assert alter(table, DropColumns(("small",)))


def test_a_table_with_times_in_its_commits_gets_one(tmp_path: Path) -> None:
    table = Table.create_at(tmp_path, tracked=True)
    table.merge(table.writer(now_ms=lambda: 10**15), [row(1)])
    assert alter(table, AddColumn("x", "string"))
    info = commit_of(table.path, newest(table.path))[0]["commitInfo"]
    assert info["inCommitTimestamp"] == 10**15 + 1


def test_a_lease_that_is_lost_commits_nothing(table: Table) -> None:
    before = newest(table.path)

    def lose() -> None:
        raise LeaseLost("another merges")

    with pytest.raises(LeaseLost):
        alter(table, AddColumn("x", "string"), check=lose)
    assert newest(table.path) == before


def test_it_is_decided_again_where_another_was_faster(table: Table) -> None:
    """The other one has added one of the columns, and put a row in."""
    ours = open_altered(table)
    raced: list[bool] = []

    def plan(have: Described) -> list[Change]:
        changes: list[Change] = [AddColumn(n, "string") for n in ("x", "y") if n not in have.shape.names]
        if not raced:
            raced.append(alter(table, AddColumn("x", "string")))
            table.fields["x"] = "string"
            table.merge(table.writer(), [row(3, small=1, x="x")])
        return changes

    assert ours.alter(plan) and list(fields_of(table))[-2:] == ["x", "y"]
    table.fields["y"] = "string"
    for values in table.rows.values():
        values |= {"x": values.get("x"), "y": None}
    table.check()


@pytest.mark.parametrize("late", [False, True])
def test_a_change_that_died_anywhere_is_made_once(table: Table, late: bool) -> None:
    before = newest(table.path)

    def change(ours: AlteredTable) -> bool:
        return ours.alter(lambda have: [] if "x" in have.shape.names else [AddColumn("x", "string")])

    probe = FaultyStorage(table.lake)
    calls = 0
    for fail_at in range(1, 50):
        storage = FaultyStorage(table.lake, fail_at=fail_at, late=late)
        try:
            change(open_altered(table, Location(storage, "table")))
        except StagingUnavailable:
            calls += 1
        if len(storage.calls) < fail_at:
            break
    assert calls >= 1 and not change(open_altered(table, Location(probe, "table")))
    assert newest(table.path) == before + 1 and list(fields_of(table)).count("x") == 1
