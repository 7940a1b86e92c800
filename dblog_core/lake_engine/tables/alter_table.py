"""What gives a Delta table the shape of its source's table: changes, each of which a later run leaves out once done.

A column that is proven to be renamed is renamed, by column mapping. First each column of a rename gets a name in
between, then the new one: so columns may swap their names. The property `dblog.renamed` is the offset up to which
renames are done; it is set by the same commit.

A column that the source drops stays in the lake: rows that are not written again keep its values. The property
`dblog.dropped` names such columns, so that they differ from those that somebody else has added. With
`[lake] drop_columns` they go, by column mapping, which leaves files as they are. A type is widened in place. Where a
column that is JSON has a VARIANT beside it, that one follows it (`variants`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from dblog_core.delta_writer import delta_types as t
from dblog_core.delta_writer.altering.alterations import (
    FIRST,
    WIDENING,
    AddColumn,
    Change,
    DropColumns,
    RenameColumn,
    SetProperties,
    WidenColumn,
)
from dblog_core.delta_writer.altering.altered_table import AlteredTable, Described
from dblog_core.delta_writer.altering.column_mapping import MODE
from dblog_core.errors import LakeError
from dblog_core.lake.json_variants import variant_name
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.lake_engine.tables import checkpoints, variants
from dblog_core.lake_engine.tables.column_types import (
    MOVED_FROM,
    OP,
    arrow_type,
    is_odd,
    refuse_shape,
    row_shape,
)
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.schema_evolution import compatibility
from dblog_core.schema_evolution.renames import Rename, name_until
from dblog_core.storage.location import Location

DROPPED = "dblog.dropped"
RENAMED = "dblog.renamed"
KEY = "dblog.key"
TABLE = "dblog.table"


@dataclass(frozen=True, slots=True)
class DroppedColumns:
    """What is known of columns that the source no longer has.

    `had`: names of columns that it has had; `in_batch`: columns of the shape in question that it no longer has, but
    rows of the batch have; `drop`: the lake drops what the source drops; `replaced`: columns that may go with their
    values where their type is another one now, or their name has another case, since a full dump brings them again.
    """

    had: frozenset[str] = frozenset()
    in_batch: frozenset[str] = frozenset()
    drop: bool = False
    replaced: frozenset[str] = frozenset()


def open_altered(path: Location, check: Callable[[], None]) -> AlteredTable:
    """The table of the lake there; `check` is asked right before each commit."""
    return AlteredTable(path, mark=COMMIT_MARK, check=check, committed=checkpoints.follow_commit)


def is_another(properties: Mapping[str, str], table: TableName) -> str | None:
    """The source's table of our Delta table, if it is another one; older tables do not say it."""
    return other if (other := properties.get(TABLE, str(table))) != str(table) else None


def check_owner(properties: Mapping[str, str], columns: Collection[str], table: TableName, where: str) -> None:
    """Raises LakeError where another table has this place. `columns`: of the Delta table that is there."""
    if KEY not in properties and OP in columns:
        raise LakeError(
            "its place is that of another table's history",
            where=where,
            fix="leave one of the two tables out of `tables`; where histories are off, move that directory away",
        )
    if KEY not in properties:
        raise LakeError("holds a Delta table that dblog has not made", where=where, fix="move it away")
    if (other := is_another(properties, table)) is not None:
        raise LakeError(
            f"its place is that of {other}: the file system takes the two names for one",
            where=where,
            fix="leave one of the two out of `tables`, or have the lake on a file system that tells them apart",
        )


def kept_columns(properties: Mapping[str, str]) -> list[str]:
    """The columns that the lake table has and the source no longer has."""
    return [str(name) for name in json.loads(properties.get(DROPPED, "[]"))]


def renamed_upto(properties: Mapping[str, str]) -> int:
    """The offset up to which the table's columns are renamed."""
    return int(properties.get(RENAMED, "0"))


def rename(have: Described, step: Rename) -> list[Change]:
    """The changes of a rename; none once it is done. A column of an older meaning that has one of the new names goes
    (in a history, which loses nothing, it gets another name), also where the column that takes the name was added
    since and is not there yet."""
    if renamed_upto(have.properties) >= step.offset:
        return []
    apart = list(_set_apart(have.shape, have.properties, step))
    return [*apart, *_bring_together(have.after(apart).shape, step)]


def _set_apart(have: t.StructType, properties: Mapping[str, str], step: Rename) -> Iterator[Change]:
    """The first half of a rename."""
    reused = {name.lower() for name in step.reused_names}
    stale = [n for n in have.names if n.lower() in reused and n not in step.new]
    stale += [variant for text, variant in variants.of(have).items() if text in stale]
    if properties.get(MODE) in (None, "none"):
        yield SetProperties({MODE: "name"})
    if stale and KEY in properties:
        yield DropColumns(tuple(stale))
    elif stale:
        yield from (RenameColumn((n,), name_until(n, step.offset)) for n in stale)
    pairs = variants.pairs_with_variants(step, have)
    for within, names in _levels(have):
        yield from (RenameColumn((*within, old), _between(step, new)) for old, new in pairs if old in names)
    now = {RENAMED: str(step.offset)}
    if KEY in properties:
        now[KEY] = json.dumps([step.current_name(name) for name in json.loads(properties[KEY])])
    if DROPPED in properties:
        left = [n for n in kept_columns(properties) if n in step.new or n.lower() not in reused]
        now[DROPPED] = json.dumps(sorted(map(step.current_name, left)))
    yield SetProperties(now)


def _bring_together(have: t.StructType, step: Rename) -> Iterator[Change]:
    """The second half of a rename."""
    for within, names in _levels(have):
        for name in (n for _, new in step.pairs for n in (new, variant_name(new))):
            if _between(step, name) in names:
                yield RenameColumn((*within, _between(step, name)), name)


def _levels(have: t.StructType) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The columns, and the key that a row of a history has had, with the path to their names."""
    yield (), have.names
    if MOVED_FROM in have.names and t.is_struct(old := have[MOVED_FROM].type):
        yield (MOVED_FROM,), t.StructType.of(old).names


def _between(step: Rename, name: str) -> str:
    return f"_dblog_{step.offset}_{name}"


def follow(
    have: Described,
    *,
    schema: TableSchema,
    dropped: DroppedColumns,
    json_as_variant: bool = False,
) -> list[Change]:
    """What the lake table still lacks to follow the source's, in order. `json_as_variant`: what is JSON has a VARIANT
    beside it (`variants` adds those).

    Raises LakeError for a difference that the lake does not follow.
    """
    drop, back = _find_going(have, schema, dropped)
    lake_types = {n: kind for n, kind in _lake_types(have.shape).items() if n not in drop}
    _check_followed(have, schema, dropped, lake_types, back)
    shape = row_shape(schema)
    added = [n for n in shape.names if n not in lake_types]
    wider = [n for n in shape.names if n in lake_types and lake_types[n] != shape[n].type]
    drop += variants.plan(have.shape, schema, is_wanted=json_as_variant, going=drop).drop
    settings = {MODE: "name"} if drop or any(map(is_odd, added)) else {}
    settings |= {WIDENING: "true"} if wider else {}
    settings = {n: v for n, v in settings.items() if have.properties.get(n) in (None, "none", "false")}
    changes: list[Change] = [SetProperties(settings)] if settings else []
    if drop:
        changes.append(DropColumns(tuple(drop)))
    # After the drop and before the same name is added: no column that lives is ever marked.
    marks = set() if dropped.drop else set(_find_left(have.shape, schema, dropped))
    if set(kept_columns(have.properties)) != marks:
        changes.append(SetProperties({DROPPED: json.dumps(sorted(marks))}))
    changes += [WidenColumn((n,), shape[n].type) for n in wider]
    for name in added:
        place = shape.names.index(name)
        after = shape.names[place - 1] if place else FIRST
        changes.append(AddColumn(name, shape[name].type, after))
    return changes


def _lake_types(have: t.StructType) -> dict[str, t.DeltaType]:
    """The types of the columns that are the source's."""
    return {f.name: f.type for f in have if not (f.name.startswith("_dblog_") or variants.is_own(f))}


def _find_left(have: t.StructType, schema: TableSchema, dropped: DroppedColumns) -> list[str]:
    """The lake's columns that the source no longer has."""
    source = {c.name for c in schema.columns if c.name not in dropped.in_batch}
    return [name for name in _lake_types(have) if name not in source]


def _find_going(have: Described, schema: TableSchema, dropped: DroppedColumns) -> tuple[list[str], list[str]]:
    """The lake's columns that go with their values; and dropped columns that the source has again."""
    lake_types = _lake_types(have.shape)
    source = [c.name for c in schema.columns if c.name not in dropped.in_batch]
    marked = set(kept_columns(have.properties))
    left = _find_left(have.shape, schema, dropped)
    back = [name for name in source if name in lake_types and name in marked]
    drop = [*left, *back] if dropped.drop else []
    drop += [
        n
        for n in source
        if n in dropped.replaced and n in lake_types and n not in drop and _is_another(lake_types[n], n, schema)
    ]
    replaced_in_case = {n.lower() for n in dropped.replaced if n not in lake_types}
    drop += [n for n in left if n not in drop and n in marked | dropped.had and n.lower() in replaced_in_case]
    return drop, back


def _check_followed(
    have: Described,
    schema: TableSchema,
    dropped: DroppedColumns,
    lake_types: Mapping[str, t.DeltaType],
    back: list[str],
) -> None:
    """Raises LakeError for a difference that the lake does not follow. `lake_types`: of the columns that stay."""
    columns_of_source = set(kept_columns(have.properties)) | dropped.had
    left = _find_left(have.shape, schema, dropped)
    faults = [f"the lake has a column {n} that the source never had" for n in left if n not in columns_of_source]
    faults += _find_other_types(lake_types, schema, back)
    faults += [
        f"column {name} differs from {other}, which the lake keeps, in upper and lower case alone; with "
        "`[lake] drop_columns = true` the old column and its values go"
        for name, other in find_case_conflicts(list(lake_types), schema)
    ]
    key = json.loads(have.properties[KEY])
    faults += [compatibility.describe_key_change(key, schema.key)] if key != list(schema.key) else []
    if faults:
        raise refuse_shape(schema, faults)


def _is_another(lake_type: t.DeltaType, name: str, schema: TableSchema) -> bool:
    return not is_wider(lake_type, row_shape(schema)[name].type, or_equal=True)


def _find_other_types(lake_types: Mapping[str, t.DeltaType], schema: TableSchema, back: list[str]) -> list[str]:
    """Columns whose type in the lake cannot become the one that they have now, in words."""
    faults = []
    for column, field in zip(schema.columns, row_shape(schema), strict=True):
        if column.name not in lake_types or is_wider(lake_types[column.name], field.type, or_equal=True):
            continue
        was = t.describe(lake_types[column.name])
        now = compatibility.describe_type(column)
        if column.name in back:
            faults.append(
                f"column {column.name}, dropped as {was}, came back as {now}, and the lake has the old values still; "
                "with `[lake] drop_columns = true` they go"
            )
        else:
            faults.append(f"column {column.name} was {was} and is {now}")
    return faults


def find_case_conflicts(lake_names: Collection[str], schema: TableSchema) -> list[tuple[str, str]]:
    """Columns that the lake cannot have beside one that it keeps, each with that one."""
    names = {c.name for c in schema.columns}
    others = {name.lower(): name for name in lake_names if name not in names}
    return [(name, others[name.lower()]) for name in names if name.lower() in others]


def is_wider(have: t.DeltaType, want: t.DeltaType, *, or_equal: bool = False) -> bool:
    """Whether a column of the lake can become one of type `want`, with the same values."""
    if have == want:
        return or_equal
    old = arrow_type(have)
    new = arrow_type(want)
    return old is not None and new is not None and compatibility.is_widening(old, new)


def widen(have: t.StructType, want: t.StructType) -> list[Change] | None:
    """The changes of those columns of both that are now wider, fields of structs too; None where one is neither equal
    nor wider. The table is set up for it first."""
    if (paths := _wider(have, want)) is None:
        return None
    changes = [WidenColumn(path, kind) for path, kind in paths]
    return [SetProperties({WIDENING: "true"}), *changes] if changes else []


def _wider(
    have: t.StructType, want: t.StructType, within: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], t.DeltaType]] | None:
    paths: list[tuple[tuple[str, ...], t.DeltaType]] = []
    old = {f.name: f.type for f in have}
    for field in want:
        path = (*within, field.name)
        before = old.get(field.name, field.type)
        if t.is_struct(before) and t.is_struct(field.type):
            old_parts, new_parts = t.StructType.of(before), t.StructType.of(field.type)
            if old_parts.names != new_parts.names or (inner := _wider(old_parts, new_parts, path)) is None:
                return None
            paths += inner
        elif is_wider(before, field.type):
            paths.append((path, field.type))
        elif before != field.type:
            return None
    return paths


def shape_to_fold_into(
    newest: TableSchema, older: list[TableSchema], lake_names: set[str], dropped: DroppedColumns
) -> tuple[TableSchema, DroppedColumns]:
    """The shape that rows of `older` shapes and of the newest are folded into, so that it makes no difference where a
    merge ends: the newest, and columns that it no longer has, but older rows and the lake (`lake_names`) have."""
    names = {c.name for c in newest.columns}
    in_batch: dict[str, Column] = {}
    for column in (c for schema in older for c in schema.columns if c.name in lake_names and c.name not in names):
        widest = in_batch.get(column.name)
        if widest is None or not compatibility.is_widening(column.type, widest.type):
            in_batch[column.name] = column
    if dropped.drop or not in_batch:
        return newest, dropped
    whole = TableSchema(newest.table, (*newest.columns, *in_batch.values()), newest.key)
    return whole, DroppedColumns(dropped.had, frozenset(in_batch), dropped.drop)
