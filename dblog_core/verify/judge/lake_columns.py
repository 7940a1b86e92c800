"""How one version of a lake table is read in the shape that is compared: names, types, and what no file has.

A column that was renamed since has another name in the version; one that was added since is NULL, or what rows are
known to hold in it. Values are cast exactly: a value that the staged type does not have is equal to none, and so is a
text whose VARIANT is that of another.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.delta_writer.order_guard import Flags, equal_values
from dblog_core.delta_writer.shape import Shape, readable_shape_of
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.lake.json_variants import SUFFIX, is_filled_variant
from dblog_core.model.schema import TableSchema
from dblog_core.rows.chunked_columns import join_chunks
from dblog_core.rows.variant_encoding import encode_texts
from dblog_core.schema_evolution.renames import Renames
from dblog_core.verify.judge.exact_values import cast_exactly, fit_columns

OFFSET = "_dblog_offset"

OTHER = " (the VARIANT beside it is another)"
"""The end of a text whose VARIANT is not the text's: no JSON ends like that."""

_LARGEST = 16 << 20
"""Characters from which on a text may have no VARIANT: Spark made none of such texts."""


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """Of one version. `names`: by the staged column that of the lake, which others do not have; `variants`: in the same
    way the column of its VARIANT; `constants`: the value of rows that have an offset before another one."""

    schema: TableSchema
    shape: Shape
    names: dict[str, str]
    variants: dict[str, str]
    constants: dict[str, tuple[int, Any]]

    @classmethod
    def of(
        cls, version: Snapshot, schema: TableSchema, renames: Renames, where: str, *, extra: Collection[str] = ()
    ) -> LakeColumns:
        """`renames`: those of the stretch that is staged after the version; `extra`: columns that are read, too.

        Raises LakeError for a table that lacks a column of the key, TableRefused for one that this process does not
        read.
        """
        metadata = version.metadata
        fields: list[Json] = list(orjson.loads(metadata["schemaString"])["fields"])
        now = {field["name"]: field["name"] for field in fields}  # by the name of now that in the version
        for step in renames.steps:
            # A merge that died may have renamed them already.
            if {old for old, _ in step.pairs}.issubset(now):
                now = {step.current_name(name): was for name, was in now.items()}
        names = {column.name: now[column.name] for column in schema.columns if column.name in now}
        if lacking := [name for name in schema.key if name not in names]:
            raise LakeError(
                f"the lake table lacks the key column {', '.join(lacking)}",
                where=where,
                fix=f"rebuild the table: it is not a copy of {schema.table}",
            )
        filled = {field["name"] for field in fields if is_filled_variant(field)}
        variants = {name: now[name + SUFFIX] for name in names if name + SUFFIX in now and now[name + SUFFIX] in filled}
        read_names = {*names.values(), *variants.values(), OFFSET, *extra}
        return cls(schema, readable_shape_of(metadata, read_names, where), names, variants, renames.constants)

    def adapt(self, stored: pa.Table) -> tuple[dict[str, pa.Array], pa.Array, Flags]:
        """Rows of a file (`shape`) by staged column, their offsets, and which of them have a value that is none of the
        staged type."""
        offsets = pa.nulls(len(stored), pa.int64())
        if OFFSET in stored.column_names:
            offsets, _ = cast_exactly(join_chunks(stored[OFFSET]), pa.int64())
        image = {column: join_chunks(stored[name]) for column, name in self.names.items()}
        columns, misfits = fit_columns(image, self.schema, offsets, self.constants)
        for column, name in self.variants.items():
            columns[column] = _mark_other_variants(columns[column], join_chunks(stored[name]))
        return columns, offsets, misfits


def _mark_other_variants(texts: pa.Array, variants: pa.Array) -> pa.Array:
    """The texts; one whose VARIANT is not byte for byte that of the text ends with OTHER."""
    is_too_large = pc.and_(variants.is_null(), pc.fill_null(pc.greater_equal(pc.utf8_length(texts), _LARGEST), False))
    is_other = ~equal_values(variants, encode_texts(texts)) & ~np.asarray(is_too_large)
    return pc.if_else(pa.array(is_other), pc.binary_join_element_wise(pc.fill_null(texts, ""), OTHER, ""), texts)
