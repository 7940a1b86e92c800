"""Column mapping by name: columns keep the names that they have in files, whatever they are called later.

Source: PROTOCOL.md, "Column Mapping". Fields of structs are columns too, also those within lists and maps.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dblog_core.delta_writer.shape import COLUMN_ID, PHYSICAL_NAME
from dblog_core.interfaces import Json

MODE = "delta.columnMapping.mode"
HIGHEST_ID = "delta.columnMapping.maxColumnId"


def is_mapped(configuration: Mapping[str, str]) -> bool:
    """Whether the table maps its columns."""
    return configuration.get(MODE, "none") != "none"


def all_fields(fields: Iterable[Json]) -> Iterator[Json]:
    """These fields of a schema and all within them, each before those within it."""
    for field in fields:
        yield field
        yield from _fields_within(field["type"])


def _fields_within(delta_type: str | Json) -> Iterator[Json]:
    if isinstance(delta_type, str):
        return
    if delta_type["type"] == "struct":
        yield from all_fields(delta_type["fields"])
        return
    for part in ("elementType", "keyType", "valueType"):
        if part in delta_type:
            yield from _fields_within(delta_type[part])


def name_in_files(_: str, new_id: Callable[[], uuid.UUID] = uuid.uuid4) -> str:
    """The name of a new column in files: some may still have a column of its own name, which was dropped or renamed."""
    return f"col-{new_id()}"


def map_fields(
    fields: Iterable[Json], configuration: dict[str, Any], physical_name: Callable[[str], str], *, schema: list[Json]
) -> None:
    """Gives these fields of the `schema`, and all within them, an id that no field has had, and the name in files that
    `physical_name` makes of their names."""
    used = [int(field["metadata"][COLUMN_ID]) for field in all_fields(schema) if COLUMN_ID in field.get("metadata", {})]
    # A column that was dropped has had an id too, and files still name it.
    highest = max([int(configuration.get(HIGHEST_ID, "0")), *used])
    for field in all_fields(fields):
        # A copy: what made the field may give the same object to those of other tables.
        about = field["metadata"] = dict(field.get("metadata") or {})
        if COLUMN_ID not in about:
            highest += 1
            about[COLUMN_ID] = highest
        if PHYSICAL_NAME not in about:
            about[PHYSICAL_NAME] = physical_name(field["name"])
    configuration[HIGHEST_ID] = str(highest)
