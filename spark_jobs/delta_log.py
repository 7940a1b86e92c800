"""A Delta table's own log, read from its newest commits without a Spark job: version, and what a merge committed.

Nobody but the holder of the lake's lock writes these tables, so what is read here stays true.
"""

from __future__ import annotations

import re
from pathlib import Path

import orjson

from dblog_core.errors import LakeError

_COMMIT = re.compile(r"(\d{20})\.json")


def version(table: Path) -> int | None:
    """The table's newest version; None if there is no table."""
    return max(_commits(table), default=None)


def committed(table: Path, app: str) -> int | None:
    """The newest transaction version that `app` has committed; None if no commit that is left tells of one."""
    for number in sorted(_commits(table), reverse=True):
        path = table / "_delta_log" / f"{number:020d}.json"
        for line in path.read_bytes().splitlines():
            txn = orjson.loads(line).get("txn")
            if txn is not None and txn["appId"] == app:
                return int(txn["version"])
    return None


def check_committed(table: Path, app: str, expected: int) -> None:
    """Raises LakeError unless the merge's commit is there: Delta skips a version at or below its own silently."""
    found = committed(table, app)
    if found != expected:
        raise LakeError(
            f"merge {expected} left no commit: the table says that merge {found} was its last",
            where=str(table),
            fix="the lake's _dblog directory is older than its tables: restore it, or begin a new lake with a dump",
        )


def _commits(table: Path) -> list[int]:
    log = table / "_delta_log"
    if not log.is_dir():
        return []
    return [int(match[1]) for path in log.iterdir() if (match := _COMMIT.fullmatch(path.name))]
