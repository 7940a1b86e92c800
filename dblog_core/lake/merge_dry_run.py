"""What `dblog merge` would do now, from manifests and the lake's records alone. Nothing is locked, nothing written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from dblog_core import wiring
from dblog_core.config.lake import LakeConfig, SchemaChanges
from dblog_core.config.settings import Config
from dblog_core.interfaces import Json
from dblog_core.lake import continuity
from dblog_core.lake.carrier_choice import Means, choose_carrier
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus
from dblog_core.lake.merge_plan import Span, Work, next_span, plan_works
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution import compatibility
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest


@dataclass(frozen=True, slots=True)
class ShapeChange:
    """How a table's shape changes: `renamed` by old names, columns, and whether the key is another one."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    added: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    retyped: tuple[str, ...] = ()
    rekeyed: bool = False

    def to_json(self) -> Json:
        """What changes alone."""
        return {name: what for name, what in asdict(self).items() if what}


@dataclass(frozen=True, slots=True)
class Ghosts:
    """The end of a dump that removes rows: those with a key from `key_from` to `key_to` (JSON keys; None: no end)."""

    dump: str | None
    since: int | None
    key_from: Any
    key_to: Any

    def to_json(self) -> Json:
        return {"dump": self.dump, "since": self.since, "from": self.key_from, "to": self.key_to}


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A table's share. `does`: as `_does` says; `schemas`: fingerprints; `truncates`: offsets; `history`: whether its
    lines are kept; `carrier`: who carries the rows, and why."""

    table: str
    does: str
    rows: int
    files: int
    chunks: int
    bytes: int
    schemas: tuple[str, ...]
    change: ShapeChange
    truncates: tuple[int, ...]
    ghosts: tuple[Ghosts, ...]
    history: bool
    carrier: str

    def to_json(self) -> Json:
        ghosts = [each.to_json() for each in self.ghosts]
        return {**asdict(self), "change": self.change.to_json(), "ghosts": ghosts}


@dataclass(frozen=True, slots=True)
class StoppedTable:
    """A table that has stopped, why, and up to which offset the lake has it."""

    table: str
    error: str | None
    offset: int


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The merges that wait.

    `unfinished`: the merge that was begun and not ended (None: none was); `segments`: the first and the last one (None:
    none waits); `offset_from`, `offset_to`: those of the lake before and after; `open_segments`: how many wait for the
    end of their transaction.
    """

    source: str
    merges: int
    unfinished: int | None
    segments: tuple[int, int] | None
    offset_from: int
    offset_to: int
    position: str | None
    open_segments: int
    tables: tuple[TablePlan, ...]
    stopped: tuple[StoppedTable, ...]

    def to_json(self) -> Json:
        """As `merge --dry-run --json` prints it."""
        return {
            "source": self.source,
            "merges": self.merges,
            "unfinished": self.unfinished,
            "segments": {"first": self.segments[0], "last": self.segments[1]} if self.segments else None,
            "offset": {"from": self.offset_from, "to": self.offset_to},
            "position": self.position,
            "open_segments": self.open_segments,
            "tables": [table.to_json() for table in self.tables],
            "stopped": [asdict(table) for table in self.stopped],
        }


def merge_plan(config: Config) -> MergePlan:
    """The merges that wait. Raises StagingError and LakeError, also where a merge would refuse the staging."""
    staging = wiring.open_staging(config)
    lake = wiring.open_lake(config)
    merged, verdict = continuity.judge_lake(staging, lake)
    verdict.check()
    status = merged or LakeStatus()
    unfinished = continuity.read_unfinished_merge(lake, merged)
    means = Means.of(config)
    spans = list(_spans(staging, status.segment, means))
    last = spans[-1].last if spans else status.segment
    head = staging.head()
    works = sorted(_works(staging, status, last).items())
    stopped = {name: t for name, t in sorted(status.tables.items()) if t.state is State.STOPPED}
    return MergePlan(
        source=config.source.name,
        merges=len(spans),
        # It is finished first, to the offset that it recorded.
        unfinished=None if unfinished is None else unfinished.number,
        segments=(spans[0].first, last) if spans else None,
        offset_from=status.offset,
        offset_to=spans[-1].offset if spans else status.offset,
        position=spans[-1].position if spans else status.position or None,
        open_segments=head.segment - last if head is not None else 0,
        tables=tuple(_table(staging, work, status.tables.get(name), config.lake, means) for name, work in works),
        stopped=tuple(StoppedTable(name, t.error, t.offset) for name, t in stopped.items()),
    )


def _spans(staging: Staging, after: int, means: Means) -> Iterator[Span]:
    """The spans of the merges that come, each within the limits of one."""
    limits = partial(next_span, max_rows=means.span_rows, max_bytes=means.span_bytes)
    while (span := limits(staging.manifests(after=after))) is not None:
        yield span
        after = span.last


def _works(staging: Staging, status: LakeStatus, last: int) -> dict[str, Work]:
    """Each table's share of all that is sealed; a table that has stopped or was reset begins at its own place."""

    # A merge sets a stopped table behind the segments that retention has removed.
    begins = staging.beginning().segment - 1

    def after(table: str) -> int:
        lake_table = status.tables.get(table)
        return status.segment if lake_table is None else max(lake_table.segment, begins)

    # A stopped table is behind the others, and its segments are read again for it alone.
    first = min([status.segment, *map(after, status.tables)])
    manifests: Sequence[Manifest] = [] if first >= last else list(staging.manifests(after=first, upto=last))
    return plan_works(manifests, after)


def _table(staging: Staging, work: Work, status: TableStatus | None, lake: LakeConfig, means: Means) -> TablePlan:
    schema = staging.schema(work.schema)
    before = status.schema if status is not None and status.version is not None else None
    change = _change(work, staging, before, schema) if before is not None else ShapeChange()
    return TablePlan(
        table=work.table,
        does=_does(schema, change, status, lake),
        rows=work.rows,
        files=len(work.files),
        chunks=len(work.chunks),
        bytes=work.bytes,
        schemas=tuple(work.schemas),
        change=change,
        truncates=tuple(m.offset for m in work.truncates),
        ghosts=tuple(Ghosts(m.dump, m.since, m.key_from, m.key_to) for m in work.finished),
        history=lake.history,
        carrier=choose_carrier(work.rows, means).reason,
    )


def _does(schema: TableSchema, change: ShapeChange, status: TableStatus | None, lake: LakeConfig) -> str:
    """`append` to a table that the lake has not yet, `merge` (appended too, where all keys lie above the table's),
    `history` for a table without a key, or `nothing` where none is kept; `stop` for a shape that the lake does not
    take."""
    if not schema.key:
        return "history" if lake.history else "nothing"
    if _stops(change, status, lake.schema_changes_of(schema.table)):
        return "stop"
    return "append" if status is None or status.version is None else "merge"


def _stops(change: ShapeChange, status: TableStatus | None, policy: SchemaChanges) -> bool:
    """Under `ignore` values may stop it too: that shows when they are read."""
    if policy == "fail" and status is not None and status.accepted is None:
        return change != ShapeChange()
    return change.rekeyed or (policy != "ignore" and bool(change.retyped))


def _change(work: Work, staging: Staging, before: str, after: TableSchema) -> ShapeChange:
    """How the shape changes from the one with the fingerprint `before`."""
    schema = staging.schema(before)
    new_names = {column.name: work.renames.current_name(column.name) for column in schema.columns}
    difference = compatibility.compare_schemas(work.renames.rename_columns(schema), after)
    return ShapeChange(
        renamed={old: new for old, new in new_names.items() if new != old and new in after.arrow.names},
        added=tuple(difference.added),
        gone=tuple(difference.dropped),
        widened=tuple(difference.widened),
        retyped=tuple(old.name for old, _ in difference.retyped),
        rekeyed=difference.rekeyed is not None,
    )
