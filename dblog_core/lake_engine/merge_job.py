"""The merge as a job: applies staged segments to the lake once, or for as long as it runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial

from dblog_core.config.settings import Config
from dblog_core.errors import DblogError, LakeBusy, LakeError, StagingError, StateError
from dblog_core.interfaces import Json
from dblog_core.lake.carrier_choice import NO_EXECUTORS
from dblog_core.lake.merge_options import MergeOptions
from dblog_core.lake.task_requests import MaintainRequest
from dblog_core.lake_engine.commit_pace import CommitPace
from dblog_core.lake_engine.lake_job import Caller, open_lake_job
from dblog_core.lake_engine.merge_rounds import Merger
from dblog_core.lake_engine.merging.handover import Slice
from dblog_core.lake_engine.merging.merge_results import Applied, Merged
from dblog_core.lake_engine.merging.withheld_keys import DumpEnd, Dumps, StoredDumps, Withheld
from dblog_core.maintenance.schedule import Timetable, ask_when_due
from dblog_core.state import recent_errors

_POLL = 0.1  # seconds between two looks for a new segment
_LOOK = 1.0  # seconds between two looks for a lake task
_RETRY = 30.0  # seconds between two tries of a stopped table
_NAMED = 10  # tables in a line
_COMPACT_RETRY = 600.0  # seconds without compaction after one that failed
_PATIENCE = 1.0  # seconds after which a continuous merge no longer waits for a table while others have new rows

OnResult = Callable[[Json], object]


def run(config: Config, options: MergeOptions, caller: Caller, on_result: OnResult | None = None) -> int:
    """Runs the merge to its end. Exit code: 0 done; 1 failed, interrupted, or a table is stopped; an error is said.

    `on_result` gets each merge, as `dblog merge --json` prints it.
    """
    is_continuous = options.mode == "continuous"
    # It stands by, and takes over once the other one is gone.
    wait_seconds = options.wait_seconds or (math.inf if is_continuous else 0.0)
    try:
        return _run_job(config, options, caller, on_result, wait_seconds)
    except LakeBusy as error:
        if is_continuous and not math.isfinite(wait_seconds):
            return 0  # it was asked to stop before it had the lake: it has done all that was asked of it
        caller.say(f"merge: {error}")
        return 1
    except DblogError as error:
        caller.say(f"merge: {error}")
        return 1


def _run_job(
    config: Config, options: MergeOptions, caller: Caller, on_result: OnResult | None, wait_seconds: float
) -> int:
    seconds = options.slice_seconds
    with open_lake_job(config, "merge", caller, wait_seconds=wait_seconds, hands_over=seconds is not None) as job:
        withheld = Withheld(job.records)
        dumps = StoredDumps(config)
        means = NO_EXECUTORS if job.lake.spread is None else job.lake.spread.means
        merger = Merger(
            job.staging,
            job.lake,
            job.records,
            withheld,
            check=job.check,
            max_rows=means.span_rows,
            max_bytes=means.span_bytes,
            compact_after=config.lake.compact_after,
            config=config,
            dumps=dumps,
        )
        upkeep = partial(ask_when_due, Timetable(job.lake.location, config.lake), job.lake.location)

        def remember(part: str, error: LakeError) -> None:
            recent_errors.record(job.state, part, error, time.time())

        rounds = Job(merger, withheld, dumps, caller, on_result=on_result, upkeep=upkeep, remember=remember)
        with closing(merger):
            if options.mode == "tasks":
                return rounds.tasks()
            if options.mode == "once":
                return rounds.once()
            return rounds.continuous(None if seconds is None else Slice(job.state, seconds))


class Job:
    """Rounds until all is merged, or until it is asked to stop."""

    def __init__(
        self,
        merger: Merger,
        withheld: Withheld,
        dumps: Dumps,
        caller: Caller,
        *,
        on_result: OnResult | None = None,
        upkeep: Callable[[], object] = lambda: None,
        remember: Callable[[str, LakeError], object] = lambda part, error: None,
    ) -> None:
        """`upkeep`: asks for the maintenance of the lake when it is time; only a continuous merge does. `remember` gets
        the part and the error of a lake task that has failed, for people."""
        self._remember = remember
        self._merger = merger
        self._withheld = withheld
        self._dumps = dumps
        self._stop = caller.stop
        self._say = caller.say
        self._is_wanted = caller.is_wanted
        self._on_result = on_result
        self._compact_again = float("-inf")
        self._upkeep = upkeep
        self._accepted = False

    def once(self) -> int:
        """Applies all that is sealed now, and not what a source that is written all the time adds meanwhile."""
        self._merger.load()
        self._catch_up(retry_stopped=True, upto=self._merger.newest_segment())
        self._do_tasks()
        if self._take_accepted():
            self._catch_up(retry_stopped=True, upto=self._merger.newest_segment())
        while not self._stop.is_set() and self._compact(wait=True):
            pass
        return 1 if self._stop.is_set() or self._tell_stopped() else 0

    def continuous(self, held: Slice | None = None) -> int:
        """Continues until stopped, until the process that started us is gone, or until `held` is over."""
        self._merger.load()
        self._run_rounds(held)
        # What late tables have brought in meanwhile is recorded: the next merge need not compare it once more.
        while (merged := self._merger.settle(brings_rows=False)) is not None:
            self._tell(merged)
        return 1 if self._tell_stopped() else 0

    def _run_rounds(self, held: Slice | None) -> None:
        retried = looked = float("-inf")
        pace = CommitPace(self._merger.rewritten_bytes)
        while not self._stop.is_set() and self._is_wanted():
            if held is not None and held.is_over():
                self._say("merge: its slice is over; the next merge takes the lake")
                break
            if pace.is_due():
                pace.begin()
                due = self._take_accepted() or time.monotonic() - retried >= _RETRY
                retry = due and bool(self._merger.stopped_tables())
                retried = time.monotonic() if retry else retried
                newest = self._merger.newest_segment()  # else a busy source keeps tasks waiting
                self._catch_up(retry_stopped=retry, upto=newest, patience=_PATIENCE)
            if time.monotonic() - looked >= _LOOK:
                self._upkeep()
                self._do_tasks(beside=True)
                looked = time.monotonic()
            self._compact(wait=False)
            self._stop.wait(_POLL)

    def tasks(self) -> int:
        """Carries out the lake tasks that wait, and nothing else but what was not finished."""
        self._merger.load()
        self._do_tasks()
        return 1 if self._stop.is_set() else 0

    def _do_tasks(self, *, beside: bool = False) -> None:
        while not self._stop.is_set() and (merged := self._merger.run_task(beside=beside)) is not None:
            self._tell(merged)
            self._accepted |= merged.task == "accept"

    def _take_accepted(self) -> bool:
        """Whether somebody has accepted a shape since the last look: its table is tried again at once."""
        accepted = self._accepted
        self._accepted = False
        return accepted

    def _catch_up(self, *, retry_stopped: bool, upto: int, patience: float | None = None) -> None:
        ended = self._find_ended()
        while not self._stop.is_set():
            merged = self._merger.run_round(retry_stopped=retry_stopped, upto=upto, patience=patience)
            if merged is None:
                break
            retry_stopped = False
            self._tell(merged)
            self._compact(wait=False)
        if not self._stop.is_set():
            but_for = {*self._merger.tables_awaiting_dump(), *self._merger.late_tables()}
            for fault in self._withheld.request_dumps(self._dumps, ended=ended, but_for=but_for):
                self._say(f"merge: {fault}")

    def _find_ended(self) -> Mapping[str, DumpEnd]:
        """The dumps of withheld keys that have ended. Where the state store does not answer, the next round asks."""
        try:
            return self._withheld.find_ended(self._dumps)
        except StateError as error:
            self._say(f"merge: {error}")
            return {}

    def _compact(self, *, wait: bool) -> bool:
        """Puts the files of one table that is due in order; False where none is, or its turn comes again later, or,
        unless this may `wait`, is not yet over."""
        if time.monotonic() < self._compact_again:
            return False
        try:
            table = self._merger.compact(wait=wait)
        except (LakeError, StagingError) as error:  # nothing is lost by it, and nothing waits for it
            self._say(f"merge: {error}")
            self._compact_again = time.monotonic() + _COMPACT_RETRY
            return False
        if table is not None:
            self._say(f"{table}: files put in order")
        return table is not None

    def _tell(self, merged: Merged) -> None:
        if merged.task is not None:
            self._tell_task(merged.number, merged.task, merged.seconds, merged.fault)
            return
        rows = sum(t.rows for t in merged.tables)
        tables = len(merged.tables)
        self._say(
            f"merge {merged.number}: {rows} rows of {tables} tables up to offset {merged.offset} in {merged.seconds} s"
        )
        for table in merged.tables:
            self._say(
                f"{table.table} is stopped: {table.error}" if table.error is not None else _describe_counts(table)
            )
        if merged.late:
            self._say(f"merge {merged.number}: not waited for: {_first_names(list(merged.late))}")
        if self._on_result is not None:
            self._on_result(asdict(merged))

    def _tell_task(self, number: int, task: str, seconds: float, fault: LakeError | None) -> None:
        if fault is None:
            self._say(f"merge {number}: {task} done in {seconds} s")
            return
        self._say(f"merge {number}: {task} failed after {seconds} s: {fault}")
        self._remember("maintenance" if task == MaintainRequest.kind else task, fault)

    def _tell_stopped(self) -> bool:
        stopped = self._merger.stopped_tables()
        if stopped:
            self._say(f"stopped tables: {', '.join(sorted(stopped))}; `dblog status` tells why")
        if incomplete := self._merger.incomplete_tables():
            names = _first_names(sorted(incomplete))
            self._say(f"incomplete tables: {names}; `dblog status` tells why, and what brings their rows")
        return bool(stopped)


def _first_names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _describe_counts(table: Applied) -> str:
    """What a merge did to a table, in one line."""
    history = f", {table.history:,} lines of history" if table.history else ""
    return (
        f"{table.table}: {table.rows:,} rows, {table.inserted:,} inserted, {table.updated:,} updated, "
        f"{table.unchanged:,} unchanged, {table.deleted:,} deleted, {table.withheld:,} withheld{history}; "
        f"files +{table.files_added:,} -{table.files_removed:,}, {table.bytes:,} bytes, {table.seconds} s"
    )
