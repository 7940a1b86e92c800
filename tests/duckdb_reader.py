"""DuckDB as a reader of Delta tables: a third one beside Spark and delta-rs, with a library of its own for the log."""

from __future__ import annotations

import functools
from pathlib import Path

import duckdb
import duckdb_extension_delta
import pyarrow as pa


@functools.cache
def _connection() -> duckdb.DuckDBPyConnection:
    """One for the process. Its extension comes from the package: nothing is fetched."""
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    directory = Path(duckdb_extension_delta.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    connection.load_extension(str(directory / "delta.duckdb_extension"))
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def read_delta(table: Path, where: str = "true") -> pa.Table:
    """The rows of the table's newest version that satisfy an SQL condition."""
    cursor = _connection().cursor()
    return cursor.execute(f"SELECT * FROM delta_scan(?) WHERE {where}", [str(table)]).to_arrow_table()
