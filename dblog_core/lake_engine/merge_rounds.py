"""A merge: one span of segments into all tables of the source, recorded first, then table by table, then as a cut.

    plan -> merges/N.json -> per table: check, fold, commit with transaction N -> cuts row N -> its outcome

A run that finds a record without its outcome finishes that merge first, to the same offset. A table that fails stops
alone: it keeps its own place, and every later run tries all that it has missed. A lake task (`tasks`) is a merge of its
own, recorded and closed like the others, with an empty span. A table that takes long need not hold the others up
(`merging/late_tables`).

A merger that was taken for dead may wake up anywhere in this. Right before each write it looks whether it is still the
newest (`fence`); and each write that it may still do after that look is one that its successor finds, or that fails:
records and outcomes are created and never replaced, Delta's transactions conflict with those of the same number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from functools import partial

from dblog_core.config.settings import Config
from dblog_core.errors import LakeError
from dblog_core.lake import lake_tasks, merge_plan
from dblog_core.lake.lake_status import LakeStatus, State, TableStatus, table_location
from dblog_core.lake.lake_tasks import LakeTask
from dblog_core.lake.merge_plan import KeptManifests, Work
from dblog_core.lake.task_plans import AdoptPlan
from dblog_core.lake.task_requests import AdoptRequest, MaintainRequest
from dblog_core.lake_engine.merging.cut_writer import CutWriter
from dblog_core.lake_engine.merging.fence import Fence
from dblog_core.lake_engine.merging.lake import Lake
from dblog_core.lake_engine.merging.late_tables import ArrivedShares, LateTables, find_committed_share
from dblog_core.lake_engine.merging.merge_records import Intent, Records, TaskIntent
from dblog_core.lake_engine.merging.merge_results import Applied, Merged
from dblog_core.lake_engine.merging.staging_guard import StagingGuard
from dblog_core.lake_engine.merging.table_states import follow_versions, plan_shares, read_lake
from dblog_core.lake_engine.merging.table_turn import TableTurn
from dblog_core.lake_engine.merging.withheld_keys import Dumps, Withheld
from dblog_core.lake_engine.tables import log
from dblog_core.lake_engine.tasks import adopt
from dblog_core.lake_engine.tasks.context import Tools
from dblog_core.lake_engine.tasks.mark_times import Marks
from dblog_core.lake_engine.tasks.task_turn import TaskTurn, find_fault
from dblog_core.lake_engine.tasks.upkeep import Upkeep
from dblog_core.model.schema import TableName
from dblog_core.staging import Staging
from dblog_core.storage.location import Location


class Merger:
    """Merges one source into one lake; the caller holds the lake's lock, and `check` raises once that is in doubt."""

    def __init__(
        self,
        staging: Staging,
        lake: Lake,
        records: Records,
        withheld: Withheld,
        *,
        check: Callable[[], None] = lambda: None,
        step: Callable[[str], None] = lambda name: None,
        now: Callable[[], float] = time.time,
        max_rows: int = merge_plan.MAX_ROWS,
        max_bytes: int = merge_plan.MAX_BYTES,
        compact_after: int = 0,
        config: Config | None = None,
        dumps: Dumps | None = None,
    ) -> None:
        """`step` gets each step as it has been done: where tests stop a run. `compact_after`: see `compact`.
        `config` and `dumps` are for lake tasks."""
        self._staging = staging
        self._lake = lake
        self._records = records
        self._withheld = withheld
        self._lease = check
        self._step = step
        self._now = now
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._fence = Fence(records.directory, staging.source)
        self._upkeep = Upkeep(staging, compact_after, now=now)
        self._prepared: set[str] = set()  # ids of tasks
        self._config = config
        self._dumps = dumps
        self._late = LateTables()
        self._cuts = CutWriter(lake, check=self._check, now=now, step=step)
        self._patience: float | None = None
        self._arrived = ArrivedShares()
        self._inherited = frozenset[str]()  # late tables of the merger before us
        self._guard = StagingGuard(staging, now)
        self._may_be_unfinished = True
        """Whether there may be a merge that was recorded and not finished."""
        self._kept = KeptManifests()
        self.status = LakeStatus()

    def load(self) -> None:
        """Takes the lake over and reads where it stands. Raises LakeError where it does not continue the staging."""
        self._fence.claim(self._staging.identity())
        self._withheld.load(self._fence.epoch, self._check)
        self.status = read_lake(self._lake.location, self._records, self._staging)
        self._lake = replace(self._lake, check=self._check, adopted=self.status.adopted)
        self._inherited = frozenset(self.status.late_tables)
        begun = self._unfinished_merge()
        if not self._take_over_to_staging(begun):
            self._guard.check(self.status, begun)

    def _take_over_to_staging(self, begun: Intent | None) -> bool:
        """Carries out the adoption that was begun, or that waits while the lake does not continue the staging."""
        if begun is not None and begun.is_adoption:
            return self._finish(begun) is not None
        adoption = lake_tasks.find_waiting(self._lake.location, AdoptRequest.kind)
        if adoption is None or self._guard.is_continued(self.status, begun):
            return False
        if not isinstance(planned := self._task_turn(self.status.merge + 1).plan(adoption), AdoptPlan):
            return False
        if begun is not None:  # what it has brought counts as older, like all else
            self.status = self._records.finish(replace(self.status, merge=begun.number))
        intent = self._intent(adopt.first_place(planned), {}, TaskIntent(adoption.id, planned))
        return self._begin(intent) is not None

    def _check(self) -> None:
        """Raises LeaseLost unless this merger may still write."""
        self._lease()
        self._fence.check()

    def _path(self, table: str) -> Location:
        return table_location(self._lake.location, TableName.parse(table))

    def stopped_tables(self) -> list[str]:
        return [name for name, table in self.status.tables.items() if table.state is State.STOPPED]

    def incomplete_tables(self) -> list[str]:
        """Tables that lack rows which only a dump brings."""
        return [name for name, table in self.status.tables.items() if table.state is State.INCOMPLETE]

    def tables_awaiting_dump(self) -> list[str]:
        """Tables that wait for a full dump, after a reset or for values of new columns."""
        return [name for name, table in self.status.tables.items() if table.awaits is not None]

    def late_tables(self) -> list[str]:
        """Tables that lack rows which the others have, also if they are at work on them."""
        return sorted(self._late.names | self.status.late_tables.keys())

    def rewritten_bytes(self) -> int:
        """Bytes of all deletion vectors, and copies of files, that merges have written."""
        return 0 if self._lake.open_tables is None else self._lake.open_tables.rewritten_bytes

    def newest_segment(self) -> int:
        return self._staging.head_number()

    def run_round(
        self, *, retry_stopped: bool, upto: int | None = None, patience: float | None = None
    ) -> Merged | None:
        """The next merge, or the one that was not finished; None if nothing is to do up to segment `upto` (None: all).

        `patience`: seconds after which it no longer waits for tables that are at work still while others have something
        new (`late_tables`); None: it waits for all. Raises what stops all tables.
        """
        self._patience = patience
        self._kept = KeptManifests()
        self._take_arrived()
        if (begun := self._unfinished_merge()) is not None:
            return self._finish(begun)
        if retry_stopped:
            self._pass_over_removed_segments()
        self._start_committed_shares(self.stopped_tables() if retry_stopped else ())
        retried = set(self.stopped_tables()) - self._late.names if retry_stopped else set()
        behind = {name: self.status.tables[name].segment for name in sorted(retried)}
        span = merge_plan.next_sound_span(
            self._staging,
            self.status.segment,
            upto,
            max_rows=self._max_rows,
            max_bytes=self._max_bytes,
            kept=self._kept,
        )
        if span is None and (behind or self._has_late_rows()):
            span = self._empty_span()
        if span is None:
            return None
        self._guard.check_span(span, self.status)
        return self._begin(self._intent(span, {**self.status.places_elsewhere(self._late.names), **behind}))

    def _intent(self, span: merge_plan.Span, behind: dict[str, int], task: TaskIntent | None = None) -> Intent:
        stop = self._cuts.stop
        ends = {} if stop is None else {name: stop for name, segment in behind.items() if segment < stop.segment}
        epoch = self._fence.epoch
        arrived = dict(self._arrived.tables)
        return Intent(self.status.merge + 1, span, behind, task, epoch, ends, arrived, self._guard.identity)

    def _take_arrived(self) -> None:
        """Takes in the shares that have come in late. The record of the next merge keeps them."""
        for share, applied in self._late.take_arrived():
            self.status = self._arrived.add(share, applied, self.status)
            self._upkeep.record_merged([share.work.table] if applied is not None else [])
        self._cuts.write_waiting(self.status.tables)

    def _pass_over_removed_segments(self) -> None:
        """Sets stopped tables behind what retention has removed, which it keeps for no table that is not captured. Rows
        may be missing then, until a full dump that began later. The record of the next merge says so."""
        if not (stopped := set(self.stopped_tables()) - self._late.names):
            return
        begins = self._staging.beginning()
        for name in sorted(stopped):
            table = self.status.tables[name]
            if table.segment < begins.segment - 1:
                before = begins.offset - 1
                has_dumps = table.schema is None or bool(self._staging.schema(table.schema).key)
                lacks = before if has_dumps else None
                moved = replace(table, segment=begins.segment - 1, offset=before, lacks=lacks, told=False)
                self.status = replace(self.status, tables={**self.status.tables, name: moved})
                self._arrived.tables[name] = moved

    def _start_committed_shares(self, retried: Collection[str] = ()) -> None:
        """Has shares brought to their end that are committed, of inherited and `retried` tables
        (`find_committed_share`)."""
        inherited = self._inherited & self.status.late_tables.keys()
        self._inherited = frozenset()
        for name in sorted({*inherited, *retried} - self._late.names):
            newest_commit = log.find_newest_transaction(self._path(name), f"{self._lake.app}:{name}")
            status = self.status.tables[name]
            share = find_committed_share(name, status, newest_commit, self._records, self._staging)
            if share is not None and (work := share.plan_works().get(name)) is not None:
                self._late.start(self._turn(share.intent, share.plan_works, is_repeated=True), work)

    def _has_late_rows(self) -> bool:
        """Whether a table stands before the others that is not at work, or has arrived since the last merge."""
        return bool(self._arrived.tables) or not self.status.late_tables.keys() <= self._late.names

    def settle(self, *, brings_rows: bool = True) -> Merged | None:
        """Waits for all late tables; then the merge that records them, and brings in what they lack if that is wanted.
        None: no table is late. Called until then."""
        self._patience = None
        self._late.wait()
        self._take_arrived()
        if (begun := self._unfinished_merge()) is not None:
            return self._finish(begun)
        self._start_committed_shares()
        self._late.wait()
        self._take_arrived()
        if not (self._has_late_rows() if brings_rows else self._arrived.tables):
            return None
        behind = self.status.places_elsewhere(self._late.names) if brings_rows else {}
        return self._begin(self._intent(self._empty_span(), behind))

    def _begin(self, intent: Intent) -> Merged:
        """Records the merge and does it; or the one that the merger before us recorded when it woke up."""
        self._check()
        self._may_be_unfinished = True
        if not self._records.begin(intent):
            self._check()
            if (begun := self._unfinished_merge()) is None:
                raise LakeError(
                    f"merge {intent.number} was finished by another process",
                    where=str(self._records.directory),
                    fix="merge again: it continues from there",
                )
            return self._finish(begun)
        self._step("recorded")
        return self._run(intent, is_repeated=False) if intent.task is None else self._carry_out(intent, intent.task)

    def run_task(self, *, beside: bool = False) -> Merged | None:
        """The lake task that has waited longest, or what was not finished; None if nothing is to do. `beside`: merges
        continue while `compact` does what a maintenance can have done before."""
        if (begun := self._unfinished_merge()) is not None:
            return self._finish(begun)
        waiting = [task for task in lake_tasks.waiting_tasks(self._lake.location) if not beside or self._is_ready(task)]
        # A task may be about any table, and counts on all of them standing where the lake's record says.
        if waiting and (merged := self.settle()) is not None:
            return merged
        for task in waiting:
            self._check()
            if (planned := self._task_turn(self.status.merge + 1).plan(task)) is not None:
                return self._begin(self._intent(self._empty_span(), {}, TaskIntent(task.id, planned)))
        return None

    def _is_ready(self, task: LakeTask) -> bool:
        """False for a maintenance whose tables are not yet put in order as far as that is done beside merges."""
        if not isinstance(task.request, MaintainRequest):
            return True
        if self._config is not None and task.id not in self._prepared:
            self._prepared.add(task.id)
            with suppress(LakeError):  # the maintenance itself says what is wrong
                marks = Marks.of(self._tools(self.status.merge + 1), self._config, self._now())
                self._upkeep.ask(marks.shares(task.request.tables or list(self.status.tables)))
        return not self._upkeep.has_asked

    def _unfinished_merge(self) -> Intent | None:
        """The merge that was recorded and not finished. Where this process has finished one, and begun no other since,
        there is none: another process claims the lake before it begins one."""
        return self._records.intent(self.status.merge + 1) if self._may_be_unfinished else None

    def _finish(self, begun: Intent) -> Merged:
        arrived = {name: table for name, table in begun.arrived.items() if table is not None}
        tables = {name: table for name, table in self.status.tables.items() if name not in begun.arrived}
        self.status = follow_versions(
            replace(self.status, tables={**tables, **arrived}), self._lake.location, arrived.keys()
        )
        return self._run(begun, is_repeated=True) if begun.task is None else self._carry_out(begun, begun.task)

    def _empty_span(self) -> merge_plan.Span:
        """The span of a merge without segments."""
        s = self.status
        return merge_plan.Span(s.segment + 1, s.segment, s.offset + 1, s.offset, s.position, s.commit_time, s.sealed_at)

    def compact(self, *, wait: bool = True) -> str | None:
        """Puts a table that has had `compact_after` commits in order (`upkeep`), between two rounds. The table; None
        where none is due, or, unless this may `wait`, not yet ready. A fault is LakeError or StagingError, and harms
        nothing: the table is as it was."""
        name = self._upkeep.step(self._lake, self.status.tables, at_work=self._late.names, wait=wait)
        if name is not None:
            self.status = follow_versions(self.status, self._lake.location, {name})
        return name

    def close(self) -> None:
        """Waits until no table is at work, and ends what else runs beside the rounds."""
        self._late.close()
        self._upkeep.stop()

    def _run(self, intent: Intent, *, is_repeated: bool) -> Merged:
        began = time.monotonic()
        works = self._works(intent)
        turn = self._turn(intent, partial(self._works, intent), is_repeated=is_repeated)
        has_news = partial(self._staging.is_published, intent.span.last + 1)
        shares = self._late.run(turn, works, patience=self._patience, has_news=has_news)
        self._lake.close_unused(self._late.names)
        done = shares.done
        self._upkeep.record_merged([applied.table for applied in done])
        tables = turn.states.after(intent, works, done, shares.late)
        self._close(intent, tables, done=[applied.table for applied in done])
        return self._summarize(intent, began, done)

    def _turn(self, intent: Intent, plan_works: Callable[[], dict[str, Work]], *, is_repeated: bool) -> TableTurn:
        return TableTurn(
            intent,
            is_repeated,
            self.status,
            self._staging,
            self._lake,
            self._withheld,
            plan_works,
            self._check,
            self._step,
            self._dumps,
        )

    def _carry_out(self, intent: Intent, task: TaskIntent) -> Merged:
        """A lake task. Its outcome exists before the status says that the merge has ended: a crash in between has
        it done again, and keeps the outcome."""
        began = time.monotonic()
        self._check()
        changed, outcome = self._task_turn(intent.number).carry_out(task.plan)
        record = lake_tasks.record_outcome
        if isinstance(task.plan, AdoptPlan):
            record = lake_tasks.record_common_outcome
            outcome.check()  # the lake is of both stagings until it is done
            self._guard.identity = task.plan.staging
            self.status = replace(self.status, tables={}, adopted=intent.number)
            self._lake = replace(self._lake, adopted=intent.number)
        self._step("done")
        finish = partial(record, self._lake.location, task.id, outcome)
        self._close(intent, {**self.status.tables, **changed}, first=finish)
        return replace(self._summarize(intent, began, []), fault=find_fault(outcome))

    def _task_turn(self, number: int) -> TaskTurn:
        return TaskTurn(self._tools(number))

    def _tools(self, number: int) -> Tools:
        return Tools(
            number,
            self.status,
            self._staging,
            self._lake,
            self._withheld,
            self._check,
            self._step,
            self._config,
            self._dumps,
            self._upkeep.purged,
        )

    def _close(
        self,
        intent: Intent,
        tables: dict[str, TableStatus],
        *,
        done: Collection[str] = (),
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """Adds the cut and ends the merge; `first` is done between the two. `done`: tables whose shares are in."""
        if not intent.is_adoption:  # it is at no offset that readers could ask for
            self._cuts.end_merge(intent, tables, done)
        first()
        span = intent.span
        self._check()
        now = self._now()
        place = (span.last, span.offset, span.position, span.commit_time)
        staging = (self._guard.identity, self.status.adopted, span.sealed_at)
        outcome = LakeStatus(intent.number, *place, now, tables, *staging)
        self.status = self._records.finish(outcome)
        self._may_be_unfinished = self.status is not outcome
        self._arrived.tables = {}
        self._step("finished")

    def _summarize(self, intent: Intent, began: float, done: list[Applied]) -> Merged:
        span = intent.span
        seconds = round(time.monotonic() - began, 3)
        kind = None if intent.task is None else intent.task.plan.kind
        tables = (*self._arrived.take_applied(), *done)
        return Merged(intent.number, span.offset, span.last, seconds, tables, kind, tuple(self.late_tables()))

    def _works(self, intent: Intent) -> dict[str, Work]:
        return plan_shares(intent, self.status.tables, self._staging, self._kept)
