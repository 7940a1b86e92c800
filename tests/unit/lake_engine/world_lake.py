"""A table of the worlds, merged without Spark."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.lake import merge_plan
from dblog_core.lake_engine.events import staged_events
from dblog_core.lake_engine.events.fold import FoldedRows, fold_work
from dblog_core.lake_engine.merging import upsert_rows
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.tables.column_types import OFFSET
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from dblog_core.staging import Staging
from tests.spark.segments import SegmentBuilder
from tests.spark.worlds import SHAPE, Oracle, Source
from tests.unit.delta_writer.tables import APP, Table

PROVENANCE = {"_dblog_position": "string", "_dblog_commit_time": "timestamp", "_dblog_origin": "string"}
FIELDS = {"world": "integer", "k": "string", "a": "long", "f": "double", "big": "string", OFFSET: "long", **PROVENANCE}


class Lake:
    """A table of the worlds and the staging that it is merged from."""

    def __init__(self, path: Path, dice: random.Random, *, source: type[Source] = Source) -> None:
        self.staging = Staging(str(path / "staging"), source="shop")
        self.source = source(SegmentBuilder(self.staging), dice, 120)
        self.table = Table.create_at(path / "lake", fields=dict(FIELDS), keys=SHAPE.key)
        self.tables = OpenTables(path / "index")
        self.withheld: set[Key] = set()
        self.number = self.segment = self.offset = 0
        self.is_large = False
        """Whether works count as larger than memory has room for."""

    def open(self, check: Callable[[], None] = lambda: None) -> OpenTable:
        return self.tables.table(self.table.location(), SHAPE, check)

    def fold_sealed(self) -> tuple[FoldedRows, merge_plan.Work]:
        """All that was sealed since the last merge."""
        head = self.staging.head_number()
        work = merge_plan.plan_works(self.staging.manifests(after=self.segment, upto=head), lambda table: self.segment)
        whole = work[str(SHAPE.table)]
        if self.is_large:
            return fold_large(self.staging, whole, SHAPE), whole
        return fold_work(self.staging, whole, SHAPE), whole

    def merge(self, table: OpenTable | None = None) -> Any:
        rows, _ = self.fold_sealed()
        self.number += 1
        done = upsert_rows.write(
            table or self.open(), rows, SHAPE, APP, self.number, merged=self.offset, withhold=self.withheld.update
        )
        self.segment = self.staging.head_number()
        self.offset = self.source.build.offset
        return done

    def merge_as_told(self, oracle: Oracle) -> None:
        """A merge, after which the table has what a reader of the lines would have."""
        self.merge()
        oracle.read(self.source.lines, self.offset)
        self.source.end_merge()
        rows = self.rows()
        assert rows == oracle.rows
        assert oracle.withheld <= self.withheld, "a row is left out, and no dump is asked for"
        assert all(self.source.rows[key] == row for key, row in rows.items())

    def damage_first_file(self) -> None:
        """One bit of the first staged file is another."""
        path = min(Path(self.staging.storage.url("")).rglob("*.parquet"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))

    def rows(self) -> dict[Key, dict[str, Any]]:
        return {(r["world"], r["k"]): {c: r[c] for c in ("a", "f", "big")} for r in self.table.read()}


def fold_large(staging: Staging, work: merge_plan.Work, schema: TableSchema) -> FoldedRows:
    """As if the work were one that memory has no room for."""
    with mock.patch.object(staged_events, "is_small", return_value=False):
        return fold_work(staging, work, schema)


def fold_small(staging: Staging, work: merge_plan.Work, schema: TableSchema) -> pa.Table:
    """All rows at once."""
    rows = fold_work(staging, work, schema)
    assert rows.is_small
    return pa.concat_tables(rows)


def change(lake: Lake, *, dumps: bool = True) -> None:
    for _ in range(2):
        for world in range(lake.source.worlds):
            lake.source.change(world)
        if dumps:
            lake.source.dump_chunk()
        lake.source.build.seal()
