"""A lake as the configuration wants it: where its tables and histories are, and what becomes of their shapes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from dblog_core.config.lake import JsonAs, SchemaChanges
from dblog_core.delta_writer.delta_types import StructType
from dblog_core.errors import LakeError
from dblog_core.lake.carrier_choice import NO_EXECUTORS, Choice, choose_carrier
from dblog_core.lake.json_variants import check_variants
from dblog_core.lake.lake_status import TableStatus, history_location, history_name, link_encoded_name, table_location
from dblog_core.lake.merge_plan import Span, Work
from dblog_core.lake_engine.events import schema_policy
from dblog_core.lake_engine.history.history_table import Before, History
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.merging.spreading.write_spread import Spread
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.tables import column_types, log, variants
from dblog_core.lake_engine.tables.alter_table import DroppedColumns
from dblog_core.lake_engine.tables.column_types import arrow_type, check_follows
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.values import Key
from dblog_core.schema_evolution.renames import Renames
from dblog_core.storage.location import Location


@dataclass(frozen=True, slots=True)
class Lake:
    """Where tables go, by what name our transactions are known there, whether every change is kept, and whether a
    column goes that the source drops."""

    location: Location
    app: str
    history: bool = False
    drop_columns: bool = False
    check: Callable[[], None] = lambda: None
    """Raises LeaseLost once another may merge."""
    changes: Callable[[TableName], SchemaChanges] = lambda table: "evolve"
    """What becomes of a new shape of a table (`policy`)."""
    json_as: Callable[[TableName], JsonAs] = lambda table: "text"
    """What a table's JSON columns are (`variants`)."""
    open_tables: OpenTables = field(default_factory=OpenTables)
    """Through which works are written."""
    spread: Spread | None = None
    """With what large shares are spread over executors; None: the driver carries all."""
    adopted: int = 0
    """The merge with which the lake was taken over to its staging, whose offsets begin again; 0: it never was."""
    vectors: bool = True
    """Whether tables have deletion vectors."""
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark, which may give properties to new tables."""
    settled: set[Location] = field(default_factory=set)
    """Tables whose VARIANT columns and deletion vectors are known to be as they are wanted."""

    def choose_carrier(self, work: Work) -> Choice:
        """Who carries the work."""
        return choose_carrier(work.rows, NO_EXECUTORS if self.spread is None else self.spread.means)

    def spreads(self, work: Work) -> bool:
        """Whether executors carry the work."""
        return self.choose_carrier(work).is_spread

    def table(
        self,
        schema: TableSchema,
        dropped: DroppedColumns | None = None,
        renames: Renames | None = None,
    ) -> LakeTable:
        """`dropped`: what is known of columns that the source no longer has; `renames`: those that led to the shape."""
        location = table_location(self.location, schema.table)
        link_encoded_name(self.location, schema.table)
        app = f"{self.app}:{schema.table}"
        dropped = dropped or DroppedColumns(drop=self.drop_columns)
        return LakeTable(
            location,
            schema,
            app=app,
            adopted=self.adopted,
            tables=self.open_tables,
            check=self.check,
            dropped=dropped,
            renames=renames,
            json_as_variant=self.has_variants(schema),
            settled=self.settled,
            vectors=self.vectors,
            spark_settings=self.spark_settings,
        )

    def close_unused(self, in_use: Collection[str]) -> None:
        """Gives back memory that tables have which are not among these."""
        places = set()
        for name in in_use:
            with contextlib.suppress(LakeError):  # one without a place in the lake is not open
                places.add(table_location(self.location, TableName.parse(name)))
        self.open_tables.shed(places)

    def has_variants(self, schema: TableSchema) -> bool:
        """Whether the lake has a VARIANT beside each column of the table that is JSON."""
        return self.json_as(schema.table) == "variant"

    def check_names(self, schema: TableSchema) -> None:
        """Raises LakeError where the lake could not keep the columns apart."""
        column_types.check_names(schema)
        if self.has_variants(schema):
            check_variants(schema)

    def keeps_columns(self, schema: TableSchema) -> bool:
        """Whether the lake keeps its own columns, whatever shape the source's table takes."""
        return self.changes(schema.table) == "ignore"

    def work_to_merge(self, work: Work, schema: TableSchema) -> Work:
        """The work with what is proven of its shapes, if the lake goes by it."""
        if self.keeps_columns(schema):
            return work.without_proofs()
        return work.with_nulls_alone() if self.history else work

    def check_follows(self, older: TableSchema, newest: TableSchema) -> None:
        """Raises LakeError unless rows of `older` can be read as rows of `newest`."""
        schema_policy.check_fits(older, newest) if self.keeps_columns(newest) else check_follows(older, newest)

    def columns(self, schema: TableSchema, *, is_left: bool = False) -> StructType:
        """The lake table's columns, by its log. `is_left`: the table `is_as_left`, and is not read again. Raises
        TableRefused."""
        table = self.table(schema)
        return self.open_tables.describe(table.path, schema, self.check, is_left=is_left).shape

    def shape_in_lake(self, schema: TableSchema) -> TableSchema:
        """The shape as far as the lake table has it."""
        table = self.table(schema)
        return (
            schema_policy.shape_in_lake(schema, table.columns())
            if self.keeps_columns(schema) and table.version()
            else schema
        )

    def with_kept_columns(self, schema: TableSchema) -> TableSchema:
        """The shape with the columns that the source has dropped and the lake table has kept."""
        table = self.table(schema)
        schema = self.shape_in_lake(schema)
        if (self.drop_columns and not self.keeps_columns(schema)) or not table.exists():
            return schema
        have = table.columns()
        names = {c.name for c in schema.columns}
        types = dict.fromkeys(variants.of(have), "json")  # so that they keep their VARIANTs too
        more = [
            Column(n, types.get(n, ""), kind)
            for n in table.kept_columns()
            if n not in names and (kind := _kind(have, n)) is not None
        ]
        return TableSchema(schema.table, (*schema.columns, *more), schema.key)

    def history_of(self, schema: TableSchema, renames: Renames | None = None) -> History | None:
        """The history of a table; None where none is wanted."""
        return self.open_history(schema, renames) if self.history else None

    def state_before(
        self, table: LakeTable | None, withheld: Sequence[Key], status: TableStatus | None, span: Span
    ) -> Before:
        """How a table stands before a merge, as its history needs to know it. `table`: None for one without a key."""
        exists = table is not None and table.exists()

        def is_empty() -> bool:
            return table is None or not exists or table.is_empty()

        offset = span.first_offset - 1 if status is None else status.offset
        is_in_history = status is not None and status.told
        return Before(is_empty, withheld, offset, is_in_history, exists)

    def open_history(self, schema: TableSchema, renames: Renames | None = None) -> History:
        """The history of a table, even if it does not continue."""
        location = history_location(self.location, schema.table)
        link_encoded_name(self.location, history_name(schema.table))
        app = log.app_by_offset(f"{self.app}:{schema.table}:history", self.adopted)
        tables = self.open_tables
        place = table_location(self.location, schema.table)
        return History(
            tables.history(location, self.check),
            schema,
            app=app,
            lake=partial(tables.table, place, schema, self.check) if schema.key else None,
            check=self.check,
            renames=renames,
            keeps_columns=self.keeps_columns(schema),
        )


def _kind(have: StructType, name: str) -> pa.DataType | None:
    return arrow_type(have[name].type) if name in have.names else None
