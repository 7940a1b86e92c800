"""One table's share of a merge, from staged files to a committed Delta version. Safe to run again at any point."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from dblog_core.errors import LakeError
from dblog_core.lake import foreign_commits, table_commits
from dblog_core.lake.lake_status import TableStatus
from dblog_core.lake.merge_plan import Span, Work, from_dump
from dblog_core.lake_engine.events import fold, schema_policy
from dblog_core.lake_engine.events.fold import FoldedRows
from dblog_core.lake_engine.history.history_table import Before, History
from dblog_core.lake_engine.merging import deleted_rows
from dblog_core.lake_engine.merging.answered_commits import AnsweredCommits, answer_commits
from dblog_core.lake_engine.merging.deleted_rows import Ghosts
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.lake_table import LakeTable
from dblog_core.lake_engine.merging.merge_results import Applied
from dblog_core.lake_engine.merging.withheld_keys import Withheld
from dblog_core.lake_engine.merging.work_commit import WorkCommit
from dblog_core.lake_engine.tables import alter_table, log
from dblog_core.lake_engine.tables.alter_table import DroppedColumns
from dblog_core.lake_engine.tables.commit_metrics import Counted
from dblog_core.model.schema import TableSchema
from dblog_core.model.table_names import quote_for_shell
from dblog_core.schema_evolution.renames import is_stale
from dblog_core.staging import Staging
from dblog_core.staging.manifest import ChunkRef, DataFile
from dblog_core.staging.spilled_rows import remove_spilled

_log = logging.getLogger(__name__)


class LookFirst(Exception):
    """What others have committed must be known before the next step."""


@dataclass(frozen=True, slots=True)
class Share:
    """One table's share of a merge.

    `number`: the merge's. `span`: of the log that it takes. `status`: as the last merge left the table. `merged`: the
    highest offset that one of our rows can have before this merge. `is_repeated`: an earlier run may have committed it.
    `left_at`: the version at which this process left the table, which still has that commit; None: not known.
    """

    work: Work
    number: int
    span: Span
    status: TableStatus | None
    merged: int
    is_repeated: bool
    left_at: int | None = None


class TableMerge:
    """Applies shares of one table after another."""

    def __init__(
        self,
        staging: Staging,
        lake: Lake,
        withheld: Withheld,
        *,
        step: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`step` gets each step as it has been done: where tests stop a run."""
        self._step = step
        self._staging = staging
        self._lake = lake
        self._withheld = withheld
        self._write = WorkCommit(lake, withheld, step=step)
        self._is_left = False
        """Whether the table is known to be as we have left it, without a look whether others have committed since."""

    def apply(self, share: Share) -> Applied | None:
        """What became of the share; None for a table without a key that has no history.

        With `left_at`, raises Overtaken where others have committed since, and LookFirst where that would have to be
        known.
        """
        began = time.monotonic()
        work = self._lake.work_to_merge(share.work, self._staging.schema(share.work.schema))
        share = replace(share, work=work)
        self._is_left = share.left_at is not None
        version = self._look_at_table(work) if share.left_at is None else share.left_at
        schema, dropped = self._shape(work, share.status, version)
        history = self._lake.history_of(schema, work.renames)
        gap = None if history is None else foreign_commits.find_history_gap(history.path, share.status)
        left = share.status if share.is_repeated and gap is not None else None
        if gap is not None and share.status is not None:
            _log.warning("%s: its history begins again, since it may lack lines: %s", work.table, gap)
            share = replace(share, status=replace(share.status, told=False))
        if not schema.key:
            _check_never_had_key(schema, share.status)
            applied = None if history is None else self._apply_keyless(share, schema, history)
        else:
            lake = self._lake.table(schema, dropped, work.renames)
            applied = self._apply_keyed(share, schema, lake, history, version)
        if applied is None:
            return None
        applied = replace(applied, seconds=round(time.monotonic() - began, 3))
        return applied if history is None else _with_history(applied, history, gap, left)

    def _apply_keyed(
        self, share: Share, schema: TableSchema, lake: LakeTable, history: History | None, version: int | None
    ) -> Applied:
        """`version`: the lake table's before the share; None: there is none."""
        work, status, span = share.work, share.status, share.span
        is_committed = share.is_repeated and version is not None and lake.newest_merge() == share.number
        before = None if is_committed else self._answer_earlier_commits(share, lake, version)
        version_before = version if before is None else before.version
        counted = Counted(lake.path, (status.version if status else None) if share.is_repeated else version_before)
        history_counts = Counted(history.path, history.version()) if history is not None else None
        withheld = 0
        ghosts = Ghosts(self._staging, schema, work.finished, span.last, history)
        if is_committed:
            self._forget_gone(work, schema, version)
            if work.finished:  # earlier versions removed them in a second commit, and may have died before it
                deleted_rows.remove(lake, work.last_offset, readings=ghosts.readings())
        else:
            withheld = self._apply_changes(share, schema, lake, history, version_before, ghosts)
            if share.is_repeated:  # whoever died before may have left files
                remove_spilled(self._staging, work.files)
        self._write.settle(lake, schema)
        seen = status.version if status else None
        seen = seen if before is None else before.version
        after = self._answer_later_commits(lake, after=seen or 0, merged=max(span.offset, share.merged))
        version_after = None if after is None else after.version
        lines = history_counts.upto(history.version()).inserted if history_counts and history else 0
        damages = [
            (answered.damage, merged)
            for answered, merged in ((before, share.merged), (after, max(span.offset, share.merged)))
            if answered is not None and answered.damage is not None
        ]
        return replace(
            Applied.of(work, counted.upto(version_after), withheld=withheld),
            history=lines,
            version=version_after,
            # What was committed before a crash may have been so without history, which is on since.
            told=history is not None and (not is_committed or history.newest_offset() >= span.offset),
            ignored=self._ignored_columns(work, lake),
            carrier=self._lake.choose_carrier(work).reason if work.rows else None,
            commit=None if version_after is None else log.commit_sum(lake.path, version_after),
            damage=damages[0][0] if damages else None,
            damaged_at=damages[-1][1] if damages else None,
        )

    def _answer_earlier_commits(self, share: Share, lake: LakeTable, version: int | None) -> AnsweredCommits | None:
        """Answers what others have committed since the last merge; None where no merge has left a table that counts."""
        status = share.status
        if status is None or status.version is None:
            return None
        if version is None and from_dump(share.work).floor is not None:
            return None  # a dump makes the table anew
        commit = status.commit if share.left_at is None else None  # that this process has left it so is known
        return answer_commits(lake, after=status.version, commit=commit, merged=share.merged, newest=version)

    def _answer_later_commits(self, lake: LakeTable, *, after: int, merged: int) -> AnsweredCommits | None:
        """Answers what others have committed behind version `after`, up to the version behind the work."""
        if self._is_left and lake.committed is not None:
            return AnsweredCommits(lake.committed, None)  # right behind the version that was left
        version = lake.version()
        return None if version is None else answer_commits(lake, after=after, merged=merged, newest=version)

    def _ignored_columns(self, work: Work, lake: LakeTable) -> list[str] | None:
        """The columns of the newest shape that the lake leaves out; None where it has no such columns."""
        newest = self._staging.schema(work.schema)
        if not self._lake.keeps_columns(newest) or not lake.exists():
            return None
        have = self._lake.columns(newest, is_left=self._is_left)
        return (
            None
            if schema_policy.shape_in_lake(newest, have).columns == newest.columns
            else schema_policy.columns_not_in_lake(newest, have)
        )

    def _look_at_table(self, work: Work) -> int | None:
        """The version of the lake table before this merge; None where there is none, or the table has no key."""
        schema = self._staging.schema(work.schema)
        return self._lake.table(schema).version() if schema.key else None

    def _shape(self, work: Work, status: TableStatus | None, version: int | None) -> tuple[TableSchema, DroppedColumns]:
        """What the work's rows are folded into, and what is known of columns that the source no longer has.
        `version`: the lake table's."""
        newest = self._staging.schema(work.schema)
        renames = work.renames
        older = [s for s in work.shapes(self._staging.schema) if s.fingerprint != newest.fingerprint]
        before = [self._staging.schema(status.schema)] if status and status.schema else []
        shapes = (*before, *map(renames.rename_columns, before), *older, newest)
        had = frozenset(c.name for schema in shapes for c in schema.columns)
        dropped = DroppedColumns(had, drop=self._lake.drop_columns)
        lake = self._lake.table(newest)
        if before and newest.key and version:
            if self._lake.keeps_columns(newest):
                schema_policy.check_key(before[0], (*older, newest))
                have = self._lake.columns(newest, is_left=self._is_left)
                dropped = DroppedColumns(had)
                newest = schema_policy.shape_in_lake(newest, have)
                older = [schema_policy.shape_in_lake(schema, have) for schema in older]
            elif self._lake.changes(newest.table) == "fail" and status is not None:
                schema_policy.check_accepted(work, before[0], self._staging.schema, accepted=status.accepted)
        if not older or not newest.key or not version:
            return newest, dropped
        names = self._lake.columns(newest, is_left=self._is_left).names
        if renames:
            names = list(map(renames.after(lake.renamed_upto()).current_name, names))
        return alter_table.shape_to_fold_into(newest, older, {name for name in names if not is_stale(name)}, dropped)

    def _apply_keyless(self, share: Share, schema: TableSchema, history: History) -> Applied:
        """A table without a key has only its history."""
        work = share.work
        history_counts = Counted(history.path, history.version())
        try:
            before = self._lake.state_before(None, (), share.status, share.span)
            self._append_history(history, work, schema, before, share.span)
        finally:
            remove_spilled(self._staging, work.files)
        lines = history_counts.upto(history.version()).inserted
        return Applied(table=work.table, rows=work.rows, history=lines, told=True)

    def _apply_changes(
        self,
        share: Share,
        schema: TableSchema,
        lake: LakeTable,
        history: History | None,
        version: int | None,
        ghosts: Ghosts,
    ) -> int:
        """Brings the share into history and table, in this order; how many rows are withheld. `version`: the table's
        before; `ghosts`: those of the dumps that end in the share."""
        staged, status = share.work, share.status
        withheld = 0
        work, rows = self._read(staged, schema, version)
        exists = version is not None
        if exists or rows is None or len(rows) or work.last_truncate is not None or work.finished:
            as_known = status is not None and (status.ignored is None or self._lake.keeps_columns(schema))
            self._prepare(work, lake, status.schema if status is not None and as_known else None, exists=exists)
        if history is not None:
            self._tell_history(share, schema, lake, history, work)
        if work.files or work.chunks or work.last_truncate is not None or work.finished:
            commit = partial(self._write.commit, work, rows, is_left=self._is_left)
            if self._lake.spreads(work):
                commit = partial(self._write.spread, self._staging, work)
            withheld = commit(schema, lake, share.number, ghosts=ghosts, merged=share.merged)
        if work.files or work.chunks:
            self._step(f"merged {work.table}")
        return withheld

    def _tell_history(self, share: Share, schema: TableSchema, lake: LakeTable, history: History, work: Work) -> None:
        """Takes the share into history. `work`: the part of it that the lake table takes."""
        staged = share.work
        before = self._lake.state_before(lake, self._withheld.keys(work.table, schema), share.status, share.span)
        try:
            self._append_history(history, staged, schema, before, share.span, whole=work)
            if work.floor is not None and staged.reaches_below(work.floor):
                deleted_rows.append_ghosts_before(self._staging, history, schema, work, last=share.span.last)
        finally:
            for spilled in (staged, work) if work is not staged else (work,):
                remove_spilled(self._staging, spilled.files)

    def _forget_gone(self, work: Work, schema: TableSchema, version: int | None) -> None:
        """As the run did that has committed the work, unless it died before: otherwise a dump of keys that are gone
        would be requested again and again."""
        if not self._withheld.waits(work.table):
            return
        work, rows = self._read(work, schema, version, by_driver=True)
        self._write.forget_gone(work, rows, schema)

    def _append_history(
        self,
        history: History,
        work: Work,
        schema: TableSchema,
        before: Before,
        span: Span,
        *,
        whole: Work | None = None,
    ) -> None:
        """Takes the work into history. `whole`: the part of it whose files have been compared already.

        Where the lake table begins again with a dump, so does the history if what came before has a shape that it can
        not take.
        """
        if whole is not None and whole is not work and not self._is_followed(work, schema):
            work = whole
        if work is not whole:
            self._check_follows(work, schema)
            self._check_files(work)
        history.append_changes(work, before, staging=self._staging, upto=span.offset)
        self._step(f"history {work.table}")

    def _check_files(self, work: Work) -> None:
        """Raises CorruptSegment for the first file that is missing or not the one that the manifest names."""
        files: list[DataFile | ChunkRef] = [*work.files, *work.chunks]
        for file in files:
            if file.path:  # others were compared with their manifest
                with self._staging.open_file(file):
                    pass

    def _read(
        self, work: Work, schema: TableSchema, version: int | None, *, by_driver: bool = False
    ) -> tuple[Work, FoldedRows | None]:
        """The work whose files are whole, with its folded rows; None for one that has none, or that executors carry.
        `by_driver`: the driver folds them, even of a work that executors carry."""
        if not version:  # none yet, or just made
            work = from_dump(work)
        self._check_follows(work, schema)
        rows = None
        if (work.files or work.chunks) and (by_driver or not self._lake.spreads(work)):
            rows = fold.fold_work(self._staging, work, schema)
        return work, rows

    def _check_follows(self, work: Work, schema: TableSchema) -> None:
        for shape in (*work.shapes(self._staging.schema), self._staging.schema(work.schema)):
            self._lake.check_follows(shape, schema)

    def _is_followed(self, work: Work, schema: TableSchema) -> bool:
        try:
            self._check_follows(work, schema)
        except LakeError:
            return False
        return True

    def _prepare(self, work: Work, lake: LakeTable, lake_shape: str | None, *, exists: bool) -> None:
        """Makes the lake table, or gives it its shape, where that is not known to be the work's."""
        if exists and lake_shape == work.schema and not work.renames and lake.is_settled():
            return
        if self._is_left:
            raise LookFirst
        lake.prepare()


def _with_history(applied: Applied, history: History, gap: str | None, left: TableStatus | None) -> Applied:
    """With the history as it ends. `left`: as a merge before a crash has left it, where it has lost lines since. It may
    lack some of this merge too, which counts as written: it keeps its gap, and begins again with the next one."""
    if left is not None:
        return replace(
            applied, history_gap=gap, told=left.told, told_version=left.told_version, told_commit=left.told_commit
        )
    version, commit = table_commits.newest_commit(history.path)
    return replace(applied, history_gap=gap, told_version=version, told_commit=commit)


def _check_never_had_key(schema: TableSchema, status: TableStatus | None) -> None:
    """Raises LakeError where the lake has rows of a table that no longer has a key: what changes meanwhile would be
    missed, and nobody would notice once it has its key again."""
    if status is not None and status.version is not None:
        raise LakeError(
            "the table has lost its key, so nothing identifies its rows",
            where=str(schema.table),
            fix="give it its key again, or name unique, never-null columns in [source.keys]; then run "
            f"`dblog schema accept {quote_for_shell(schema.table)}`: a dump brings what was missed",
        )
