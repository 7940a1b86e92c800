"""What other programs have committed to a table of the lake: harmless, rows to disown, or damage.

The list of what a foreign commit may do is closed, and goes by its actions, since each program names its operations as
it likes:

    nothing, `txn`                     VACUUM, a stream's own record
    add, remove with dataChange=false  OPTIMIZE, REORG: the same rows in other files
    add of foreign rows                an append: by the file's statistics no row has an offset up to `merged`
    metaData of the same columns       properties that no row depends on: `_PROPERTIES`, and users' own
    protocol, domainMetadata           features; clustering and row tracking

All else counts as damage: our rows may be removed, replaced or back again. So does a commit that the log no longer
has, and a table whose log is not the one that a merge has left. A commit that cannot be read is LakeError: nobody can
read the table.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.snapshot import Snapshot
from dblog_core.delta_writer.statistics import Stated, count_rows
from dblog_core.errors import LakeError
from dblog_core.lake import table_commits
from dblog_core.lake.lake_status import TableStatus
from dblog_core.storage.location import Location

OFFSET = "_dblog_offset"
_HARMLESS = {"txn", "commitInfo", "protocol", "cdc"}
_DOMAINS = {"delta.clustering", "delta.rowTracking"}
_PROPERTIES = (
    "delta.appendOnly",
    "delta.autoOptimize.",
    "delta.checkpoint",
    "delta.columnMapping.",
    "delta.compatibility.",
    "delta.dataSkipping",
    "delta.deletedFileRetentionDuration",
    "delta.enableChangeDataFeed",
    "delta.enableDeletionVectors",
    "delta.enableExpiredLogCleanup",
    "delta.enableIcebergCompat",
    "delta.enableInCommitTimestamps",
    "delta.enableRowTracking",
    "delta.enableTypeWidening",
    "delta.enableVariantShredding",
    "delta.feature.",
    "delta.inCommitTimestamp",
    "delta.isolationLevel",
    "delta.logRetentionDuration",
    "delta.minReaderVersion",
    "delta.minWriterVersion",
    "delta.parquet.",
    "delta.randomizeFilePrefixes",
    "delta.setTransactionRetentionDuration",
    "delta.targetFileSize",
    "delta.tuneFileSizesForRewrites",
    "delta.universalFormat.",
)
"""Beginnings of names. The writer refuses by name what it does not know of these."""
_OURS = "dblog."
_REPLACED = "the table's directory was put back from a copy, or made anew"


@dataclass(frozen=True, slots=True)
class Judged:
    """What foreign commits did. `damage`: the first that may have removed or replaced our rows, as a sentence.
    `reshaped`: metadata or protocol have changed. `has_rows`: a merge has to disown added rows."""

    damage: str | None = None
    reshaped: bool = False
    has_rows: bool = False

    @property
    def is_foreign(self) -> bool:
        """Whether a merge has to answer something."""
        return self.damage is not None or self.reshaped or self.has_rows


def judge(table: Location, *, after: int, commit: int | None, newest: int, merged: int) -> Judged:
    """Judges the commits behind version `after`, whose commit had the CRC-32 `commit` (None: not recorded), up to
    `newest`. `merged`: the highest offset that one of our rows can have here. Raises LakeError."""
    if (damage := _find_replacement(table, after, commit, newest)) is not None:
        return Judged(damage, reshaped=True, has_rows=True)
    judged = Judged()
    for number in range(after + 1, newest + 1):
        actions = table_commits.read_actions(table, number)
        if actions is None:
            return Judged(_say(number, {}, "is no longer in the log"), reshaped=True, has_rows=True)
        if not table_commits.is_ours(table, number, actions):
            judged = _add(judged, _Commit(table, number, actions, merged))
    return judged


def find_history_gap(history: Location, status: TableStatus | None) -> str | None:
    """Why a history no longer has all lines that the table's last merge has left, in words; None where it has them, or
    nobody has recorded how it was left. Raises LakeError for a commit that cannot be read.

    Nothing of a history is ever taken out, and no line is another one's, so that whatever may have removed, replaced or
    added lines leaves a gap: the history begins again with the next merge (`dblog.after`).
    """
    if status is None or not status.told or status.told_version is None:
        return None
    if (newest := table_commits.version(history)) is None:
        return f"it is gone; a merge left version {status.told_version}"
    judged = judge(history, after=status.told_version, commit=status.told_commit, newest=newest, merged=status.offset)
    if judged.damage is None and judged.has_rows:
        return "another program has added lines"
    return judged.damage


def _find_replacement(table: Location, after: int, commit: int | None, newest: int) -> str | None:
    if newest < after:
        return f"{_REPLACED}: it ends at version {newest}, and a merge left version {after}"
    if commit is not None and table_commits.commit_sum(table, after) != commit:
        return f"{_REPLACED}: its version {after} is not the one that a merge left"
    return None


def _add(judged: Judged, commit: _Commit) -> Judged:
    return Judged(
        judged.damage or commit.damage(),
        judged.reshaped or commit.changes_metadata,
        judged.has_rows or commit.adds_foreign_rows,
    )


@dataclass(frozen=True, slots=True)
class _Commit:
    """A foreign commit of `table`."""

    table: Location
    number: int
    actions: list[dict[str, Any]]
    merged: int

    @property
    def changes_metadata(self) -> bool:
        """Whether metadata or protocol are other ones than before: a RESTORE writes those that are there."""
        if not any("metaData" in action or "protocol" in action for action in self.actions):
            return False
        before = _read_version(self.table, self.number - 1)
        now = _read_version(self.table, self.number)
        return before is None or now is None or _describe(before) != _describe(now)

    @property
    def _added(self) -> list[dict[str, Any]]:
        adds = (action["add"] for action in self.actions if "add" in action)
        return [add for add in adds if add.get("dataChange", True)]

    @property
    def adds_foreign_rows(self) -> bool:
        return any(not _holds_offsets_upto(add, self._offset_column(), self.merged) for add in self._added)

    def damage(self) -> str | None:
        """What it may have done to our rows, as a sentence; None: nothing."""
        info: dict[str, Any] = next((action["commitInfo"] for action in self.actions if "commitInfo" in action), {})
        what = self._harm(info)
        return None if what is None else _say(self.number, info, what)

    def _harm(self, info: Mapping[str, Any]) -> str | None:
        if str(info.get("operation", "")).upper() == "RESTORE":
            return "has brought back an older version"
        if any(action["remove"].get("dataChange", True) for action in self.actions if "remove" in action):
            return "has removed or replaced rows"
        if not all(_is_append(add, self._offset_column(), self.merged) for add in self._added):
            return "may have added rows that the table had before, or marked rows as deleted"
        unknown = [name for action in self.actions for name in action if not self._may_stand(name, action[name])]
        return f"has the action {unknown[0]}, which may concern rows" if unknown else self._harm_of_metadata()

    def _may_stand(self, name: str, action: Mapping[str, Any]) -> bool:
        if name == "domainMetadata":
            return action.get("domain") in _DOMAINS
        return name in _HARMLESS or name in ("add", "remove", "metaData")

    def _harm_of_metadata(self) -> str | None:
        new = next((action["metaData"] for action in self.actions if "metaData" in action), None)
        if new is None:
            return None
        before = _read_version(self.table, self.number - 1)
        if before is None:
            return "has changed the table's metadata, and the log no longer shows it as it was"
        old = before.metadata
        if new.get("id") != old.get("id"):
            return "has made the table anew"
        if new.get("partitionColumns") != old.get("partitionColumns") or _columns(new) != _columns(old):
            return "has changed columns, whose values may be lost"
        unknown = [name for name in _changed_properties(old, new) if not _is_known(name)]
        return f"has changed the property {unknown[0]}, which may concern rows" if unknown else None

    def _offset_column(self) -> str:
        """The physical name of the column of offsets."""
        snap = _read_version(self.table, self.number)
        fields = {} if snap is None else {field["name"]: field for field in _fields(snap.metadata)}
        return _physical(fields[OFFSET]) if OFFSET in fields else OFFSET


def _is_append(add: Mapping[str, Any], offset: str, merged: int) -> bool:
    """Whether all rows of a file are foreign ones: without an offset, or with one beyond ours."""
    rows = count_rows(add.get("stats"))
    stated = Stated.of(add.get("stats"), offset)
    if add.get("deletionVector") is not None or rows is None:
        return False
    return stated.nulls == rows if stated.lowest is None else bool(stated.lowest > merged)


def _holds_offsets_upto(add: Mapping[str, Any], offset: str, merged: int) -> bool:
    """Whether each row of a file has an offset, none beyond ours. Then a merge disowns no row of it."""
    stated = Stated.of(add.get("stats"), offset)
    return stated.highest is not None and stated.nulls == 0 and bool(stated.highest <= merged)


def _read_version(table: Location, number: int) -> Snapshot | None:
    try:
        return snapshot.at_version(TableFiles.at(table), number)
    except LakeError:
        return None


def _describe(version: Snapshot) -> tuple[Any, ...]:
    """What metadata and protocol say, without the order in which they say it."""
    metadata = version.metadata
    protocol = {name: sorted(value) if isinstance(value, list) else value for name, value in version.protocol.items()}
    about = metadata.get("id"), metadata.get("partitionColumns"), metadata.get("configuration") or {}
    return *about, _columns(metadata), protocol


def _fields(metadata: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield from orjson.loads(metadata["schemaString"])["fields"]


def _columns(metadata: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """What files hold values by: names and types. Another comment changes nothing."""
    return [(field["name"], _physical(field), field["type"], field["nullable"]) for field in _fields(metadata)]


def _physical(field: Mapping[str, Any]) -> str:
    return str(field.get("metadata", {}).get("delta.columnMapping.physicalName", field["name"]))


def _changed_properties(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    before = old.get("configuration") or {}
    now = new.get("configuration") or {}
    return sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))


def _is_known(name: str) -> bool:
    return name.startswith(_PROPERTIES) or not name.startswith(("delta.", _OURS))


def _say(number: int, info: Mapping[str, Any], what: str) -> str:
    stated = info.get("timestamp")
    at = ""
    if isinstance(stated, int):
        at = f", {dt.datetime.fromtimestamp(stated / 1000, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    operation = info.get("operation")
    about = f" ({operation}{at})" if operation else ""
    return f"commit {number} of another program{about} {what}"
