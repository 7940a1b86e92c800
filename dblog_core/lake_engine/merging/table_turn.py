"""A table's turn in a merge: tried until its rows are in, or until a fault of its own has stopped it alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

from dblog_core.delta_writer.table_log import Overtaken
from dblog_core.errors import DblogError, LakeError, LeaseLost, SegmentReplaced, StagingError
from dblog_core.lake import merge_plan
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, shares_history, table_location
from dblog_core.lake.merge_plan import Work
from dblog_core.lake_engine.events.staged_events import is_small
from dblog_core.lake_engine.merging.faults import DEFECTS, describe_defect, first_lines
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.merge_records import Intent
from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.lake_engine.merging.table_merge import LookFirst, Share, TableMerge
from dblog_core.lake_engine.merging.table_states import TableStates
from dblog_core.lake_engine.merging.withheld_keys import Dumps, Withheld
from dblog_core.lake_engine.tables import log
from dblog_core.model.schema import TableName
from dblog_core.staging import Staging

_log = logging.getLogger(__name__)

_PLANNED_AGAIN = 3
_TRIED_AGAIN = 3


@dataclass(frozen=True, slots=True)
class TableTurn:
    """What the tables of the merge `intent` share; each is merged in a thread.

    `status`: the lake before the merge; `is_repeated`: an earlier run may have committed some of it; `plan_works`
    makes the tables' shares as the staging has them now; `check` raises LeaseLost once
    another may merge.
    """

    intent: Intent
    is_repeated: bool
    status: LakeStatus
    staging: Staging
    lake: Lake
    withheld: Withheld
    plan_works: Callable[[], dict[str, Work]]
    check: Callable[[], None]
    step: Callable[[str], None]
    dumps: Dumps | None

    @property
    def states(self) -> TableStates:
        return TableStates(self.status.tables, self.staging, self.withheld, self.lake.history)

    def is_small(self, work: Work) -> bool:
        """Whether the work is expected to end soon."""
        status = self.status.tables.get(work.table)
        return (
            status is not None
            and (status.told or not self.lake.history)
            and status.version is not None
            and not (work.truncates or work.finished or work.reshaped)
            and not self.withheld.waits(work.table)
            and is_small(work)
        )

    def merge(self, work: Work) -> Applied | None:
        """One table's outcome; a fault of its own stops it alone."""
        # A small work has one effect, its commit, and looks right before that.
        if self.is_repeated or self.lake.history or not self.is_small(work):
            self.check()
        status = self.status.tables.get(work.table)
        try:
            self._check_place(work.table, status)
            applied = self._try_apply(self._pass_over_removed(work, status), status)
            if applied is not None and applied.version is not None:
                awaits = self._request_dump(work, status, applied.ignored)
                applied = replace(applied, awaits=awaits or self._request_repair(work, applied))
        except LeaseLost:
            raise
        except DblogError as error:
            return Applied(work.table, work.rows, error=str(error), version=status.version if status else None)
        except pa.ArrowException as error:
            return Applied(work.table, work.rows, error=first_lines(error), version=status.version if status else None)
        except DEFECTS as error:  # the others go on
            _log.exception("%s: its merge has failed", work.table)
            message = describe_defect(error)
            return Applied(work.table, work.rows, error=message, version=status.version if status else None)
        self.step(f"applied {work.table}")
        return applied

    def _check_place(self, name: str, status: TableStatus | None) -> None:
        """Raises LakeError for a new table whose place is meant for a history."""
        table = TableName.parse(name)
        if not self.lake.history or (status is not None and status.version is not None):
            return
        head = self.staging.head()
        if (base := shares_history(table, {*self.status.tables, *(head.schemas if head else ())})) is not None:
            raise LakeError(
                f"its place in the lake is that of the history of {base}",
                where=str(table_location(self.lake.location, table)),
                fix="leave one of the two tables out of `tables`, or set `[lake] history = false`",
            )

    def _pass_over_removed(self, work: Work, status: TableStatus | None) -> Work:
        """The work without rows that a stopped table has lost since, or one that the lake never had. What stops it may
        be among them, and of a table that is dropped no acceptance or reset can have a dump."""
        if self.lake.history or not work.ends_empty:
            return work
        if status is None or status.version is None:
            return work.without_rows(work.schema)
        return work.without_rows(status.schema or work.schema) if status.state is State.STOPPED else work

    def _request_dump(self, work: Work, status: TableStatus | None, ignored: list[str] | None) -> str | None:
        """The full dump that brings what rows lack since columns were added; None where they lack nothing.

        A crash has it requested twice, which harms nobody.
        """
        if self.states.lacks_before(work, status, ignored) is None:
            mark = merge_plan.last_unlogged_rewrite(work)
            return None if mark is None else mark.dump
        return self._submit_dump(work.table, "columns were added, and the dump that brings their values")

    def _request_repair(self, work: Work, applied: Applied) -> str | None:
        """The full dump that brings rows which another program has damaged; None where none is needed now."""
        if not self.states.needs_dump(self.intent, work, applied):
            return None
        what = applied.damage or "another program has damaged its rows"
        return self._submit_dump(work.table, f"{what}, and the dump that brings them")

    def _submit_dump(self, table: str, what: str) -> str:
        assert self.dumps is not None
        try:
            dump = self.dumps.submit(table, [])
        except DblogError as error:
            raise LakeError(
                f"{what} cannot be requested: {error.message}",
                where=table,
                fix=error.fix or "the next merge tries again",
            ) from error
        self.step(f"requested {table}")
        return dump

    def _try_apply(self, work: Work, status: TableStatus | None) -> Applied | None:
        """Applies the work; again where another commit came between, or where ours is there and its answer was lost."""
        app = f"{self.lake.app}:{work.table}"
        is_repeated = self.is_repeated
        path = table_location(self.lake.location, TableName.parse(work.table))
        for _ in range(_TRIED_AGAIN):
            try:
                return self._apply(work, status, is_repeated)
            except (LakeError, StagingError) as error:
                self.check()  # the other commit may be our successor's
                # A number that is taken is no fault where an older merger may have committed it a moment ago.
                landed = log.newest_transaction(path, app) == self.intent.number and (
                    is_repeated or not isinstance(error, LakeError)
                )
                if not landed:
                    raise
                is_repeated = True
        return self._apply(work, status, is_repeated)

    def _apply(self, work: Work, status: TableStatus | None, is_repeated: bool) -> Applied | None:
        """Applies the work; planned again where the staging has joined its segments in the meantime."""
        merge = TableMerge(self.staging, self.lake, self.withheld, step=self.step)
        # Where an earlier merge failed its commit may be there all the same: rows may be as new as that merge.
        merged = status.offset if status and status.state is not State.STOPPED else self.status.offset
        merged = max(merged, status.begun or 0) if status else merged
        span = self.intent.span_of(work.table)
        left_at = None if is_repeated else self._left_at(work, status)
        share = Share(work, self.intent.number, span, status, merged, is_repeated, left_at)
        for _ in range(_PLANNED_AGAIN):
            try:
                return merge.apply(share)
            except SegmentReplaced:
                share = replace(share, work=self._pass_over_removed(self.plan_works()[work.table], status))
            except (Overtaken, LookFirst):
                if share.left_at is None:
                    raise
                share = replace(share, left_at=None)
        return merge.apply(replace(share, left_at=None))

    def _left_at(self, work: Work, status: TableStatus | None) -> int | None:
        """The version at which this process has left the table, if that still has this commit, and the work's own
        commit is all that becomes of it: another's commit in between makes it fail, so that it need not be looked for.
        """
        tables = self.lake.open_tables
        if status is None or status.state is State.STOPPED:
            return None
        if self.lake.history or not self.is_small(work):
            return None
        path = table_location(self.lake.location, TableName.parse(work.table))
        table = tables.table(path, self.staging.schema(work.schema), self.check)
        return status.version if table.snapshot.version == status.version and table.is_as_left() else None
