"""A merge: one span of segments into all tables of the source, recorded first, then table by table, then as a cut.

    plan -> merges/N.json -> per table: check, fold, MERGE with transaction N, ghosts -> cuts row N -> its outcome

A run that finds a record without its outcome finishes that merge first, to the same offset. A table that fails stops
alone: it keeps its own place, and every later run tries all that it has missed. A lake task (`tasks`) is a merge of its
own, recorded and closed like the others, with an empty span.

A merger that was taken for dead may wake up anywhere in this. Right before each write it looks whether it is still the
newest (`fence`); and each write that it may still do after that look is one that its successor finds, or that fails:
records and outcomes are created and never replaced, Delta's transactions conflict with those of the same number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblog_core.config.settings import Config
from dblog_core.errors import (
    CorruptSegment,
    DblogError,
    LakeError,
    LeaseLost,
)
from dblog_core.lake import lake_tasks, merge_plan
from dblog_core.lake.cuts import cuts_location
from dblog_core.lake.lake_status import (
    LakeStatus,
    State,
    TableStatus,
    own_directory,
    read_status,
    table_location,
)
from dblog_core.lake.lake_tasks import LakeTask, Outcome
from dblog_core.lake.merge_plan import Work
from dblog_core.lake.task_plans import TaskPlan
from dblog_core.lake.task_results import TaskResult
from dblog_core.model.schema import TableName
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import join_files, log
from spark_jobs.lake_tasks import registry
from spark_jobs.lake_tasks.context import Tools
from spark_jobs.merging import cuts
from spark_jobs.merging.faults import first_lines, outcome_of_fault, spark_gone_error
from spark_jobs.merging.fence import Fence
from spark_jobs.merging.lake import Lake
from spark_jobs.merging.merge_records import Intent, Records, TaskIntent
from spark_jobs.merging.merge_results import Applied, Merged
from spark_jobs.merging.table_turn import TableTurn
from spark_jobs.merging.withheld_keys import Dumps, Withheld

_TOGETHER = 4
"""Tables merged at the same time: while some plan and commit, on one core each, others compute."""


class Merger:
    """Merges one source into one lake; the caller holds the lake's lock, and `check` raises once that is in doubt."""

    def __init__(
        self,
        spark: SparkSession,
        staging: Staging,
        lake: Lake,
        records: Records,
        withheld: Withheld,
        *,
        check: Callable[[], None] = lambda: None,
        step: Callable[[str], None] = lambda name: None,
        now: Callable[[], float] = time.time,
        max_rows: int = merge_plan.MAX_ROWS,
        compact_after: int = 0,
        config: Config | None = None,
        dumps: Dumps | None = None,
    ) -> None:
        """`step` gets each step as it has been done: where tests stop a run. `compact_after`: see `compact`.
        `config` and `dumps` are for lake tasks."""
        self._spark = spark
        self._staging = staging
        self._lake = lake
        self._records = records
        self._withheld = withheld
        self._lease = check
        self._step = step
        self._now = now
        self._max_rows = max_rows
        self._fence = Fence(records.directory, staging.source)
        self._turns = join_files.Turns(compact_after)
        self._config = config
        self._dumps = dumps
        self._sessions: dict[str, SparkSession] = {}
        self._not_looked_at: set[str] | None = None  # tables that may be due to be compacted; None: all of them
        self.status = LakeStatus()

    def load(self) -> None:
        """Takes the lake over and reads where it stands. Raises LakeError where that does not fit the staging."""
        self._fence.claim()
        self._lake = replace(self._lake, check=self._check)
        self._withheld.load(self._fence.epoch, self._check)
        status = read_status(self._lake.location)
        newest = self._records.newest()
        if status is None and newest is not None and newest.number > 1:
            raise LakeError(
                f"status.json is missing beside {newest.number} merges",
                where=str(own_directory(self._lake.location)),
                fix="restore it from a backup, or begin a new lake and dump all tables",
            )
        self.status = self._follow_versions(status or self._status_of_new_lake())
        if self.status.segment > self._staging.head_number():
            raise LakeError(
                f"the lake has segment {self.status.segment}, the staging ends before it",
                where=self._staging.storage.url(""),
                fix="give the staging that this lake was merged from, or begin a new lake and dump all tables",
            )

    def _check(self) -> None:
        """Raises LeaseLost unless this merger may still write."""
        self._lease()
        self._fence.check()

    def _follow_versions(self, status: LakeStatus, of: Collection[str] | None = None) -> LakeStatus:
        """The status with the newest version of these tables (None: of all) that has the same rows: old ones do not
        outlive a VACUUM."""

        def follow(name: str, table: TableStatus) -> TableStatus:
            if table.version is None or table.state is State.STOPPED or (of is not None and name not in of):
                return table
            return replace(table, version=log.same_rows(self._path(name), table.version))

        return replace(status, tables={name: follow(name, table) for name, table in status.tables.items()})

    def _path(self, table: str) -> Location:
        return table_location(self._lake.location, TableName.parse(table))

    def _status_of_new_lake(self) -> LakeStatus:
        """A new lake begins where the staging does: what retention has removed before comes by a dump of all tables."""
        begins = self._staging.beginning()
        return LakeStatus(segment=begins.segment - 1, offset=begins.offset - 1)

    def stopped_tables(self) -> list[str]:
        return [name for name, table in self.status.tables.items() if table.state is State.STOPPED]

    def incomplete_tables(self) -> list[str]:
        """Tables that lack rows which only a dump brings."""
        return [name for name, table in self.status.tables.items() if table.state is State.INCOMPLETE]

    def tables_awaiting_dump(self) -> list[str]:
        """Tables that wait for a full dump, after a reset or for values of new columns."""
        return [name for name, table in self.status.tables.items() if table.awaits is not None]

    def newest_segment(self) -> int:
        """The newest segment."""
        return self._staging.head_number()

    def run_round(self, *, retry_stopped: bool, upto: int | None = None) -> Merged | None:
        """The next merge, or the one that was not finished; None if nothing is to do up to segment `upto` (None: all).

        Raises what stops all tables.
        """
        if (begun := self._unfinished_merge()) is not None:
            return self._finish(begun)
        behind = {name: self.status.tables[name].segment for name in self.stopped_tables()} if retry_stopped else {}
        span = self._next_span(upto)
        if span is None and behind:
            span = self._empty_span()
        if span is None:
            return None
        elsewhere = {**self._tables_elsewhere(), **behind}
        return self._begin(Intent(self.status.merge + 1, span, elsewhere, epoch=self._fence.epoch))

    def _next_span(self, upto: int | None) -> merge_plan.Span | None:
        """What is sealed and whole, up to a segment that is damaged; raises CorruptSegment where that is the next."""
        damage: list[CorruptSegment] = []

        def sound() -> Iterator[Manifest]:
            try:
                yield from self._staging.manifests(after=self.status.segment, upto=upto)
            except CorruptSegment as error:
                damage.append(error)

        span = merge_plan.next_span(sound(), max_rows=self._max_rows)
        if span is None and damage:
            raise damage[0]
        return span

    def _begin(self, intent: Intent) -> Merged:
        """Records the merge and does it; or the one that the merger before us recorded when it woke up."""
        self._check()
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

    def _tables_elsewhere(self) -> dict[str, int]:
        """Tables that a reset lets begin behind or ahead of the others, with the segment that they begin after."""
        return {
            name: t.segment
            for name, t in self.status.tables.items()
            if t.awaits is not None and t.segment != self.status.segment and t.state is not State.STOPPED
        }

    def run_task(self) -> Merged | None:
        """The lake task that has waited longest, or what was not finished; None if nothing is to do."""
        if (begun := self._unfinished_merge()) is not None:
            return self._finish(begun)
        for task in lake_tasks.waiting_tasks(self._lake.location):
            self._check()
            if (planned := self._plan_task(task)) is not None:
                intent = TaskIntent(task.id, planned)
                return self._begin(
                    Intent(self.status.merge + 1, self._empty_span(), {}, intent, epoch=self._fence.epoch)
                )
        return None

    def _unfinished_merge(self) -> Intent | None:
        """The merge that was recorded and not finished."""
        newest = self._records.newest()
        return newest if newest is not None and newest.number > self.status.merge else None

    def _finish(self, begun: Intent) -> Merged:
        return self._run(begun, is_repeated=True) if begun.task is None else self._carry_out(begun, begun.task)

    def _empty_span(self) -> merge_plan.Span:
        """The span of a merge without segments."""
        s = self.status
        return merge_plan.Span(s.segment + 1, s.segment, s.offset + 1, s.offset, s.position, s.commit_time)

    def compact(self) -> str | None:
        """Joins the small files of one table that has had `compact_after` commits; None where no table has.

        Between two rounds. A fault is LakeError, and harms nothing: the table is as it was.
        """
        looked_at = self._not_looked_at if self._not_looked_at is not None else set(self.status.tables)
        self._not_looked_at = set(looked_at)
        for name in sorted(looked_at & self.status.tables.keys()):
            if self.status.tables[name].version is None:  # nothing is there, and its name may have no place in the lake
                continue
            path = self._path(name)
            if self._turns.is_due(path):
                self._check()
                self._compact(name, path)
                return name
            self._not_looked_at.discard(name)
        return None

    def _compact(self, name: str, path: Location) -> None:
        before = log.version(path)
        try:
            join_files.compact(self._session(name), path)
        except (PySparkException, Py4JJavaError) as error:
            raise LakeError(
                f"the small files of the table cannot be joined, and merges continue without it: {first_lines(error)}",
                where=name,
            ) from error
        after = log.version(path)
        if before is not None and after is not None:
            self._lake.highest.record_other_commit(path, before, after)
            self._turns.record_compaction(path, after)
            self.status = self._follow_versions(self.status, {name})

    def _run(self, intent: Intent, *, is_repeated: bool) -> Merged:
        began = time.monotonic()
        works = self._works(intent)
        turn = TableTurn(
            intent,
            is_repeated,
            self.status,
            self._staging,
            self._lake,
            self._withheld,
            partial(self._works, intent),
            self._session,
            self._check,
            self._step,
            self._dumps,
        )
        with ThreadPoolExecutor(_TOGETHER, thread_name_prefix="merge") as pool:
            # The largest first, so that the last to end is a short one.
            order = sorted(works.values(), key=lambda w: -w.bytes)
            done = [a for a in pool.map(turn.merge, order) if a is not None]
        if self._lake.open_tables is not None:
            self._lake.open_tables.shed()
        if self._not_looked_at is not None:
            self._not_looked_at.update(applied.table for applied in done)
        self._close(intent, turn.states.after(intent, works, done))
        return self._summarize(intent, began, done)

    def _plan_task(self, task: LakeTask) -> TaskPlan | None:
        """What a task will do; None where it cannot be done, which is its outcome then."""
        try:
            return registry.plan(self._tools(self.status.merge + 1), task.request)
        except LeaseLost:
            raise
        except (DblogError, DeltaError, PySparkException, Py4JJavaError) as error:
            lake_tasks.record_outcome(self._lake.location, task.id, outcome_of_fault(0, error))
            return None
        except (Py4JNetworkError, Py4JError) as error:
            raise spark_gone_error(task.kind) from error

    def _carry_out(self, intent: Intent, task: TaskIntent) -> Merged:
        """A lake task. Its outcome exists before the status says that the merge has ended: a crash in between has
        it done again, and keeps the outcome."""
        began = time.monotonic()
        self._check()
        tables = self.status.tables
        try:
            done = registry.carry_out(self._tools(intent.number), task.plan)
            outcome: Outcome[TaskResult] = Outcome(intent.number, done.result)
            tables = {**tables, **done.tables}
        except LeaseLost:
            raise
        except (DblogError, DeltaError, PySparkException, Py4JJavaError) as error:
            outcome = outcome_of_fault(intent.number, error)
        except (Py4JNetworkError, Py4JError) as error:
            raise spark_gone_error(task.plan.kind) from error
        self._step("done")
        finish = partial(lake_tasks.record_outcome, self._lake.location, task.id, outcome)
        self._close(intent, tables, first=finish)
        return self._summarize(intent, began, [])

    def _tools(self, number: int) -> Tools:
        return Tools(
            number,
            self.status,
            self._staging,
            self._lake,
            self._withheld,
            self._session,
            self._check,
            self._step,
            self._config,
            self._dumps,
        )

    def _close(
        self, intent: Intent, tables: dict[str, TableStatus], *, first: Callable[[], None] = lambda: None
    ) -> None:
        """Adds the cut and ends the merge; `first` is done between the two."""
        self._check()
        versions = {name: t.version for name, t in tables.items() if t.version is not None}
        behind = {name: t.offset for name, t in tables.items() if t.state is State.STOPPED}
        app = f"{self._lake.app}:cuts"
        path = cuts_location(self._lake.location)
        try:
            cuts.append(path, intent, versions, behind=behind, app=app, now=self._now())
        except LakeError:
            self._check()  # another merger may have been there: that is why, then
            raise
        self._step("cut")
        first()
        span = intent.span
        self._check()
        self.status = self._records.finish(
            LakeStatus(intent.number, span.last, span.offset, span.position, span.commit_time, self._now(), tables)
        )
        self._step("finished")

    def _summarize(self, intent: Intent, began: float, done: list[Applied]) -> Merged:
        span = intent.span
        seconds = round(time.monotonic() - began, 3)
        kind = None if intent.task is None else intent.task.plan.kind
        return Merged(intent.number, span.offset, span.last, seconds, tuple(done), kind)

    def _works(self, intent: Intent) -> dict[str, Work]:
        """Each table's share; that of a stopped table that is not tried now is left for later."""
        first = min([intent.span.first - 1, *intent.behind.values()])

        def after(table: str) -> int:
            if table in intent.behind:
                return intent.behind[table]
            status = self.status.tables.get(table)
            return intent.span.last if status and status.state is State.STOPPED else intent.span.first - 1

        return merge_plan.plan_works(self._staging.manifests(after=first, upto=intent.span.last), after)

    def _session(self, table: str) -> SparkSession:
        """A session of the table's own: Delta reads the transaction's id and version from its settings."""
        if table not in self._sessions:
            self._sessions[table] = self._spark.newSession()
        return self._sessions[table]
