"""The Delta tables: made, widened, and changed by one commit a span, exactly once by Delta's transaction versions.

Every commit is also guarded by offsets, so that applying one again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import pyarrow as pa

from dblog_core.delta_writer.altering.alterations import (
    AddColumn,
    Change,
    CommentColumn,
    SetProperties,
    UnsetProperties,
)
from dblog_core.delta_writer.altering.altered_table import Described
from dblog_core.delta_writer.altering.column_mapping import MODE, is_mapped
from dblog_core.delta_writer.changes import Upserted
from dblog_core.delta_writer.delta_types import StructType
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.replace_rows import Replacement, replace_rows
from dblog_core.delta_writer.rewriting.update_rows import (
    RowUpdate,
    fill_variants,
    update_beyond,
    update_older,
    update_rows,
)
from dblog_core.delta_writer.shape import Shape
from dblog_core.delta_writer.stored_rows import stored_count
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.lake.json_variants import COMMENT, check_variants, json_columns, variant_name
from dblog_core.lake_engine.merging import upsert_rows
from dblog_core.lake_engine.merging.upsert_rows import OpenTables
from dblog_core.lake_engine.tables import (
    alter_table,
    checkpoints,
    create_table,
    log,
    variants,
)
from dblog_core.lake_engine.tables.alter_table import KEY, DroppedColumns
from dblog_core.lake_engine.tables.column_types import (
    OFFSET,
    PROVENANCE,
    check_name_beside_vectors,
    check_names,
    lake_shape,
    needs_mapping,
)  # fmt: skip
from dblog_core.lake_engine.tables.skipping_columns import NAMED, missing_statistics, names_others
from dblog_core.model import column_defaults
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.schema_evolution.renames import Renames
from dblog_core.storage.location import Location

VECTORS = "delta.enableDeletionVectors"


class LakeTable:
    """One table of the lake. `app` names our transactions in its Delta log."""

    def __init__(
        self,
        path: Location,
        schema: TableSchema,
        *,
        app: str,
        adopted: int = 0,
        tables: OpenTables | None = None,
        check: Callable[[], None] = lambda: None,
        dropped: DroppedColumns | None = None,
        renames: Renames | None = None,
        json_as_variant: bool = False,
        settled: set[Location] | None = None,
        vectors: bool = True,
        spark_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`adopted`: as for `Lake`. `tables`: those that this process has open. `check` raises LeaseLost once another
        may merge: it is asked right before every statement. `renames`: those that led to the shape.
        `json_as_variant`: a JSON column has a VARIANT beside it. `vectors`: rows go by deletion vectors.
        `settled`: tables where both are known to be so. `spark_settings`: may give a new table properties
        (`create_table.default_properties`).
        """
        self._spark_settings = spark_settings
        self.check = check
        self._tables = tables or OpenTables()
        self._json_as_variant = json_as_variant
        self._settled = settled if settled is not None else set()
        self._vectors = vectors
        self._renames = renames or Renames()
        self._dropped = dropped or DroppedColumns()
        self.path = path
        self._schema = schema
        self._app = app
        self._adopted = adopted
        self._shaped = alter_table.open_altered(path, check)
        self.committed: int | None = None
        """The version that `commit` has made."""

    @property
    def name(self) -> TableName:
        """The source's table."""
        return self._schema.table

    def exists(self) -> bool:
        return self.version() is not None

    def version(self) -> int | None:
        """Its newest version, by a look at its log."""
        return log.version(self.path) if self.committed is None else log.version_from(self.path, self.committed)

    def prepare(self) -> None:
        """Makes the table, or gives it the shape. Raises LakeError for a shape that it can not take, TableRefused for a
        table that has what is not written here."""
        self._check_names()
        self.check()
        if not self.exists() and self._create():
            self._settled.add(self.path)
            return
        have = self._shaped.describe_writable()
        alter_table.check_owner(have.properties, have.shape.names, self._schema.table, str(self.path))
        for step in self._renames.steps:
            self._shaped.alter(partial(alter_table.rename, step=step))
        self._check_provenance(self._shaped.describe().shape)
        fresh: list[str] = []

        def plan(have: Described) -> list[Change]:
            changes = self._plan_changes(have)
            fresh[:] = [change.name for change in changes if isinstance(change, AddColumn)]
            return changes

        self._shaped.alter(plan)
        self._add_variants(fresh)
        self._fill()
        self._settled.add(self.path)

    def _plan_changes(self, have: Described) -> list[Change]:
        """What the table lacks, but its VARIANTs."""
        changes = alter_table.follow(
            have, schema=self._schema, dropped=self._dropped, json_as_variant=self._json_as_variant
        )
        properties = self._wanted_properties(have.after(changes))
        return [*changes, SetProperties(properties)] if properties else changes

    def _add_variants(self, fresh: Sequence[str]) -> None:
        """Adds and fills the VARIANTs that the table lacks. `fresh`: columns that were added right before."""
        if not self._json_as_variant:
            return
        self._shaped.alter(lambda have: variants.additions(have.shape, self._schema, fresh))
        unfilled = variants.plan(self._shaped.describe().shape, self._schema, is_wanted=True).fill
        if unfilled:
            self._update(fill_variants({name: variant_name(name) for name in unfilled}))
            self._shaped.alter(lambda have: [CommentColumn(variant_name(name), COMMENT) for name in unfilled])

    def _fill(self) -> None:
        """Gives rows from before a column was added what they are known to hold in it: once, and without a dump."""
        for name, (offset, value) in self._renames.constants.items():
            if (column := next((c for c in self._schema.columns if c.name == name), None)) is not None:
                update = update_older(OFFSET, offset, {name: column_defaults.scalar(value, column)})
                self._update(update, log.app_by_offset(f"{self._app}:filled:{name}", self._adopted), offset)

    def _update(self, update: RowUpdate, app: str | None = None, number: int = 0) -> None:
        """As `update_rows`."""
        self.check()
        self.commit(lambda table, _: update_rows(table, update, app, number))

    def is_settled(self) -> bool:
        """Whether what is JSON has the VARIANTs beside it that are wanted, and the properties are as wanted. A
        process looks once at each table: what is wanted changes with the configuration alone, or the table's shape.
        Raises TableRefused."""
        if self.path not in self._settled:
            about = self._tables.describe(self.path, self._schema, self.check)
            others = variants.plan(about.shape, self._schema, is_wanted=self._json_as_variant)
            if not others and not self._wanted_properties(about):
                self._settled.add(self.path)
        return self.path in self._settled

    def _wanted_properties(self, have: Described) -> dict[str, str]:
        """Those that the table lacks."""
        off = {VECTORS: "false"} if not self._vectors and have.properties.get(VECTORS) == "true" else {}
        return {**missing_statistics(have.shape, self._schema.key, have.properties), **off}

    def _check_names(self) -> None:
        check_names(self._schema)
        if self._vectors:
            check_name_beside_vectors(self._schema)
        if self._json_as_variant:
            check_variants(self._schema)

    def _shape(self) -> StructType:
        """The shape of a table that is made."""
        columns = json_columns(self._schema) if self._json_as_variant else ()
        return variants.beside(lake_shape(self._schema), columns)

    def columns(self) -> StructType:
        """The table's columns."""
        return self._shaped.describe().shape

    def renamed_upto(self) -> int:
        """The offset up to which its columns are renamed."""
        return alter_table.renamed_upto(self._shaped.describe().properties)

    def set_properties(self, values: Mapping[str, str]) -> None:
        """Gives properties of the table these values."""
        self._shaped.alter(lambda have: [SetProperties(values)])

    def _check_provenance(self, shape: StructType) -> None:
        have = {f.name: f.type for f in shape}
        if lost := [f.name for f in PROVENANCE if have.get(f.name) != f.type]:
            raise LakeError(
                f"somebody has changed the column {', '.join(lost)}, which tells what has been merged",
                where=str(self.path),
                fix=f"undo it, or run `dblog reset {quote_for_shell(self._schema.table)}`: the table is built again",
            )

    def disown(self, merged: int, number: int) -> None:
        """Has rows without an offset, or beyond `merged`, count as older than all our rows. `number`: the version that
        had them."""
        update = update_beyond(OFFSET, merged, {OFFSET: pa.scalar(0, pa.int64())})
        self._update(update, f"{self._app}:others", number)

    def replace(self, rows: Iterable[pa.Table], number: int, *, renamed: int = 0) -> None:
        """Commits these folded rows, all of them whole, in this shape, as merge `number` in place of all that the table
        has. Its versions continue. They come in parts, which can be gone through again. `renamed`: the offset of a
        rename in the shape that is still to be met."""
        self._check_names()
        log.check_unused(self.path, self._app, number)
        shape = self._shape()

        def plan(schema: Json, properties: Mapping[str, str]) -> list[Change]:
            return self._plan_replacement(properties, shape, renamed=renamed)

        def new_rows(have: Shape) -> Iterator[pa.Table]:
            where = str(self.path)
            for part in rows:
                yield upsert_rows.changes_of(part, self._schema, have, where, merged=0).rows

        fields = shape.json_value()["fields"]
        replacement = Replacement(fields, plan, new_rows)
        self.commit(lambda table, app: replace_rows(table, replacement, app, number))
        self._settled.discard(self.path)

    def _plan_replacement(self, have: Mapping[str, str], shape: StructType, *, renamed: int) -> list[Change]:
        """The properties of a table of this shape, where the key may be another one. `have`: those of now."""
        key = self._schema.key
        properties = {KEY: json.dumps(list(key))}
        if needs_mapping(self._schema) and not is_mapped(have):
            properties[MODE] = "name"
        if renamed > alter_table.renamed_upto(have):
            properties[alter_table.RENAMED] = str(renamed)
        is_other = names_others(have, shape)
        stay = {name: value for name, value in have.items() if not (is_other and name == NAMED)}
        properties |= missing_statistics(shape, key, stay)
        unset = [UnsetProperties((NAMED,))] if is_other and NAMED not in properties else []
        return [*unset, SetProperties(properties)]

    def count_rows(self) -> int:
        """The rows of its newest version, by its log."""
        table = self.open()
        table.refresh()
        files = table.snapshot.files.values()
        dead = {live.path: table.dead_rows(live) for live in files}
        return sum(stored_count(table.files, live, dead[live.path]) - len(dead[live.path]) for live in files)

    def kept_columns(self) -> list[str]:
        """The columns that the table has and the source no longer has."""
        return alter_table.kept_columns(self._shaped.describe().properties)

    def _create(self) -> bool:
        """Makes the table; False where somebody else was faster."""
        properties = {
            VECTORS: str(self._vectors).lower(),
            checkpoints.INTERVAL: str(checkpoints.COMMITS),
            checkpoints.CLEANS: "false",
            KEY: json.dumps(list(self._schema.key)),
            alter_table.TABLE: str(self._schema.table),
        }
        if self._renames:
            properties[alter_table.RENAMED] = str(self._renames.last_offset)
        shape = self._shape()
        properties |= missing_statistics(shape, self._schema.key, {})
        if needs_mapping(self._schema):
            properties[MODE] = "name"
        if not create_table.is_place_empty(self.path):
            raise LakeError(
                "the table's place has files, and no Delta log", where=str(self.path), fix="move the directory away"
            )
        defaults = create_table.default_properties(self._spark_settings)
        return create_table.create_table(self.path, shape, {**defaults, **properties})

    def is_empty(self) -> bool:
        """Whether the table has no row."""
        return upsert_rows.is_empty(self.open())

    def open(self) -> OpenTable:
        """The table as this process has it open."""
        return self._tables.table(self.path, self._schema, self.check)

    def newest_merge(self) -> int | None:
        """The newest merge that has committed here."""
        return log.newest_transaction(self.path, self._app)

    def commit(self, write: Callable[[OpenTable, str], Upserted | None]) -> Upserted | None:
        """Has `write` commit to the open table, by our name in its log. None: it had nothing to do."""
        table = self.open()
        done = write(table, self._app)
        if done is not None and not done.already:
            self.committed = done.version
            self._tables.follow_commit(table)
        return done
