"""The version of a lake table that a comparison begins with: the newest one, also by another program."""

from __future__ import annotations

from dataclasses import dataclass

from dblog_core.errors import LakeError
from dblog_core.lake import table_commits
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, read_status, table_location
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.staging import Staging
from dblog_core.storage.location import Location

_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Pin:
    """The lake copy of a table that a comparison begins with: Delta version `version`, in which all changes up to
    `offset` and segment `segment` are. `newest`: the largest offset that any row can have by then.

    `stopped`: its merge has failed, so no row that is staged later will come into it.
    """

    version: int
    offset: int
    segment: int
    newest: int
    stopped: bool = False


def pin(lake: Location, staging: Staging, table: TableName) -> Pin | None:
    """The table's newest version, with an offset up to which all is in it; None where the lake has no such table.

    A merge may be under way, and have committed this table already: its changes are folded on top once more then, which
    changes nothing. Raises LakeError where merges end faster than they can be read.
    """
    location = table_location(lake, table)
    for _ in range(_ATTEMPTS):
        # The status is read on both sides of the version: equal merge numbers prove that no merge ended between.
        before = read_status(lake) or LakeStatus()
        version = table_commits.version(location)
        after = read_status(lake) or LakeStatus()
        if before.merge == after.merge:
            return None if version is None else _pin_version(version, after.tables.get(str(table)), staging)
    raise LakeError("a merge ended during each reading of the lake's status", where=str(location), fix="verify again")


def columns_left_out(lake: Location, staging: Staging, schema: TableSchema) -> tuple[str, ...]:
    """The columns of the staged shape that the lake has not taken: for a table that keeps its own (`[lake]
    schema_changes = "ignore"`)."""
    lake_table = (read_status(lake) or LakeStatus()).tables.get(str(schema.table))
    if lake_table is None or lake_table.schema is None:
        return ()
    # A column that the lake ignores is in its recorded schema, but not in the table.
    have = {c.name for c in staging.schema(lake_table.schema).columns} - set(lake_table.ignored or ())
    return tuple(c.name for c in schema.columns if c.name not in have and c.name not in schema.key)


def _pin_version(version: int, status: TableStatus | None, staging: Staging) -> Pin:
    head = staging.head()
    newest = head.last_offset if head is not None else 0
    if status is None:  # its first merge is under way, or it is none of ours
        return Pin(version, 0, 0, newest)
    return Pin(version, status.offset, status.segment, newest, status.state is State.STOPPED)
