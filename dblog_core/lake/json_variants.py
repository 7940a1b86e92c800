"""JSON columns that the lake has as Delta's VARIANT too, each beside its text: `[lake] json_as = "variant"`. No Spark.

The text is what counts: merges, histories, hashes and repairs go by it. The VARIANT is always what the text becomes
when it is parsed, so that nothing is lost by it, and it can be made again at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dblog_core.errors import LakeError
from dblog_core.model.schema import TableSchema

SUFFIX = "_variant"
"""What follows the name of the text's column in that of its VARIANT."""

COMMENT = "what try_parse_json makes of the text beside it"
"""The comment of a VARIANT that has the values of all rows."""

_JSON = ("json", "jsonb")


def variant_name(column: str) -> str:
    """The VARIANT's column in the lake, beside the text's."""
    return column + SUFFIX


def is_filled_variant(field: Mapping[str, Any]) -> bool:
    """Whether a field of a lake table, as its log has it, is a VARIANT that has the values of all rows."""
    return field["type"] == "variant" and (field.get("metadata") or {}).get("comment") == COMMENT


def json_columns(schema: TableSchema) -> tuple[str, ...]:
    """The columns that hold JSON, as far as the source names their type so; they are staged as its text."""
    return tuple(c.name for c in schema.columns if c.source_type.lower() in _JSON and pa.types.is_string(c.type))


def check_variants(schema: TableSchema) -> None:
    """Raises LakeError where a column of the source has the name of a VARIANT."""
    # Spark tells names apart without regard to case.
    names = {c.name.lower(): c.name for c in schema.columns}
    for column in json_columns(schema):
        if (other := names.get(variant_name(column).lower())) is not None:
            raise name_taken(schema, column, f"the source has a column {other}")


def name_taken(schema: TableSchema, column: str, by: str) -> LakeError:
    """The error of a table in which another column has the name of the VARIANT of `column`."""
    return LakeError(
        f"{by}: the VARIANT of {column} cannot be named {variant_name(column)}",
        where=str(schema.table),
        fix=f'set json_as = "text" under [lake.tables."{schema.table}"], or exclude one of the two columns in '
        "[source.columns], or rename it in the source",
    )
