"""Cuts: each merge with the Delta version of every table, found by offset or time without Spark.

`LAKE/_dblog/cuts` has a row a merge, and nobody wants to read a year of them for one: the Delta log holds the smallest
and largest values of every file, which leaves a few files to read. A cut can be read while the files of its versions
are there.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from dblog_core.errors import LakeError, RequestError
from dblog_core.lake.lake_status import own_directory, table_location
from dblog_core.model.schema import TableName
from dblog_core.storage.location import Location

if TYPE_CHECKING:
    from deltalake import DeltaTable

At = int | dt.datetime
"""A moment: an offset of the super-changelog, or a commit time."""

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
    with _translate_errors(cuts_location(lake)):
        table = open_table(cuts_location(lake))
        files = [] if table is None else _files(table)
        # An empty table is one whose first merge has not ended.
        if table is None or not files:
            raise LakeError("nothing is merged yet", where=str(lake), fix="run `dblog merge`")
        cut = _newest(table, files, at)
        if cut is None:
            raise _too_early(lake, at, _first(table, files))
        return CutAndNext(cut, _after(table, files, cut.number))


def cut_of(lake: Location, number: int) -> Cut:
    """The cut of merge `number`. Raises LakeError."""
    with _translate_errors(cuts_location(lake)):
        table = open_table(cuts_location(lake))
        cuts = [] if table is None else _read(table, number, number)
    if not cuts:
        raise LakeError(f"there is no cut {number}", where=str(lake), fix="`dblog cut` shows the newest")
    return cuts[0]


def open_table(path: Location, version: int | None = None) -> DeltaTable | None:
    """A Delta table as it is now, or as it was at `version`; None if there is no table, or none that is `findable`."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    # Asking delta-rs would read another table, under the decoded name.
    if not is_findable(path):
        return None
    try:
        return DeltaTable(table_uri(path), version=version, storage_options=storage_options(path))
    except TableNotFoundError:
        return None


def is_findable(path: Location) -> bool:
    """Whether delta-rs finds the table: on an object store it decodes a name twice, so that one with a % is another."""
    return path.local is not None or "%" not in str(path)


def table_uri(path: Location) -> str:
    """The table as delta-rs calls it: what is no directory is a URI."""
    return str(path) if path.local is not None else quote(str(path), safe=":/")


def storage_options(path: Location) -> dict[str, str] | None:
    """What the library needs to know beside the path; None on a file system."""
    return getattr(path.storage, "delta_options", None)


# Reading ------------------------------------------------------------------------------------------------------------


def _newest(table: DeltaTable, files: list[dict[str, Any]], at: At | None) -> Cut | None:
    """The newest cut that ends at or before `at`; by times as the source wrote them, which a clock may set back."""
    if at is None:
        last = max(file["max.cut"] for file in files)
        return _read(table, last, last)[0]
    name = "offset" if isinstance(at, int) else "commit_time"
    # Files that surely hold an earlier cut, and files that may: times are cut off in the statistics.
    certain = []
    possible = []
    for file in files:
        least = file.get(f"min.{name}")
        if least is not None and least <= at:
            possible.append(file["max.cut"])
            if (least if isinstance(at, int) else least + _STATISTICS_STEP) <= at:
                certain.append(file["min.cut"])  # one of its cuts ends early enough: none before the file is wanted
    if not possible:
        return None
    cuts = _read(table, max(certain, default=0), max(possible))
    early = [cut for cut in cuts if (value := getattr(cut, name)) is not None and value <= at]
    return early[-1] if early else None


def _first(table: DeltaTable, files: list[dict[str, Any]]) -> Cut:
    first = min(file["min.cut"] for file in files)
    return _read(table, first, first)[0]


def _after(table: DeltaTable, files: list[dict[str, Any]], number: int) -> Cut | None:
    later = [file["max.cut"] for file in files if file["max.cut"] > number]
    return _read(table, number + 1, min(later))[0] if later else None


def _files(table: DeltaTable) -> list[dict[str, Any]]:
    """Smallest and largest values of each file."""
    import pyarrow as pa

    return list(pa.table(table.get_add_actions(flatten=True)).to_pylist())


def _read(table: DeltaTable, first: int, last: int) -> list[Cut]:
    """Cuts by number, both ends included, in order."""
    rows = table.to_pyarrow_table(filters=[("cut", ">=", first), ("cut", "<=", last)]).to_pylist()
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


@contextmanager
def _translate_errors(path: Location) -> Iterator[None]:
    """The library's errors as ours."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        raise LakeError(
            f"the cuts cannot be read: {' '.join(str(error).split())}", where=str(path), fix="check the lake's storage"
        ) from error


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
    import pyarrow as pa
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
