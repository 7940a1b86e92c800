"""The VARIANT columns of lake tables: NAME_variant, beside the text NAME of a column that is JSON at the source.

Each is always what `rows.variant_encoding` makes of its text: a commit that writes the text writes both. Where one is
added to a table that has rows, one update fills it; only then it gets its comment. So a run that finds it without the
comment knows that an earlier one has died in between, and fills it: nothing is filled twice, and nothing is left out.

No staged type becomes a VARIANT: a column of this type with such a name is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dblog_core.delta_writer import delta_types as t
from dblog_core.delta_writer.altering.alterations import AddColumn, Change
from dblog_core.lake.json_variants import COMMENT, SUFFIX, json_columns, name_taken, variant_name
from dblog_core.lake_engine.tables.column_types import VARIANT
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution.renames import Rename

METADATA = {"comment": COMMENT}


def of(have: t.StructType) -> dict[str, str]:
    """The VARIANT columns of a lake table, by the name of the text's column."""
    return {f.name.removesuffix(SUFFIX): f.name for f in have if is_own(f)}


def is_filled(field: t.StructField) -> bool:
    """Whether a VARIANT column has the rows from before it was added, too."""
    return bool(field.metadata.get("comment") == COMMENT)


def is_own(field: t.StructField) -> bool:
    """Whether the column of a lake table is a VARIANT that dblog has added. One whose rename is under way is not yet
    again.
    """
    return field.type == VARIANT and field.name.endswith(SUFFIX) and not field.name.startswith("_dblog_")


def beside(fields: t.StructType, columns: Collection[str]) -> t.StructType:
    """The shape with the VARIANTs of these columns, each after its text."""
    added = {n: t.StructField(variant_name(n), VARIANT, metadata=dict(METADATA)) for n in columns}
    return t.StructType([f for field in fields for f in (field, added.get(field.name)) if f is not None])


# What gives a table its columns -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What a lake table's VARIANT columns want: the texts whose VARIANT must be added, and (these too) must be filled;
    the VARIANTs that go.
    """

    add: tuple[str, ...]
    fill: tuple[str, ...]
    drop: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.add or self.fill or self.drop)


def plan(have: t.StructType, schema: TableSchema, *, is_wanted: bool, going: Sequence[str] = ()) -> Plan:
    """`going`: columns of the table that are dropped, though one of the same name may come in their place.

    A column that the source no longer has keeps its VARIANT as it keeps its text. Raises LakeError where another column
    has the name of a VARIANT.
    """
    by_text = of(have)
    json = json_columns(schema) if is_wanted else ()
    lives = {n for n in have.names if n not in going}
    source = {c.name for c in schema.columns}
    stay = {n for n in by_text if is_wanted and n in lives and (n in json or n not in source)}
    others = {n.lower(): n for n in lives if n not in by_text.values()}
    for name in json:
        if name not in stay and (other := others.get(variant_name(name).lower())) is not None:
            raise name_taken(schema, name, f"the lake has a column {other} still")
    add = tuple(n for n in json if n not in stay)
    unfilled = tuple(n for n in json if n in stay and not is_filled(have[by_text[n]]))
    return Plan(add, (*add, *unfilled), tuple(v for n, v in by_text.items() if n not in stay))


def additions(have: t.StructType, schema: TableSchema, fresh: Collection[str]) -> list[Change]:
    """What adds the VARIANTs that the table lacks. `fresh`: columns without a value in any row."""
    lacking = plan(have, schema, is_wanted=True).add
    return [AddColumn(variant_name(n), VARIANT, n, COMMENT if n in fresh else None) for n in lacking]


def pairs_with_variants(step: Rename, have: t.StructType) -> list[tuple[str, str]]:
    """The pairs of a rename, and those of the VARIANTs that follow their texts."""
    by_text = of(have)
    names = {f.name.lower() for f in have if not is_own(f)}
    more = [(by_text[old], variant_name(new)) for old, new in step.pairs if old in by_text]
    return [*step.pairs, *(pair for pair in more if pair[1].lower() not in names)]
