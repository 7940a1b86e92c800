"""The columns of a Delta table, in the types that its log has for them: a name, or an object (PROTOCOL.md, "Schema
Serialization Format")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias, TypeGuard

from dblog_core.interfaces import Json

DeltaType: TypeAlias = "str | Json"
_IN_SQL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def is_struct(kind: DeltaType) -> TypeGuard[Json]:
    """Whether a type is that of several columns in one."""
    return not isinstance(kind, str) and kind["type"] == "struct"


def describe(kind: DeltaType) -> str:
    """A type as people and SQL write it."""
    if isinstance(kind, str):
        return _IN_SQL.get(kind, kind)
    if is_struct(kind):
        return f"struct<{','.join(f'{column.name}:{describe(column.type)}' for column in StructType.of(kind))}>"
    return f"array<{describe(kind['elementType'])}>" if kind["type"] == "array" else str(kind["type"])


@dataclass(frozen=True, slots=True)
class StructField:
    """A column."""

    name: str
    type: DeltaType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StructType:
    """Columns in their order."""

    fields: Sequence[StructField] = ()

    @classmethod
    def of(cls, value: Json) -> Self:
        """The columns of a schema in the log, or of a struct in it."""
        return cls([_field(column) for column in value["fields"]])

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.fields]

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __getitem__(self, name: str) -> StructField:
        """The column of this name. Raises KeyError."""
        for column in self.fields:
            if column.name == name:
                return column
        raise KeyError(name)

    def json_value(self) -> Json:
        """As the log has it."""
        fields = [
            {"name": column.name, "type": column.type, "nullable": column.nullable, "metadata": dict(column.metadata)}
            for column in self.fields
        ]
        return {"type": "struct", "fields": fields}


def _field(value: Json) -> StructField:
    kind = value["type"]
    # Writers differ in how they print a decimal type.
    kind = kind.replace(" ", "") if isinstance(kind, str) else kind
    return StructField(value["name"], kind, value.get("nullable", True), value.get("metadata") or {})
