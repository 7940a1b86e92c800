"""Somebody gives a lake table a feature of Delta: the merge keeps to it, or stops that table."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from delta.tables import DeltaTable
from deltalake import DeltaTable as RustTable

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.rewriting.update_rows import RowUpdate, update_rows
from dblog_core.lake.lake_status import State, TableStatus, read_status
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging.merge_results import Applied, Merged
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.model.schema import TableSchema
from tests.spark.lakes import TestLake
from tests.spark.segments import Row, table

pytestmark = [pytest.mark.one_of(6), pytest.mark.in_turn("process")]

T = table("t", id=pa.int64(), v=pa.string(), n=pa.int64())
OTHER = table("other", id=pa.int64())


_SET = "ALTER TABLE {{}} SET TBLPROPERTIES ({})"
FEATURES = {
    "ALTER TABLE {} ADD CONSTRAINT few CHECK (id < 1000)": "it has the constraint few",
    _SET.format("'delta.appendOnly' = 'true'"): "it takes appended rows alone",
    _SET.format("'delta.parquet.format.version' = '2.12.0'"): "its files are of Parquet's format 2.12.0",
}
"""By the statement about the table, whose name is `{}`, why the merge does not write it."""
TAKEN = {
    "row tracking": "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    "a change data feed": "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "times in commits": "ALTER TABLE {} SET TBLPROPERTIES ('delta.enableInCommitTimestamps' = 'true')",
    "clustering": "ALTER TABLE {} CLUSTER BY (v)",
    "checkpoints of another form": "ALTER TABLE {} SET TBLPROPERTIES ('delta.checkpointPolicy' = 'v2')",
}
"""Statements about the table, whose name is `{}`: features that the merge keeps to without Spark."""


class Model:
    """The lake table, and what its rows should be."""

    def __init__(self, lake: TestLake, *, is_left_open: bool) -> None:
        """`is_left_open`: one process makes all merges, and knows the table as its own last merge has left it."""
        self.lake = lake
        self.is_left_open = is_left_open
        self._merger: Merger | None = None
        if is_left_open:
            self.open_merger()
        self.rows: dict[int, Row] = {}
        for i in range(1, 7):
            self.put(i, "a")
        self.merge_well()
        assert self.engine == "dblog"

    def open_merger(self) -> None:
        """Another process, which stays."""
        self._merger = self.lake.merger()

    def put(self, number: int, v: str | None, *, keeps_v: bool = False) -> None:
        """Inserts or updates a row. `keeps_v`: the log leaves out the value of `v`, which stays."""
        n = self.lake.build.offset
        row = {"id": number, "v": v, "n": n}
        if keeps_v:
            self.lake.build.update(T, {**row, "v": None}, unchanged=["v"])
            row["v"] = self.rows[number]["v"]
        elif number in self.rows:
            self.lake.build.update(T, row)
        else:
            self.lake.build.create(T, row)
        self.rows[number] = row

    def delete(self, number: int) -> None:
        self.lake.build.delete(T, {"id": number})
        self.rows.pop(number)

    def merge(self) -> list[Merged]:
        self.lake.build.seal()
        if self._merger is None:
            return self.lake.merge()
        merges = []
        while (merged := self._merger.run_round(retry_stopped=not merges)) is not None:
            merges.append(merged)
        return merges

    def merge_well(self) -> None:
        errors = [applied.error for merged in self.merge() for applied in merged.tables if applied.error]
        assert not errors, errors

    def sql(self, statement: str) -> None:
        self.lake.spark.newSession().sql(statement.format(f"delta.`{self.lake.table(T)}`")).collect()

    @property
    def engine(self) -> str:
        """Which engine has made the newest commit."""
        return str(self.lake.newest_commit(T).engineInfo)

    def check(self) -> None:
        """Spark and delta-rs read what the model says."""
        expected_rows = [self.rows[i] for i in sorted(self.rows)]
        assert self.lake.rows(T) == expected_rows
        assert [{name: row[name] for name in ("id", "v", "n")} for row in self.lake.rust_rows(T)] == expected_rows


@pytest.fixture(params=["new processes", "one process"])
def process(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(lake: TestLake, process: str) -> Model:
    return Model(lake, is_left_open=process == "one process")


@pytest.fixture
def marked_table(lake: TestLake, process: str) -> Model:
    """A table that takes deletion vectors, whichever way it is that the lake's tables are written."""
    lake.vectors = True
    return Model(lake, is_left_open=process == "one process")


def _status(lake: TestLake, schema: TableSchema = T) -> TableStatus:
    status = read_status(lake.location)
    assert status is not None
    return status.tables[str(schema.table)]


@pytest.mark.parametrize("what", FEATURES)
def test_a_table_with_a_feature_that_is_not_known_stops_alone_until_it_is_gone(marked_table: Model, what: str) -> None:
    """The error has the statement that removes it."""
    marked_table.sql(what)
    for v in ("b", "c"):
        marked_table.put(2, v)
        marked_table.put(4, None, keeps_v=True)  # a value that only the table has
        marked_table.put(7, v)
        error = _stop(marked_table)
        assert FEATURES[what] in error
    fix = re.search(r"run in Spark: (ALTER TABLE .*); merges continue by themselves", error)
    assert fix is not None, error
    marked_table.sql(fix[1])
    marked_table.delete(3)
    marked_table.merge_well()
    assert marked_table.engine == "dblog"
    marked_table.check()


@dataclass(frozen=True, slots=True)
class Tracked:
    """What Spark says of a row: its id, and the version that last changed it."""

    row_id: int
    version: int


def _read_tracked(model: Model) -> dict[int, Tracked]:
    rows = model.lake.spark.read.format("delta").load(str(model.lake.table(T)))
    columns = rows.select("id", "_metadata.row_id", "_metadata.row_commit_version").collect()
    assert len({row.row_id for row in columns}) == len(columns), "two rows have one id"
    return {row.id: Tracked(row.row_id, row.row_commit_version) for row in columns}


def _changes(model: Model, first: int) -> list[tuple[int, str, int, str | None, int]]:
    """The change data feed from a version on, as Spark and delta-rs read it alike."""
    path = str(model.lake.table(T))
    feed = model.lake.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", first)
    names = ["_commit_version", "_change_type", "id", "v", "n"]
    by_spark = [tuple(row) for row in feed.load(path).select(*names).collect()]
    read = pa.table(RustTable(path).load_cdf(starting_version=first))
    by_rust = list(zip(*(read[name].to_pylist() for name in names), strict=True))
    assert sorted(map(repr, by_spark)) == sorted(map(repr, by_rust))
    return sorted(by_spark, key=repr)


def _merge_twice(model: Model) -> None:
    for keeps_v in (False, True):  # a value that only the table has
        model.put(2, "b")
        model.put(4, None, keeps_v=keeps_v)
        model.put(7 + keeps_v, "new")
        model.delete(3 + 2 * keeps_v)
        model.merge_well()
        assert model.engine == "dblog"
        model.check()


@pytest.mark.parametrize("what", TAKEN)
def test_a_feature_is_kept_to_without_spark(marked_table: Model, what: str) -> None:
    marked_table.sql(TAKEN[what])
    _merge_twice(marked_table)
    # Spark reads the log, and goes on from it.
    marked_table.sql("OPTIMIZE {}")
    marked_table.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.logRetentionDuration' = 'interval 9 days')")
    times = marked_table.lake.spark.sql(f"DESCRIBE HISTORY delta.`{marked_table.lake.table(T)}`").collect()
    assert [row.version for row in sorted(times, key=lambda row: row.timestamp)] == list(range(len(times)))
    marked_table.put(2, "after")
    marked_table.merge_well()
    assert marked_table.engine == "dblog"
    marked_table.check()


def test_all_features_together_are_kept_to(marked_table: Model) -> None:
    for what in TAKEN:
        marked_table.sql(TAKEN[what])
    before = _read_tracked(marked_table)
    _merge_twice(marked_table)
    after = _read_tracked(marked_table)
    assert {number: after[number].row_id for number in (1, 2, 4, 6)} == {
        number: before[number].row_id for number in (1, 2, 4, 6)
    }
    _changes(marked_table, int(_status(marked_table.lake).version or 0))
    marked_table.sql("OPTIMIZE {}")
    marked_table.check()


def test_a_row_keeps_its_id_and_a_copied_one_its_version(model: Model) -> None:
    model.sql(TAKEN["row tracking"])
    first = _read_tracked(model)
    model.put(2, "b")
    model.put(7, "new")
    model.delete(3)
    model.merge_well()
    version = _status(model.lake).version
    then = _read_tracked(model)
    assert then == {
        **{number: first[number] for number in (1, 4, 5, 6)},
        2: Tracked(first[2].row_id, version),
        7: Tracked(then[7].row_id, version),
    }
    assert then[7].row_id > max(row.row_id for row in first.values())
    table = OpenTable(model.lake.table(T), ("id",), order=OFFSET, mark=COMMIT_MARK)
    assert join_files(table) == 2
    assert _read_tracked(model) == then, "files were joined, and no row has changed"
    model.put(2, "c")
    model.merge_well()
    assert _read_tracked(model) == {**then, 2: Tracked(first[2].row_id, _status(model.lake).version)}
    model.check()


def test_the_change_data_feed_has_the_rows_of_a_merge(marked_table: Model) -> None:
    marked_table.sql(TAKEN["a change data feed"])
    old = {number: dict(row) for number, row in marked_table.rows.items()}
    marked_table.put(2, "b")
    marked_table.put(7, "new")
    marked_table.delete(3)
    marked_table.merge_well()
    version = _status(marked_table.lake).version
    assert version is not None and marked_table.engine == "dblog"
    assert _changes(marked_table, version) == sorted(
        [
            (version, "delete", 2, "a", old[2]["n"]),
            (version, "delete", 3, "a", old[3]["n"]),
            (version, "insert", 2, "b", marked_table.rows[2]["n"]),
            (version, "insert", 7, "new", marked_table.rows[7]["n"]),
        ],
        key=repr,
    )
    table = OpenTable(marked_table.lake.table(T), ("id",), order=OFFSET, mark=COMMIT_MARK)
    assert join_files(table) == 2
    assert _changes(marked_table, version + 1) == [], "files were joined, and no row has changed"
    marked_table.put(1, "c")
    marked_table.delete(7)
    marked_table.merge_well()
    changed = [(kind, number) for _, kind, number, _, _ in _changes(marked_table, version + 1)]
    assert changed == [("delete", 1), ("delete", 7), ("insert", 1)]


def test_the_change_data_feed_of_a_table_without_vectors_has_the_rows_of_a_merge(lake: TestLake) -> None:
    lake.vectors = False
    model = Model(lake, is_left_open=True)
    model.sql(TAKEN["a change data feed"])
    old = {number: dict(row) for number, row in model.rows.items()}
    model.put(2, "b")
    model.put(4, None, keeps_v=True)
    model.put(7, "new")
    model.delete(3)
    model.merge_well()
    version = _status(lake).version
    assert version is not None and model.engine == "dblog"
    assert _changes(model, version) == sorted(
        [
            (version, "delete", 3, "a", old[3]["n"]),
            (version, "insert", 7, "new", model.rows[7]["n"]),
            *((version, "update_preimage", n, "a", old[n]["n"]) for n in (2, 4)),
            *((version, "update_postimage", n, model.rows[n]["v"], model.rows[n]["n"]) for n in (2, 4)),
        ],
        key=repr,
    )
    model.put(8, "new")
    model.merge_well()
    assert [change[1:3] for change in _changes(model, version + 1)] == [("insert", 8)], "no file was copied"
    table = OpenTable(lake.table(T), ("id",), order=OFFSET, mark=COMMIT_MARK)
    assert join_files(table) > 1
    version = table.snapshot.version
    assert _changes(model, version) == [], "files were joined, and no row has changed"
    update_rows(table, RowUpdate({"v": pa.scalar("filled")}, ["id"], lambda rows: pc.equal(rows["id"], 2)), "app", 1)
    last = [
        (version + 1, kind, 2, v, model.rows[2]["n"])
        for kind, v in (("update_postimage", "filled"), ("update_preimage", "b"))
    ]
    assert _changes(model, version + 1) == last
    model.rows[2]["v"] = "filled"
    model.check()


@pytest.mark.parametrize("by", ["v", "n", "id", "v, id"])
def test_partitions_are_kept_to(model: Model, by: str) -> None:
    """Somebody writes the table again with partitions: a commit that the merge has to answer, as any foreign one."""
    table = model.lake.spark.read.format("delta").load(str(model.lake.table(T)))
    writing = table.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
    writing.partitionBy(*by.split(", ")).save(str(model.lake.table(T)))
    model.put(2, None)
    model.merge_well()
    _merge_twice(model)
    about = DeltaTable.forPath(model.lake.spark, str(model.lake.table(T))).detail().collect()[0]
    assert about.partitionColumns == by.split(", ")
    table = OpenTable(model.lake.table(T), ("id",), order=OFFSET, mark=COMMIT_MARK)
    while join_files(table):
        model.check()
    model.sql("OPTIMIZE {}")
    model.put(2, "c")
    model.merge_well()
    assert model.engine == "dblog"
    model.check()


def test_a_default_stops_no_merge(model: Model) -> None:
    """A NULL of the source stays one."""
    model.sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')")
    model.sql("ALTER TABLE {} ALTER COLUMN v SET DEFAULT 'standard'")
    model.put(2, None)
    model.put(7, None)
    model.delete(3)
    model.merge_well()
    assert model.engine == "dblog"
    model.check()


def test_a_dropped_feature_stops_no_merge(model: Model) -> None:
    """As the manual says for readers that refuse deletion vectors: it leaves a feature that guards the log alone."""
    model.lake.vectors = False
    if model.is_left_open:
        model.open_merger()
    model.put(2, "b")
    model.delete(3)
    model.merge_well()
    model.sql("ALTER TABLE {} DROP FEATURE deletionVectors")
    features = DeltaTable.forPath(model.lake.spark, str(model.lake.table(T))).detail().collect()[0].tableFeatures
    assert "checkpointProtection" in features and "deletionVectors" not in features
    for v in ("c", "d"):
        model.put(2, v)
        model.put(7 + (v == "d"), "new")
        model.merge_well()
        assert model.engine == "dblog"
        model.check()
    rows = RustTable(str(model.lake.table(T).local)).to_pyarrow_table(columns=["id", "v", "n"]).sort_by("id")
    assert rows.to_pylist() == [model.rows[i] for i in sorted(model.rows)]


def _stop(model: Model) -> str:
    """The error of the next merge, which brings no row of the table, and all of another one."""
    before = model.lake.rows(T, provenance=True)
    model.lake.build.create(OTHER, {"id": model.lake.build.offset})
    merges = model.merge()
    applied = {applied.table: applied for merged in merges for applied in merged.tables}
    other: Applied = applied[str(OTHER.table)]
    assert other.error is None and other.inserted == 1
    assert _status(model.lake, OTHER).state is not State.STOPPED
    assert _status(model.lake).state is State.STOPPED
    assert model.lake.rows(T, provenance=True) == before
    error = applied[str(T.table)].error
    assert error is not None and error == _status(model.lake).error
    return error
