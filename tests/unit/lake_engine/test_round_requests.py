"""A round of the merge asks the storage what it must, and not once more: also of many tables of which one has rows.

The rounds are the real ones, without a job of Spark. On an object store each request takes 20 ms and more.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pyarrow as pa
import pytest

from dblog_core.errors import LeaseLost, StagingUnavailable
from dblog_core.lake.cuts import find_cut
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, lake_at, own_directory, read_status
from dblog_core.lake.lake_status import table_location as place_of
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.lake_engine.merging.merge_results import Merged
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.merging.withheld_keys import Withheld
from dblog_core.lake_engine.tables.column_types import lake_shape
from dblog_core.model.schema import TableSchema
from dblog_core.staging import Staging
from dblog_core.storage.local import LocalStorage
from dblog_core.storage.location import Location
from tests.simulation.storage import Disk, MemoryStorage
from tests.spark.lakes import Dumps
from tests.spark.segments import SegmentBuilder, table

TABLES = 300
ROUNDS = 40
REQUESTS = {
    "read manifests": 2,
    "exists compacted": 3,
    "names mergers": 4,
    "create merges": 2,
    "read _delta_log": 2,
    "create part": 2,
    "create _delta_log": 2,
    "exists _delta_log": 2,
}
"""Of the table and the cuts each: the commit that it was left with, a file, the commit, and whether that one has a
predecessor."""
FEATURES = ["deletionVectors", "timestampNtz"]


class Tables:
    """Empty lake tables, made without Spark, and their merger."""

    def __init__(self, staging: Staging, location: Location, *, count: int = TABLES) -> None:
        self.schemas = [table(f"t{n:04d}", id=pa.int64(), v=pa.string()) for n in range(count)]
        self.staging = staging
        self.location = location
        self.build = SegmentBuilder(self.staging)
        self.build.create(self.schemas[0], {"id": 0, "v": "first"})
        self.build.seal()
        for schema in self.schemas:
            self.staging.put_schema(schema)
            _create(self.place(schema), orjson.dumps(lake_shape(schema).json_value()).decode(), str(schema.table))
        _create(own_directory(location) / "cuts", _cut_shape(), "cuts", old=True)
        tables = {
            str(schema.table): TableStatus(State.OK, None, 1, self.build.offset, version=0, schema=schema.fingerprint)
            for schema in self.schemas
        }
        place = (self.build.offset, f"p{self.build.offset}")
        Records(own_directory(location)).finish(LakeStatus(1, 1, *place, 1, 1.0, tables))
        self.merger = self.open()

    def open(self) -> Merger:
        """A new process merges."""
        records = Records(own_directory(self.location))
        places = {self.place(schema) for schema in self.schemas}
        lake = Lake(self.location, "dblog:shop", open_tables=OpenTables(), settled=places)
        merger = Merger(self.staging, lake, records, Withheld(records), compact_after=1_000, dumps=Dumps())
        merger.load()
        return merger

    def place(self, schema: TableSchema) -> Location:
        return place_of(self.location, schema.table)

    def seal(self, key: int) -> None:
        self.build.create(self.schemas[0], {"id": key, "v": "value"})
        self.build.seal()

    def round(self, key: int) -> Merged:
        """A round with a new row of the first table, and the look for tables to put in order."""
        self.seal(key)
        merged = self.merger.run_round(retry_stopped=True)
        assert self.merger.compact(wait=False) is None and merged is not None
        return merged

    def version(self) -> int | None:
        status = read_status(self.location)
        assert status is not None
        return status.tables[str(self.schemas[0].table)].version

    def commit(self, version: int, *actions: dict[str, Any]) -> None:
        """Another program's commit of the first table."""
        path = self.place(self.schemas[0]) / "_delta_log" / f"{version:020d}.json"
        assert path.create(b"\n".join(map(orjson.dumps, actions)))


def _create(place: Location, shape: str, name: str, *, old: bool = False) -> None:
    features = {"readerFeatures": FEATURES, "writerFeatures": FEATURES}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    metadata = {
        "id": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": shape,
        "partitionColumns": [],
        "configuration": {} if old else {"delta.enableDeletionVectors": "true"},
    }
    actions = (
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2} if old else protocol},
        {"metaData": metadata},
        {"commitInfo": {"operation": "CREATE TABLE", "userMetadata": COMMIT_MARK}},
    )
    (place / "_delta_log" / f"{0:020d}.json").create(b"\n".join(map(orjson.dumps, actions)))


def _cut_shape() -> str:
    """As the Delta library makes the table of cuts."""
    counts = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}
    kinds = {"cut": "long", "offset": "long", "position": "string", "commit_time": "timestamp", "tables": counts}
    causes = {**counts, "valueType": "string"}
    kinds |= {"merged_at": "timestamp", "behind": counts, "incomplete": causes}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return orjson.dumps({"type": "struct", "fields": fields}).decode()


@contextmanager
def counted() -> Iterator[list[tuple[str, int]]]:
    """Every request to a storage within: of what kind it is, and its bytes."""
    asked: list[tuple[str, int]] = []

    def around(kind: type, name: str) -> Any:
        real = getattr(kind, name)

        def ask(self: Any, path: str, *more: Any) -> Any:
            answer = real(self, path, *more)
            answer = iter(list(answer)) if name == "names" else answer
            asked.append((_kind(name, path), len(more[0] if more else answer if isinstance(answer, bytes) else b"")))
            return answer

        return mock.patch.object(kind, name, ask)

    with ExitStack() as stack:
        for kind in (LocalStorage, MemoryStorage):
            for name in ("create", "exists", "names", "read", "remove", "replace"):
                stack.enter_context(around(kind, name))
        yield asked


def _kind(name: str, path: str) -> str:
    directory, _, file = path.rpartition("/")
    if file.startswith("part-"):
        return f"{name} part"
    return f"{name} {file if name == 'names' else directory.rpartition('/')[2] or file}"


@pytest.fixture(params=["local", "object store"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    if request.param == "local":
        return Tables(Staging(str(tmp_path / "staging"), source="shop"), lake_at(str(tmp_path / "lake")))
    staging = Staging(source="shop", storage=MemoryStorage(Disk()))
    return Tables(staging, Location(MemoryStorage(Disk())))


@pytest.fixture
def local(tmp_path: Path) -> Tables:
    return Tables(Staging(str(tmp_path / "staging"), source="shop"), lake_at(str(tmp_path / "lake")), count=2)


@pytest.mark.thorough
def test_a_round_with_one_changed_table_takes_19_requests(tables: Tables) -> None:
    """One in twenty writes status.json too."""
    tables.round(1)
    tables.merger.compact()  # a process looks once at the log of each table
    for key in range(2, ROUNDS + 2):
        tables.seal(key)
        with counted() as asked:
            assert tables.merger.run_round(retry_stopped=True) is not None
            assert tables.merger.compact(wait=False) is None
        requests = Counter(kind for kind, _ in asked)
        assert requests.pop("replace _dblog", 0) <= 1
        assert requests == REQUESTS and requests.total() == 19
        assert sum(size for kind, size in asked if kind != "replace _dblog") < 50_000
    assert tables.version() == ROUNDS + 1


@pytest.mark.thorough
def test_rounds_of_2000_tables_take_under_50_kb_on_average() -> None:
    """One table has new rows. What is written seldom counts too: status.json names all tables."""
    staging = Staging(source="shop", storage=MemoryStorage(Disk()))
    tables = Tables(staging, Location(MemoryStorage(Disk())), count=2_000)
    tables.round(1)
    tables.merger.compact()
    every: list[tuple[str, int]] = []
    rounds = 0
    while len(sizes := [size for kind, size in every if kind == "replace _dblog"]) < 2 and rounds < 95:
        rounds += 1
        tables.seal(rounds + 1)
        with counted() as asked:
            assert tables.merger.run_round(retry_stopped=True) is not None
            assert tables.merger.compact(wait=False) is None
        every += asked
    assert len(sizes) == 2 and min(sizes) > 200_000, "of all tables"
    assert sum(size for _, size in every) / rounds < 50_000
    assert len(every) / rounds < 20


def test_a_round_without_a_new_segment_takes_six_requests(tables: Tables) -> None:
    tables.round(1)
    with counted() as asked:
        assert tables.merger.run_round(retry_stopped=True) is None
    assert len(asked) == 6


def test_every_merge_has_its_cut_and_readers_find_it(local: Tables) -> None:
    for key in range(1, 6):
        local.round(key)
    name = str(local.schemas[0].table)
    newest = find_cut(local.location)
    assert (newest.cut.number, newest.cut.tables[name], newest.next_cut) == (6, 5, None)
    earlier = find_cut(local.location, newest.cut.offset - 2).cut
    assert (earlier.number, earlier.tables[name]) == (4, 3)


_FOREIGN_FILE = {
    "path": "foreign.parquet",
    "partitionValues": {},
    "size": 1,
    "modificationTime": 0,
    "dataChange": True,
    "stats": '{"numRecords":1,"minValues":{"id":9000},"maxValues":{"id":9000},"nullCount":{"_dblog_offset":1}}',
}


def test_a_commit_of_others_is_looked_at_before_ours_follows_it(local: Tables) -> None:
    """Nobody looks for it: our commit finds its version taken."""
    local.round(1)
    local.round(2)
    local.commit(3, {"commitInfo": {"operation": "UPDATE"}}, {"add": _FOREIGN_FILE})
    looked: list[int] = []

    def look(self: LakeTable, merged: int, number: int) -> None:
        looked.append(number)
        local.commit(4, {"commitInfo": {"operation": "UPDATE", "userMetadata": COMMIT_MARK}})

    with mock.patch.object(LakeTable, "disown", look):
        merged = local.round(3)
    assert looked == [3] and [t.error for t in merged.tables] == [None] and local.version() == 5
    local.round(4)
    assert local.version() == 6


def test_a_commit_of_others_that_changes_no_row_is_passed(local: Tables) -> None:
    local.round(1)
    local.commit(2, {"commitInfo": {"operation": "VACUUM END"}})
    merged = local.round(2)
    assert [(t.error, t.inserted) for t in merged.tables] == [(None, 1)] and local.version() == 3


@pytest.mark.parametrize("when", ["before the round", "before the commit"])
def test_a_table_that_was_removed_or_replaced_is_found_out(local: Tables, when: str) -> None:
    for key in range(1, 4):
        local.round(key)
    place = local.place(local.schemas[0]).local
    assert place is not None
    if when == "before the round":
        shutil.rmtree(place)
        assert "is gone" in str(local.round(4).tables[0].error) and not place.exists()
        return
    # In place of the table there is one whose log is shorter.
    for version in (2, 3):
        (place / "_delta_log" / f"{version:020d}.json").unlink()
    with mock.patch.object(LakeTable, "prepare"), mock.patch.object(LakeTable, "disown"):
        assert "it ends at version 1, and a merge left version 3" in str(local.round(4).tables[0].damage)


def test_another_table_with_as_many_versions_is_not_taken_for_the_one_that_was_left(local: Tables) -> None:
    local.round(1)
    local.round(2)
    place = local.place(local.schemas[0])
    path = place / "_delta_log" / f"{2:020d}.json"
    path.replace((path.read() or b"").replace(b'"MERGE"', b'"WRITE"'))
    with mock.patch.object(LakeTable, "prepare") as prepare, mock.patch.object(LakeTable, "disown"):
        damage = local.round(3).tables[0].damage
    assert prepare.called and "its version 2 is not the one that a merge left" in str(damage)


def test_who_was_shut_out_before_its_commit_writes_nothing(local: Tables) -> None:
    """A small work is not asked for the lease at its beginning: right before its commit is what counts."""
    local.round(1)
    version = local.version()
    local.seal(2)
    records = list((own_directory(local.location) / "merges").names())
    begin = Records.begin

    def begin_and_lose(self: Records, *arguments: Any) -> bool:
        begun = begin(self, *arguments)
        local.open()
        return begun

    with mock.patch.object(Records, "begin", begin_and_lose), pytest.raises(LeaseLost):
        local.merger.run_round(retry_stopped=True)
    log = local.place(local.schemas[0]) / "_delta_log"
    assert not (log / f"{(version or 0) + 1:020d}.json").exists()
    assert len(list((own_directory(local.location) / "merges").names())) == len(records) + 1


@pytest.mark.parametrize("step", ["recorded", "applied shop.t0000", "cut"])
def test_a_round_that_was_broken_off_is_finished_by_the_next(local: Tables, step: str) -> None:
    """Whether a merge is unfinished is looked up after each that has not come to its end."""
    local.round(1)
    local.seal(2)
    with _broken_off(local.merger, step), pytest.raises(StagingUnavailable):
        local.merger.run_round(retry_stopped=True)
    finished = local.merger.run_round(retry_stopped=True)
    assert finished is not None and finished.number == 3
    assert local.round(3).number == 4 and local.version() == 3
    assert [cut.number for cut in (find_cut(local.location).cut,)] == [4]


@contextmanager
def _broken_off(merger: Merger, at: str) -> Iterator[None]:
    def stop(step: str) -> None:
        if step == at:
            raise StagingUnavailable("the storage does not answer")

    with mock.patch.object(merger, "_step", stop), mock.patch.object(merger._cuts, "_step", stop):
        yield


def test_the_manifests_that_a_round_has_read_are_read_again_where_that_is_needed(local: Tables) -> None:
    """A round that was broken off before its record has others to plan."""
    local.round(1)
    local.seal(2)
    with mock.patch.object(Records, "begin", side_effect=StagingUnavailable("away")), pytest.raises(StagingUnavailable):
        local.merger.run_round(retry_stopped=True)
    merged = local.round(3)
    assert [t.inserted for t in merged.tables] == [2]
