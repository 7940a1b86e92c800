"""Dumps that the system owes (`owed`), requested again by the leader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from dblog_core.capture.healing import dump_requests
from dblog_core.capture.healing.dump_requests import RequestedDumps
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, dump_store
from dblog_core.dumps.requests import WHOLE
from dblog_core.errors import SourceError
from dblog_core.interfaces import Clock, Nodes, StateStore
from dblog_core.staging.manifest import LogMark, is_full
from dblog_core.state import failed_dumps, owed_dumps
from dblog_core.state.owed_dumps import Entries, Waits

log = logging.getLogger(__name__)


class OwedDumps:
    """What one term owes; the capture's loop owns it."""

    def __init__(self, config: Config, state: StateStore, records: Nodes, clock: Clock) -> None:
        self._config = config
        self._state = state
        self._records = records
        self._waits = Waits(clock)
        self._noticed: dict[str, int] = {}
        self._taken_up: set[str] = set()  # dumps that have failed, which the next manifest knows

    def nudge(self, tables: Iterable[str]) -> None:
        """These tables have changed: what has kept them from being dumped may be gone."""
        if tables := set(tables):
            self._waits.nudge(tables & owed_dumps.read(self._records).keys())

    def forget_paid(self, marks: Iterable[LogMark]) -> None:
        """Dumps have ended in the log: of a whole table that one brings all which began after we knew of the debt."""
        if not (whole := [m for m in marks if is_full(m)]):
            return
        entries = owed_dumps.read(self._records)
        paid = [m.table for m in whole if m.table in entries and self._pays(m, entries[m.table].asked)]
        owed_dumps.forget(self._records, paid)

    def _pays(self, mark: LogMark, dump: str | None) -> bool:
        """Whether the end of a dump pays what its table is owed; `dump`: the one that was requested for it."""
        return mark.dump == dump or (mark.since or 0) >= self._noticed.get(mark.table, float("inf"))

    def _take_failed(self) -> None:
        """Dumps of the system's that have failed: what they were to bring is owed. Raises StateError."""
        for dump in failed_dumps.read(self._state):
            status = dump_store.find_dump(self._state, dump)
            if status is not None and status.state not in dump_records.OVER:
                continue  # its end is recorded in a moment, or by who finds it without one
            if status is not None and dump not in self._taken_up:
                faults = {t.table: t.error for t in status.tasks if t.error is not None and t.is_whole}
                faults |= {refusal.table: refusal.reason for refusal in status.refused}
                owed_dumps.record_failures(self._records, dump, faults)
            self._taken_up.add(dump)

    def forget_taken_up(self) -> None:
        """A manifest carries what was taken up."""
        failed_dumps.forget(self._state, self._taken_up)
        self._taken_up = set()

    def request_due(self, passes_over: Callable[[str], bool], *, offset: int) -> set[str]:
        """Requests what is due; returns its tables. `passes_over`: tables whose dump is requested later, such as those
        that are stopped; `offset`: the newest one.

        Raises what the state store raises.
        """
        self._take_failed()
        entries = owed_dumps.read(self._records)
        self._waits.begin(entries)
        if not entries:
            return set()
        self._noticed = {table: self._noticed.get(table, offset) for table in entries}
        self._look_at_asked({table: e.asked for table, e in entries.items() if e.asked is not None})
        due = [table for table in self._waits.due(entries) if not passes_over(table)]
        if not due:
            return set()
        # A dump that somebody else has requested pays the debt as well.
        under_way = whole_tables(self._state)
        return self._request(entries, [table for table in due if table not in under_way])

    def _request(self, entries: Entries, tables: list[str]) -> set[str]:
        # Before the request: if that fails, the next one is a while away all the same.
        self._waits.restart(tables)
        try:
            requested = dump_requests.request_dumps(self._config, WHOLE, tables, state=self._state)
        except SourceError as error:  # the log continues without
            requested = RequestedDumps(refused=dict.fromkeys(tables, " ".join(str(error).split())))
        owed_dumps.record_requests(self._records, dict(requested.dumps))
        owed_dumps.record_failures(self._records, "", requested.refused)
        self._waits.nudge(requested.locked)
        owed_dumps.record_failures(self._records, "", dict.fromkeys(requested.keyless, owed_dumps.KEYLESS))
        owed_dumps.forget(self._records, requested.gone)
        for table, dump in requested.dumps.items():
            log.warning("%s is dumped again, as dump %s: %s", table, dump, entries[table].why)
        return set(requested.dumps)

    def _look_at_asked(self, dumps: dict[str, str]) -> None:
        """What became of dumps that were requested again: one that is done, or that somebody has cancelled, is no
        longer owed; one that is gone was of another state store.
        """
        for table, dump in dumps.items():
            status = dump_store.find_dump(self._state, dump)
            if status is None:
                owed_dumps.record_requests(self._records, {table: None})
            elif status.state in dump_records.OVER:
                failed = {t.table: t.error for t in status.tasks if t.table == table and t.error is not None}
                if failed:
                    owed_dumps.record_failures(self._records, dump, failed)
                else:
                    owed_dumps.forget(self._records, [table])


def whole_tables(state: StateStore) -> set[str]:
    """Tables of which a dump of all rows is requested, or under way."""
    return {
        table
        for dump in dump_store.list_unfinished_dumps(state)
        for table in dump.open_tables
        if dump.reads_whole(table)
    }
