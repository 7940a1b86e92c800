"""Folded rows go into a table without Spark as a reader of the lines, one after the other, would have them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core.delta.features import TableRefused
from dblog_core.delta.open_table import OpenTable
from dblog_core.errors import LakeError, LeaseLost
from dblog_core.model.values import Key
from dblog_core.staging import Staging
from spark_jobs.delta_tables.column_types import OFFSET
from spark_jobs.events import fold_on_driver, plan
from spark_jobs.merging import mark_and_append
from spark_jobs.merging.mark_and_append import OpenTables
from tests.spark.segments import SegmentBuilder
from tests.spark.worlds import SHAPE, Oracle, Source
from tests.unit.delta.tables import APP, Table, commit_of, metadata, newest, protocol, schema_string, write_commit

PROVENANCE = {"_dblog_position": "string", "_dblog_commit_time": "timestamp", "_dblog_origin": "string"}
FIELDS = {"world": "integer", "k": "string", "a": "long", "f": "double", "big": "string", OFFSET: "long", **PROVENANCE}


class Lake:
    """A table of the worlds and the staging that it is merged from."""

    def __init__(self, path: Path, dice: random.Random) -> None:
        self.staging = Staging(str(path / "staging"), source="shop")
        self.source = Source(SegmentBuilder(self.staging), dice, 40)
        self.table = Table.made(path / "lake", fields=dict(FIELDS), keys=SHAPE.key)
        self.tables = OpenTables(path / "index")
        self.withheld: set[Key] = set()
        self.number = self.segment = self.offset = 0

    def open(self, check: Callable[[], None] = lambda: None) -> OpenTable:
        return self.tables.table(self.table.location(), SHAPE, check)

    def folded(self) -> tuple[pa.Table, plan.Work]:
        """All that was sealed since the last merge."""
        head = self.staging.head_number()
        work = plan.works(self.staging.manifests(after=self.segment, upto=head), lambda table: self.segment)
        whole = work[str(SHAPE.table)]
        assert fold_on_driver.fits(whole, SHAPE, left_out=True)
        rows = fold_on_driver.folded(self.staging, whole, SHAPE)
        assert rows is not None
        return rows, whole

    def merge(self, table: OpenTable | None = None) -> Any:
        rows, _ = self.folded()
        self.number += 1
        done = mark_and_append.write(
            table or self.open(), rows, SHAPE, APP, self.number, merged=self.offset, withhold=self.withheld.update
        )
        self.segment, self.offset = self.staging.head_number(), self.source.build.offset
        return done

    def rows(self) -> dict[Key, dict[str, Any]]:
        return {(r["world"], r["k"]): {c: r[c] for c in ("a", "f", "big")} for r in self.table.read()}


def change(lake: Lake) -> None:
    for _ in range(2):
        for world in range(lake.source.worlds):
            lake.source.change(world)
        lake.source.dump_chunk()
        lake.source.build.seal()


@pytest.mark.parametrize("number", range(3))
def test_a_table_is_what_the_lines_say_after_every_merge(tmp_path: Path, soak_seed: int, number: int) -> None:
    lake, oracle = Lake(tmp_path, random.Random(f"{soak_seed}/{number}")), Oracle()
    lake.source.unseen(0.3)
    for _ in range(5):
        change(lake)
        lake.merge()
        oracle.read(lake.source.lines, lake.offset)
        lake.source.merged()
        found = lake.rows()
        assert found == oracle.rows
        assert oracle.withheld <= lake.withheld, "a row is left out, and nobody asks for it"
        assert all(lake.source.rows[key] == row for key, row in found.items())
    kinds = ("chain of key changes", "swap of keys", "unchanged value over updates, a key change and a batch boundary")
    assert [kind for kind in kinds if not lake.source.seen[kind]] == []
    assert oracle.seen["withheld row"]


def test_a_merge_whose_number_is_taken_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("taken"))
    change(lake)
    lake.merge()
    change(lake)
    before, lake.number = lake.rows(), 0
    with pytest.raises(LakeError, match="merge 1 has committed here already"):
        lake.merge()
    assert lake.rows() == before


def test_who_may_not_write_any_more_leaves_the_table_alone(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("fenced"))
    change(lake)
    lake.merge()
    before = newest(lake.table.path)

    def lost() -> None:
        raise LeaseLost("another merge has taken the lake over")

    change(lake)
    with pytest.raises(LeaseLost):
        lake.merge(lake.open(lost))
    assert newest(lake.table.path) == before


def test_another_who_has_committed_the_same_merge_is_found(tmp_path: Path) -> None:
    """A merger that was paused before its commit wakes up: its successor has made the same one."""
    lake = Lake(tmp_path, random.Random("twice"))
    change(lake)
    lake.merge()
    change(lake)
    successor = OpenTables().table(lake.table.location(), SHAPE, lambda: None)
    rows, _ = lake.folded()

    def overtaken() -> None:
        mark_and_append.write(successor, rows, SHAPE, APP, 2, merged=lake.offset, withhold=lambda keys: None)

    done = lake.merge(lake.open(overtaken))
    assert done.already and newest(lake.table.path) == 2


def test_a_column_that_the_source_has_no_more_is_null_in_what_is_written(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("left"))
    lake.table.fields["old"] = "string"
    write_commit(lake.table.path, 1, metadata(schema_string(lake.table.fields)))
    change(lake)
    lake.merge()
    assert {row["old"] for row in lake.table.read()} == {None}


def test_a_table_that_lacks_a_column_is_sparks(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("lacks"))
    write_commit(lake.table.path, 1, metadata(schema_string({n: k for n, k in FIELDS.items() if n != "big"})))
    change(lake)
    with pytest.raises(TableRefused, match="lacks the column big"):
        lake.merge()
    write_commit(lake.table.path, 2, metadata(schema_string(FIELDS)), protocol("rowTracking"))
    with pytest.raises(TableRefused, match="rowTracking"):
        lake.merge()


def test_a_shape_that_changes_before_the_commit_is_met(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("shape"))
    change(lake)
    lake.merge()
    change(lake)
    path, met = lake.table.path, list[int]()

    def between() -> None:
        if not met:
            met.append(newest(path) + 1)
            write_commit(path, met[0], metadata(schema_string({**FIELDS, "more": "string"})))

    lake.table.fields["more"] = "string"
    lake.merge(lake.open(between))
    assert met and newest(path) == met[0] + 1
    assert [a["txn"]["version"] for a in commit_of(path, newest(path)) if "txn" in a] == [2]
    oracle = Oracle()
    oracle.read(lake.source.lines, lake.offset)
    assert lake.rows() == oracle.rows


def test_indexes_beyond_the_memory_are_closed_and_made_anew(tmp_path: Path) -> None:
    lake = Lake(tmp_path, random.Random("shed"))
    lake.tables = OpenTables(tmp_path / "index", memory=0)
    oracle = Oracle()
    for _ in range(2):
        change(lake)
        first = lake.open()
        lake.merge()
        lake.tables.shed()
        assert lake.open() is not first
        oracle.read(lake.source.lines, lake.offset)
        assert lake.rows() == oracle.rows
