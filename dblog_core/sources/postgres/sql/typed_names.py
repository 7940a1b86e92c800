"""Names in SQL that a person is given to type: quoted where the server needs it, and plain where it does not."""

from __future__ import annotations

import re

from dblog_core.model.schema import TableName

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_WORDS = """
all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both case cast
char character check coalesce collate collation column concurrently constraint create cross current_catalog
current_date current_role current_schema current_time current_timestamp current_user dec decimal default deferrable
desc distinct do else end except exists extract false fetch float for foreign freeze from full grant greatest group
grouping having ilike in initially inner inout int integer intersect interval into is isnull join lateral leading
least left like limit localtime localtimestamp national natural nchar none normalize not notnull null nullif numeric
offset on only or order out outer overlaps overlay placing position precision primary real references returning
right row select session_user setof similar smallint some substring symmetric system_user table tablesample then
time timestamp to trailing treat trim true union unique user using values varchar variadic verbose when where window
with xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize
xmltable
"""
_RESERVED = frozenset(_WORDS.split())
"""Words that are no name of a table or a column without quotes (PostgreSQL's manual, appendix C)."""


def column(name: str) -> str:
    """A name of a column, or any other that stands alone."""
    if _PLAIN.fullmatch(name) and name not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def table(name: TableName) -> str:
    """A table with its schema."""
    return f"{column(name.schema)}.{column(name.name)}"
