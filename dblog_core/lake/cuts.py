"""Cuts: each merge with the Delta version of every table, found by offset or time without Spark.

`LAKE/_dblog/cuts` has a row a merge, and nobody wants to read a year of them for one: the Delta log holds the smallest
and largest values of every file, which leaves a few files to read. A cut can be read while the files of its versions
are there.
"""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from dblog_core.errors import LakeError, RequestError, StagingError
from dblog_core.lake.lake_status import own_directory, table_location
from dblog_core.model.schema import TableName
from dblog_core.storage.location import Location

if TYPE_CHECKING:
    import pyarrow as pa

At = int | dt.datetime
"""A moment: an offset of the super-changelog, or a commit time."""

_COLUMNS = ("cut", "offset", "position", "commit_time", "tables", "merged_at", "behind", "incomplete")
_STATISTICS_STEP = dt.timedelta(milliseconds=1)
"""Times in the Delta log are cut off after the millisecond."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One merge: each table at its version holds every change up to `offset` and none after.

    Tables in `behind` had stopped: they hold their changes up to the offset that stands there.
    Tables in `incomplete` lacked rows that only a dump brings, for the cause there.
    """

    number: int
    offset: int
    position: str
    commit_time: dt.datetime | None
    merged_at: dt.datetime
    tables: Mapping[str, int]
    behind: Mapping[str, int]
    incomplete: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CutAndNext:
    """The cut that a question means, and the one that follows it; None if it is the newest."""

    cut: Cut
    next_cut: Cut | None


def parse_at(text: str) -> At:
    """An offset, or an ISO 8601 time; one without a zone is in UTC. Raises RequestError."""
    if text.isdecimal():
        return int(text)
    try:
        time = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise RequestError(
            f"{text!r} is neither an offset nor a time",
            fix="give a whole number, or a time such as 2026-11-21T14:30:00Z",
        ) from error
    return time if time.tzinfo is not None else time.replace(tzinfo=dt.UTC)


def cuts_location(lake: Location) -> Location:
    """Where a lake keeps its cuts."""
    return own_directory(lake) / "cuts"


def find_cut(lake: Location, at: At | None = None) -> CutAndNext:
    """The newest cut that ends at or before `at`; None: the newest of all.

    Raises LakeError where there is none.
    """
    files = _list_files(lake)
    # An empty table is one whose first merge has not ended.
    if not files:
        raise LakeError("nothing is merged yet", where=str(lake), fix="run `dblog merge`")
    cut = _newest(files, at)
    if cut is None:
        raise _too_early(lake, at, _read(files, 0, min(file.last for file in files))[0])
    later = [file.last for file in files if file.last > cut.number]
    return CutAndNext(cut, _read(files, cut.number + 1, min(later))[0] if later else None)


def cut_of(lake: Location, number: int) -> Cut:
    """The cut of merge `number`. Raises LakeError."""
    if not (cuts := _read(_list_files(lake), number, number)):
        raise LakeError(f"there is no cut {number}", where=str(lake), fix="`dblog cut` shows the newest")
    return cuts[0]


# Reading ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the table of cuts: its first and last cut, and the lowest values of offset and commit time, by its
    statistics."""

    read: Callable[[], Iterator[pa.Table]]
    first: int
    last: int
    lowest: Mapping[str, Any]


def _list_files(lake: Location) -> list[_File]:
    """Those of the newest version of the table of cuts; none where there is no table."""
    from dblog_core.delta_writer import snapshot
    from dblog_core.delta_writer.files import TableFiles
    from dblog_core.delta_writer.shape import readable_shape_of
    from dblog_core.delta_writer.statistics import load_json
    from dblog_core.delta_writer.stored_rows import living_rows
    from dblog_core.lake import table_commits

    path = cuts_location(lake)
    if table_commits.version(path) is None:
        return []
    stored = TableFiles.at(path)
    newest = snapshot.newest(stored)
    shape = readable_shape_of(newest.metadata, _COLUMNS, str(stored))
    files = []
    for live in newest.files.values():
        stated = load_json(live.add.get("stats"))
        lowest = stated.get("minValues", {})
        last = stated.get("maxValues", {}).get("cut", sys.maxsize)
        files.append(_File(partial(living_rows, stored, live, shape, shape.names), lowest.get("cut", 0), last, lowest))
    return files


def _newest(files: Sequence[_File], at: At | None) -> Cut | None:
    """The newest cut that ends at or before `at`; by times as the source wrote them, which a clock may set back."""
    if at is None:
        return _read(files, max(file.first for file in files), max(file.last for file in files))[-1]
    name = "offset" if isinstance(at, int) else "commit_time"
    # Files that surely hold an earlier cut, and files that may: times are cut off in the statistics.
    certain = [0]
    possible = []
    for file in files:
        if (lowest := file.lowest.get(name)) is None:
            continue
        # One of the file's cuts has a value between these two.
        least, most = (lowest, lowest) if isinstance(at, int) else _stated_time(lowest)
        if least <= at:
            possible.append(file.last)
            if most <= at:
                certain.append(file.first)  # one of its cuts ends early enough: none before the file is wanted
    if not possible:
        return None
    cuts = _read(files, max(certain), max(possible))
    early = [cut for cut in cuts if (value := getattr(cut, name)) is not None and value <= at]
    return early[-1] if early else None


def _stated_time(text: str) -> tuple[Any, Any]:
    time = dt.datetime.fromisoformat(text)
    return time, time + _STATISTICS_STEP


def _read(files: Iterable[_File], first: int, last: int) -> list[Cut]:
    """Cuts by number, both ends included, in order."""
    tables = (table for file in files if file.first <= last and first <= file.last for table in file.read())
    rows = (row for table in tables for row in table.to_pylist() if first <= row["cut"] <= last)
    return [_cut(row) for row in sorted(rows, key=lambda row: row["cut"])]


def _cut(row: Mapping[str, Any]) -> Cut:
    return Cut(
        number=row["cut"],
        offset=row["offset"],
        position=row["position"],
        commit_time=row["commit_time"],
        merged_at=row["merged_at"],
        tables=dict(row["tables"]),
        behind=dict(row.get("behind") or ()),
        incomplete=dict(row.get("incomplete") or ()),
    )


def _too_early(lake: Location, at: At | None, first: Cut) -> LakeError:
    moment = f"offset {at}" if isinstance(at, int) else f"{at:%Y-%m-%dT%H:%M:%S.%fZ}" if at else "the beginning"
    return LakeError(
        f"no cut ends at or before {moment}: the first, {first.number}, ends at offset {first.offset}"
        + (f", {first.commit_time:%Y-%m-%dT%H:%M:%S.%fZ}" if first.commit_time else ""),
        where=str(lake),
        fix="ask for a later one",
    )


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
    from dblog_core.delta_writer import snapshot
    from dblog_core.delta_writer.files import TableFiles
    from dblog_core.delta_writer.vectors import read_vector

    path = table_location(lake, TableName.parse(name))
    files = TableFiles.at(path)
    try:
        live_files = snapshot.at_version(files, version).files
        for live in live_files.values():
            if live.vector is not None:
                read_vector(files, live.vector)
    except (LakeError, StagingError) as error:
        return error.reason
    below = f"{path.path}/"
    # One listing of the directory: asking for each file costs a request on an object store.
    missing = live_files.keys() - {file.path.removeprefix(below) for file in path.storage.files(path.path)}
    return f"{len(missing)} of its {len(live_files)} files are removed" if missing else None
