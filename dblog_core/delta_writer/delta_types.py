"""The types of a Delta table's columns, as its log writes them (PROTOCOL.md, "Schema Serialization Format")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

_DECIMAL = "decimal("


@dataclass(frozen=True, slots=True)
class DataType:
    """The type of a column. `name`: of a primitive one, in the log."""

    name: ClassVar[str] = ""
    simple: ClassVar[str] = ""
    """How SQL names it, where that differs."""

    def simple_string(self) -> str:
        """As people and SQL write it."""
        return self.simple or self.name

    def json_value(self) -> Any:
        """As the log has it."""
        return self.name


class NumericType(DataType):
    """Numbers."""


class IntegralType(NumericType):
    """Whole numbers."""


class ByteType(IntegralType):
    name = "byte"
    simple = "tinyint"


class ShortType(IntegralType):
    name = "short"
    simple = "smallint"


class IntegerType(IntegralType):
    name = "integer"
    simple = "int"


class LongType(IntegralType):
    name = "long"
    simple = "bigint"


class FloatType(NumericType):
    name = "float"


class DoubleType(NumericType):
    name = "double"


class BooleanType(DataType):
    name = "boolean"


class StringType(DataType):
    name = "string"


class BinaryType(DataType):
    name = "binary"


class DateType(DataType):
    name = "date"


class TimestampType(DataType):
    name = "timestamp"


class TimestampNTZType(DataType):
    name = "timestamp_ntz"


class VariantType(DataType):
    name = "variant"


@dataclass(frozen=True, slots=True)
class DecimalType(NumericType):
    """A decimal number of so many digits, `scale` of them behind the point."""

    precision: int = 10
    scale: int = 0

    def simple_string(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    def json_value(self) -> Any:
        return self.simple_string()


@dataclass(frozen=True, slots=True)
class OtherType(DataType):
    """A type that dblog gives to no column. `value`: as the log has it."""

    value: Any = ""

    def simple_string(self) -> str:
        return str(self.value if isinstance(self.value, str) else self.value.get("type"))

    def json_value(self) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class ArrayType(DataType):
    """A list of elements of one type."""

    element: DataType = field(default_factory=DataType)
    contains_null: bool = True

    def simple_string(self) -> str:
        return f"array<{self.element.simple_string()}>"

    def json_value(self) -> Any:
        return {"type": "array", "elementType": self.element.json_value(), "containsNull": self.contains_null}


@dataclass(frozen=True, slots=True)
class StructField:
    """A column."""

    name: str
    data_type: DataType
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def json_value(self) -> Any:
        """As the log has it."""
        kind = self.data_type.json_value()
        return {"name": self.name, "type": kind, "nullable": self.nullable, "metadata": dict(self.metadata)}


@dataclass(frozen=True, slots=True)
class StructType(DataType):
    """Columns in their order."""

    fields: Sequence[StructField] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))  # equal whatever they came in

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.fields]

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __getitem__(self, name: str) -> StructField:
        """The column of this name. Raises KeyError."""
        for column in self.fields:
            if column.name == name:
                return column
        raise KeyError(name)

    def simple_string(self) -> str:
        inner = ",".join(f"{column.name}:{column.data_type.simple_string()}" for column in self.fields)
        return f"struct<{inner}>"

    def json_value(self) -> Any:
        return {"type": "struct", "fields": [column.json_value() for column in self.fields]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The columns of a schema in the log."""
        return cls([_field(column) for column in value["fields"]])


_PRIMITIVES: dict[str, DataType] = {
    kind.name: kind()
    for kind in (
        *(ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, BooleanType, StringType, BinaryType),
        *(DateType, TimestampType, TimestampNTZType, VariantType),
    )
}


def _field(value: Mapping[str, Any]) -> StructField:
    return StructField(value["name"], _type(value["type"]), value.get("nullable", True), value.get("metadata") or {})


def _type(value: Any) -> DataType:
    if isinstance(value, str):
        if value.startswith(_DECIMAL):
            precision, scale = value[len(_DECIMAL) : -1].split(",")
            return DecimalType(int(precision), int(scale))
        return _PRIMITIVES.get(value, OtherType(value))
    if value["type"] == "struct":
        return StructType.from_json(value)
    if value["type"] == "array":
        return ArrayType(_type(value["elementType"]), value["containsNull"])
    return OtherType(value)
