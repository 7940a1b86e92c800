"""Which columns of a lake table have statistics: Delta takes the first ones, and a merge needs those of the key and of
the offset wherever they stand.

By these a merge, a TRUNCATE and the end of a dump leave out files in which there is nothing to change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from dblog_core.delta_writer import delta_types as t
from dblog_core.lake_engine.tables.column_types import OFFSET, arrow_type, quote

NAMED = "delta.dataSkippingStatsColumns"
_COUNT = "delta.dataSkippingNumIndexedCols"
_FIRST = 32
"""Columns that have statistics, where the table does not say otherwise."""


def missing_statistics(shape: t.StructType, key: Sequence[str], properties: Mapping[str, str]) -> dict[str, str]:
    """The property to set on a table of this shape; nothing where the columns have their statistics, or somebody has
    named others. `properties`: those of the table."""
    if NAMED in properties:
        return {}
    first = int(properties.get(_COUNT, _FIRST))
    # A column within another counts too.
    before = 0
    late = list[str]()
    early = list[str]()
    for field in shape:
        before += _leaves(field.type)
        is_needed = field.name == OFFSET or field.name in key
        if _may_be_named(field.type) and _is_plain(field.name):
            if first < 0 or before <= first:
                early.append(field.name)
            elif is_needed:
                late.append(field.name)
    return {NAMED: ",".join(map(quote, [*early, *late]))} if late else {}


def names_others(properties: Mapping[str, str], shape: t.StructType) -> bool:
    """Whether the property names a column that this shape lacks: Delta gives the table no such shape."""
    named = properties.get(NAMED)
    return named is not None and not {name.strip().strip("`") for name in named.split(",")} <= set(shape.names)


def _leaves(kind: t.DeltaType) -> int:
    return sum(_leaves(field.type) for field in t.StructType.of(kind)) if t.is_struct(kind) else 1


def _may_be_named(kind: t.DeltaType) -> bool:
    """Whether Delta lets a table name columns of the type."""
    simple = arrow_type(kind)
    return simple is not None and not (pa.types.is_boolean(simple) or pa.types.is_binary(simple))


def _is_plain(name: str) -> bool:
    """Whether every reader of the list takes the name for one: a comma ends a name there."""
    return "," not in name and "`" not in name
