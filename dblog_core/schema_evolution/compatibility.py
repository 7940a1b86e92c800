"""What a change of a table's shape means for its lake copy, as two shapes alone show it; no Spark.

A column is known by its name. Its type may become a wider one, if every old value is a value of the new type too and
Delta widens it in place, so that files which lie there need not be written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from dblog_core.model.schema import Column, TableSchema

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DIGITS = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
"""Digits before the point that Delta asks of a decimal which an integer becomes."""


@dataclass(frozen=True, slots=True)
class Change:
    """From one shape to another. `retyped`: columns whose values the new type cannot hold, as they were and as they
    are; `rekeyed`: the key as it was and as it is, None where it is the same."""

    added: tuple[str, ...]
    dropped: tuple[str, ...]
    widened: tuple[str, ...]
    retyped: tuple[tuple[Column, Column], ...]
    rekeyed: tuple[tuple[str, ...], tuple[str, ...]] | None

    @property
    def faults(self) -> list[str]:
        """What no lake table follows, in words."""
        faults = [
            f"column {old.name} was {describe_type(old)} and is {describe_type(new)}" for old, new in self.retyped
        ]
        return faults if self.rekeyed is None else [*faults, describe_key_change(*self.rekeyed)]


def compare_schemas(before: TableSchema, after: TableSchema) -> Change:
    """How the shape changes."""
    old, new = ({c.name: c for c in schema.columns} for schema in (before, after))
    other = [(c, new[c.name]) for c in before.columns if c.name in new and new[c.name].type != c.type]
    return Change(
        added=tuple(name for name in new if name not in old),
        dropped=tuple(name for name in old if name not in new),
        widened=tuple(a.name for a, b in other if is_widening(a.type, b.type)),
        retyped=tuple((a, b) for a, b in other if not is_widening(a.type, b.type)),
        rekeyed=None if before.key == after.key else (before.key, after.key),
    )


def describe_key_change(old: Sequence[str], new: Sequence[str]) -> str:
    """What the key was, and what it is now, in words."""
    was, now = (f"({', '.join(key)})" if key else "none" for key in (old, new))
    return f"the key was {was} and is {now}"


def describe_type(column: Column) -> str:
    """The column's type as messages name it: the source's, and ours."""
    return str(column.type) if column.source_type == str(column.type) else f"{column.source_type} ({column.type})"


def is_widening(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of type `old` is the same value of type `new`, and Delta widens a column so.

    https://github.com/delta-io/delta/blob/master/PROTOCOL.md, "Type Widening".
    """
    # Delta widens integers only towards wider ones, never back.
    if old in _INTEGERS and new in _INTEGERS:
        return _INTEGERS.index(old) < _INTEGERS.index(new)
    if pa.types.is_decimal(new):
        if pa.types.is_decimal(old):
            # Digits on both sides of the point must fit, not only their sum.
            whole = new.precision - new.scale >= old.precision - old.scale
            return bool(old != new and whole and new.scale >= old.scale)
        return old in _DIGITS and bool(new.scale >= 0 and new.precision - new.scale >= _DIGITS[old])
    if new == pa.float64():
        # A 64-bit integer is no double: above 2^53 it would lose digits.
        return old in (pa.float32(), pa.int8(), pa.int16(), pa.int32())
    # A time zone would need one to be chosen for the old dates.
    return bool(old == pa.date32() and new == pa.timestamp("us"))
