"""A merge: one span of segments into all tables of the source, recorded first, then table by table, then as a cut.

    plan -> merges/N.json -> per table: check, fold, MERGE with transaction N, ghosts -> cuts row N -> status.json

A run that finds a record without its outcome finishes that merge first, to the same offset. A table that fails stops
alone: it keeps its own place, and every later run tries all that it has missed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dblog_core.errors import DblogError, LakeError, LeaseLost, SegmentReplaced
from dblog_core.lake import LakeStatus, State, TableStatus, own_directory, read_status, table_location
from dblog_core.schema import TableName
from dblog_core.staging import Staging
from dblog_core.storage.location import Location
from spark_jobs import compaction, cuts, delta_log, plan
from spark_jobs.apply import Applied, Lake, TableMerge
from spark_jobs.plan import Work
from spark_jobs.record import Intent, Records
from spark_jobs.withheld import Withheld

_TOGETHER = 4
"""Tables merged at the same time: while some plan and commit, on one core each, others compute."""

_PLANNED_AGAIN = 3


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of one merge."""

    number: int
    offset: int
    segment: int
    seconds: float
    tables: tuple[Applied, ...]


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
    ) -> None:
        """`step` is told each step as it has been done: where tests stop a run. `compact_after`: see `compact`."""
        self._spark, self._staging, self._lake, self._records, self._withheld = spark, staging, lake, records, withheld
        self._check, self._step, self._now, self._max_rows = check, step, now, max_rows
        self._turns = compaction.Turns(compact_after)
        self._sessions: dict[str, SparkSession] = {}
        self.status = LakeStatus()

    def load(self) -> None:
        """Reads where the lake stands. Raises LakeError where that does not fit the staging."""
        self._withheld.load()
        status, newest = read_status(self._lake.location), self._records.newest()
        if status is None and newest is not None and newest.number > 1:
            raise LakeError(
                f"status.json is missing beside {newest.number} merges",
                where=str(own_directory(self._lake.location)),
                fix="restore it from a backup, or begin a new lake and dump all tables",
            )
        self.status = status or LakeStatus()
        if self.status.segment > self._staging.head_number():
            raise LakeError(
                f"the lake has segment {self.status.segment}, the staging ends before it",
                where=self._staging.storage.url(""),
                fix="give the staging that this lake was merged from, or begin a new lake and dump all tables",
            )

    def stopped(self) -> list[str]:
        return [name for name, table in self.status.tables.items() if table.state is State.STOPPED]

    def round(self, *, retry_stopped: bool) -> Merged | None:
        """The next merge, or the one that was not finished; None if nothing is to do. Raises what stops all tables."""
        newest = self._records.newest()
        if newest is not None and newest.number > self.status.merge:
            return self._run(newest, again=True)
        behind = {name: self.status.tables[name].segment for name in self.stopped()} if retry_stopped else {}
        span = plan.next_span(self._staging.manifests(after=self.status.segment), max_rows=self._max_rows)
        if span is None and behind:
            s = self.status
            span = plan.Span(s.segment + 1, s.segment, s.offset + 1, s.offset, s.position, s.commit_time)
        if span is None:
            return None
        intent = Intent(self.status.merge + 1, span, behind)
        self._records.begin(intent)
        self._step("recorded")
        return self._run(intent, again=False)

    def compact(self) -> str | None:
        """Joins the small files of one table that has had `compact_after` commits; None where no table has.

        Between two rounds. A fault is LakeError, and harms nothing: the table is as it was.
        """
        for name in self.status.tables:
            path = table_location(self._lake.location, TableName.parse(name))
            if self._turns.is_due(path):
                self._check()
                self._compact(name, path)
                return name
        return None

    def _compact(self, name: str, path: Location) -> None:
        before = delta_log.version(path)
        try:
            compaction.compact(self._session(name), path)
        except (PySparkException, Py4JJavaError) as error:
            raise LakeError(
                f"its small files cannot be joined: {_first_lines(error)}", where=name, fix="merges go on without"
            ) from error
        after = delta_log.version(path)
        if before is not None and after is not None:
            self._lake.highest.kept(path, before, after)
            self._turns.done(path, after)

    def _run(self, intent: Intent, *, again: bool) -> Merged:
        began = time.monotonic()
        works = self._works(intent)
        with ThreadPoolExecutor(_TOGETHER, thread_name_prefix="merge") as pool:
            # The largest first, so that the last to end is a short one.
            order = sorted(works.values(), key=lambda w: -w.bytes)
            done = [a for a in pool.map(lambda work: self._table(work, intent, again), order) if a is not None]
        self._check()
        tables = self._tables(intent, works, done)
        versions = {name: t.version for name, t in tables.items() if t.version is not None}
        cuts.append(
            self._spark,
            own_directory(self._lake.location) / "cuts",
            intent,
            versions,
            app=f"{self._lake.app}:cuts",
            now=self._now(),
        )
        self._step("cut")
        span = intent.span
        self.status = LakeStatus(
            intent.number, span.last, span.offset, span.position, span.commit_time, self._now(), tables
        )
        self._records.finish(self.status)
        self._step("finished")
        return Merged(intent.number, span.offset, span.last, round(time.monotonic() - began, 3), tuple(done))

    def _works(self, intent: Intent) -> dict[str, Work]:
        """Each table's share; that of a stopped table that is not tried now is left for later."""
        first = min([intent.span.first - 1, *intent.behind.values()])

        def after(table: str) -> int:
            if table in intent.behind:
                return intent.behind[table]
            known = self.status.tables.get(table)
            return intent.span.last if known and known.state is State.STOPPED else intent.span.first - 1

        return plan.works(self._staging.manifests(after=first, upto=intent.span.last), after)

    def _table(self, work: Work, intent: Intent, again: bool) -> Applied | None:
        """One table's outcome; a fault of its own stops it alone."""
        self._check()
        known = self.status.tables.get(work.table)
        try:
            applied = self._apply(work, intent, known, again)
        except LeaseLost:
            raise
        except DblogError as error:
            return Applied(work.table, work.rows, error=str(error), version=known.version if known else None)
        except (PySparkException, Py4JJavaError) as error:
            return Applied(work.table, work.rows, error=_first_lines(error), version=known.version if known else None)
        except (Py4JNetworkError, Py4JError) as error:
            raise LakeError(
                "Spark went away", where=work.table, fix="merge again: it goes on where this one stopped"
            ) from error
        self._step(f"applied {work.table}")
        return applied

    def _apply(self, work: Work, intent: Intent, known: TableStatus | None, again: bool) -> Applied | None:
        """Applies the work; planned again where the staging has joined its segments in the meantime."""
        merge = TableMerge(self._session(work.table), self._staging, self._lake, self._withheld)
        shape = known.schema if known else None
        for _ in range(_PLANNED_AGAIN):
            try:
                return merge.apply(work, intent.number, last=intent.span.last, known=shape, again=again)
            except SegmentReplaced:
                work = self._works(intent)[work.table]
        return merge.apply(work, intent.number, last=intent.span.last, known=shape, again=again)

    def _session(self, table: str) -> SparkSession:
        """A session of the table's own: Delta reads the transaction's id and version from its settings."""
        if table not in self._sessions:
            self._sessions[table] = self._spark.newSession()
        return self._sessions[table]

    def _tables(self, intent: Intent, works: Mapping[str, Work], done: list[Applied]) -> dict[str, TableStatus]:
        """All tables after the merge: those that are well have all of it, whether or not it had rows of theirs."""
        span = intent.span
        tables = {
            name: t
            if t.state is State.STOPPED
            else replace(t, segment=span.last, offset=span.offset, state=self._state(name))
            for name, t in self.status.tables.items()
        }
        for applied in done:
            name = applied.table
            if applied.error is None:
                schema = works[name].schema
                tables[name] = TableStatus(self._state(name), None, span.last, span.offset, applied.version, schema)
            else:
                known = self.status.tables.get(name) or TableStatus(
                    State.OK, None, span.first - 1, span.first_offset - 1
                )
                tables[name] = replace(known, state=State.STOPPED, error=applied.error)
        return tables

    def _state(self, table: str) -> State:
        return State.INCOMPLETE if self._withheld.waits(table) else State.OK


def _first_lines(error: Exception) -> str:
    """What Spark says, without its stack."""
    text = str(error)
    return text.split("\tat ")[0].split("JVM stacktrace")[0].strip()[:2000]
