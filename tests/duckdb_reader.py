"""DuckDB as a reader of Delta tables: a third one beside Spark and delta-rs, with a library of its own for the log."""

from __future__ import annotations

import functools
from pathlib import Path

import duckdb
import duckdb_extension_delta
import pyarrow as pa

from tests import duckdb_extensions


@functools.cache
def _connection() -> duckdb.DuckDBPyConnection:
    """One for the process."""
    connection = duckdb_extensions.connect(duckdb_extension_delta)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_delta(table: Path, where: str = "true", *, version: int | None = None) -> pa.Table:
    """The rows of a version of the table (None: the newest) that satisfy an SQL condition."""
    cursor = _connection().cursor()
    of_version = "" if version is None else f", version := {version}"
    return cursor.execute(f"SELECT * FROM delta_scan(?{of_version}) WHERE {where}", [str(table)]).to_arrow_table()
