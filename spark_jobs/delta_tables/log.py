"""A Delta table's own log, read from its newest commits without a Spark job: version, what a merge committed, and
whose a commit is.

Nobody but the holder of the lake's lock should write these tables. Each of our commits carries a mark (`COMMIT_MARK`,
set for all our sessions), so that they differ from others' commits.
"""

from __future__ import annotations

import bisect
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import orjson

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.features import TableRefused
from dblog_core.delta_writer.files import TableFiles
from dblog_core.errors import LakeError, StagingError
from dblog_core.lake.spark_submit import COMMIT_MARK
from dblog_core.storage.location import Location

_SEEN: dict[Location, int] = {}
"""The newest version that was found of a table: where the next look begins, if it is still there."""

_INFOS: dict[Location, tuple[int, dict[str, Any]]] = {}
"""The provenance of the commit of a table that was looked at last: who asks whose it was, asks next what it did."""

_SUMS: dict[Location, tuple[int, int | None]] = {}
"""The CRC-32 of the commit that this process has made last of a table, for one use."""

_COMMIT = re.compile(r"(\d{20})\.json")


def version(table: Location) -> int | None:
    """The table's newest version; None if there is no table."""
    log = table / "_delta_log"
    older = _SEEN.get(table)
    if older is None or not _commit(log, older).exists():
        older = _checkpoint(log)
        if older is None or not _commit(log, older).exists():
            older = max(_commits(log), default=None)
    return None if older is None else version_from(table, older)


def version_from(table: Location, older: int) -> int:
    """The table's newest version, where version `older` is there for certain."""
    newest = older
    while _commit(table / "_delta_log", newest + 1).exists():  # versions have no gap
        newest += 1
    _SEEN[table] = newest
    return newest


def note_commit(table: Location, number: int, info: dict[str, Any], checksum: int | None) -> None:
    """Takes in a commit that this process has made, with its provenance and its CRC-32."""
    _SEEN[table] = number
    _INFOS[table] = number, info
    _SUMS[table] = number, checksum


def newest_transaction(table: Location, app: str) -> int | None:
    """The newest transaction version that `app` has committed; None if the log names none."""
    newest = version(table)
    while newest is not None and newest >= 0 and (data := _commit(table / "_delta_log", newest).read()) is not None:
        for action in _actions(table, newest, data):
            txn = action.get("txn")
            if txn is not None and txn["appId"] == app:
                return int(txn["version"])
        newest -= 1
    if newest is None or newest < 0:
        return None
    # Older commits were cleaned away. What they said stands in the checkpoint that made them superfluous.
    with suppress(TableRefused):
        return snapshot.newest(TableFiles.at(table)).txns.get(app)
    return None


def find_newest_transaction(table: Location, app: str) -> int | None:
    """As `newest_transaction`; None too where the log cannot be read: the merge of that table says so."""
    try:
        return newest_transaction(table, app)
    except (LakeError, StagingError) as error:
        if error.transient:
            raise
    return None


def operation(table: Location, number: int) -> str | None:
    """What commit `number` says that it was, such as OPTIMIZE; None where it is gone, or says nothing."""
    info = _info(table, number)
    return None if info is None else str(info.get("operation"))


def metrics(table: Location, number: int) -> tuple[str, dict[str, int]]:
    """What commit `number` was, and Delta's own counts of what it did; none where it is gone, or says nothing."""
    info = _info(table, number) or {}
    counts = (info.get("operationMetrics") or {}).items()
    return str(info.get("operation")), {name: int(value) for name, value in counts if str(value).isdigit()}


def _info(table: Location, number: int) -> dict[str, Any] | None:
    seen_number, info = _INFOS.pop(table, (None, None))  # for one use: another table may take its place
    if seen_number == number:
        return info
    data = _commit(table / "_delta_log", number).read()
    return next(_infos(_actions(table, number, data or b"")), None)


def _infos(actions: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (dict(action["commitInfo"]) for action in actions if "commitInfo" in action)


def _actions(table: Location, number: int, data: bytes) -> list[dict[str, Any]]:
    """The actions of commit `number`, which has these bytes. Raises LakeError for a file that is none."""
    return snapshot.actions_of(data, str(_commit(table / "_delta_log", number)))


def newest_before(table: Location, moment: float) -> int | None:
    """The newest version from before `moment`, in seconds since the epoch, by what the commits say of their time. None:
    the log has no such commit."""
    commits = sorted(_commits(table / "_delta_log"))

    def commit_time(number: int) -> float:
        stated = (_info(table, number) or {}).get("timestamp")
        return stated / 1000 if isinstance(stated, int) else math.inf  # one of unknown age counts as young

    place = bisect.bisect_left(commits, moment, key=commit_time)
    return commits[place - 1] if place else None


def read_commit(table: Location, number: int) -> bytes | None:
    """Commit `number`; None where the log does not have it."""
    return _commit(table / "_delta_log", number).read()


def read_actions(table: Location, number: int) -> list[dict[str, Any]] | None:
    """The actions of commit `number`; None where the log does not have it. Raises LakeError for a file that is none."""
    data = read_commit(table, number)
    return None if data is None else _actions(table, number, data)


def is_ours(table: Location, number: int, actions: Sequence[dict[str, Any]]) -> bool:
    """Whether commit `number`, with these actions, is one of dblog."""
    infos = list(_infos(actions))
    if infos:
        _INFOS[table] = number, infos[0]
    return any(info.get("userMetadata") == COMMIT_MARK for info in infos)


def commit_sum(table: Location, number: int) -> int | None:
    """The CRC-32 of commit `number`, which tells it from one of that number in another log; None where it is gone."""
    seen_number, checksum = _SUMS.pop(table, (None, None))  # for one use: another table may take its place
    if seen_number == number and checksum is not None:
        return checksum
    data = read_commit(table, number)
    return None if data is None else zlib.crc32(data)


def _keeps_all(table: Location, number: int, data: bytes) -> bool:
    """Whether a commit changed neither rows nor shape, as OPTIMIZE and VACUUM do. One that cannot be read does not
    count: the merge of that table says so."""
    try:
        actions = _actions(table, number, data)
    except LakeError:
        return False
    for action in actions:
        changed = action.get("add") or action.get("remove")
        if "metaData" in action or "protocol" in action or (changed and changed.get("dataChange", True)):
            return False
    return True


def same_rows(table: Location, number: int, checksum: int | None) -> tuple[int, int | None]:
    """The newest version that has the rows and the shape of version `number`, with the CRC-32 of its commit: a VACUUM
    leaves the newest ones alone. It is `number` itself where that commit no longer has this `checksum`."""
    first = number
    before = checksum
    while (data := read_commit(table, number + 1)) is not None and _keeps_all(table, number + 1, data):
        if number == first and before is not None and commit_sum(table, first) != before:
            break
        number += 1
        checksum = zlib.crc32(data)
    return number, checksum


def check_unused(table: Location, app: str, number: int) -> None:
    """Raises LakeError if a merge of that number, or a later one, has committed: Delta would skip ours silently."""
    newest = newest_transaction(table, app)
    if newest is not None and newest >= number:
        raise already_committed(table, number, newest)


def already_committed(table: Location, number: int, newest: int) -> LakeError:
    """The error of merge `number` where merge `newest` was the last to commit."""
    return _older_records_error(table, f"merge {number} would be left out: merge {newest} has committed here already")


def check_committed(table: Location, app: str, expected: int) -> None:
    """Raises LakeError unless the merge's commit is there: Delta skips a version at or below its own silently."""
    newest = newest_transaction(table, app)
    if newest != expected:
        raise _older_records_error(
            table, f"merge {expected} left no commit: the table says that merge {newest} was its last"
        )


def _older_records_error(table: Location, what: str) -> LakeError:
    return LakeError(
        what,
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
