"""Rows that differ and cannot be read as they are staged, since one of their values has no form there: a zero date.

The source hashes such a row as it is, so a comparison finds that it differs. In which other columns it does, show rows
that are read without those values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dblog_core.errors import ValueOutOfRange
from dblog_core.interfaces import ChunkReader
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import lake_key_from_json
from dblog_core.rows.column_rules import Rules
from dblog_core.verify.compared_columns import NotCompared

_MOST_NAMED = 20
"""Keys that a reason names."""


class UnreadableValues:
    """By column, the keys (JSON) of rows with a value that has no form."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[str, Any]] = {}

    def columns_of(self, key: Any) -> tuple[str, ...]:
        """The columns of a row that cannot be read."""
        return tuple(column for column, keys in self._keys.items() if repr(key) in keys)

    def add_columns(self, named: Mapping[str, tuple[str, ...]], keys: Sequence[Any]) -> dict[str, tuple[str, ...]]:
        """With the columns of these keys that cannot be read: the lake holds no such value, so they differ as well."""
        unreadable = {repr(key): columns for key in keys if (columns := self.columns_of(key))}
        return {**named, **{key: (*named.get(key, ()), *columns) for key, columns in unreadable.items()}}

    def find(self, reader: ChunkReader, schema: TableSchema, keys: Sequence[Any], rules: Rules) -> None:
        """Looks for them in the rows of these keys."""
        if not keys or _can_read(reader, schema, keys, rules):
            return
        if len(keys) > 1:
            middle = len(keys) // 2
            self.find(reader, schema, keys[:middle], rules)
            self.find(reader, schema, keys[middle:], rules)
            return
        for column in self._find_columns(reader, schema, keys, rules):
            self._keys.setdefault(column, {})[repr(keys[0])] = keys[0]

    def _find_columns(self, reader: ChunkReader, schema: TableSchema, keys: Sequence[Any], rules: Rules) -> list[str]:
        names = {column.name for column in schema.columns} - set(schema.key)
        candidates = [column.name for column in schema.columns if column.name in names]
        # Rows mostly have them in the same columns, and a table may have a thousand.
        met_before = [name for name in candidates if name in self._keys]
        if met_before and _can_read(reader, schema, keys, rules, left_out=met_before):
            candidates = met_before
        return [name for name in candidates if not _can_read(reader, schema, keys, rules, left_out=names - {name})]

    def explain(self) -> tuple[NotCompared, ...]:
        """Each column with its rows."""
        return tuple(NotCompared(column, _explain(list(keys.values()))) for column, keys in self._keys.items())


def leave_out(schema: TableSchema, columns: Collection[str]) -> TableSchema:
    """The shape without some of its columns."""
    return TableSchema(schema.table, tuple(c for c in schema.columns if c.name not in columns), schema.key)


def _can_read(
    reader: ChunkReader, schema: TableSchema, keys: Sequence[Any], rules: Rules, *, left_out: Collection[str] = ()
) -> bool:
    shape = leave_out(schema, left_out)
    try:
        chunk = reader.read_keys(shape, [lake_key_from_json(key, shape) for key in keys])
        rules.without(schema.table, left_out).rows(chunk.schema, chunk.rows)
    except ValueOutOfRange:
        return False
    return True


def _explain(keys: Sequence[Any]) -> str:
    named = ", ".join(map(str, keys[:_MOST_NAMED]))
    more = f" and {len(keys) - _MOST_NAMED:,} more" if len(keys) > _MOST_NAMED else ""
    return f"the source has a value without a form in the lake, such as a zero date, in the rows {named}{more}"
