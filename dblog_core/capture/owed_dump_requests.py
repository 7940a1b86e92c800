"""Dumps that the system owes (`owed`), requested again by who leads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from dblog_core.capture import healing_dumps
from dblog_core.capture.healing_dumps import Asked
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, dump_store
from dblog_core.dumps.requests import WHOLE
from dblog_core.errors import SourceError
from dblog_core.interfaces import Clock, StateStore
from dblog_core.staging.manifest import LogMark, is_full
from dblog_core.state import owed_dumps
from dblog_core.state.owed_dumps import Entries, Waits

log = logging.getLogger(__name__)


class Again:
    """What one term owes; the capture's loop owns it."""

    def __init__(self, config: Config, state: StateStore, clock: Clock) -> None:
        self._config, self._state = config, state
        self._waits = Waits(clock)
        self._noticed: dict[str, int] = {}

    def altered(self, tables: Iterable[str]) -> None:
        """These tables are others by now: what has kept them from being dumped may be gone."""
        if tables := set(tables):
            self._waits.nudge(tables & owed_dumps.read(self._state).keys())

    def finished(self, marks: Iterable[LogMark]) -> None:
        """Dumps have ended in the log: of a whole table that one brings all which began after we knew of the debt."""
        if not (whole := [m for m in marks if is_full(m)]):
            return
        entries, never = owed_dumps.read(self._state), float("inf")
        found = [m for m in whole if m.table in entries]
        paid = [
            m for m in found if m.dump == entries[m.table].asked or (m.since or 0) >= self._noticed.get(m.table, never)
        ]
        owed_dumps.forget(self._state, [m.table for m in paid])

    def look(self, passes_over: Callable[[str], bool], *, offset: int) -> None:
        """Requests what is due. `passes_over`: tables that are stopped, whose dump is requested once they are mended;
        `offset`: the last one by now.

        Raises what the state store raises.
        """
        entries = owed_dumps.read(self._state)
        self._waits.begin(entries)
        if not entries:
            return
        self._noticed = {table: self._noticed.get(table, offset) for table in entries}
        self._look_at_asked({table: e.asked for table, e in entries.items() if e.asked is not None})
        due = [table for table in self._waits.due(entries) if not passes_over(table)]
        if not due:
            return
        under_way = whole_tables(self._state)
        self._request(entries, [table for table in due if table not in under_way])

    def _request(self, entries: Entries, tables: list[str]) -> None:
        self._waits.restart(tables)
        try:
            asked = healing_dumps.request(self._config, WHOLE, tables, state=self._state)
        except SourceError as error:  # the log goes on without
            asked = Asked(refused=dict.fromkeys(tables, " ".join(str(error).split())))
        owed_dumps.record_requests(self._state, dict(asked.dumps))
        owed_dumps.record_failures(self._state, "", asked.refused)
        owed_dumps.forget(self._state, [*asked.gone, *asked.keyless])
        for table, dump in asked.dumps.items():
            log.warning("%s is dumped again, as dump %s; it has failed: %s", table, dump, entries[table].why)

    def _look_at_asked(self, dumps: dict[str, str]) -> None:
        """What became of dumps that were requested again: one that is done, or that somebody has cancelled, is owed no
        more; one that is gone was of another state store."""
        for table, dump in dumps.items():
            status = dump_store.find_dump(self._state, dump)
            if status is None:
                owed_dumps.record_requests(self._state, {table: None})
            elif status.state in dump_records.OVER:
                failed = {t.table: t.error for t in status.tasks if t.table == table and t.error is not None}
                if failed:
                    owed_dumps.record_failures(self._state, dump, failed)
                else:
                    owed_dumps.forget(self._state, [table])


def whole_tables(state: StateStore) -> set[str]:
    """Tables of which a dump of all rows is requested, or under way."""
    return {
        task.table
        for dump in dump_store.list_unfinished_dumps(state)
        for task in dump.tasks
        if not task.over and task.is_whole
    }
