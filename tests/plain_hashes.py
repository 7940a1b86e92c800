"""Row hashes in plain Python, by their definition (`rows.row_hashes`): servers and Spark are compared with them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dblog_core.interfaces import Chunk, Hashes, RangeHash
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import keys_of
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.row_hashes import HASH, fields


def row_text(schema: TableSchema, row: Mapping[str, Any]) -> str:
    """The canonical text of a row of a staged schema."""
    return ",".join(field for c in schema.columns for field in fields(row.get(c.name), c))


def row_hash(schema: TableSchema, row: Mapping[str, Any]) -> int:
    """The hash of a row of a staged schema."""
    return int.from_bytes(hashlib.sha256(row_text(schema, row).encode()).digest()[:8], "big", signed=True)


def of_rows(chunk: Chunk, rules: Rules) -> Hashes:
    """The hashes of rows that have been read, as they are staged."""
    staged, rows = rules.shape_for_hashes(chunk.schema), rules.rows(chunk.schema, chunk.rows)
    row_hashes = pa.array([row_hash(staged, row) for row in rows.to_pylist()], pa.int64())
    names = chunk.schema.key
    batch = pa.RecordBatch.from_arrays([*map(chunk.rows.column, names), row_hashes], names=[*names, HASH])
    return Hashes(chunk.schema, batch, chunk.snapshot)


def total(hashes: Hashes) -> RangeHash:
    """The range of which these are all hashes."""
    keys = keys_of(hashes.rows, hashes.schema)
    return RangeHash(len(keys), sum(hashes.rows.column(HASH).to_pylist()), keys[-1] if keys else None, hashes.snapshot)
