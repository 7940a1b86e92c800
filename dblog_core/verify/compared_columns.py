"""Which columns of a table a comparison is not of, and why: all that are not proven to be in the hash.

A column is compared if it is in the shape that is hashed, and the hash covers its values. Every other column that the
source or the lake has is named. Only dblog's own columns of the lake are not: they are no values of the source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.files import TableFiles
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.lake.json_variants import is_filled_variant, json_columns, variant_name
from dblog_core.model.schema import TableSchema
from dblog_core.rows.row_hashes import explain_not_compared
from dblog_core.storage.location import Location

OWN_COLUMNS = frozenset({"_dblog_offset", "_dblog_position", "_dblog_commit_time", "_dblog_origin"})
"""The provenance that each lake table has."""


@dataclass(frozen=True, slots=True)
class NotCompared:
    """A column that is in no comparison, and the reason."""

    column: str
    reason: str

    def to_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """All columns that a table has in the source; those that are `captured`, that a rule excludes from that, and that
    the lake does not take (`ignored`)."""

    names: Sequence[str] = ()
    captured: Collection[str] = ()
    excluded: Collection[str] = ()
    ignored: Collection[str] = ()


def list_not_compared(
    hashed: TableSchema, source: SourceColumns, lake: Sequence[Mapping[str, Any]]
) -> tuple[NotCompared, ...]:
    """The columns that a comparison of the shape `hashed` is not of. `lake`: the lake table's fields, as its log has
    them."""
    compared = {column.name for column in hashed.columns if explain_not_compared(column) is None}
    # Only a VARIANT with the values of all rows is compared with its text.
    filled_variants = {field["name"] for field in lake if is_filled_variant(field)}
    compared |= filled_variants & {variant_name(name) for name in json_columns(hashed)}
    lake_names = [str(column["name"]) for column in lake if column["name"] not in OWN_COLUMNS]
    names = dict.fromkeys([*source.names, *(column.name for column in hashed.columns), *lake_names])
    return tuple(
        NotCompared(name, _explain(name, hashed, source, lake_names)) for name in names if name not in compared
    )


def read_lake_columns(table: Location, version: int) -> list[Json]:
    """The fields of a version of a lake table. Raises LakeError, TableRefused."""
    files = TableFiles.at(table)
    metadata = snapshot.at_version(files, version).metadata
    try:
        return list(orjson.loads(metadata["schemaString"])["fields"])
    except (KeyError, TypeError, ValueError) as error:
        raise LakeError(
            f"the table's log does not say which columns it has: {error}",
            where=str(files),
            fix="restore the log from a backup, or run `dblog reset` for the table",
        ) from error


def _explain(name: str, hashed: TableSchema, source: SourceColumns, lake_names: Collection[str]) -> str:
    """Why a column is not compared."""
    for column in hashed.columns:
        if column.name == name:
            return explain_not_compared(column) or "it is in no row hash"
    if name in source.excluded:
        also = "; the lake still has it from before" if name in lake_names else ""
        return f"excluded by [source.columns]{also}"
    if name in source.ignored:
        return 'the lake leaves it out (schema_changes = "ignore")'
    if name not in source.names:
        return "only the lake has it"
    if name not in source.captured:
        return "neither log nor dumps have it, such as a generated column"
    return "it is in no row hash"
