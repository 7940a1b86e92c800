"""`[lake]`: the Delta tables, and how they follow what changes in their source."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dblog_core.config.fields import (
    Duration,
    Flag,
    Section,
    Size,
    TableNameText,
    Whole,
)
from dblog_core.model import table_patterns

if TYPE_CHECKING:
    from dblog_core.model.schema import TableName


SchemaChanges = Literal["evolve", "ignore", "fail"]
"""What the lake does when a table's shape changes: follow, keep its own columns, or stop that table."""


JsonAs = Literal["text", "variant"]
"""What a JSON column is in the lake: its text alone, or beside that Delta's VARIANT."""


class LakeTableConfig(Section):
    """What the lake does with some tables unlike with the others."""

    schema_changes: SchemaChanges | None = Field(default=None, description="as in [lake]; default: what stands there")
    json_as: JsonAs | None = Field(default=None, description="as in [lake]; default: what stands there")


class LakeConfig(Section):
    """The Delta tables."""

    path: str = Field(description="a directory, or s3://BUCKET/PREFIX")
    engine: Literal["spark", "local"] = Field(
        default_factory=lambda: "spark" if importlib.util.find_spec("pyspark") else "local",
        description="spark: a merge is a Spark application, which may spread work over executors; local: a process of "
        "Python; default: spark where pyspark is installed",
    )
    history: Flag = Field(default=False, description="true: an append-only table of every change beside each table")
    drop_columns: Flag = Field(
        default=False, description="true: a column that the source drops is dropped; false: its old values stay"
    )
    schema_changes: SchemaChanges = Field(
        default="evolve",
        description="when a table's shape changes: evolve follows it, ignore keeps the lake's columns, fail stops it",
    )
    json_as: JsonAs = Field(
        default="text", description="JSON columns: text alone, or variant: beside NAME its VARIANT, as NAME_variant"
    )
    tables: dict[TableNameText, LakeTableConfig] = Field(
        default={}, description="settings of single tables, by SCHEMA.TABLE patterns; the first that matches counts"
    )
    compact_after: Whole = Field(
        default=100, ge=0, description="commits of a table after which the merge joins its small files; 0: never"
    )
    index_memory: Size = Field(
        default=512 << 20,
        ge=1 << 20,
        le=1 << 40,
        description='bytes, or "2G": of all indexes of keys that a merge keeps in memory; the rest is on disk',
    )
    deletion_vectors: Flag = Field(
        default=True,
        description="false: tables without deletion vectors, for readers that know none; merges copy touched files",
    )
    keep: Duration = Field(
        default="7d", description='age up to which cuts can be read, 1h at least: "36h", "30d", "forever"'
    )
    purge_after: Duration | None = Field(
        default=None, description='age up to which replaced rows may be marked only: "1d", "forever"; default: `keep`'
    )
    maintain_every: Duration = Field(
        default="1d", description='how often a continuous merge maintains the lake: "12h", "1d", "never"'
    )

    def schema_changes_of(self, table: TableName) -> SchemaChanges:
        """The policy of a table: that of the first entry of `tables` which matches and says one, or the lake's."""
        policies = (entry.schema_changes for entry in self._entries_of(table) if entry.schema_changes)
        return next(policies, self.schema_changes)

    def json_as_of(self, table: TableName) -> JsonAs:
        """What the JSON columns of a table are, in one form."""
        forms = (entry.json_as for entry in self._entries_of(table) if entry.json_as)
        return next(forms, self.json_as)

    def _entries_of(self, table: TableName) -> Iterator[LakeTableConfig]:
        return (entry for pattern, entry in self.tables.items() if table_patterns.matches(table, [pattern]))
