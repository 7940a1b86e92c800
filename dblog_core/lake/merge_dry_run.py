"""What `dblog merge` would do now, from manifests and the lake's records alone. Nothing is locked, nothing written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dblog_core import wiring
from dblog_core.config.lake import LakeConfig, SchemaChanges
from dblog_core.config.settings import Config
from dblog_core.interfaces import Json
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, own_directory, read_status
from dblog_core.lake.merge_plan import Span, Work, next_span, plan_works
from dblog_core.model.schema import TableSchema
from dblog_core.schema_evolution import compatibility
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.storage.location import Location


def merge_plan(config: Config) -> Json:
    """The merges that wait, as `merge --dry-run --json` prints them. Raises StagingError and LakeError."""
    staging = wiring.open_staging(config)
    lake = wiring.open_lake(config)
    status = read_status(lake) or LakeStatus()
    spans = list(_spans(staging, status.segment))
    last = spans[-1].last if spans else status.segment
    head = staging.head()
    return {
        "source": config.source.name,
        "merges": len(spans),
        "unfinished": _unfinished(lake, status),
        "segments": {"first": spans[0].first, "last": last} if spans else None,
        "offset": {"from": status.offset, "to": spans[-1].offset if spans else status.offset},
        "position": spans[-1].position if spans else status.position or None,
        "open_segments": head.segment - last if head is not None else 0,
        "tables": [
            _table(staging, work, status.tables.get(name), config.lake)
            for name, work in sorted(_works(staging, status, last).items())
        ],
        "stopped": [
            {"table": name, "error": t.error, "offset": t.offset}
            for name, t in sorted(status.tables.items())
            if t.state is State.STOPPED
        ],
    }


def _spans(staging: Staging, after: int) -> Iterator[Span]:
    """The spans of the merges that come, each within the limits of one."""
    while (span := next_span(staging.manifests(after=after))) is not None:
        yield span
        after = span.last


def _works(staging: Staging, status: LakeStatus, last: int) -> dict[str, Work]:
    """Each table's share of all that is sealed; a table that has stopped or was reset begins at its own place."""

    def after(table: str) -> int:
        lake_table = status.tables.get(table)
        return status.segment if lake_table is None else lake_table.segment

    # A stopped table is behind the others, and its segments are read again for it alone.
    first = min([status.segment, *(t.segment for t in status.tables.values())])
    manifests: Sequence[Manifest] = [] if first >= last else list(staging.manifests(after=first, upto=last))
    return plan_works(manifests, after)


def _unfinished(lake: Location, status: LakeStatus) -> int | None:
    """The merge that was begun and not ended: it is finished first, to the offset that it recorded."""
    names = (name.removesuffix(".json") for name in (own_directory(lake) / "merges").names())
    newest = max((int(name) for name in names if name.isdigit()), default=0)
    # The record of a merge is written before it applies anything, its outcome after.
    return newest if newest > status.merge else None


def _table(staging: Staging, work: Work, status: TableStatus | None, lake: LakeConfig) -> Json:
    schema = staging.schema(work.schema)
    history = lake.history
    before = status.schema if status is not None and status.version is not None else None
    change = _change(work.renames.rename_columns(staging.schema(before)), schema) if before is not None else {}
    if renamed := {
        old: now for old, now in _renamed_columns(work, staging, before).items() if now in schema.arrow.names
    }:
        change = {"renamed": renamed, **change}
    return {
        "table": work.table,
        "does": _does(schema, change, status, lake),
        "rows": work.rows,
        "files": len(work.files),
        "chunks": len(work.chunks),
        "bytes": work.bytes,
        "schemas": work.schemas,
        "change": change,
        "truncates": [m.offset for m in work.truncates],
        "ghosts": [{"dump": m.dump, "since": m.since, "from": m.key_from, "to": m.key_to} for m in work.finished],
        "history": history,
    }


def _renamed_columns(work: Work, staging: Staging, before: str | None) -> dict[str, str]:
    """The columns of the shape before that now have another name."""
    names = [] if before is None else [c.name for c in staging.schema(before).columns]
    return {name: now for name in names if (now := work.renames.current_name(name)) != name}


def _does(schema: TableSchema, change: Json, status: TableStatus | None, lake: LakeConfig) -> str:
    """`append` to a table that the lake has not yet, `merge` (appended too, where all keys lie above the table's),
    `history` for a table without a key, or `nothing` where none is kept; `stop` for a shape that the lake does not
    take."""
    if not schema.key:
        return "history" if lake.history else "nothing"
    if _stops(change, status, lake.schema_changes_of(schema.table)):
        return "stop"
    return "append" if status is None or status.version is None else "merge"


def _stops(change: Json, status: TableStatus | None, policy: SchemaChanges) -> bool:
    """Under `ignore` values may stop it too: that shows when they are read."""
    if policy == "fail" and status is not None and status.accepted is None:
        return bool(change)
    return bool(change.get("rekeyed") or (policy != "ignore" and change.get("retyped")))


def _change(before: TableSchema, after: TableSchema) -> Json:
    """How the shape changes: column names, and whether the key is another one; empty where nothing changes."""
    difference = compatibility.compare_schemas(before, after)
    changes: Json = {
        "added": list(difference.added),
        "gone": list(difference.dropped),
        "widened": list(difference.widened),
        "retyped": [old.name for old, _ in difference.retyped],
        "rekeyed": difference.rekeyed,
    }
    return {name: what for name, what in changes.items() if what}
