"""How a lake's tables stand after a merge, by what it did to each of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from dblog_core.errors import LakeError, StagingError
from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import (
    LakeStatus,
    State,
    TableStatus,
    history_location,
    own_directory,
    read_status,
    table_location,
)
from dblog_core.lake.merge_plan import KeptManifests, Work
from dblog_core.lake_engine.merging.merge_records import Intent, Records
from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.lake_engine.merging.withheld_keys import Withheld
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import TableName
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from dblog_core.storage.location import Location


@dataclass(frozen=True, slots=True)
class TableStates:
    """The tables `before` the merge, and what else it takes to say how they stand; `history`: whether there is one."""

    before: Mapping[str, TableStatus]
    staging: Staging
    withheld: Withheld
    history: bool

    def lacks_before(self, work: Work, status: TableStatus | None, ignored: list[str] | None) -> int | None:
        """`ignored`: columns that the lake leaves out."""
        before = status.schema if status else None
        lake_shape = before if status is None or status.ignored is None else f"{before} in the lake"

        def columns(fingerprint: str) -> list[str]:
            out = {*(ignored or ()), *(status.ignored or () if status and fingerprint == lake_shape != before else ())}
            shape = before if before is not None and fingerprint == lake_shape else fingerprint
            return [c.name for c in self.staging.schema(shape).columns if c.name not in out]

        return merge_plan.lacks_before(work.with_nulls_alone() if self.history else work, lake_shape, columns)

    def after(
        self, intent: Intent, works: Mapping[str, Work], done: Sequence[Applied], late: Collection[str] = ()
    ) -> dict[str, TableStatus]:
        """All tables after the merge: those that are well have all of it, even if it had no rows for them.

        `late`: tables whose shares are not in yet, and may come in later.
        """

        def takes_part(name: str, table: TableStatus) -> bool:
            return _takes_part(name, table, intent) and name not in late

        nowhere = works.keys() - {applied.table for applied in done} - set(late)  # without a key, and history is off
        tables = {
            name: self._with_span(name, t, intent) if t.state is not State.STOPPED and takes_part(name, t) else t
            for name, t in self.before.items()
            if name not in nowhere
        }
        for applied in done:
            tables[applied.table] = self.after_share(intent, works[applied.table], applied)
        for name in late:
            tables[name] = self._late(name, intent)
        return tables

    def after_share(self, intent: Intent, work: Work, applied: Applied) -> TableStatus:
        """A table after its share of the merge."""
        name = work.table
        status = self._state_before(name, intent.span)
        if applied.error is not None:
            return replace(status, state=State.STOPPED, error=applied.error)
        if applied.damage is not None:
            status = replace(status, damage=applied.damage, damaged_at=applied.damaged_at)
        status = _end_waits(work, status)
        if applied.awaits is not None:
            added = self.lacks_before(work, self.before.get(name), applied.ignored)
            if (mark := merge_plan.last_unlogged_rewrite(work)) is not None:
                added = max(mark.offset, added or 0)
            status = replace(status, awaits=applied.awaits, added_at=status.added_at if added is None else added)
        merged = applied.counts(intent.number)
        status = replace(status, version=applied.version, commit=applied.commit, merged=merged)
        status = replace(status, schema=work.schema, told=applied.told)
        status = replace(status, told_version=applied.told_version, told_commit=applied.told_commit)
        status = replace(status, ignored=applied.ignored)
        status = replace(status, lacks=self._lacks(work, status))
        return self._with_span(name, status, intent)

    def needs_dump(self, intent: Intent, work: Work, applied: Applied) -> bool:
        """Whether another program has damaged the table after its share, and no dump is on its way that heals that."""
        before = self._state_before(work.table, intent.span)
        now = self.after_share(intent, work, applied)
        return now.damage is not None and (before.damage is None or now.awaits is None)

    def _late(self, name: str, intent: Intent) -> TableStatus:
        """A table whose share is not in: it stays where it was, and may have rows up to the end of the share."""
        status = self._state_before(name, intent.span)
        begun = max(status.begun or 0, intent.span_of(name).offset)
        late = replace(status, begun=begun)
        return late if name in self.before else late.with_applied_rows(self.withheld.count(name))

    def _state_before(self, name: str, span: merge_plan.Span) -> TableStatus:
        """The table before the merge. Of a new one nobody knows what it held when its log began here."""
        new = TableStatus(State.OK, None, span.first - 1, span.first_offset - 1, lacks=0)
        return self.before.get(name) or new

    def _lacks(self, work: Work, status: TableStatus) -> int | None:
        """The table's `lacks` after the work. One without a key has no dumps: what its history tells begins with it."""
        if not self.staging.schema(work.schema).key:
            return None
        before = self.before.get(work.table)
        keyed = before is not None and before.schema is not None and self.staging.schema(before.schema).key
        begins = before is None or (before.version is None and not keyed)
        return merge_plan.lacks_since(work, 0 if begins else status.lacks)

    def _with_span(self, name: str, status: TableStatus, intent: Intent) -> TableStatus:
        """The table with all of its span; one that a reset has set ahead stays there."""
        span = intent.span_of(name)
        is_accepted = status.accepted is not None and status.accepted <= span.offset
        now = replace(
            status,
            accepted=None if is_accepted else status.accepted,
            segment=max(status.segment, span.last) if status.awaits is not None else span.last,
            offset=max(status.offset, span.offset) if status.awaits is not None else span.offset,
            begun=span.offset if name in intent.ends else None,
        )
        return now.with_applied_rows(self.withheld.count(name))


def _takes_part(name: str, status: TableStatus, intent: Intent) -> bool:
    """Whether the merge is about a table of the lake, even if it has no rows for it. One that stands before the
    others, or has stopped, takes part where the merge's record says so."""
    is_elsewhere = status.state is State.STOPPED or status.segment < intent.span.first - 1
    return name in intent.behind or not is_elsewhere


def plan_shares(
    intent: Intent, tables: Mapping[str, TableStatus], staging: Staging, kept: KeptManifests | None = None
) -> dict[str, Work]:
    """Each table's share of a merge. `tables`: as they are before it; `kept`: manifests that were read a moment ago."""
    first = min([intent.span.first - 1, *intent.behind.values()])

    def after(name: str) -> int:
        if name in intent.behind:
            return intent.behind[name]
        table = tables.get(name)
        takes_part = table is None or _takes_part(name, table, intent)
        return intent.span.first - 1 if takes_part else intent.span.last

    def upto(name: str) -> int:
        return intent.span_of(name).last

    last = intent.span.last
    read = None if kept is None else kept.take(first, last)
    return merge_plan.plan_works(staging.manifests(after=first, upto=last) if read is None else read, after, upto)


def read_lake(lake: Location, records: Records, staging: Staging) -> LakeStatus:
    """The last finished merge, with the newest versions of its tables. Raises LakeError where its record is lost."""
    status = read_status(lake)
    newest = records.newest()
    if status is None and newest is not None and newest.number > 1:
        raise LakeError(
            f"status.json is missing beside {newest.number} merges",
            where=str(own_directory(lake)),
            fix="restore it from a backup, or begin a new lake and dump all tables",
        )
    # A new lake begins where the staging does: what retention has removed before comes by a dump of all tables.
    begins = staging.beginning()
    return follow_versions(status or LakeStatus(segment=begins.segment - 1, offset=begins.offset - 1), lake)


def follow_versions(status: LakeStatus, lake: Location, of: Collection[str] | None = None) -> LakeStatus:
    """The status with the newest version of these tables (None: of all) that has the same rows: old ones do not outlive
    a VACUUM."""

    def follow(name: str, table: TableStatus) -> TableStatus:
        if table.state is State.STOPPED or (of is not None and name not in of):
            return table
        try:
            if table.version is not None:
                place = table_location(lake, TableName.parse(name))
                version, commit = log.same_rows(place, table.version, table.commit)
                table = replace(table, version=version, commit=commit)
            if table.told_version is not None:
                place = history_location(lake, TableName.parse(name))
                version, commit = log.same_rows(place, table.told_version, table.told_commit)
                table = replace(table, told_version=version, told_commit=commit)
        except StagingError as error:
            if error.transient:
                raise
            return table  # the merge of this table says what is wrong with it
        return table

    return replace(status, tables={name: follow(name, table) for name, table in status.tables.items()})


def _end_waits(work: Work, table: TableStatus) -> TableStatus:
    """The table without what the work has brought: all of it where it was emptied, or where a full dump has ended that
    began late enough."""
    damaged_at = table.damaged_at or 0
    emptied = work.last_truncate is not None and work.last_truncate > damaged_at
    if emptied or any(_brings(mark, table) for mark in work.finished):
        return replace(table, awaits=None, damage=None, damaged_at=None)
    if table.damage is None:
        return table
    # A dump that began before the damage has ended: it is another one that heals it.
    ended = any(mark.dump == table.awaits for mark in work.finished)
    return replace(table, awaits=None) if ended else table


def _brings(mark: LogMark, table: TableStatus) -> bool:
    """Whether the dump that `mark` ends has brought what a table lacks that was reset, damaged, or got new columns."""
    if mark.key_from is not None or mark.key_to is not None:
        return False
    since = mark.since or 0
    if table.damaged_at is not None:
        return mark.since is not None and since >= table.damaged_at
    lacks = [offset for offset in (table.reset_at, table.added_at) if offset is not None]
    return mark.dump == table.awaits or (mark.since is not None and bool(lacks) and since >= max(lacks))
