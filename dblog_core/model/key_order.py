"""How a database orders and compares a table's key, as a text that a dump remembers from its request to its last chunk.

A dump's ranges and last keys mean something in one order alone. A changed collation or moved ENUM labels leave names
and Arrow types as they are, so the schema's fingerprint does not show them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa

from dblog_core.model.schema import Column

_LONGEST = 1_000  # characters: each task's node holds it, and an ENUM may have 65,535 labels

_BINARY = {"binary", "varbinary", "bytea", "bit"}
"""Types that are staged as binary, and compared by their octets. What an index holds the beginning of is not."""


def has_one_order(column: Column) -> bool:
    """Whether the column's values have one order: in the database, in the lake and here."""
    kind = column.type
    if pa.types.is_binary(kind):
        return column.source_type.partition("(")[0].lower() in _BINARY
    tests = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_date, pa.types.is_timestamp)
    return any(test(kind) for test in tests)


def order_text(columns: Sequence[Sequence[Any]]) -> str:
    """One text for the key's columns in key order, each with its name and all that its order depends on (JSON values).

    Different for different columns; what is long is cut, and its digest says how it continues.
    """
    whole = orjson.dumps([list(column) for column in columns], option=orjson.OPT_SORT_KEYS)
    text = whole.decode()
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]}… ({hashlib.blake2b(whole, digest_size=16).hexdigest()})"
