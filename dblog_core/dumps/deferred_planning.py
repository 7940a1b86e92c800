"""Plans deferred dumps (`dump_store.file_deferred`), wherever dumps are worked on with access to the source.

A dump is planned in three steps. Each step may find the work of another process, or of one that died, half done:

1. the dump's record changes from unplanned to planned, with its tasks inside: of two processes only one can do that;
2. the tasks are written, each once, as the record has them;
3. the record drops them, and workers see the dump.

A dump that cannot be planned ends as failed, with the reason and its fix. What may pass (a source that does not answer,
a locked table), or is no fault of a table (a source that lets nobody in), leaves the dump as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing, task_store
from dblog_core.dumps.dump_records import OVER, Deferred, DumpState, Refusal, TaskRecord
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import (
    DblogError,
    RequestError,
    SourceError,
    SourceForbids,
    SourceRefused,
    StateError,
    TableLocked,
)
from dblog_core.interfaces import Clock, StateStore

log = logging.getLogger(__name__)

LOCK_SECONDS = 1.0  # how long a plan waits for a table that another session has locked: other dumps wait meanwhile
_FIRST_WAIT_SECONDS = 1.0  # between two looks at a locked table
_LONGEST_WAIT_SECONDS = 30.0
_TABLES_PER_PLAN = 500


class DeferredPlanner:
    """Plans deferred dumps; for one thread."""

    def __init__(self, config: Config, state: StateStore, clock: Clock) -> None:
        self._config = config
        self._state = state
        self._clock = clock
        self._waits: dict[str, tuple[float, float]] = {}  # dump -> seconds of its last wait, and when that ends

    def plan(self, dumps: Sequence[DumpStatus]) -> list[DblogError]:
        """Plans those of the dumps that are deferred, and returns why others of them have failed for good.

        Raises StateError, and faults of the source that may pass, or that are of no table.
        """
        deferred = [dump for dump in dumps if dump.deferred is not None]
        self._waits = {dump.id: self._waits[dump.id] for dump in deferred if dump.id in self._waits}
        unplanned: list[DumpStatus] = []
        for dump in deferred:
            assert dump.deferred is not None
            if dump.state in OVER or dump.state == DumpState.PAUSED or self._rests(dump):
                continue
            if dump.deferred.tasks is not None:
                self._write_tasks(dump, dump.deferred)
            else:
                unplanned.append(dump)
        whole = [dump for dump in unplanned if dump.reads_whole(dump.tables[0])]
        faults: list[DblogError] = []
        # The catalogue is read once for many tables, and once for each list of keys.
        for start in range(0, len(whole), _TABLES_PER_PLAN):
            faults += self._plan(whole[start : start + _TABLES_PER_PLAN])
        for dump in unplanned:
            if dump not in whole:
                faults += self._plan([dump])
        return faults

    def _plan(self, dumps: Sequence[DumpStatus]) -> list[DblogError]:
        """Plans dumps of whole tables together, or one dump of keys. Where a table of several is refused or
        locked, it is found by halves."""
        if not dumps:
            return []
        try:
            tasks = self._cut(dumps)
        except StateError:
            raise
        except (RequestError, SourceError) as error:
            if isinstance(error, TableLocked):  # the catalogue, for all of them
                for dump in dumps:
                    self._rest(dump)
                return []
            if error.transient:
                raise
            if isinstance(error, SourceRefused) and not isinstance(error, SourceForbids):
                raise
            if len(dumps) > 1:
                half = len(dumps) // 2
                return [*self._plan(dumps[:half]), *self._plan(dumps[half:])]
            if isinstance(error.__cause__, TableLocked):
                self._rest(dumps[0])
                return []
            return [self._refuse(dumps[0], error)]
        return [fault for dump in dumps if (fault := self._record(dump, tasks[dump.tables[0]])) is not None]

    def _cut(self, dumps: Sequence[DumpStatus]) -> Mapping[str, list[TaskRecord]]:
        """The tasks of each table. Raises RequestError, SourceError."""
        tables = tuple(dict.fromkeys(dump.tables[0] for dump in dumps))
        deferred = dumps[0].deferred
        keys = deferred.keys if deferred is not None and deferred.keys is not None else ()
        draft = filing.make_draft(
            self._config,
            DumpRequest(tables=tables, keys=keys),
            requested_by=dumps[0].requested_by,
            clock=self._clock,
            lock_seconds=LOCK_SECONDS,
        )
        tasks: dict[str, list[TaskRecord]] = {table: [] for table in tables}
        for task in draft.tasks:
            tasks.setdefault(task.table, []).append(task)
        if set(tasks) != set(tables) or not all(tasks.values()):  # a name that is a pattern of other tables' names
            missing = sorted(table for table in tables if not tasks[table])
            raise RequestError(f"{', '.join(missing) or 'a table'} is not a captured table", fix="see `dblog check`")
        return tasks

    def _record(self, dump: DumpStatus, tasks: Sequence[TaskRecord]) -> DblogError | None:
        """Records the plan; returns why the dump has failed where no node of the state store can hold it."""
        assert dump.deferred is not None
        planned = replace(dump.deferred, keys=None, tasks=tuple(tasks))
        try:
            if dump_store.record_plan(self._state, dump.id, dump.deferred, planned):
                self._write_tasks(dump, planned)
        except StateError as error:
            if error.transient:
                raise
            return self._refuse(dump, error)
        return None

    def _write_tasks(self, dump: DumpStatus, planned: Deferred) -> None:
        assert planned.tasks is not None
        task_store.write_missing_tasks(self._state, dump.id, planned.tasks)
        dump_store.record_plan(self._state, dump.id, planned, None)

    def _refuse(self, dump: DumpStatus, error: DblogError) -> DblogError:
        table = dump.tables[0]
        log.warning("dump %s of %s cannot be carried out: %s", dump.id, table, error)
        dump_store.fail_unplanned(self._state, dump, Refusal(table, error.reason, error.fix))
        return error

    def _rest(self, dump: DumpStatus) -> None:
        last_wait = self._waits.get(dump.id, (_FIRST_WAIT_SECONDS / 2, 0.0))[0]
        wait = min(2 * last_wait, _LONGEST_WAIT_SECONDS)
        self._waits[dump.id] = (wait, self._clock.monotonic() + wait)

    def _rests(self, dump: DumpStatus) -> bool:
        wait = self._waits.get(dump.id)
        return wait is not None and self._clock.monotonic() < wait[1]
