"""LAKE/SCHEMA/TABLE__history: every change of a table once, appended before the lake's own table takes it.

The order is what makes it simple: as long as changes are missing here, the lake's table stands as it was before them,
so that a dump's rows can be compared with it, whatever died in between. Each commit tells, as Delta's transaction
version, up to which offset the history is complete: what a merge brings again, after a crash or because its table had
stopped, is known by its offset.

Properties of the Delta table say from where on it tells every change, and whether the table had no row then: such a
history is all that the table can be made of again (`past`). A merge without history leaves a gap; the next one with
history closes it: it begins again, in the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from dblog_core.delta_writer.altering.alterations import AddColumn, Change, SetProperties
from dblog_core.delta_writer.altering.altered_table import Described
from dblog_core.delta_writer.altering.column_mapping import MODE
from dblog_core.delta_writer.append import AppendedTable
from dblog_core.delta_writer.delta_types import DeltaType, StructField, StructType, describe
from dblog_core.delta_writer.features import BatchRefused, TableRefused
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.shape import Shape, name_of_type
from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import HISTORY_AFTER, HISTORY_WHOLE
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events.unchanged_values import Ids
from dblog_core.lake_engine.history import history_lines
from dblog_core.lake_engine.history.former_values import LakeBefore
from dblog_core.lake_engine.history.history_lines import Lines
from dblog_core.lake_engine.history.lake_rows import find_rows
from dblog_core.lake_engine.tables import alter_table, checkpoints, create_table, log
from dblog_core.lake_engine.tables.column_types import (
    COMMIT_TIME,
    OFFSET,
    OP,
    check_names,
    has_ends,
    history_shape,
    needs_mapping,
    quote,
)
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.model.values import Key
from dblog_core.rows.disk_spool import SpooledTables
from dblog_core.schema_evolution import compatibility
from dblog_core.schema_evolution.renames import Renames
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark

AFTER = HISTORY_AFTER
WHOLE = HISTORY_WHOLE
APPEND_ONLY = "delta.appendOnly"
_SHAPES = 3  # shapes that somebody may give the table while one commit is made


@dataclass(frozen=True, slots=True)
class Before:
    """How a table stood before a merge: whether it had no row, and the keys that wait for a dump.

    All changes up to `offset` were in; `is_in_history`: the last of them are in the history too.
    """

    is_empty: Callable[[], bool]
    withheld: Sequence[Key]
    offset: int
    is_in_history: bool
    exists: bool
    """Whether there is a lake table."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A history tells every change after the offset `after`; `whole`: the table had no row then."""

    after: int
    whole: bool


class History:
    """The history of one table. `app` names our transactions in its Delta log."""

    def __init__(
        self,
        table: AppendedTable,
        schema: TableSchema,
        *,
        app: str,
        lake: Callable[[], OpenTable] | None,
        check: Callable[[], None] = lambda: None,
        renames: Renames | None = None,
        keeps_columns: bool = False,
    ) -> None:
        """`lake`: opens the lake table (None: the table has no key), which is used by the thread that has it alone;
        `check` raises LeaseLost once another may merge: it is asked right before every commit; `renames`: those that
        led to the shape; `keeps_columns`: it has the columns of the shape alone, whatever the rows have."""
        self.path = table.location
        self._table = table
        self._schema = schema
        self._app = app
        self._lake = lake
        self._check = check
        self._shaped = alter_table.open_altered(self.path, check)
        self._renames = renames or Renames()
        self._keeps_columns = keeps_columns

    def version(self) -> int | None:
        return log.version(self.path)

    def newest_offset(self) -> int:
        """The last offset of the newest merge that has written its changes; 0 where the log that is left names none."""
        return log.newest_transaction(self.path, self._app) or 0

    def begin(self) -> Begin | None:
        """From where on it is without a gap; None where it does not say so."""
        properties = self._shaped.describe().properties
        return Begin(int(properties[AFTER]), properties.get(WHOLE) == "true") if AFTER in properties else None

    def columns(self) -> StructType:
        """Those of its newest version."""
        return self._shaped.describe().shape

    def append_changes(self, work: Work, before: Before, *, staging: Staging, upto: int) -> None:
        """Appends the work's changes that are not here yet. `upto`: the last offset of the merge. Raises LakeError."""
        told_of = work.files or work.chunks or work.truncates
        if not (told_of or work.finished or self.version() is not None):
            return
        gone = self._find_gone(work, staging)

        def make_lines(shape: Shape) -> Lines:
            has_rows = self._lake is not None and before.exists
            lake = LakeBefore(self._find_rows if has_rows else None, before.withheld, before.offset)
            return history_lines.make_lines(staging, work, self._schema, gone, shape, lake)

        try:
            self._prepare(before, gone)
            if told_of:
                self._append(make_lines, self._app, upto, gone)
        except TableRefused as refusal:
            raise self._refusal_of(refusal) from refusal

    def append_ghosts(self, keys: Iterable[pa.Table], mark: LogMark) -> None:
        """Appends a d for each key that the dump of `mark` shows to be gone. `keys`: the key's columns, some rows at a
        time. Raises LakeError."""
        spooled = SpooledTables()
        for part in keys:
            spooled.append(part)
        if not len(spooled):
            return
        try:
            self._prepare(None)
            make_lines = partial(history_lines.make_ghosts, spooled, mark, self._schema)
            self._append(make_lines, f"{self._app}:ghosts", mark.offset)
        except TableRefused as refusal:
            raise self._refusal_of(refusal) from refusal

    def _find_rows(self, keys: Sequence[pa.Array], names: Sequence[str]) -> tuple[pa.Table, Ids]:
        assert self._lake is not None, "a table without a key asks for no row"
        return find_rows(self._lake(), self._schema, keys, names)

    def _append(self, make_lines: Callable[[Shape], Lines], app: str, number: int, gone: Sequence[Column] = ()) -> None:
        """Commits lines as transaction `number`, unless that is there."""
        for _ in range(_SHAPES):
            if self._table.newest_order(app) >= number:
                return
            try:
                self._table.append(make_lines(self._table.shape()), app, number)
            except BatchRefused:  # somebody has given the table another shape
                self._prepare(None, gone)
                continue
            return
        raise self._refusal("the table's shape changes all the time", "see who alters it; it is tried again")

    def _is_prepared(self, before: Before | None, gone: Sequence[Column]) -> bool:
        """Whether the history is that of the table, has all columns in their types, and says where it begins."""
        about = Described.of(self._table.snapshot.metadata)
        have = {f.name: describe(f.type) for f in about.shape}
        wanted = [*history_shape(self._schema), *_shape_of_gone(gone, about.shape.names)]
        properties = about.properties
        return (
            not self._renames
            and alter_table.is_another(properties, self._schema.table) is None
            and all(have.get(f.name) == describe(f.type) for f in wanted)
            and (before is None or before.is_in_history or properties.get(AFTER) == str(before.offset))
        )

    def _prepare(self, before: Before | None, gone: Sequence[Column] = ()) -> None:
        """Makes the table, or widens it and adds the columns that are new. Raises LakeError for a shape that it can
        not take; TableRefused.

        `before` (None: somebody has prepared it already): where it begins, if the last changes were not written;
        `gone`: columns of the merge's rows that the table no longer has.
        """
        self._check()
        if self.version() is None:
            self._create(before)
        self._table.refresh()
        if self._is_prepared(before, gone):
            return
        if OP in (have := self._shaped.describe()).shape.names:
            for step in self._renames.steps:
                self._shaped.alter(partial(alter_table.rename, step=step))
            have = self._shaped.describe()
        self._check_owner(have)
        self._shaped.alter(self._plan_changes)
        self._shaped.alter(partial(self._plan_gone, gone=gone))
        if before is not None and not before.is_in_history:
            self._begin_anew(before)
        self._table.refresh()

    def _check_owner(self, have: Described) -> None:
        """Raises LakeError where another table has this place."""
        if OP not in have.shape.names:
            raise self._refusal(
                "its place is that of another table", "leave one of the two out of `tables`, or set history off"
            )
        if (other := alter_table.is_another(have.properties, self._schema.table)) is not None:
            raise self._refusal(
                f"its place is that of the history of {other}: the file system takes the two names for one",
                "leave one of the two out of `tables`, or have the lake on a file system that tells them apart",
            )

    def _plan_changes(self, have: Described) -> list[Change]:
        """Columns that are wider now, and those that are new. Raises LakeError for a shape that it can not take."""
        want = history_shape(self._schema)
        changes = alter_table.widen(have.shape, want)
        if changes is None:
            old = {f.name: f.type for f in have.shape}
            changed = [
                f"column {f.name} was {describe(old[f.name])} and is {describe(f.type)}"
                for f in want
                if not alter_table.is_wider(old.get(f.name, f.type), f.type, or_equal=True)
            ]
            raise self._cannot_follow(changed)
        if conflicts := alter_table.find_case_conflicts(have.shape.names, self._schema):
            raise self._cannot_follow(
                f"column {name} differs from {other} in upper and lower case alone" for name, other in conflicts
            )
        added = [f for f in want if f.name not in have.shape.names]
        return [*changes, *(AddColumn(f.name, f.type) for f in added)]

    def _cannot_follow(self, faults: Iterable[str]) -> LakeError:
        return self._refusal(
            f"the history cannot follow: {'; '.join(faults)}",
            "move the history's directory away: the next merge begins a new one",
        )

    def _find_gone(self, work: Work, staging: Staging) -> list[Column]:
        """Columns of the work's rows that the table no longer has, each in its widest type: those that are dropped, and
        those whose names other columns now have. Raises LakeError for one that had types of which none holds all."""
        if self._keeps_columns or not (self._renames or len(work.schemas) > 1):
            return []
        names = {column.name.lower() for column in self._schema.columns}
        widest: dict[str, Column] = {}
        columns = [column for shape in work.shapes(staging.schema) for column in shape.columns]
        for column in (column for column in columns if column.name.lower() not in names):
            other = widest.setdefault(column.name, column)
            if compatibility.is_widening(other.type, column.type):
                widest[column.name] = column
            elif other.type != column.type and not compatibility.is_widening(column.type, other.type):
                raise self._cannot_follow([f"column {history_lines.name_of_gone(column)} had several types"])
        return list(widest.values())

    def _plan_gone(self, have: Described, *, gone: Sequence[Column]) -> list[Change]:
        """A column for each of the rows' that the table no longer has; a merge before, or a rename, has made those that
        the table has had."""
        want = _shape_of_gone(gone, have.shape.names)
        if (changes := alter_table.widen(have.shape, want)) is None:
            raise self._cannot_follow(f"column {name} had several types" for name in want.names)
        return [
            *changes,
            *(AddColumn(f.name, f.type) for f in want if f.name not in have.shape.names),
        ]

    def _begin_anew(self, before: Before) -> None:
        """Changes up to where the table stood may be missing. A merge that is tried again has said so already."""
        begin = self.begin()
        if begin is None or begin.after != before.offset:
            self._shaped.alter(lambda have: [SetProperties(_properties(before))])

    def _refusal(self, what: str, fix: str) -> LakeError:
        return LakeError(what, where=str(self.path), fix=fix)

    def _refusal_of(self, refusal: TableRefused) -> LakeError:
        """The error of a history, or of a lake table that its lines need rows of, which is not one for this package."""
        where = refusal.where or str(self.path)
        if where.startswith(str(self.path)):
            what = f"the history cannot be written: {refusal.feature}"
            fix = "change that; or move its directory away: the next merge begins a new one"
        else:
            what = f"the history needs rows of the lake table, which cannot be read: {refusal.feature}"
            fix = f"change that; or run `dblog reset {quote_for_shell(self._schema.table)}`: it is built again"
        return LakeError(what, where=where, fix=fix)

    def _create(self, before: Before | None) -> None:
        check_names(self._schema)
        keys = zip(self._schema.key, self._schema.key_columns, strict=True)
        bounded = [OFFSET, COMMIT_TIME, *(quote(name) for name, c in keys if has_ends(c.type))]
        properties = {
            APPEND_ONLY: "true",
            checkpoints.CLEANS: "false",
            alter_table.TABLE: str(self._schema.table),
            "delta.dataSkippingStatsColumns": ",".join(bounded),
            **(_properties(before) if before is not None else {}),
        }
        if self._renames:
            properties[alter_table.RENAMED] = str(self._renames.last_offset)
        if needs_mapping(self._schema):
            properties[MODE] = "name"
        if not create_table.is_place_empty(self.path):
            raise self._refusal("its place has files, and no Delta log", "move the directory away")
        create_table.create_table(self.path, history_shape(self._schema), properties)  # or somebody was faster


def _shape_of_gone(gone: Sequence[Column], have: Sequence[str]) -> StructType:
    """The columns of a history for those that the table no longer has. `have`: the names of those that it has."""
    names = {name.lower(): name for name in have}
    kinds: dict[str, DeltaType] = {history_lines.name_of_gone(column): name_of_type(column.type) for column in gone}
    return StructType([StructField(names.get(name.lower(), name), kind) for name, kind in kinds.items()])


def _properties(before: Before) -> dict[str, str]:
    """How a history says that it begins here."""
    return {AFTER: str(before.offset), WHOLE: str(before.is_empty()).lower()}
