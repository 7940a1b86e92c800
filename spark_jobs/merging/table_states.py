"""How a lake's tables stand after a merge, by what it did to each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import State, TableStatus
from dblog_core.lake.merge_plan import Work
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark
from spark_jobs.merging.applied import Applied
from spark_jobs.merging.merge_records import Intent
from spark_jobs.merging.withheld_keys import Withheld


@dataclass(frozen=True, slots=True)
class TableStates:
    """The tables `before` the merge, and what else it takes to say how they stand; `history`: whether there is one."""

    before: Mapping[str, TableStatus]
    staging: Staging
    withheld: Withheld
    history: bool

    def lacks_before(self, work: Work, known: TableStatus | None, ignored: list[str] | None) -> int | None:
        """`ignored`: columns that the lake leaves out."""
        before = known.schema if known else None
        own = before if known is None or known.ignored is None else f"{before} in the lake"

        def columns(fingerprint: str) -> list[str]:
            out = {*(ignored or ()), *(known.ignored or () if known and fingerprint == own != before else ())}
            shape = before if before is not None and fingerprint == own else fingerprint
            return [c.name for c in self.staging.schema(shape).columns if c.name not in out]

        return merge_plan.lacks_before(work.with_nulls_alone() if self.history else work, own, columns)

    def after(self, intent: Intent, works: Mapping[str, Work], done: list[Applied]) -> dict[str, TableStatus]:
        """All tables after the merge: those that are well have all of it, whether or not it had rows of theirs."""
        span = intent.span
        nowhere = works.keys() - {applied.table for applied in done}  # without a key, and history is off
        tables = {
            name: t if t.state is State.STOPPED else self._well(name, t, intent)
            for name, t in self.before.items()
            if name not in nowhere
        }
        for applied in done:
            name = applied.table
            known = self._known(name, span)
            if applied.error is not None:
                tables[name] = replace(known, state=State.STOPPED, error=applied.error)
                continue
            if any(_brings(mark, known) for mark in works[name].finished):
                known = replace(known, awaits=None)
            if applied.awaits is not None:
                added = self.lacks_before(works[name], self.before.get(name), applied.ignored)
                if (mark := merge_plan.last_unlogged_rewrite(works[name])) is not None:
                    added = max(mark.offset, added or 0)
                known = replace(known, awaits=applied.awaits, added_at=added)
            merged = {"merge": intent.number, **applied.counts()}
            known = replace(known, version=applied.version, schema=works[name].schema, merged=merged, told=applied.told)
            known = replace(known, ignored=applied.ignored, merge_because=applied.merge_because)
            known = replace(known, lacks=self._lacks(works[name], known))
            tables[name] = self._well(name, known, intent)
        return tables

    def _known(self, name: str, span: merge_plan.Span) -> TableStatus:
        """The table before the merge. Of a new one nobody knows what it held when its log began here."""
        new = TableStatus(State.OK, None, span.first - 1, span.first_offset - 1, lacks=0)
        return self.before.get(name) or new

    def _lacks(self, work: Work, known: TableStatus) -> int | None:
        """The table's `lacks` after the work. One without a key has no dumps: what its history tells begins with it."""
        if not self.staging.schema(work.schema).key:
            return None
        before = self.before.get(work.table)
        keyed = before is not None and before.schema is not None and self.staging.schema(before.schema).key
        begins = before is None or (before.version is None and not keyed)
        return merge_plan.lacks_since(work, 0 if begins else known.lacks)

    def _well(self, name: str, known: TableStatus, intent: Intent) -> TableStatus:
        """The table with all of the span; one that a reset has set ahead stays there."""
        taken = known.accepted is not None and known.accepted <= intent.span.offset
        now = replace(
            known,
            accepted=None if taken else known.accepted,
            segment=max(known.segment, intent.span.last) if known.awaits is not None else intent.span.last,
            offset=max(known.offset, intent.span.offset) if known.awaits is not None else intent.span.offset,
        )
        return now.with_applied_rows(self.withheld.count(name))


def _brings(mark: LogMark, table: TableStatus) -> bool:
    """Whether the dump that `mark` ends has brought what a table lacks that was reset, or got new columns."""
    full = mark.key_from is None and mark.key_to is None
    lacks = [offset for offset in (table.reset_at, table.added_at) if offset is not None]
    since = mark.since is not None and bool(lacks) and mark.since >= max(lacks)
    return full and (mark.dump == table.awaits or since)
