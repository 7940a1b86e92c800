"""What tests of changed shapes start from: a table, constants, and the modes of a session."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from dblog_core.model.column_defaults import Constant
from dblog_core.model.schema import TableSchema
from tests.unit.staged import table

STRICT = 1 << 21


ANSI = 1 << 2


ORACLE = 1 << 9
"""MariaDB's, in which DATE stands for DATETIME."""


BASE = table("shop.t", id=pa.int64(), a=pa.string(), b=pa.string())


ZERO = Constant("number", "0")


FIVE = Constant("number", "5")


EMPTY = Constant("text", "")


EXTRA = table("shop.t", m=pa.int64(), n=pa.int64(), key=()).columns


def rename_columns(schema: TableSchema, *names: str, key: tuple[str, ...] = ("id",)) -> TableSchema:
    columns = tuple(replace(c, name=n) for c, n in zip(schema.columns, names, strict=True))
    return replace(schema, columns=columns, key=key)
