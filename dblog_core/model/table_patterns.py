"""The configuration's table patterns: `*` and `?` are special, within the schema and within the table.

They are cut into the two as names are (see `dblog_core.model.table_names`): `"shop.eu".*` is all of the schema shop.eu.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from dblog_core.model import table_names

if TYPE_CHECKING:  # the configuration is loaded without Arrow
    from dblog_core.model.schema import TableName


def matches(table: TableName, patterns: Iterable[str], *, any_case: bool = False) -> bool:
    """Whether one of the SCHEMA.TABLE patterns matches; `any_case`: upper and lower case are one."""
    return _match(table.schema, table.name, patterns, any_case=any_case)


def match_text(table: str, patterns: Iterable[str]) -> bool:
    """`matches` of a table as text. Raises ValueError if it is none."""
    return _match(*table_names.split(table), patterns, any_case=False)


def _match(schema: str, name: str, patterns: Iterable[str], *, any_case: bool) -> bool:
    cut = (_expressions(pattern, any_case) for pattern in patterns)
    return any(of_schema.fullmatch(schema) and of_table.fullmatch(name) for of_schema, of_table in cut)


def matches_schema(schema: str, patterns: Iterable[str], *, any_case: bool = False) -> bool:
    """Whether one of the patterns may match a table of that schema."""
    return any(_expressions(pattern, any_case)[0].fullmatch(schema) for pattern in patterns)


def parts(pattern: str) -> tuple[str, str]:
    """The pattern of the schema and that of the table; the latter is empty in what is no SCHEMA.TABLE pattern."""
    try:
        return table_names.split(pattern)
    except ValueError:
        return pattern, ""


@lru_cache(maxsize=1024)
def _expressions(pattern: str, any_case: bool) -> tuple[re.Pattern[str], re.Pattern[str]]:
    flags = re.DOTALL | (re.IGNORECASE if any_case else re.NOFLAG)
    schema, name = (re.compile(_expression(part), flags) for part in parts(pattern))
    return schema, name


def _expression(text: str) -> str:
    return "".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in text)
