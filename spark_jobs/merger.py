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
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
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
    RequestError,
    SegmentReplaced,
    StagingError,
)
from dblog_core.interfaces import Json
from dblog_core.lake import lake_tasks
from dblog_core.lake.cuts import cuts_location
from dblog_core.lake.lake_status import (
    LakeStatus,
    State,
    TableStatus,
    own_directory,
    read_status,
    shares_history,
    table_location,
)
from dblog_core.lake.lake_tasks import LakeTask, Outcome
from dblog_core.model.schema import TableName
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark, Manifest
from dblog_core.storage.location import Location
from spark_jobs.delta_tables import compaction, log
from spark_jobs.events import plan
from spark_jobs.events.plan import Work
from spark_jobs.lake_tasks import registry
from spark_jobs.lake_tasks.context import Done, Tools
from spark_jobs.merging import cuts
from spark_jobs.merging.applied import Applied
from spark_jobs.merging.fence import Fence
from spark_jobs.merging.lake import Lake
from spark_jobs.merging.merge_records import Intent, Records
from spark_jobs.merging.table_merge import TableMerge
from spark_jobs.merging.withheld_keys import Dumps, Withheld

_TOGETHER = 4
"""Tables merged at the same time: while some plan and commit, on one core each, others compute."""

_PLANNED_AGAIN = 3
_TRIED_AGAIN = 3
_OVERTAKEN = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""How Delta says that somebody else's commit came between a statement's look at the table and its own commit."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of one merge."""

    number: int
    offset: int
    segment: int
    seconds: float
    tables: tuple[Applied, ...]
    task: str | None = None
    """The kind of the lake task that it was."""


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
        max_rows: int = plan.MAX_ROWS,
        compact_after: int = 0,
        config: Config | None = None,
        dumps: Dumps | None = None,
    ) -> None:
        """`step` is told each step as it has been done: where tests stop a run. `compact_after`: see `compact`.
        `config` and `dumps` are for lake tasks."""
        self._spark, self._staging, self._lake, self._records, self._withheld = spark, staging, lake, records, withheld
        self._lease, self._step, self._now, self._max_rows = check, step, now, max_rows
        self._fence = Fence(records.directory, staging.source)
        self._turns = compaction.Turns(compact_after)
        self._config, self._dumps = config, dumps
        self._sessions: dict[str, SparkSession] = {}
        self.status = LakeStatus()

    def load(self) -> None:
        """Takes the lake over and reads where it stands. Raises LakeError where that does not fit the staging."""
        self._fence.claim()
        self._lake = replace(self._lake, check=self._check)
        self._withheld.load(self._fence.epoch, self._check)
        status, newest = read_status(self._lake.location), self._records.newest()
        if status is None and newest is not None and newest.number > 1:
            raise LakeError(
                f"status.json is missing beside {newest.number} merges",
                where=str(own_directory(self._lake.location)),
                fix="restore it from a backup, or begin a new lake and dump all tables",
            )
        self.status = self._followed(status or self._before_the_first())
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

    def _followed(self, status: LakeStatus) -> LakeStatus:
        """The status with the newest version of each table that has the same rows: old ones do not outlive a VACUUM."""

        def follow(name: str, table: TableStatus) -> TableStatus:
            if table.version is None or table.state is State.STOPPED:
                return table
            return replace(table, version=log.same_rows(self._path(name), table.version))

        return replace(status, tables={name: follow(name, table) for name, table in status.tables.items()})

    def _path(self, table: str) -> Location:
        return table_location(self._lake.location, TableName.parse(table))

    def _before_the_first(self) -> LakeStatus:
        """A new lake begins where the staging does: what retention has removed before comes by a dump of all tables."""
        begins = self._staging.beginning()
        return LakeStatus(segment=begins.segment - 1, offset=begins.offset - 1)

    def stopped(self) -> list[str]:
        return [name for name, table in self.status.tables.items() if table.state is State.STOPPED]

    def incomplete(self) -> list[str]:
        """Tables that lack rows which only a dump brings."""
        return [name for name, table in self.status.tables.items() if table.state is State.INCOMPLETE]

    def awaiting(self) -> list[str]:
        """Tables that wait for a full dump, after a reset or for values of new columns."""
        return [name for name, table in self.status.tables.items() if table.awaits is not None]

    def sealed(self) -> int:
        """The newest segment."""
        return self._staging.head_number()

    def round(self, *, retry_stopped: bool, upto: int | None = None) -> Merged | None:
        """The next merge, or the one that was not finished; None if nothing is to do up to segment `upto` (None: all).

        Raises what stops all tables.
        """
        if (begun := self._begun()) is not None:
            return self._finish(begun)
        behind = {name: self.status.tables[name].segment for name in self.stopped()} if retry_stopped else {}
        span = self._next_span(upto)
        if span is None and behind:
            span = self._nothing()
        if span is None:
            return None
        elsewhere = {**self._elsewhere(), **behind}
        return self._begin(Intent(self.status.merge + 1, span, elsewhere, epoch=self._fence.epoch))

    def _next_span(self, upto: int | None) -> plan.Span | None:
        """What is sealed and whole, up to a segment that is damaged; raises CorruptSegment where that is the next."""
        damage: list[CorruptSegment] = []

        def sound() -> Iterator[Manifest]:
            try:
                yield from self._staging.manifests(after=self.status.segment, upto=upto)
            except CorruptSegment as error:
                damage.append(error)

        span = plan.next_span(sound(), max_rows=self._max_rows)
        if span is None and damage:
            raise damage[0]
        return span

    def _begin(self, intent: Intent) -> Merged:
        """Records the merge and does it; or the one that the merger before us recorded when it woke up."""
        self._check()
        if not self._records.begin(intent):
            self._check()
            if (begun := self._begun()) is None:
                raise LakeError(
                    f"merge {intent.number} was finished by another process",
                    where=str(self._records.directory),
                    fix="merge again: it goes on from there",
                )
            return self._finish(begun)
        self._step("recorded")
        return self._run(intent, again=False) if intent.task is None else self._carry_out(intent, intent.task)

    def _elsewhere(self) -> dict[str, int]:
        """Tables that a reset lets begin behind or ahead of the others, with the segment that they begin after."""
        return {
            name: t.segment
            for name, t in self.status.tables.items()
            if t.awaits is not None and t.segment != self.status.segment and t.state is not State.STOPPED
        }

    def task(self) -> Merged | None:
        """The lake task that has waited longest, or what was not finished; None if nothing is to do."""
        if (begun := self._begun()) is not None:
            return self._finish(begun)
        for task in lake_tasks.waiting_tasks(self._lake.location):
            self._check()
            if (planned := self._planned(task)) is not None:
                recorded = {"id": task.id, "kind": task.kind, "arguments": planned}
                return self._begin(
                    Intent(self.status.merge + 1, self._nothing(), {}, recorded, epoch=self._fence.epoch)
                )
        return None

    def _begun(self) -> Intent | None:
        """The merge that was recorded and not finished."""
        newest = self._records.newest()
        return newest if newest is not None and newest.number > self.status.merge else None

    def _finish(self, begun: Intent) -> Merged:
        return self._run(begun, again=True) if begun.task is None else self._carry_out(begun, begun.task)

    def _nothing(self) -> plan.Span:
        """The span of a merge without segments."""
        s = self.status
        return plan.Span(s.segment + 1, s.segment, s.offset + 1, s.offset, s.position, s.commit_time)

    def compact(self) -> str | None:
        """Joins the small files of one table that has had `compact_after` commits; None where no table has.

        Between two rounds. A fault is LakeError, and harms nothing: the table is as it was.
        """
        for name, table in self.status.tables.items():
            if table.version is None:  # nothing is there, and its name may have no place in the lake
                continue
            path = self._path(name)
            if self._turns.is_due(path):
                self._check()
                self._compact(name, path)
                return name
        return None

    def _compact(self, name: str, path: Location) -> None:
        before = log.version(path)
        try:
            compaction.compact(self._session(name), path)
        except (PySparkException, Py4JJavaError) as error:
            raise LakeError(
                f"the small files of the table cannot be joined, and merges continue without it: {_first_lines(error)}",
                where=name,
            ) from error
        after = log.version(path)
        if before is not None and after is not None:
            self._lake.highest.kept(path, before, after)
            self._turns.done(path, after)
            self.status = self._followed(self.status)

    def _run(self, intent: Intent, *, again: bool) -> Merged:
        began = time.monotonic()
        works = self._works(intent)
        with ThreadPoolExecutor(_TOGETHER, thread_name_prefix="merge") as pool:
            # The largest first, so that the last to end is a short one.
            order = sorted(works.values(), key=lambda w: -w.bytes)
            done = [a for a in pool.map(lambda work: self._table(work, intent, again), order) if a is not None]
        if self._lake.open_tables is not None:
            self._lake.open_tables.shed()
        self._close(intent, self._tables(intent, works, done))
        return self._merged(intent, began, done)

    def _planned(self, task: LakeTask) -> Json | None:
        """What a task will do; None where it cannot be done, which is its outcome then."""
        try:
            return registry.plan(self._tools(self.status.merge + 1), task.kind, task.arguments)
        except LeaseLost:
            raise
        except (DblogError, DeltaError, PySparkException, Py4JJavaError) as error:
            lake_tasks.record_outcome(self._lake.location, task.id, _failed(0, error))
            return None
        except (Py4JNetworkError, Py4JError) as error:
            raise _spark_gone(task.kind) from error

    def _carry_out(self, intent: Intent, task: Json) -> Merged:
        """A lake task. Its outcome lies there before the status says that the merge has ended: a crash in between has
        it done again, and keeps the outcome."""
        began = time.monotonic()
        self._check()
        try:
            done = registry.carry_out(self._tools(intent.number), task["kind"], task["arguments"])
            came = Outcome(intent.number, done.result)
        except LeaseLost:
            raise
        except (DblogError, DeltaError, PySparkException, Py4JJavaError) as error:
            done, came = Done({}), _failed(intent.number, error)
        except (Py4JNetworkError, Py4JError) as error:
            raise _spark_gone(task["kind"]) from error
        self._step("done")
        finish = partial(lake_tasks.record_outcome, self._lake.location, task["id"], came)
        self._close(intent, {**self.status.tables, **done.tables}, first=finish)
        return self._merged(intent, began, [])

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
        app, path = f"{self._lake.app}:cuts", cuts_location(self._lake.location)
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

    def _merged(self, intent: Intent, began: float, done: list[Applied]) -> Merged:
        span = intent.span
        seconds = round(time.monotonic() - began, 3)
        kind = None if intent.task is None else str(intent.task["kind"])
        return Merged(intent.number, span.offset, span.last, seconds, tuple(done), kind)

    def _works(self, intent: Intent) -> dict[str, Work]:
        """Each table's share; that of a stopped table that is not tried now is left for later."""
        first = min([intent.span.first - 1, *intent.behind.values()])

        def after(table: str) -> int:
            if table in intent.behind:
                return intent.behind[table]
            known = self.status.tables.get(table)
            return intent.span.last if known and known.state is State.STOPPED else intent.span.first - 1

        return plan.plan_works(self._staging.manifests(after=first, upto=intent.span.last), after)

    def _table(self, work: Work, intent: Intent, again: bool) -> Applied | None:
        """One table's outcome; a fault of its own stops it alone."""
        self._check()
        known = self.status.tables.get(work.table)
        try:
            self._check_place(work.table, known)
            applied = self._tried(work, intent, known, again)
            if applied is not None and applied.version is not None:
                applied = replace(applied, awaits=self._requested(work, known, applied.ignored))
        except LeaseLost:
            raise
        except DblogError as error:
            return Applied(work.table, work.rows, error=str(error), version=known.version if known else None)
        except (pa.ArrowException, DeltaError, PySparkException, Py4JJavaError) as error:
            return Applied(work.table, work.rows, error=_first_lines(error), version=known.version if known else None)
        except (Py4JNetworkError, Py4JError) as error:
            raise _spark_gone(work.table) from error
        self._step(f"applied {work.table}")
        return applied

    def _check_place(self, name: str, known: TableStatus | None) -> None:
        """Raises LakeError for a new table whose place is meant for a history."""
        table = TableName.parse(name)
        if not self._lake.history or (known is not None and known.version is not None):
            return
        head = self._staging.head()
        if (base := shares_history(table, {*self.status.tables, *(head.schemas if head else ())})) is not None:
            raise LakeError(
                f"its place in the lake is that of the history of {base}",
                where=str(self._path(name)),
                fix="leave one of the two tables out of `tables`, or set `[lake] history = false`",
            )

    def _requested(self, work: Work, known: TableStatus | None, ignored: list[str] | None) -> str | None:
        """The full dump that brings what rows lack since columns were added; None where they lack nothing, or none can.

        A crash has it requested twice, which harms nobody.
        """
        if self._lacks_before(work, known, ignored) is None:
            mark = plan.last_unlogged_rewrite(work)
            return None if mark is None else mark.dump
        assert self._dumps is not None
        try:
            dump = self._dumps.submit(work.table, [])
        except RequestError:  # it is not captured any more, so that its lake copy ends with what the log says
            return None
        except DblogError as error:
            raise LakeError(
                f"columns were added, and the dump that brings their values cannot be requested: {error.message}",
                where=work.table,
                fix=error.fix or "merge again when the source and the state store can be reached",
            ) from error
        self._step(f"requested {work.table}")
        return dump

    def _lacks_before(self, work: Work, known: TableStatus | None, ignored: list[str] | None) -> int | None:
        """`ignored`: columns that the lake leaves out."""
        before = known.schema if known else None
        own = before if known is None or known.ignored is None else f"{before} in the lake"

        def columns(fingerprint: str) -> list[str]:
            out = {*(ignored or ()), *(known.ignored or () if known and fingerprint == own != before else ())}
            shape = before if before is not None and fingerprint == own else fingerprint
            return [c.name for c in self._staging.schema(shape).columns if c.name not in out]

        return plan.lacks_before(work.with_nulls_alone() if self._lake.history else work, own, columns)

    def _tried(self, work: Work, intent: Intent, known: TableStatus | None, again: bool) -> Applied | None:
        """Applies the work; again where another commit came between, or where ours is there and its answer was lost."""
        app, path = f"{self._lake.app}:{work.table}", self._path(work.table)
        for _ in range(_TRIED_AGAIN):
            try:
                return self._apply(work, intent, known, again)
            except (LakeError, StagingError, PySparkException, Py4JJavaError) as error:
                self._check()  # the other commit may be our successor's
                # A number that is taken is no fault where an older merger may have committed it a moment ago.
                landed = log.committed(path, app) == intent.number and (again or not isinstance(error, LakeError))
                if not landed and not isinstance(error, _OVERTAKEN):
                    raise
                again = True
        return self._apply(work, intent, known, again)

    def _apply(self, work: Work, intent: Intent, known: TableStatus | None, again: bool) -> Applied | None:
        """Applies the work; planned again where the staging has joined its segments in the meantime."""
        merge = TableMerge(self._session(work.table), self._staging, self._lake, self._withheld, step=self._step)
        # Where an earlier merge failed its commit may be there all the same: rows may be as new as that merge.
        merged = known.offset if known and known.state is not State.STOPPED else self.status.offset
        apply = partial(merge.apply, number=intent.number, span=intent.span, known=known, merged=merged, again=again)
        for _ in range(_PLANNED_AGAIN):
            try:
                return apply(work)
            except SegmentReplaced:
                work = self._works(intent)[work.table]
        return apply(work)

    def _session(self, table: str) -> SparkSession:
        """A session of the table's own: Delta reads the transaction's id and version from its settings."""
        if table not in self._sessions:
            self._sessions[table] = self._spark.newSession()
        return self._sessions[table]

    def _tables(self, intent: Intent, works: Mapping[str, Work], done: list[Applied]) -> dict[str, TableStatus]:
        """All tables after the merge: those that are well have all of it, whether or not it had rows of theirs."""
        span = intent.span
        nowhere = works.keys() - {applied.table for applied in done}  # without a key, and history is off
        tables = {
            name: t if t.state is State.STOPPED else self._well(name, t, intent)
            for name, t in self.status.tables.items()
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
                added = self._lacks_before(works[name], self.status.tables.get(name), applied.ignored)
                if (mark := plan.last_unlogged_rewrite(works[name])) is not None:
                    added = max(mark.offset, added or 0)
                known = replace(known, awaits=applied.awaits, added_at=added)
            merged = {"merge": intent.number, **applied.counts()}
            known = replace(known, version=applied.version, schema=works[name].schema, merged=merged, told=applied.told)
            known = replace(known, ignored=applied.ignored, merge_because=applied.merge_because)
            known = replace(known, lacks=self._lacks(works[name], known))
            tables[name] = self._well(name, known, intent)
        return tables

    def _known(self, name: str, span: plan.Span) -> TableStatus:
        """The table before the merge. Of a new one nobody knows what it held when its log began here."""
        new = TableStatus(State.OK, None, span.first - 1, span.first_offset - 1, lacks=0)
        return self.status.tables.get(name) or new

    def _lacks(self, work: Work, known: TableStatus) -> int | None:
        """The table's `lacks` after the work. One without a key has no dumps: what its history tells begins with it."""
        if not self._staging.schema(work.schema).key:
            return None
        before = self.status.tables.get(work.table)
        keyed = before is not None and before.schema is not None and self._staging.schema(before.schema).key
        begins = before is None or (before.version is None and not keyed)
        return plan.lacks_since(work, 0 if begins else known.lacks)

    def _well(self, name: str, known: TableStatus, intent: Intent) -> TableStatus:
        """The table with all of the span; one that a reset has set ahead stays there."""
        taken = known.accepted is not None and known.accepted <= intent.span.offset
        now = replace(
            known,
            accepted=None if taken else known.accepted,
            segment=max(known.segment, intent.span.last) if known.awaits is not None else intent.span.last,
            offset=max(known.offset, intent.span.offset) if known.awaits is not None else intent.span.offset,
        )
        return now.with_applied_rows(self._withheld.count(name))


def _brings(mark: LogMark, table: TableStatus) -> bool:
    """Whether the dump that `mark` ends has brought what a table lacks that was reset, or got new columns."""
    full = mark.key_from is None and mark.key_to is None
    lacks = [offset for offset in (table.reset_at, table.added_at) if offset is not None]
    since = mark.since is not None and bool(lacks) and mark.since >= max(lacks)
    return full and (mark.dump == table.awaits or since)


def _spark_gone(where: str) -> LakeError:
    return LakeError("Spark went away", where=where, fix="merge again: it goes on where this one stopped")


def _failed(merge: int, error: Exception) -> Outcome:
    if isinstance(error, DblogError):
        return Outcome(merge, None, error.message, error.where, error.fix)
    return Outcome(merge, None, _first_lines(error))


def _first_lines(error: Exception) -> str:
    """What Spark says, without its stack."""
    text = str(error)
    if "[USER_RAISED_EXCEPTION] " in text:  # our own words, from within a query
        return text.split("[USER_RAISED_EXCEPTION] ")[1].split(" SQLSTATE: ")[0].strip()[:2000]
    return text.split("\tat ")[0].split("JVM stacktrace")[0].strip()[:2000]
