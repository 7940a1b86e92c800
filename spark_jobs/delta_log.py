"""A Delta table's own log, read from its newest commits without a Spark job: version, and what a merge committed.

Nobody but the holder of the lake's lock writes these tables, so what is read here stays true.
"""

from __future__ import annotations

import re

import orjson

from dblog_core.errors import LakeError
from dblog_core.storage.location import Location

_COMMIT = re.compile(r"(\d{20})\.json")


def version(table: Location) -> int | None:
    """The table's newest version; None if there is no table."""
    log = table / "_delta_log"
    newest = _checkpoint(log)
    if newest is None or not _commit(log, newest).exists():
        newest = max(_commits(log), default=None)
    while newest is not None and _commit(log, newest + 1).exists():  # versions have no gap
        newest += 1
    return newest


def committed(table: Location, app: str) -> int | None:
    """The newest transaction version that `app` has committed; None if no commit that is left tells of one."""
    newest = version(table)
    while newest is not None and newest >= 0 and (data := _commit(table / "_delta_log", newest).read()) is not None:
        for line in data.splitlines():
            txn = orjson.loads(line).get("txn")
            if txn is not None and txn["appId"] == app:
                return int(txn["version"])
        newest -= 1
    return None


def operation(table: Location, number: int) -> str | None:
    """What commit `number` says that it was, such as OPTIMIZE; None where it is gone, or says nothing."""
    data = _commit(table / "_delta_log", number).read()
    for line in (data or b"").splitlines():
        if (info := orjson.loads(line).get("commitInfo")) is not None:
            return str(info.get("operation"))
    return None


def check_committed(table: Location, app: str, expected: int) -> None:
    """Raises LakeError unless the merge's commit is there: Delta skips a version at or below its own silently."""
    found = committed(table, app)
    if found != expected:
        raise LakeError(
            f"merge {expected} left no commit: the table says that merge {found} was its last",
            where=str(table),
            fix="the lake's _dblog directory is older than its tables: restore it, or begin a new lake with a dump",
        )


def _commit(log: Location, number: int) -> Location:
    return log / f"{number:020d}.json"


def _checkpoint(log: Location) -> int | None:
    """The version of the newest checkpoint: a place to begin, where listing takes long after a million commits."""
    try:
        return int(orjson.loads((log / "_last_checkpoint").read() or b"")["version"])
    except (ValueError, KeyError, TypeError):
        return None  # Delta writes it without care, and does without it too


def _commits(log: Location) -> list[int]:
    return [int(match[1]) for name in log.names() if (match := _COMMIT.fullmatch(name))]
