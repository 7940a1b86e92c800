"""DuckDB with an extension that comes as a Python package: nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import duckdb


def connect(package: ModuleType) -> duckdb.DuckDBPyConnection:
    """A database in memory, with the extension of `package` (`duckdb_extension_NAME`)."""
    assert package.__file__ is not None
    name = package.__name__.removeprefix("duckdb_extension_")
    directory = Path(package.__file__).parent / "extensions" / f"v{duckdb.__version__}"
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    connection.load_extension(str(directory / f"{name}.duckdb_extension"))
    return connection
