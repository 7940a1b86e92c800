"""The demo's last word: every row and column of source and lake, compared by paths of their own.

The source's rows come by plain SELECTs, the lake's by delta-rs: neither knows what has captured, dumped or merged them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.lake import lake_status
from dblog_core.local.demo.source_rows import read_rows
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import key_to_json
from dblog_core.storage.location import Location

_EXAMPLES = 5
# Columns that say where a key's row stands; no column of the shop is called so.
_HERE = "of source"
_THERE = "of lake"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table's differences: numbers of keys, and a few of them as JSON with the columns that differ.

    `rows`: of the source; `missing`: in the source alone; `extra`: in the lake alone, or there once more.
    """

    table: str
    rows: int
    missing: int = 0
    extra: int = 0
    different: int = 0
    examples: Sequence[dict[str, Any]] = field(default_factory=tuple)

    @property
    def equal(self) -> bool:
        return not (self.missing or self.extra or self.different)

    def __str__(self) -> str:
        faults = f"missing {self.missing}, extra {self.extra}, different {self.different}"
        return f"{self.rows:,} rows; {faults}" + (f" {json.dumps(self.examples)}" if self.examples else "")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison says of each table."""

    tables: tuple[Comparison, ...]

    @property
    def equal(self) -> bool:
        return bool(self.tables) and all(table.equal for table in self.tables)

    def summary(self) -> dict[str, str]:
        """A line for each table, and one for all."""
        outcome = "every row and column is equal" if self.equal else "SOURCE AND LAKE DIFFER"
        return {**{table.table: str(table) for table in self.tables}, "verdict": outcome}


def compare(server: DatabaseServer, config: Config, schemas: Sequence[TableSchema]) -> Verdict:
    """Nothing may write to the source meanwhile."""
    root = wiring.open_lake(config)
    places = ((schema, lake_status.table_location(root, schema.table)) for schema in schemas)
    return Verdict(tuple(compare_rows(schema, read_rows(server, schema), read_lake(path)) for schema, path in places))


def read_lake(path: Location) -> pa.Table | None:
    """All rows of a Delta table; None where there is none."""
    if not DeltaTable.is_deltatable(str(path)):
        return None
    return pa.table(QueryBuilder().register("lake", DeltaTable(str(path))).execute("SELECT * FROM lake"))


def compare_rows(schema: TableSchema, source: pa.Table, mirrored: pa.Table | None) -> Comparison:
    """Compares a table's rows; of the lake's columns those that the source has. NULL equals NULL, NaN NaN."""
    if mirrored is None:
        return Comparison(str(schema.table), source.num_rows, missing=source.num_rows)
    if absent := [column.name for column in schema.columns if column.name not in mirrored.column_names]:
        examples = [{"kind": "different", "columns": absent}]
        return Comparison(str(schema.table), source.num_rows, different=source.num_rows, examples=examples)
    # Without the lake's own columns, and in the source's order.
    mirrored = mirrored.select(schema.arrow.names).cast(schema.arrow)
    key = list(schema.key)
    pairs = _with_side(source, key, _HERE).join(_with_side(mirrored, key, _THERE), key, join_type="full outer")
    missing, extra = (pairs.filter(pc.is_null(pairs[side])) for side in (_THERE, _HERE))
    both = pairs.filter(pc.and_(pc.is_valid(pairs[_HERE]), pc.is_valid(pairs[_THERE])))
    differs = [
        pc.invert(_same(source[name].take(both[_HERE]), mirrored[name].take(both[_THERE])))
        for name in schema.arrow.names
    ]
    different = [place for place in range(both.num_rows) if any(column[place].as_py() for column in differs)]
    examples = _keys(both.take(pa.array(different, pa.int64())), key, "different")
    for example, place in zip(examples, different, strict=False):
        columns = zip(schema.arrow.names, differs, strict=True)
        example["columns"] = [name for name, column in columns if column[place].as_py()]
    return Comparison(
        str(schema.table),
        rows=source.num_rows,
        missing=missing.num_rows,
        # A key that the lake has twice joins twice: its second row is one too many.
        extra=extra.num_rows + both.num_rows - pc.count_distinct(both[_HERE]).as_py(),
        different=len(different),
        examples=[*_keys(missing, key, "missing"), *_keys(extra, key, "extra"), *examples],
    )


def _with_side(rows: pa.Table, key: list[str], name: str) -> pa.Table:
    """The rows' keys, and where each row stands."""
    return rows.select(key).append_column(name, pa.array(range(rows.num_rows), pa.int64()))


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    """For each row whether its two values are the same."""
    same = pc.fill_null(pc.equal(left, right), False)
    alike = pc.and_(pc.is_null(left, nan_is_null=True), pc.is_null(right, nan_is_null=True))
    return pc.or_(same, pc.and_(alike, pc.equal(pc.is_null(left), pc.is_null(right))))


def _keys(rows: pa.Table, key: list[str], kind: str) -> list[dict[str, Any]]:
    first = rows.select(key).slice(0, _EXAMPLES).to_pylist()
    return [{"key": key_to_json(tuple(row[name] for name in key)), "kind": kind} for row in first]
