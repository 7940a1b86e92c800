"""What an added column holds in all rows that were there: one value, as its server prints it, and as `log` does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from dblog_core.errors import RequestError
from dblog_core.model import values
from dblog_core.model.schema import Column

Kind = Literal["number", "flag", "text", "date", "moment"]

_TEXT = re.compile(
    r"(char|varchar|character|character varying|text|tinytext|mediumtext|longtext|enum|uuid)\b(?!.*\[\])", re.IGNORECASE
)
_PADDED = re.compile(r"char\b", re.IGNORECASE)
"""MySQL's, which leaves out blanks at the end."""


@dataclass(frozen=True, slots=True)
class Constant:
    """`text` is what the server prints; a value of another kind of type is not known by it."""

    kind: Kind
    text: str

    def value(self, column: Column) -> Any | None:
        """The JSON form of the value of this column; None where it is not certain to be one of its type."""
        if self.kind != kind_of(column) or (_PADDED.match(column.source_type) and self.text.endswith(" ")):
            return None
        value: Any = self.text
        if pa.types.is_boolean(column.type):
            value = {"t": True, "f": False}.get(self.text)
        elif pa.types.is_integer(column.type):
            value = int(self.text) if re.fullmatch(r"-?[0-9]+", self.text) else None
        try:
            return values.to_json(values.from_json(value, column))
        except RequestError:
            return None


def scalar(value: Any, column: Column) -> pa.Scalar:
    """The value of a JSON form, in the type of its column, or a wider one."""
    return pa.scalar(values.from_json(value, column), column.type)


def kind_of(column: Column) -> Kind | None:
    """The kind of a column's type; None for a type whose values are not given."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return "flag"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    if pa.types.is_string(kind):
        return "text" if _TEXT.match(column.source_type) else None
    if pa.types.is_date(kind):
        return "date"
    return "moment" if pa.types.is_timestamp(kind) else None
