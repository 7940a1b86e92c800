"""Changes of a table's columns and properties, and what its `metaData` and `protocol` are after them.

No data file changes: columns that are added hold NULL in rows from before, columns that are renamed or dropped keep
their names in files, and values of wider types are read from files of narrower ones. Source: PROTOCOL.md, "Column
Mapping", "Type Widening".
"""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from dblog_core.delta_writer.altering.column_mapping import MODE, is_mapped, map_fields, name_in_files
from dblog_core.delta_writer.altering.needed_features import enable_features, find_needed_features
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json

WIDENING = "delta.enableTypeWidening"
FIRST = ""
"""In place of the name of a column that another one follows: no column has it."""
_TYPE_CHANGES = "delta.typeChanges"
_STATISTICS = "delta.dataSkippingStatsColumns"
_NAME_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column whose rows hold NULL. `type`: as a schema in the log has it; `after`: the column that it follows, or
    FIRST (None: it is the last one); `comment`: of the column."""

    name: str
    type: str | Json
    after: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True)
class CommentColumn:
    """A column gets a comment."""

    name: str
    comment: str


@dataclass(frozen=True, slots=True)
class DropColumns:
    """Columns that go with their values. The table maps its columns."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """A column, or a field of a struct, gets another name. The table maps its columns."""

    path: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """A column, or a field of a struct, gets a type that holds all values of its own."""

    path: tuple[str, ...]
    type: str | Json


@dataclass(frozen=True, slots=True)
class SetProperties:
    """Properties get these values. A mapping of the columns by name may be switched on so, and not off."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UnsetProperties:
    """Properties go."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SupportFeature:
    """The table may get what needs this feature, also by another writer, which does not enable it unasked."""

    name: str


Change = (
    AddColumn
    | CommentColumn
    | DropColumns
    | RenameColumn
    | WidenColumn
    | SetProperties
    | UnsetProperties
    | SupportFeature
)


@dataclass(frozen=True, slots=True)
class TableForm:
    """The two actions that say what a table is."""

    metadata: Json
    protocol: Json


def alter_form(
    form: TableForm, changes: Iterable[Change], where: str, new_id: Callable[[], uuid.UUID] = uuid.uuid4
) -> TableForm:
    """The form after these changes, with the features that it needs; the same object where it is the same. Raises
    LakeError for a change that the table cannot have."""
    draft = _Draft(form.metadata, where, new_id)
    for change in changes:
        draft.make(change)
    metadata = draft.metadata()
    is_other = metadata != form.metadata
    needed = [*(find_needed_features(metadata) if is_other else ()), *draft.features]
    protocol = enable_features(form.protocol, needed)
    return TableForm(metadata, protocol) if is_other or protocol != form.protocol else form


class _Draft:
    """The metadata of a table while it is changed."""

    def __init__(self, metadata: Json, where: str, new_id: Callable[[], uuid.UUID]) -> None:
        self._before = metadata
        self._where = where
        self._new_id = new_id
        self._schema: Json = orjson.loads(metadata["schemaString"])
        self._original = copy.deepcopy(self._schema)
        self.fields: list[Json] = self._schema["fields"]
        self._configuration: dict[str, Any] = dict(metadata.get("configuration") or {})
        self._partitions: list[str] = list(metadata.get("partitionColumns") or ())
        self.features: list[str] = []

    def metadata(self) -> Json:
        """The `metaData` action."""
        metadata = dict(self._before)
        if self._configuration != (self._before.get("configuration") or {}):
            metadata["configuration"] = self._configuration
        # The text stays the same where the schema does: writers differ in how they print it.
        if self._schema != self._original:
            metadata["schemaString"] = orjson.dumps(self._schema).decode()
        if self._partitions != list(self._before.get("partitionColumns") or ()):
            metadata["partitionColumns"] = self._partitions
        return metadata

    def make(self, change: Change) -> None:
        match change:
            case AddColumn():
                self._add(change)
            case CommentColumn():
                self._find((change.name,))["metadata"]["comment"] = change.comment
            case DropColumns():
                self._drop(change.names)
            case RenameColumn():
                self._rename(change.path, change.name)
            case WidenColumn():
                self._widen(change)
            case SetProperties():
                self._set_properties(change.values)
            case UnsetProperties():
                for name in change.names:
                    self._configuration.pop(name, None)
            case SupportFeature():
                self.features.append(change.name)

    def _add(self, change: AddColumn) -> None:
        self._check_free(self.fields, change.name, None)
        about = {} if change.comment is None else {"comment": change.comment}
        field: Json = {"name": change.name, "type": copy.deepcopy(change.type), "nullable": True, "metadata": about}
        if is_mapped(self._configuration):
            named = partial(name_in_files, new_id=self._new_id)
            map_fields([field], self._configuration, named, schema=self.fields)
        place = len(self.fields)
        if change.after is not None:
            place = 0 if change.after == FIRST else 1 + self.fields.index(self._find((change.after,)))
        self.fields.insert(place, field)

    def _drop(self, names: Iterable[str]) -> None:
        self._check_mapped("dropped")
        for name in names:
            if name in self._partitions:
                raise self._error(f"column {name} cannot be dropped: the table is partitioned by it")
            self.fields.remove(self._find((name,)))
            self._rename_in_statistics((name,), None)

    def _rename(self, path: tuple[str, ...], name: str) -> None:
        self._check_mapped("renamed")
        field = self._find(path)
        siblings = self.fields if len(path) == 1 else self._find(path[:-1])["type"]["fields"]
        self._check_free(siblings, name, field)
        field["name"] = name
        self._rename_in_statistics(path, name)
        if len(path) == 1:
            self._partitions = [name if column == path[0] else column for column in self._partitions]

    def _widen(self, change: WidenColumn) -> None:
        if self._configuration.get(WIDENING) != "true":
            raise self._error(f"column {'.'.join(change.path)} cannot get another type: {WIDENING} is not true")
        if change.path[0] in self._partitions:
            raise self._error(f"column {change.path[0]} cannot get another type: the table is partitioned by it")
        field = self._find(change.path)
        if field["type"] == change.type:
            return
        step = {"toType": change.type, "fromType": field["type"]}
        field["metadata"][_TYPE_CHANGES] = [*field["metadata"].get(_TYPE_CHANGES, ()), step]
        field["type"] = change.type

    def _set_properties(self, values: Mapping[str, str]) -> None:
        was_mapped = is_mapped(self._configuration)
        mode = values.get(MODE, self._configuration.get(MODE, "none"))
        if mode != self._configuration.get(MODE, "none") and (was_mapped or mode != "name"):
            raise self._error(f"its column mapping cannot become {mode}")
        self._configuration.update(values)
        if mode == "name" and not was_mapped:
            # Files of before have the columns under the names of now.
            map_fields(self.fields, self._configuration, lambda name: name, schema=self.fields)

    def _find(self, path: tuple[str, ...]) -> Json:
        fields = self.fields
        field: Json = {}
        for depth, name in enumerate(path):
            named = [field for field in fields if field["name"] == name]
            if not named:
                raise self._error(f"the table has no column {'.'.join(path[: depth + 1])}")
            field = named[0]
            if depth + 1 < len(path):
                fields = field["type"]["fields"]
        return field

    def _check_free(self, fields: Iterable[Json], name: str, but: Json | None) -> None:
        """Readers do not tell names apart that differ in case alone."""
        taken = next((f["name"] for f in fields if f is not but and f["name"].lower() == name.lower()), None)
        if taken is not None:
            raise self._error(f"the table has a column {taken} already, and gets none of the name {name}")

    def _check_mapped(self, what: str) -> None:
        if not is_mapped(self._configuration):
            raise self._error(f"a column cannot be {what}: the table does not map its columns")

    def _rename_in_statistics(self, path: tuple[str, ...], name: str | None) -> None:
        """Readers look for the columns that have statistics by their names. `name`: None for one that goes."""
        named = self._configuration.get(_STATISTICS)
        if not named:
            return
        entries = []
        for entry in named.split(","):
            parts = [quoted.replace("``", "`") or plain for quoted, plain in _NAME_PART.findall(entry.strip())]
            if tuple(parts[: len(path)]) != path:
                entries.append(entry)
            elif name is not None:
                parts[len(path) - 1] = name
                entries.append(".".join("`" + part.replace("`", "``") + "`" for part in parts))
        self._configuration[_STATISTICS] = ",".join(entries)

    def _error(self, what: str) -> LakeError:
        return LakeError(
            what,
            where=self._where,
            fix="undo what another program changed in the table, unless the next merge succeeds",
        )
