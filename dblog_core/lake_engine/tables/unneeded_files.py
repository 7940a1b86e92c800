"""Removes files of a table that no version from a given one on needs: what VACUUM is for, by versions and not by hours.

A file is needed that the given version names, or that a later commit adds: data files, the files of deletion vectors,
change data. Any other file may be what a version before names, or what a writer that died has left; or a writer is at
work that has not committed yet, so that only old ones go.

Delta's own VACUUM goes by the table property `delta.deletedFileRetentionDuration`, and by tombstones that a checkpoint
forgets after that time, also where a cut still needs the file (delta-io/delta#140).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from dblog_core.delta_writer import vectors
from dblog_core.delta_writer.checkpoints import checkpoint_reader
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.delta_writer.snapshot import at_version, commit_path, known_actions_of, path_of
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json
from dblog_core.storage import Stored

_CHANGES = "_change_data"
_AT_ONCE = 16
"""Commits that are read at a time: of an object store each takes a while."""


def nearest_readable_version(files: TableFiles, version: int) -> int:
    """That version if the log still shows it whole; else the oldest one that it shows: it was cleaned away, or another
    table is in the place of the one that had it. Raises LakeError where there is none."""
    names = list(files.names(LOG))
    listing = checkpoint_reader.list_log(names)
    oldest = 0
    if commit_path(0).removeprefix(f"{LOG}/") not in names:
        if not listing.checkpoints:
            raise LakeError("there is no Delta table, or its log begins late", where=str(files), fix="restore its log")
        oldest = listing.checkpoints[-1][0]
    return version if oldest <= version <= listing.newest else oldest


def remove_unneeded(files: TableFiles, since: int, *, before: float, check: Callable[[], None] = lambda: None) -> int:
    """Removes the files that no version from `since` on needs, and that were written before that time (seconds UTC);
    how many. `check` is asked before each is removed. Raises LakeError; TableRefused where the log has what is not read
    here."""
    # Listed first: a file that a commit names meanwhile is then found in the log.
    stored = {file.path: file.modified for file in _list_files(files)}
    needed = find_needed(files, since)
    unneeded = [path for path, written in stored.items() if written < before and _is_data(path) and path not in needed]
    for path in unneeded:
        check()
        files.remove(path)
        if (checksum := _checksum_path(path)) in stored:
            files.remove(checksum)
    return len(unneeded)


def find_needed(files: TableFiles, since: int) -> set[str]:
    """The paths of all files that version `since` names, and that commits behind it add. Raises LakeError where the log
    has gaps; TableRefused where it has what is not read here."""
    needed: set[str] = set()
    for live in at_version(files, since).files.values():
        needed.update(_paths_of_add(files, live.add))
    newest_read = since
    for version, actions in _commits_behind(files, since):
        newest_read = version
        for action in actions:
            if (add := action.get("add")) is not None:
                needed.update(_paths_of_add(files, add))
            if (change := action.get("cdc")) is not None:
                needed.add(path_of(change["path"], str(files)))
    if (newest := checkpoint_reader.list_log(files.names(LOG)).newest) > newest_read:
        raise LakeError(
            f"the table's log lacks commit {newest_read + 1}, and has commit {newest}",
            where=str(files),
            fix="restore its log, or try again if another program has written the table meanwhile",
        )
    return needed


def _commits_behind(files: TableFiles, version: int) -> Iterator[tuple[int, list[Json]]]:
    """Each commit behind a version, in order, up to the first that is not there."""
    with ThreadPoolExecutor(_AT_ONCE) as readers:
        while True:
            numbers = range(version + 1, version + 1 + _AT_ONCE)
            for number, data in zip(numbers, readers.map(files.read, map(commit_path, numbers)), strict=True):
                if data is None:
                    return
                yield number, known_actions_of(data, files.url(commit_path(number)))
            version += _AT_ONCE


def _paths_of_add(files: TableFiles, add: Json) -> Iterator[str]:
    yield path_of(add["path"], str(files))
    if (vector := add.get("deletionVector")) is not None and (path := vectors.path_of(files, vector)) is not None:
        yield path


def _list_files(files: TableFiles) -> Iterator[Stored]:
    """Every file below the table, by its path there."""
    below = f"{files.root.path}/"
    for stored in files.root.storage.files(files.root.path):
        yield replace(stored, path=stored.path.removeprefix(below))


def _is_data(path: str) -> bool:
    """Whether readers of the table may be led to the file: they pass over what is hidden, as the log is. Directories of
    partitions may begin so too."""
    *directories, name = path.split("/")
    is_change = directories[:1] == [_CHANGES]
    hidden = [part for part in directories[is_change:] if part.startswith(("_", ".")) and "=" not in part]
    return not hidden and not name.startswith(("_", "."))


def _checksum_path(path: str) -> str:
    """The path of the checksum file that Hadoop writes next to each file on a file system."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}.{name}.crc"
