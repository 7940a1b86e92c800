"""The commits of a Delta table, read from the newest ones on without a Spark job: the table's version, what a commit
says, and whose it is.

Nobody but the holder of the lake's lock should write these tables. Each of our commits carries a mark (`COMMIT_MARK`,
set for all our sessions), so that they differ from others' commits.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.checkpoints import checkpoint_reader
from dblog_core.delta_writer.files import LOG, TableFiles
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
    older = _SEEN.get(table)
    if older is None or not _commit(table, older).exists():
        # A place to begin, where listing takes long after a million commits.
        hinted = checkpoint_reader.last_checkpoint(TableFiles.at(table))
        older = None if hinted is None else hinted[0]
        if older is None or not _commit(table, older).exists():
            older = max(commit_numbers(table), default=None)
    return None if older is None else version_from(table, older)


def version_from(table: Location, older: int) -> int:
    """The table's newest version, where version `older` is there for certain."""
    newest = older
    while _commit(table, newest + 1).exists():  # versions have no gap
        newest += 1
    _SEEN[table] = newest
    return newest


def note_commit(table: Location, number: int, info: dict[str, Any], checksum: int | None) -> None:
    """Takes in a commit that this process has made, with its provenance and its CRC-32."""
    _SEEN[table] = number
    _INFOS[table] = number, info
    _SUMS[table] = number, checksum


def commit_info(table: Location, number: int) -> dict[str, Any] | None:
    """The provenance of commit `number`; None where it is gone, or says nothing."""
    seen_number, info = _INFOS.pop(table, (None, None))  # for one use: another table may take its place
    if seen_number == number:
        return info
    data = _commit(table, number).read()
    return next(_infos(actions_of(table, number, data or b"")), None)


def _infos(actions: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (dict(action["commitInfo"]) for action in actions if "commitInfo" in action)


def actions_of(table: Location, number: int, data: bytes) -> list[dict[str, Any]]:
    """The actions of commit `number`, which has these bytes. Raises LakeError for a file that is none."""
    return snapshot.actions_of(data, str(_commit(table, number)))


def read_commit(table: Location, number: int) -> bytes | None:
    """Commit `number`; None where the log does not have it."""
    return _commit(table, number).read()


def read_actions(table: Location, number: int) -> list[dict[str, Any]] | None:
    """The actions of commit `number`; None where the log does not have it. Raises LakeError for a file that is none."""
    data = read_commit(table, number)
    return None if data is None else actions_of(table, number, data)


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


def newest_commit(table: Location) -> tuple[int | None, int | None]:
    """The table's newest version, and the CRC-32 of its commit; None: there is no table."""
    newest = version(table)
    return newest, None if newest is None else commit_sum(table, newest)


def _commit(table: Location, number: int) -> Location:
    return table / snapshot.commit_path(number)


def commit_numbers(table: Location) -> list[int]:
    """The versions whose commits the log has."""
    return [int(match[1]) for name in (table / LOG).names() if (match := _COMMIT.fullmatch(name))]
