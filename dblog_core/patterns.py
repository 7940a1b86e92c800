"""The configuration's table patterns: `*` and `?` are special, within the schema and within the table."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the configuration is loaded without Arrow
    from dblog_core.schema import TableName


def matches(table: TableName, patterns: Iterable[str]) -> bool:
    """Whether one of the SCHEMA.TABLE patterns matches."""
    return any(
        schema.fullmatch(table.schema) and name.fullmatch(table.name) for schema, name in map(_expressions, patterns)
    )


@lru_cache(maxsize=1024)
def _expressions(pattern: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    schema, _, name = pattern.partition(".")
    return _expression(schema), _expression(name)


def _expression(text: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in text), re.DOTALL)
