"""What staging now says about a table that was merged long ago: its events folded again, up to what the lake has; where
that is wanted after what the history says about the time before (`past`).

  all events, on the local disk, apart by key -> those of some keys at a time, in the order of the log -> folded rows

A row lives if its key has an event after everything that ends rows at once (a TRUNCATE, a full dump, whose living keys
all have an event after its `since`, a reset) and no such event says that it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from dblog_core.errors import LakeError
from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import State, TableStatus, history_location
from dblog_core.lake.merge_plan import Work
from dblog_core.lake.task_plans import Past
from dblog_core.lake_engine.events.dump_ends import SHOWN_BY, delete_ghosts
from dblog_core.lake_engine.events.fold import fold_portions
from dblog_core.lake_engine.events.key_buckets import Bucket, Earlier, staged_buckets
from dblog_core.lake_engine.history.last_lines import LastLines
from dblog_core.lake_engine.tasks.context import Tools
from dblog_core.model.schema import TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.staging import Staging


@dataclass(frozen=True, slots=True)
class TableEvents:
    """Events of one table, `lower` being the last offset that ends rows; `schema`: the shape of its lake table;
    `earlier`: what its history says about the time before the work."""

    staging: Staging
    work: Work
    schema: TableSchema
    lower: int
    earlier: Earlier = ()

    def buckets(self) -> Iterator[Bucket]:
        """The events, as `staged_events.read_events` has them, some keys at a time. Raises as `staged_buckets`."""
        return staged_buckets(self.staging, self.work, self.schema, earlier=self.earlier)

    def fold(self, portions: Iterable[pa.Table]) -> pa.Table | None:
        """The folded rows of keys that have an event after `lower`; a DELETE where a dump of a range has shown a ghost.
        None: there is no such key."""
        rows = fold_portions(map(self.living, portions), self.schema)
        if not len(rows):
            return None
        ends = [mark for mark in self.work.finished if mark.since is not None]
        return delete_ghosts(rows, ends, self.schema).drop_columns([SHOWN_BY]) if ends else rows

    def living(self, events: pa.Table) -> pa.Table:
        """Those after `lower`."""
        return events.filter(pc.greater(events["offset"], self.lower)) if self.lower else events


def find_events(
    tools: Tools, table: str, *, after: int, before: Past | None = None, shape: TableSchema | None = None
) -> TableEvents | None:
    """The table's events after segment `after`; None where there are none.

    `before`: what the history tells comes before them, as one event a key; staged ones of its time do not count.
    `shape`: what they are read in, if not in that of the lake's last merge.
    """
    status = table_of(tools, table)
    work = work_of(tools.staging, table, status, after=after)
    if before is not None:
        work = _later(work or Work(table, status.schema or ""), before.upto)
    elif work is None or not (work.files or work.chunks):
        return None
    schema = shape or tools.lake.shape_in_lake(tools.staging.schema(work.schema))
    work = tools.lake.work_to_merge(work, schema)
    lower = max(lower_of(work, status), before.lower if before else 0)
    work = _followable(tools, work, schema, lower)
    staged = replace(work, truncates=(), floor=before.upto if before else None)
    if before is None:
        return TableEvents(tools.staging, staged, schema, lower)
    history = history_location(tools.lake.location, schema.table)
    return TableEvents(tools.staging, staged, schema, lower, LastLines(history, schema, before, work.renames))


def _later(work: Work, offset: int) -> Work:
    """What the work has after `offset`."""
    return replace(
        work,
        files=tuple(f for f in work.files if f.last_offset > offset),
        chunks=tuple(c for c in work.chunks if c.first_offset + c.rows - 1 > offset),
        truncates=tuple(m for m in work.truncates if m.offset > offset),
        finished=tuple(m for m in work.finished if m.offset > offset),
    )


def table_of(tools: Tools, table: str) -> TableStatus:
    """The table as the lake has it. Raises LakeError where it has none that may be worked on."""
    status = tools.status.tables.get(table)
    if status is None or status.version is None or status.schema is None:
        raise LakeError("the lake has no such table", where=table, fix="`dblog status` names those that it has")
    if status.state is State.STOPPED:
        raise LakeError(
            f"the table is stopped: {status.error}",
            where=table,
            fix=f"repair that first, or run `dblog reset {quote_for_shell(table)}`",
        )
    return status


def work_of(staging: Staging, table: str, status: TableStatus, *, after: int) -> Work | None:
    """All that segments from `after` on have of the table, up to what the lake has of it, in the lake's shape."""
    manifests = staging.manifests(after=after, upto=status.segment)
    work = merge_plan.plan_works(manifests, lambda name: after if name == table else status.segment).get(table)
    return work and replace(work, schema=status.schema or work.schema)


def lower_of(work: Work, status: TableStatus) -> int:
    """The last offset that ends rows, whichever way; 0: none does."""
    full = [m.since for m in work.finished if m.since is not None and m.key_from is None and m.key_to is None]
    return max([work.last_truncate or 0, status.reset_at or 0, *full])


def _followable(tools: Tools, work: Work, schema: TableSchema, lower: int) -> Work:
    """Without the files whose shape led to another table, all of which lie before what ended its rows.

    Raises LakeError where rows that count have such a shape.
    """

    renames = work.renames

    def counts(fingerprint: str, last: int) -> bool:
        try:
            tools.lake.check_follows(renames.after(last).rename_columns(tools.staging.schema(fingerprint)), schema)
        except LakeError:
            if last > lower:
                raise
            return False
        return True

    return replace(
        work,
        files=tuple(f for f in work.files if counts(f.schema, f.last_offset)),
        chunks=tuple(c for c in work.chunks if counts(c.schema, c.first_offset + c.rows - 1)),
    )
