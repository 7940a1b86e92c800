"""What a server itself prints of its rows, and our values in the same form: the judge of values."""

from __future__ import annotations

import datetime as dt
import decimal
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from dblog_core.model.schema import Column, TableSchema
from dblog_core.sources.postgres.session_settings import FORMS
from tests.fix_servers import Database


def print_columns(database: Database, schema: TableSchema, table: str = "a") -> list[dict[str, str | None]]:
    """What the server prints of each column of all rows: text forms that lose nothing, under the settings of our
    sessions. `table`: its name, quoted where it needs to be."""
    postgres = database.kind == "postgres"
    forms = [(_postgres if postgres else _mysql)(column) for column in schema.columns]
    settings = [f"SET {name} = '{value}'" for name, value in FORMS.items() if name != "search_path"]
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for setting in settings if postgres else ["SET time_zone = '+00:00'"]:
            cursor.execute(setting)
        cursor.execute(f"SELECT {', '.join(forms)} FROM {table}")
        names = [column.name for column in schema.columns]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _postgres(column: Column) -> str:
    name = '"' + column.name.replace('"', '""') + '"'
    return f"CASE WHEN {name} IS NOT DISTINCT FROM NULL THEN NULL ELSE format('%s', {name}) END"


def _mysql(column: Column) -> str:
    name = "`" + column.name.replace("`", "``") + "`"
    if column.source_type.startswith("bit"):
        return f"LPAD(HEX({name} + 0), {(int(column.source_type[4:-1]) + 7) // 8 * 2}, '0')"
    if pa.types.is_binary(column.type):
        return f"HEX({name})"
    if pa.types.is_floating(column.type):
        return f"CAST({name} AS DOUBLE)"  # a CAST to CHAR rounds it to what fits 22 characters
    if "zerofill" in column.source_type or column.source_type.startswith("year"):
        return f"CAST({name} + 0 AS CHAR)"
    return f"CAST({name} AS CHAR)"


def value_and_text(value: Any, text: str, column: Column) -> tuple[str, str]:
    """A staged value and the server's text of it, in one form."""
    return ours(value), theirs(text, column)


def ours(value: Any) -> str:
    """A value of ours as text: equal for equal values."""
    match value:
        case bool():
            return "t" if value else "f"
        case float():
            return repr(value)
        case bytes():
            return value.hex()
        case decimal.Decimal():
            return format(value, "f")
        case dt.datetime():
            return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    return str(value)


def theirs(text: str, column: Column) -> str:
    """The server's text of a value in the form of `ours`."""
    if pa.types.is_floating(column.type):
        return repr(float(np.float32(text)) if pa.types.is_float32(column.type) else float(text))
    if pa.types.is_binary(column.type):
        return text.removeprefix("\\x").lower()
    if pa.types.is_timestamp(column.type):
        whole, _, fraction = text.removesuffix("+00").partition(".")
        return f"{whole}.{fraction:0<6}"
    return text
