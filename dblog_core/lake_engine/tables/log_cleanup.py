"""Old files of a table's log are removed: those that no version from a given one on is read by.

Delta does so beside its own checkpoints, by time alone (30 days). Here the oldest cut says what is still read.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from dblog_core.delta_writer.checkpoints import checkpoint_reader
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.errors import LakeError
from dblog_core.storage.location import Location

_VERSIONED = re.compile(r"(\d{20})\.(?:json|crc|checkpoint\.parquet|checkpoint\.\d{10}\.\d{10}\.parquet)")


def has_checkpoint(table: Location) -> bool:
    """Whether the table's newest version has one."""
    listing = checkpoint_reader.list_log(TableFiles.at(table).names(LOG))
    return any(version == listing.newest for version, _ in listing.checkpoints) or listing.named == listing.newest


def clean(table: Location, version: int) -> int:
    """Removes the commits and checkpoints that nobody needs who reads `version` or a later one; how many files."""
    files = TableFiles.at(table)
    names = list(files.names(LOG))
    listing = checkpoint_reader.list_log(names)
    if listing.named >= 0:  # of a form that is not read here
        return 0
    for first, parts in listing.checkpoints:
        if first <= version and _is_whole(files, parts):
            return _remove_below(files, names, first)
    return 0


def _is_whole(files: TableFiles, parts: list[str]) -> bool:
    """Whether a checkpoint can stand for all before it."""
    kinds = set[str]()
    try:
        for action in checkpoint_reader.read_checkpoint(files, parts):
            kinds.update(action)
    except (LakeError, FileNotFoundError):
        return False
    return {"metaData", "protocol"} <= kinds


def _remove_below(files: TableFiles, names: Collection[str], first: int) -> int:
    # From the oldest on: whoever lists the log meanwhile, or after a crash, finds no gap.
    old = sorted(name for name in names if (match := _VERSIONED.fullmatch(name)) and int(match[1]) < first)
    for name in old:
        files.remove(f"{LOG}/{name}")
    return len(old)
