"""What the lake says about its merges, read without Spark: small JSON files below LAKE/_dblog, replaced whole.

LAKE/_dblog/
  merges/NUMBER.json     what merge NUMBER will apply, written before it applies anything
  merges/NUMBER.done.json   its outcome, created once: `LakeStatus`, or what has changed since the merge before it
  status.json            one of the newest outcomes, whole, where readers begin to look
  mergers/EPOCH.json     who merged as number EPOCH; the newest one alone may write
  tasks/                 what is asked for and was done beside merging (`dblog_core.lake.lake_tasks`)
  withheld/EPOCH.json    that merger's keys of rows that wait for a dump, per table
  lock                   who merges now
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import orjson

from dblog_core.config.settings import S3Config
from dblog_core.errors import LakeError
from dblog_core.model.schema import TableName
from dblog_core.storage.factory import open_storage
from dblog_core.storage.location import Location

OWN = "_dblog"
HISTORY_AFTER = "dblog.after"
HISTORY_WHOLE = "dblog.whole"
"""Properties of a history: it tells every change after this offset, and whether the table had no row there."""
_HISTORY = "__history"
_FORMER_FIELDS = frozenset({"merge_because"})
"""Of a table's status, which older versions have written."""


class State(StrEnum):
    """How a table's lake copy stands."""

    OK = "ok"
    INCOMPLETE = "incomplete"  # rows are missing that only a dump brings
    STOPPED = "stopped"  # its rows can not be applied; the other tables go on


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """What merge number `merge` has done with a table's rows; the others are as in
    `dblog_core.lake_engine.merging.merge_results.Applied`."""

    merge: int = 0
    rows: int = 0
    applied: int = 0
    inserted: int = 0
    updated: int = 0
    unchanged: int = 0
    deleted: int = 0
    withheld: int = 0
    history: int = 0
    files_added: int = 0
    files_removed: int = 0
    bytes: int = 0
    seconds: float = 0.0
    carrier: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Another version may have counted less, or more, which is no reason to refuse its record."""
        return cls(**{count.name: data[count.name] for count in fields(cls) if count.name in data})


@dataclass(frozen=True, slots=True)
class TableStatus:
    """A lake table: all changes up to `segment` and `offset` are in, as Delta version `version`, shape `schema`.

    A table that was reset says nothing of changes up to the offset `reset_at`, and lacks rows for as long as it
    `awaits` a full dump (its id). So does one that lacks values of columns in rows from before the offset `added_at`.
    `version` is None for a table without a key: it has a history alone. `merged`: what the last merge that had rows of
    it did. `told`: whether that merge has written the history as well. `ignored`: the columns of that shape that the
    lake leaves out, by `[lake] schema_changes`; None where it has taken the shape. `accepted`: shapes up to this offset
    are, though that is "fail".
    `lacks`: rows may be missing that only a full dump brings which begins at or after this offset (0: any); None: none
    are. `withheld`: how many rows wait for a dump of their keys.
    `begun`: of a late table, up to where it may have rows, since a merge has ended while its share of it was not in
    (`LakeStatus.late_tables`); None: it is not late.
    `commit`: the CRC-32 of the commit of `version`, so that another table in its place is found out; None: an older
    dblog has not recorded it. `damage`: what another program has done to its rows; a full dump brings them that begins
    at or after the offset `damaged_at`, and `awaits` is one that was requested for that.
    `unmaintained`: why the last maintenance has failed for the table's files. `told_version`, `told_commit`: the
    history's version that was looked at last, and the CRC-32 of its commit.
    """

    state: State
    error: str | None
    segment: int
    offset: int
    version: int | None = None
    schema: str | None = None
    reset_at: int | None = None
    awaits: str | None = None
    added_at: int | None = None
    merged: MergeCounts | None = None
    told: bool = False
    ignored: list[str] | None = None
    accepted: int | None = None
    lacks: int | None = None
    withheld: int = 0
    begun: int | None = None
    commit: int | None = None
    damage: str | None = None
    damaged_at: int | None = None
    unmaintained: str | None = None
    told_version: int | None = None
    told_commit: int | None = None

    @property
    def waits(self) -> bool:
        """Whether a dump is on its way, or is requested by the merge itself.

        Before there was `lacks`, whatever was incomplete did.
        """
        return self.state is State.INCOMPLETE and (self.awaits is not None or self.withheld > 0 or self.lacks is None)

    @property
    def missing_rows(self) -> str | None:
        """Why rows may be missing that only a dump brings, as far as the lake's own record says it; None: none are. One
        that has stopped may have lacked some before."""
        if self.state is State.OK:
            return None
        if self.damage is not None:
            return self.damage
        if self.awaits is not None:
            return f"it waits for dump {self.awaits}"
        if self.lacks is not None:
            return "no full dump of it is merged"
        if self.state is State.STOPPED and not self.withheld:
            return None
        return f"{self.withheld:,} rows wait for a dump of their keys"

    def is_late(self, segment: int) -> bool:
        """Whether it follows on its own up to this segment. One that has stopped, or was set back by `accept`, does
        not."""
        return self.begun is not None and self.state is not State.STOPPED and self.segment < segment

    def with_applied_rows(self, withheld: int) -> TableStatus:
        """The status of a table whose rows could be applied; `withheld`: how many of them wait for a dump."""
        incomplete = withheld > 0 or not (self.awaits is None and self.lacks is None and self.damage is None)
        state = State.INCOMPLETE if incomplete else State.OK
        return replace(self, state=state, error=None, withheld=withheld)


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """The last finished merge. `position` and `commit_time` (microseconds) are those of the log after `segment`, which
    was sealed at `sealed_at` (microseconds; None: nobody recorded it), and is in the staging of the identity `staging`
    (None: that had none). `adopted`: the merge with which the lake was taken over to that staging (0: it never was)."""

    merge: int = 0
    segment: int = 0
    offset: int = 0
    position: str = ""
    commit_time: int | None = None
    merged_at: float | None = None
    tables: dict[str, TableStatus] = field(default_factory=dict)
    staging: str | None = None
    adopted: int = 0
    sealed_at: int | None = None

    @property
    def late_tables(self) -> dict[str, TableStatus]:
        """Tables whose rows take longer than a merge waits for: they stand before `segment`, and follow on their own.

        A stopped table does not count."""
        return {name: table for name, table in self.tables.items() if table.is_late(self.segment)}

    @property
    def common_offset(self) -> int:
        """The offset up to which every table that has not stopped has all changes."""
        return min([self.offset, *(table.offset for table in self.late_tables.values())])

    def tables_changed_since(self, before: LakeStatus) -> dict[str, TableStatus]:
        """Tables that another version, or more lines of history, were written of in merges after `before`."""
        return {
            name: table
            for name, table in self.tables.items()
            if table.merged is not None
            and table.merged.merge > before.merge
            and (table.merged.history or name not in before.tables or table.version != before.tables[name].version)
        }

    def places_elsewhere(self, but_for: Collection[str]) -> dict[str, int]:
        """Tables that stand behind or ahead of the others, with the segment that they begin after: late ones, and those
        that a reset has set there."""
        return {
            name: table.segment
            for name, table in self.tables.items()
            if table.segment != self.segment and table.state is not State.STOPPED and name not in but_for
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LakeStatus:
        return cls(**{**data, "tables": {name: read_table(table) for name, table in data["tables"].items()}})

    def changes_since(self, before: LakeStatus) -> dict[str, Any]:
        """As JSON, for `with_changes` of `before`, the outcome of an earlier merge: tables that have only moved along
        with the lake are left out."""
        moved = before._move_tables(self.segment, self.offset)
        changed = {name: table for name, table in self.tables.items() if moved.get(name) != table}
        gone = [name for name in moved if name not in self.tables]
        return {**asdict(replace(self, tables=changed)), "gone": gone, "since": before.merge}

    def with_changes(self, data: dict[str, Any]) -> LakeStatus:
        """The outcome that `changes_since` has compared with this one. Raises ValueError for that of another one."""
        if (since := data["since"]) != self.merge:
            raise ValueError(f"it continues merge {since}, and follows merge {self.merge}")
        changed = LakeStatus.from_json({name: value for name, value in data.items() if name not in ("gone", "since")})
        moved = self._move_tables(changed.segment, changed.offset)
        tables = {name: table for name, table in moved.items() if name not in data["gone"]} | changed.tables
        return replace(changed, tables=tables)

    def _move_tables(self, segment: int, offset: int) -> dict[str, TableStatus]:
        """The tables once the lake stands at this place: those that stand where it does now move with it."""
        place = (self.segment, self.offset)
        return {
            name: replace(table, segment=segment, offset=offset) if (table.segment, table.offset) == place else table
            for name, table in self.tables.items()
        }


def read_table(data: dict[str, Any]) -> TableStatus:
    """A table's status from its JSON; what only older versions wrote is passed over."""
    merged = None if data.get("merged") is None else MergeCounts.from_json(data["merged"])
    return TableStatus(**{**_known_fields(data), "state": State(data["state"]), "merged": merged})


def _known_fields(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in _FORMER_FIELDS}


def lake_at(path: str, *, s3: S3Config | None = None) -> Location:
    """The lake at a path of the configuration; `s3`: the settings for one on an object store."""
    return Location(open_storage(path, temporary=f"{OWN}/tmp", s3=s3))


def own_directory(lake: Location) -> Location:
    """Where the merge keeps its own records."""
    return lake / OWN


def table_location(lake: Location, table: TableName) -> Location:
    """LAKE/SCHEMA/TABLE, each as `_file_name` writes it. Raises LakeError for the name of dblog's own folder."""
    if table.schema.casefold() == OWN:  # in any case: a file system may not tell them apart
        raise LakeError(
            f"a schema named {OWN} has no place in the lake", where=str(table), fix="leave it out of `tables`"
        )
    return lake / _file_name(table.schema) / _file_name(table.name)


def shares_history(table: TableName, others: Collection[str]) -> str | None:
    """The table among `others` whose history has the place of this one; None: none."""
    base = str(TableName(table.schema, table.name.removesuffix(_HISTORY)))
    return base if table.name.endswith(_HISTORY) and base in others else None


def history_location(lake: Location, table: TableName) -> Location:
    """LAKE/SCHEMA/TABLE__history."""
    return table_location(lake, history_name(table))


def history_name(table: TableName) -> TableName:
    return TableName(table.schema, f"{table.name}{_HISTORY}")


_SPECIAL = re.compile(r"[/\\`\x00-\x1f\x7f]|\$(?=\{)|%(?=[0-9A-Fa-f]{2})|~(?=[0-9A-F]{2})")


_NO_DIRECTORY = re.compile(r"[/\\`\x00-\x1f\x7f]|\$\{|%[0-9A-Fa-f]{2}")
"""What no name of a table's directory holds: a link that does can stand in no table's place."""


def _file_name(name: str) -> str:
    """The name of a directory: `~` and two hex digits for what a file name cannot hold, for a backtick and for `${`,
    which Delta's own statements on Spark do not escape, and for what delta-rs would read as another name: it decodes
    what looks percent-encoded in a path, however it is given."""
    if name in (".", ".."):
        return name.replace(".", "~2E")
    return _SPECIAL.sub(lambda special: f"~{ord(special[0]):02X}", name)


def link_encoded_name(lake: Location, table: TableName) -> None:
    """On a file system, where the table's directory is not called as it is percent-encoded: lets that name lead there
    too. What an earlier version has put under it moves; an object store has no links, and there it is found missing."""
    if (root := lake.local) is not None:
        _make_link(root, table.schema)
        _make_link(root / _file_name(table.schema), table.name)


def _make_link(directory: Path, name: str) -> None:
    encoded = name.replace(".", "%2E") if name in (".", "..") else re.sub("[/%]", lambda c: quote(c[0], safe=""), name)
    place = directory / _file_name(name)
    link = directory / encoded
    if link == place or link.is_symlink() or not _NO_DIRECTORY.search(encoded):
        return  # such as the table "~2F", whose name is that of the directory of "/"
    if link.is_dir() and not place.exists():
        # What delta-rs wrote under the encoded name, before there were links.
        link.rename(place)
    directory.mkdir(parents=True, exist_ok=True)
    # Another merger made it at the same time.
    with contextlib.suppress(FileExistsError):
        link.symlink_to(place.name)


def outcome_path(directory: Location, merge: int) -> Location:
    """Where the outcome of a merge lies. `directory`: the lake's own one."""
    return directory / "merges" / f"{merge:012d}.done.json"


def read_status(lake: Location) -> LakeStatus | None:
    """The last finished merge; None before the first. Raises LakeError if a file is altered.

    status.json may be some outcomes old: it is not written after each, and a merger that woke up may have written it.
    """
    directory = own_directory(lake)
    return read_later_outcomes(directory, read_whole_status(directory))


def read_whole_status(directory: Location) -> LakeStatus | None:
    """What status.json says; None if it is missing."""
    return _read_outcome(directory / "status.json", None)


def read_later_outcomes(directory: Location, status: LakeStatus | None) -> LakeStatus | None:
    """The last finished merge, from the outcomes after `status` (None: from the first one)."""
    # Outcomes are created once and in order, so the first gap is the end.
    while (newer := _read_outcome(outcome_path(directory, status.merge + 1 if status else 1), status)) is not None:
        status = newer
    return status


def _read_outcome(path: Location, before: LakeStatus | None) -> LakeStatus | None:
    """`before`: the outcome that it follows."""
    if (data := path.read()) is None:
        return None
    try:
        fields = orjson.loads(data)
        return (before or LakeStatus()).with_changes(fields) if "since" in fields else LakeStatus.from_json(fields)
    except TypeError as error:  # a field too many, or too few
        raise LakeError(
            f"another version of dblog has written the record of the last merge: {error}",
            where=str(path),
            fix="run the newest version that has merged into this lake",
        ) from error
    except (ValueError, KeyError) as error:
        raise LakeError(
            f"the record of the last merge cannot be read: {error}",
            where=str(path),
            fix="restore it from a backup, or begin a new lake",
        ) from error
