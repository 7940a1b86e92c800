"""The highest key of each lake table: a batch of which all keys lie above it is appended, with nothing to compare.

Dumps in key order, and tables that grow by a counter, are such batches. What is kept here is an upper bound: a table
that only the holder of the lake's lock writes never gets a key above it without passing here. It is dropped as soon as
the table has a version that is not known from here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dblog_core.model.schema import TableSchema
from dblog_core.storage.location import Location
from spark_jobs.delta_tables.column_types import quote
from spark_jobs.delta_tables.key_ranges import Ranges, in_python


@dataclass(frozen=True, slots=True)
class _HighestKey:
    version: int
    highest: Any
    """Of the key's first column; None: no row."""


@dataclass(slots=True)
class Highest:
    """Of all tables of a lake; a table is only ever asked for by one thread."""

    _highest_by_table: dict[Location, _HighestKey] = field(default_factory=dict)

    def all_above(
        self, table: Location, version: int, rows: DataFrame, schema: TableSchema, ranges: dict[str, Ranges]
    ) -> bool:
        """Whether every key of a batch with these ranges lies above all keys of the table. May look into its rows."""
        first = schema.key[0]
        if first not in ranges:
            return False
        last = self._highest_by_table.get(table)
        if last is None or last.version != version:
            highest = rows.agg(F.max(F.col(quote(first))).alias("highest")).toArrow()["highest"]
            if not in_python(highest):
                return False
            last = self._highest_by_table[table] = _HighestKey(version, highest[0].as_py())
        return last.highest is None or bool(last.highest < ranges[first][0][0])

    def record_batch(
        self, table: Location, before: int, after: int, schema: TableSchema, ranges: dict[str, Ranges]
    ) -> None:
        """A batch with these ranges took the table from one version to the next."""
        last = self._highest_by_table.pop(table, None)
        if last is not None and last.version == before and schema.key[0] in ranges:
            high = ranges[schema.key[0]][-1][1]
            highest = high if last.highest is None else max(last.highest, high)
            self._highest_by_table[table] = _HighestKey(after, highest)

    def record_other_commit(self, table: Location, before: int, after: int) -> None:
        """Something that adds no key took the table from one version to the next."""
        last = self._highest_by_table.get(table)
        if last is not None and last.version == before:
            self._highest_by_table[table] = _HighestKey(after, last.highest)

    def forget(self, table: Location) -> None:
        """Another program may have added keys."""
        self._highest_by_table.pop(table, None)
