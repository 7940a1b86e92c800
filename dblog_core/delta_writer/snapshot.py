"""One version of a table as its log tells it: live files, transactions, metadata and protocol; kept up by each commit.

A snapshot never changes: `newest` makes a later one of it. What it does not know for certain to be the newest version
is looked up in the listing of the log: old commits are cleaned away, so that a version without a successor may be an
old one.
"""

from __future__ import annotations

import contextlib
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

import orjson

from dblog_core.delta_writer.checkpoints import checkpoint_reader
from dblog_core.delta_writer.features import (
    CLUSTERING,
    alter,
    check_appendable,
    check_writable,
    has_feature,
    refusal,
    takes_vectors,
)
from dblog_core.delta_writer.files import LOG, TableFiles
from dblog_core.delta_writer.shape import Shape, shape_of
from dblog_core.delta_writer.statistics import Stated, columns_with_statistics, count_rows
from dblog_core.delta_writer.vectors import count_replaced, unique_id
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json

_KNOWN_ACTIONS = frozenset({"add", "remove", "txn", "metaData", "protocol", "commitInfo", "cdc", "domainMetadata"})
_ATTEMPTS = 5  # at a log that is cleaned while it is read


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a version. `path`: below the table, decoded; `add`: the action that named it last."""

    path: str
    add: Json

    @property
    def size(self) -> int:
        return int(self.add["size"])

    @property
    def vector(self) -> Json | None:
        """The descriptor of its deletion vector."""
        return self.add.get("deletionVector")

    @property
    def replaced_count(self) -> int:
        """How many of its dead rows are known to have been replaced by a newer row of their key."""
        return count_replaced(self.add)

    @property
    def deleted_count(self) -> int:
        """How many of its dead rows may have been deleted."""
        return 0 if self.vector is None else int(self.vector["cardinality"]) - self.replaced_count

    @property
    def living_count(self) -> int | None:
        """Its rows without the dead ones; None where its statistics do not tell."""
        return (
            None if self.rows is None else self.rows - (0 if self.vector is None else int(self.vector["cardinality"]))
        )

    @property
    def rows(self) -> int | None:
        """Its rows, the dead ones too; None where its statistics do not tell."""
        return count_rows(self.add.get("stats"))

    def stated_values(self, column: str) -> Stated:
        """What its statistics say of a column, by its physical name."""
        return Stated.of(self.add.get("stats"), column)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table; -1: nothing is known of it yet."""

    version: int = -1
    files: Mapping[str, LiveFile] = field(default_factory=dict)
    """By path."""
    txns: Mapping[str, int] = field(default_factory=dict)
    """The newest transaction version of each application."""
    metadata: Json = field(default_factory=dict)
    protocol: Json = field(default_factory=dict)
    commit: int | None = None
    """The CRC-32 of its commit; None where only a checkpoint has shown it."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """Configurations of metadata domains (PROTOCOL.md, "Domain Metadata")."""

    @property
    def table_id(self) -> str:
        return str(self.metadata["id"])

    @property
    def configuration(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.metadata.get("configuration") or {}

    @property
    def takes_vectors(self) -> bool:
        """Whether rows may go by deletion vectors."""
        return takes_vectors(self.protocol, self.metadata)

    def shape(self, where: str, *, only_grows: bool = False) -> Shape:
        """Its columns. Raises TableRefused for what this package does not write. `only_grows`: no row goes."""
        check = check_appendable if only_grows else check_writable
        check(self.protocol, self.metadata, where)
        shape = shape_of(self.metadata, where)
        if clustered := set(self.clustered_by):
            with_statistics = columns_with_statistics(shape, self.configuration)
            if lacking := clustered - {column.physical for column in with_statistics}:
                what = f"it is clustered by columns without statistics: {', '.join(sorted(lacking))}"
                raise refusal(where, what, alter(where, "CLUSTER BY NONE"))
        return shape

    def count_rows(self) -> int | None:
        """Its living rows, by the statistics of its files; None where they do not say."""
        counts = [live.living_count for live in self.files.values()]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def clustered_by(self) -> tuple[str, ...]:
        """The physical names of the columns by which the table's owner wants its rows to lie together; not of one
        within another."""
        if not has_feature(self.protocol, CLUSTERING):
            return ()
        named = orjson.loads(self.domains.get("delta.clustering") or "{}").get("clusteringColumns") or []
        # Writers put a path in a list of its own.
        paths = [[path] if isinstance(path, str) else path for path in named]
        return tuple(path[0] for path in paths if len(path) == 1)


def newest(files: TableFiles, earlier: Snapshot | None = None) -> Snapshot:
    """The table's newest version, from an `earlier` one on. Raises LakeError if there is no table, or its log has gaps;
    TableRefused where its log has what this package does not read."""
    for attempt in range(_ATTEMPTS):
        try:
            if earlier is None or earlier.version < 0:
                earlier = _read_checkpoint(files, by_hint=not attempt)
            commit_sum = _commit_sum(files, earlier)
            if commit_sum is not None and earlier.commit not in (
                None,
                commit_sum,
            ):  # that of another table in its place
                earlier = None
                continue
            snapshot = _follow_log(files, replace(earlier, commit=earlier.commit if commit_sum is None else commit_sum))
        except FileNotFoundError:  # a checkpoint was replaced, and removed, meanwhile
            earlier = None
            continue
        # Commits are cleaned away from the oldest on: while the one that we ended with is there, so is its successor.
        if commit_sum is not None or snapshot.version > earlier.version:
            return snapshot
        if checkpoint_reader.list_log(files.names(LOG)).newest == snapshot.version:
            return snapshot
        earlier = None  # the commits behind it were cleaned away: what is newer begins with a checkpoint
    raise LakeError(
        "the table's log changes all the time while it is read",
        where=str(files),
        fix="see who else writes the table; it is tried again",
    )


def at_version(files: TableFiles, version: int, earlier: Snapshot | None = None) -> Snapshot:
    """That version of the table, from an `earlier` one of it on. Raises LakeError where the log no longer shows it;
    TableRefused where its log has what this package does not read."""
    if earlier is None or not 0 <= earlier.version <= version or earlier.commit != _commit_sum(files, earlier):
        earlier = _read_checkpoint(files, by_hint=False, upto=version)
    snapshot = _follow_log(files, earlier, upto=version) if earlier.version < version else earlier
    if snapshot.version != version:
        raise LakeError(
            f"the table's log no longer shows version {version}",
            where=str(files),
            fix="verify again, which begins with the newest version; or restore the log from a backup",
        )
    return snapshot if snapshot.commit is not None else replace(snapshot, commit=_commit_sum(files, snapshot))


def is_there(files: TableFiles, snapshot: Snapshot) -> bool:
    """Whether the log has the commit that the snapshot ends with: one request. Then the table is still the one that it
    was made of, and what others have committed since follows it."""
    return snapshot.commit is not None and _commit_sum(files, snapshot) == snapshot.commit


def _commit_sum(files: TableFiles, snapshot: Snapshot) -> int | None:
    """The CRC-32 of the commit that the log has where the snapshot ends. None: it has none, so that it may have been
    cleaned away, and those behind it too."""
    data = files.read(commit_path(snapshot.version)) if snapshot.version >= 0 else None
    return None if data is None else zlib.crc32(data)


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def actions_of(data: bytes, where: str) -> list[Json]:
    """The actions of a commit. Raises LakeError for a file that is none."""
    try:
        actions = [orjson.loads(line) for line in data.splitlines() if line.strip()]
        for action in actions:
            if (metadata := action.get("metaData")) is not None:
                orjson.loads(metadata["schemaString"])["fields"]
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise LakeError(
            f"a commit of the table's log cannot be read: {error}",
            where=where,
            fix="restore the file from a backup; or move the table's directory away, and run `dblog reset`",
        ) from error
    return actions


def known_actions_of(data: bytes, where: str) -> list[Json]:
    """As `actions_of`. Raises TableRefused for an action that is not known: it may name files, or say which rows
    live."""
    actions = actions_of(data, where)
    if unknown := {name for action in actions for name in action} - _KNOWN_ACTIONS:
        raise refusal(where, f"its log has the action {', '.join(sorted(unknown))}", "upgrade dblog")
    return actions


def apply_commit(snapshot: Snapshot, data: bytes, where: str) -> Snapshot:
    """The version after a snapshot, by the bytes of its commit. The order of a commit's actions means nothing."""
    return _apply(snapshot, snapshot.version + 1, known_actions_of(data, where), where, zlib.crc32(data))


def _apply(before: Snapshot, version: int, actions: Iterable[Json], where: str, commit: int | None = None) -> Snapshot:
    """The version after another one, by these actions; `commit`: the CRC-32 of its commit."""
    removed: list[Json] = []
    added: list[Json] = []
    txns = dict(before.txns)
    metadata = before.metadata
    protocol = before.protocol
    domains = before.domains
    for action in actions:
        if (removal := action.get("remove")) is not None:
            removed.append(removal)
        if (addition := action.get("add")) is not None:
            added.append(addition)
        if (txn := action.get("txn")) is not None:
            txns[str(txn["appId"])] = int(txn["version"])
        if (domain := action.get("domainMetadata")) is not None:
            domains = _apply_domain(domains, domain)
        metadata = action.get("metaData") or metadata
        protocol = action.get("protocol") or protocol
    live = before.files
    if removed or added:
        live = _apply_actions(live, removed, added, where)
    return Snapshot(version, live, txns, metadata, protocol, commit, domains)


def _apply_domain(domains: Mapping[str, str], action: Json) -> Mapping[str, str]:
    others = {name: text for name, text in domains.items() if name != action["domain"]}
    return others if action.get("removed") else {**others, str(action["domain"]): str(action["configuration"])}


def _apply_actions(
    files: Mapping[str, LiveFile], removed: list[Json], added: list[Json], where: str
) -> Mapping[str, LiveFile]:
    live = dict(files)
    for action in removed:
        path = path_of(action["path"], where)
        # A file is its path and its vector (PROTOCOL.md): what removes it with the old vector leaves it with the new
        # one.
        if path in live and unique_id(live[path].vector) == unique_id(action.get("deletionVector")):
            del live[path]
    for action in added:
        path = path_of(action["path"], where)
        if path in live and unique_id(live[path].vector) != unique_id(action.get("deletionVector")):
            raise LakeError(
                f"a commit adds the file {path} with another deletion vector, and does not remove the file's "
                "previous entry",
                where=where,
                fix="stop the program that writes such commits, and run `dblog reset` for the table: it is built again",
            )
        live[path] = LiveFile(path, action)
    return MappingProxyType(live)


def path_of(text: str, where: str) -> str:
    """The path of a file that an action names, below the table. Raises TableRefused for one outside of it."""
    if text.startswith("/") or (":" in text and urlsplit(text).scheme):
        raise refusal(where, f"its file {text} lies outside of the table")
    return unquote(text)


def _follow_log(files: TableFiles, snapshot: Snapshot, *, upto: int | None = None) -> Snapshot:
    # Versions have no gaps: the first number that is missing is the end, or a commit that was cleaned away (`newest`).
    while upto is None or snapshot.version < upto:
        path = commit_path(snapshot.version + 1)
        if (data := files.read(path)) is None:
            break
        snapshot = apply_commit(snapshot, data, files.url(path))
    if snapshot.version < 0 and upto is None:
        raise LakeError("there is no Delta table, or its log begins late", where=str(files), fix="restore its log")
    return snapshot


def _read_checkpoint(files: TableFiles, *, by_hint: bool, upto: int = sys.maxsize) -> Snapshot:
    """The newest checkpoint of that version or an earlier one; nothing, where there is none. `by_hint`: the one that
    `_last_checkpoint` names is enough."""
    for version, names in _checkpoints(files, by_hint=by_hint):
        if version <= upto:
            with contextlib.suppress(FileNotFoundError):
                return _of_checkpoint(version, checkpoint_reader.read_checkpoint(files, names), str(files))
    return Snapshot()


def _checkpoints(files: TableFiles, *, by_hint: bool) -> Iterator[tuple[int, list[str]]]:
    if by_hint and (hinted := checkpoint_reader.last_checkpoint(files)) is not None:
        yield hinted
    yield from checkpoint_reader.list_log(files.names(LOG)).checkpoints


def _of_checkpoint(version: int, actions: Iterable[Json], where: str) -> Snapshot:
    snapshot = _apply(Snapshot(), version, actions, where)
    if not snapshot.metadata or not snapshot.protocol:
        raise LakeError(
            f"the checkpoint of version {version} has no metadata or protocol",
            where=where,
            fix="remove the file if the commits before it are all there, or restore it from a backup",
        )
    return snapshot
