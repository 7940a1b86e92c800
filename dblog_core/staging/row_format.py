"""The format of a staged row: the columns of a log file; `manifest` says what each of them holds."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

from dblog_core.model.events import image_type
from dblog_core.model.schema import TableSchema

LOG_COLUMNS = (
    "offset",
    "op",
    "origin",
    "transaction",
    "position",
    "commit_time",
    "key_only",
    "unchanged",
    "moved_from",
    "before",
    "after",
)
"""Names of the columns of a log file, in their order."""


@lru_cache(maxsize=4096)
def log_schema(schema: TableSchema) -> pa.Schema:
    """The columns of a log file of this table version (see `manifest`).

    Parquet has no struct without fields: where the table has no key, `moved_from` is a bool, always null.
    """
    key = [pa.field(c.name, c.type) for c in schema.key_columns]
    return pa.schema(
        [
            pa.field("offset", pa.int64()),
            pa.field("op", pa.string()),
            pa.field("origin", pa.string()),
            pa.field("transaction", pa.string()),
            pa.field("position", pa.string()),
            pa.field("commit_time", pa.timestamp("us", tz="UTC")),
            pa.field("key_only", pa.bool_()),
            pa.field("unchanged", pa.list_(pa.string())),
            pa.field("moved_from", pa.struct(key) if key else pa.bool_()),
            pa.field("before", image_type(schema)),
            pa.field("after", image_type(schema)),
        ]
    )
