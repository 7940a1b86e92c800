"""Whether a past version of a lake table can still be read: its log, its files, its deletion vectors."""

from __future__ import annotations

from collections import deque
from urllib.parse import unquote

import pyarrow as pa

from dblog_core.errors import LakeError
from dblog_core.lake.cuts import Cut, is_findable, open_table
from dblog_core.lake.lake_status import table_location
from dblog_core.model.schema import TableName
from dblog_core.storage.location import Location


def check_readable(lake: Location, cut: Cut) -> None:
    """Raises LakeError, with the reason of each, where tables of the cut can no longer be read."""
    reasons = {name: _why_unreadable(lake, name, version) for name, version in sorted(cut.tables.items())}
    unreadable = {name: why for name, why in reasons.items() if why is not None}
    if unreadable:
        count = f"{len(unreadable)} of its {len(cut.tables)}"
        listing = [f"  - {name} at version {cut.tables[name]}: {why}" for name, why in unreadable.items()]
        raise LakeError(
            "\n".join([f"cut {cut.number} is no longer whole: {count} tables cannot be read", *listing]),
            where=str(lake),
            fix="ask for a later cut: `[lake] keep` is how far back one can look",
        )


def _why_unreadable(lake: Location, name: str, version: int) -> str | None:
    """Why the table cannot be read as it was; None if it can."""
    from deltalake.exceptions import DeltaError

    path = table_location(lake, TableName.parse(name))
    if not is_findable(path):
        return None  # Spark tells, when it reads it
    try:
        table = open_table(path, version)
        if table is None:
            return "there is no such table"
        files = {unquote(file) for file in pa.table(table.get_add_actions())["path"].to_pylist()}
        deque(table.deletion_vectors(), maxlen=0)  # each is read, from a file of its own
    except (DeltaError, OSError) as error:
        return " ".join(str(error).split())
    below = f"{path.path}/"
    # One listing of the directory: asking for each file costs a request on an object store.
    missing = files - {file.path.removeprefix(below) for file in path.storage.files(path.path)}
    return f"{len(missing)} of its {len(files)} files are removed" if missing else None
