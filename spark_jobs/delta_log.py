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
    log = table / "_delta_log"
    newest = _checkpoint(log)
    if newest is None or not _commit(log, newest).exists():
        newest = max(_commits(log), default=None)
    while newest is not None and _commit(log, newest + 1).exists():  # versions have no gap
        newest += 1
    return newest


def committed(table: Path, app: str) -> int | None:
    """The newest transaction version that `app` has committed; None if no commit that is left tells of one."""
    newest = version(table)
    while newest is not None and newest >= 0 and (path := _commit(table / "_delta_log", newest)).exists():
        for line in path.read_bytes().splitlines():
            txn = orjson.loads(line).get("txn")
            if txn is not None and txn["appId"] == app:
                return int(txn["version"])
        newest -= 1
    return None


def operation(table: Path, number: int) -> str | None:
    """What commit `number` says that it was, such as OPTIMIZE; None where it is gone, or says nothing."""
    path = _commit(table / "_delta_log", number)
    if not path.exists():
        return None
    for line in path.read_bytes().splitlines():
        if (info := orjson.loads(line).get("commitInfo")) is not None:
            return str(info.get("operation"))
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


def _commit(log: Path, number: int) -> Path:
    return log / f"{number:020d}.json"


def _checkpoint(log: Path) -> int | None:
    """The version of the newest checkpoint: a place to begin, where listing takes long after a million commits."""
    try:
        return int(orjson.loads((log / "_last_checkpoint").read_bytes())["version"])
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
        return None  # Delta writes it without care, and does without it too


def _commits(log: Path) -> list[int]:
    if not log.is_dir():
        return []
    return [int(match[1]) for path in log.iterdir() if (match := _COMMIT.fullmatch(path.name))]
