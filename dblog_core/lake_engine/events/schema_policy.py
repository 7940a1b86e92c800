"""What a merge makes of a new shape of a table, by `[lake] schema_changes`.

evolve   the lake table takes it, as far as nothing is lost (`alters`)
ignore   the lake table keeps its columns; rows of any shape are fitted into them, a value exactly or not at all
fail     the table stops at it, until somebody accepts it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import pyarrow as pa

from dblog_core.delta_writer import delta_types as t
from dblog_core.errors import LakeError
from dblog_core.lake import accept_schema
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.tables import variants
from dblog_core.lake_engine.tables.column_types import arrow_type, refuse_shape
from dblog_core.model.schema import Column as TableColumn
from dblog_core.model.schema import TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.schema_evolution import compatibility

_Test: TypeAlias = Callable[[pa.DataType], bool]
_FITS: tuple[tuple[tuple[_Test, ...], tuple[_Test, ...]], ...] = (
    ((pa.types.is_integer, pa.types.is_decimal), (pa.types.is_integer, pa.types.is_decimal)),
    ((pa.types.is_integer, pa.types.is_float64), (pa.types.is_floating,)),
    ((pa.types.is_integer,), (pa.types.is_string,)),
    ((pa.types.is_string,), (pa.types.is_integer,)),
    ((lambda kind: kind == pa.timestamp("us"),), (pa.types.is_date,)),
)
"""Types of which some values are exactly a value of another type too: `exact_casts` finds those."""


def shape_in_lake(schema: TableSchema, have: t.StructType) -> TableSchema:
    """The shape as the lake has it: its columns that the lake has too, in the lake's types."""
    lake_types = {f.name: arrow_type(f.type) for f in have}
    columns = [TableColumn(c.name, c.source_type, kind) for c in schema.columns if (kind := lake_types.get(c.name))]
    return TableSchema(schema.table, tuple(columns), schema.key)


def columns_not_in_lake(schema: TableSchema, have: t.StructType) -> list[str]:
    """The columns of the shape that the lake does not have."""
    lake_names = {f.name for f in have if not variants.is_own(f)}
    return [c.name for c in schema.columns if c.name not in lake_names]


def check_key(before: TableSchema, shapes: Iterable[TableSchema]) -> None:
    """Raises LakeError where the key changes, or the type of a column of it: rows could not be distinguished."""
    for schema in shapes:
        if schema.key != before.key:
            raise refuse_shape(schema, [compatibility.describe_key_change(before.key, schema.key)])
        for was, now in zip(before.key_columns, schema.key_columns, strict=True):
            if was.type != now.type:
                change = f"{compatibility.describe_type(was)} and is {compatibility.describe_type(now)}"
                raise refuse_shape(schema, [f"column {was.name} of the key was {change}"])


def check_fits(older: TableSchema, target: TableSchema) -> None:
    """Raises LakeError unless values of each column may be values of the lake's (`target`), too."""
    older_columns = {c.name: c for c in older.columns}
    faults = [
        f"column {c.name} is {compatibility.describe_type(older_columns[c.name])},"
        f" of which no value is one of the lake's {c.type}"
        for c in target.columns
        if c.name in older_columns and not _may_fit(older_columns[c.name].type, c.type)
    ]
    if faults:
        raise refuse_shape(target, faults)


def _may_fit(from_type: pa.DataType, to_type: pa.DataType) -> bool:
    if from_type == to_type or compatibility.is_widening(from_type, to_type):
        return True
    return any(
        any(is_kind(from_type) for is_kind in from_kinds) and any(is_kind(to_type) for is_kind in to_kinds)
        for from_kinds, to_kinds in _FITS
    )


# fail -------------------------------------------------------------------------------------------------------------


def check_accepted(
    work: Work, lake_shape: TableSchema, shape_of: Callable[[str], TableSchema], *, accepted: int | None
) -> None:
    """Raises LakeError for a shape unlike `lake_shape`, which the lake has, that came after offset `accepted`."""
    upto = accepted or 0
    shapes = [(m.offset, m.schema) for m in work.reshaped if m.schema is not None]
    shapes += [(f.first_offset, f.schema) for f in work.files] + [(c.first_offset, c.schema) for c in work.chunks]
    well = {lake_shape.fingerprint, *(shape for offset, shape in shapes if offset <= upto)}
    for offset, shape in sorted(shapes):
        if shape not in well:
            raise _not_accepted(lake_shape, shape_of(shape), offset)
    for mark in work.reshaped:
        if mark.renamed and mark.offset > upto and mark.schema is not None:  # names may change places, and none is new
            raise _not_accepted(lake_shape, shape_of(mark.schema), mark.offset)


def _not_accepted(before: TableSchema, after: TableSchema, offset: int) -> LakeError:
    return LakeError(
        f"the table's shape changed at offset {offset}: {'; '.join(accept_schema.describe_change(before, after))}",
        where=str(after.table),
        fix='`[lake] schema_changes` is "fail" for it: run '
        f"`dblog schema accept {quote_for_shell(after.table)}` and merge again, "
        f"or `dblog reset {quote_for_shell(after.table)}`, which dumps it again",
    )
