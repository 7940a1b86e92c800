"""Tables whose copies are not right: the leader stops them, or requests dumps that heal them.

What the log asks for is done before the manifest that goes past the place. A crash between the two must not lose it,
and to do it twice does no harm. The leader looks at the source's catalogue from time to time.
"""

from __future__ import annotations

import logging

from dblog_core.capture.follow_ups import UnloggedChange
from dblog_core.capture.healing import dump_requests, logged_rows, new_tables, owed_dump_requests
from dblog_core.capture.healing.doubts import Doubts
from dblog_core.capture.healing.dump_requests import RequestedDumps
from dblog_core.capture.healing.unlogged_rewrites import Stamps
from dblog_core.capture.sequencer import Sequencer
from dblog_core.capture.term_parts import Parts
from dblog_core.dumps import dump_records, dump_store
from dblog_core.dumps.dump_records import DumpState
from dblog_core.dumps.requests import SHAPES, WHOLE
from dblog_core.errors import UnknownLogEvent
from dblog_core.model import position_spec, table_names
from dblog_core.model.events import Transaction
from dblog_core.model.schema import TableName
from dblog_core.staging.manifest import Manifest
from dblog_core.state import owed_dumps, recent_errors, stopped_tables
from dblog_core.state.stopped_tables import RepairSeenBy, StoppedTable

log = logging.getLogger(__name__)

REST_SECONDS = 10.0
"""Between two dumps of a table that statements change without row events."""
_CHANGED_MEANWHILE = "rows came or went without row events while it was dumped"
STAMPS_SECONDS = 5.0
"""Between two looks for rows that were changed and no log says so."""


class BrokenTables:
    """Of one term; the capture's loop owns it."""

    def __init__(self, parts: Parts, sequencer: Sequencer, head: Manifest) -> None:
        self._config = parts.config
        self._staging = parts.staging
        self._state = parts.state
        self._records = parts.records
        self._source = parts.source
        self._clock = parts.clock
        self._sequencer = sequencer
        self._owed = owed_dump_requests.OwedDumps(parts.config, parts.state, parts.records, parts.clock)
        self._stamps = Stamps(parts.records)
        self._doubts = Doubts(sequencer.logged_rows)
        self._head = head
        self._stamped_at = float("-inf")
        self._unlogged_count = 0
        self._dumped_at: dict[str, float] = {}
        self._last_offset: int | None = None  # that was read as the last look at the stamps began
        self._stamped_offset: int | None = None  # the same, of what is published

    def request_dumps(self) -> None:
        """Requests dumps of tables whose rows came or went without row events, and of those of which nobody knows
        whether their copies are whole. Records which the log has stopped."""
        self._stop_unreadable()
        follow_ups = self._sequencer.tables.follow_ups
        self._owed.nudge(follow_ups.take_altered())
        unproven = follow_ups.take_unproven()
        reshaped = sorted(map(str, follow_ups.take_reshaped()))
        windows = dump_requests.request_dumps(self._config, SHAPES, reshaped, state=self._state)
        if windows.locked:  # a dump shows the shape too
            self._owe(windows)
        unlogged = follow_ups.take_unlogged()
        if unlogged is not None:
            self._tell_unlogged(unlogged)
        self._dump_rewritten(follow_ups.take_rewritten(), frozenset() if unlogged is None else unlogged.tables)
        self._dump_unproven(unproven)

    def take_sealed(self, manifest: Manifest) -> None:
        """Before the manifest is published, which carries what is known of tables behind it."""
        self._owed.forget_paid(manifest.marks)
        self._save_stamps()

    def take_published(self, manifest: Manifest) -> None:
        """After the manifest."""
        self._owed.forget_taken_up()
        self._head = manifest

    def look(self) -> None:
        """Looks at what others have recorded, at the source's stamps, and at dumps that are owed."""
        self._look_at_stopped()
        self.look_at_stamps()
        leaves_out = self._sequencer.tables.leaves_out
        offset = self._sequencer.last_offset
        requested = self._owed.request_due(lambda table: leaves_out(table) or self._rests(table), offset=offset)
        self._dumped_at |= dict.fromkeys(requested, self._clock.monotonic())

    def look_at_stamps(self) -> None:
        """Has tables dumped whose rows now differ from what the log says."""
        now = self._clock.monotonic()
        offset = self._sequencer.last_offset  # before the look: up to here rows are older
        if now - self._stamped_at < STAMPS_SECONDS or (stamps := self._source.stamps()) is None:
            return
        self._stamped_at = now
        for name in (changed := self._stamps.look(stamps)):
            log.warning("%s, or its publication, was altered in a way that no log shows: it is dumped", name)
            self._sequencer.record_rewrite(TableName.parse(name))
        self._doubts.add(self._stamps.before, stamps, self._find_last_look())
        self._doubts.look(self._source.moment)
        self._last_offset = offset
        self._stamped_offset = self._head.last_offset
        self.settle_doubts()
        stopped_tables.add_left_out(self._records, self._stamps.left_out)
        self._owed.nudge([*changed, *self._stamps.reshaped])
        for name in self._stamps.reshaped:
            self._sequencer.tables.record_reshape(TableName.parse(name))
        # Otherwise the manifest with the dumps that they ask for carries them.
        if not changed and not self._sequencer.dirty:
            self._save_stamps()

    def settle_doubts(self) -> None:
        """Has tables dumped of which the log does not prove that rows mean what the catalogue says now."""
        due, stale = self._doubts.settle(lambda end: self._source.has_passed(self._sequencer.position, end))
        for name in due:
            log.warning(
                "%s was altered, and rows that were logged meanwhile may say something else: it is dumped", name
            )
            self._sequencer.record_rewrite(TableName.parse(name))
        for name in stale:
            self._sequencer.tables.distrust_rows(TableName.parse(name))

    def _find_last_look(self) -> int | None:
        """The last offset that was read as the look before this one began; None where nobody knows."""
        if self._last_offset is None:
            since = self._stamps.read_offset()
            if since is not None:
                tables = logged_rows.find_tables_since(self._staging, self._head, since)
                self._sequencer.logged_rows.know_earlier(tables)
            return since
        return self._last_offset

    def _save_stamps(self) -> None:
        offset = None if self._stamped_offset is None else self._doubts.earliest(self._stamped_offset)
        self._stamps.save(self._doubts.stamps_before, offset)

    def _dump_rewritten(self, rewritten: dict[TableName, Transaction], by_statement: frozenset[str]) -> None:
        """Requests dumps of tables that only a dump can tell the rows of. One that is requested and has not begun to
        read a table brings these rows too; after one that has begun, another is owed. So changes that come all the time
        cost one dump after the other, and those `by_statement` one in a while."""
        dumps, being_read = self._find_requested_dumps(set(map(str, rewritten)))
        being_read |= {table for table in by_statement.intersection(map(str, rewritten)) if self._rests(table)}
        being_read -= dumps.keys()
        others = [str(table) for table in rewritten if str(table) not in dumps.keys() | being_read]
        requested = dump_requests.request_dumps(self._config, WHOLE, others, state=self._state)
        if requested.left_out:
            log.warning("rows came or went without row events, and no dump can bring them: %s", requested.reasons)
            # They wait until the catalogue shows that they can be dumped.
            stopped_tables.owe(self._records, requested.left_out)
        for table, since in rewritten.items():
            dump = (dumps | requested.dumps).get(str(table))
            if dump is not None:
                stopped_tables.forget(self._records, [str(table)])
            if dump is not None or str(table) in requested.refused.keys() | being_read:
                self._sequencer.heal(table, dump, since)
        self._dumped_at |= dict.fromkeys(requested.dumps, self._clock.monotonic())
        owed = owed_dumps.read(self._records)
        owed_dumps.record_failures(self._records, "", dict.fromkeys(being_read - owed.keys(), _CHANGED_MEANWHILE))
        self._owed.nudge(being_read)
        self._owe(requested)

    def _rests(self, table: str) -> bool:
        """Whether a dump of the table was requested a moment ago: statements often come in numbers."""
        return self._clock.monotonic() - self._dumped_at.get(table, float("-inf")) < REST_SECONDS

    def _find_requested_dumps(self, tables: set[str]) -> tuple[dict[str, str], set[str]]:
        """Of the dumps that the system has requested of whole tables among these: those that have not begun to read
        them, by table; and the tables that others have begun to read."""
        waiting: dict[str, str] = {}
        being_read: set[str] = set()
        if not tables:
            return waiting, being_read
        begun = {(task.dump, progress.table) for task, progress in self._sequencer.dumps.progress().items()}
        stopped = stopped_tables.read(self._records).keys()
        for dump in dump_store.list_unfinished_dumps(self._state, requested_by=(dump_records.SYSTEM,)):
            if dump.state is DumpState.PAUSED:
                continue
            for table in tables.intersection(dump.open_tables) - stopped:
                if not dump.reads_whole(table):
                    continue
                if (dump.id, table) in begun:
                    being_read.add(table)
                else:
                    waiting[table] = dump.id
        return waiting, being_read - waiting.keys()

    def _tell_unlogged(self, unlogged: UnloggedChange) -> None:
        change = unlogged.change
        error = UnknownLogEvent(f"{change.what}; dumped: {table_names.some(sorted(unlogged.tables))}", fix=change.fix)
        recent_errors.record(self._state, "capture", error, self._clock.time())
        self._unlogged_count += 1
        if self._unlogged_count.bit_count() == 1:  # the 1st, 2nd, 4th, 8th, …: there may be one in each segment
            log.warning("%s: %s", unlogged.place, error)

    def _stop_unreadable(self) -> None:
        for name, fault in self._sequencer.tables.take_unreadable().items():
            log.warning("%s stops alone, its rows are passed over: %s\n  fix: %s", name, fault.why, fault.fix)
            stopped_tables.add_by_log(self._records, name, fault)
            stopped = StoppedTable(fault.why, fault.fix, RepairSeenBy.LOG)
            new_tables.give_up_stopped(self._state, {name: stopped})

    def _dump_unproven(self, tables: dict[TableName, Transaction]) -> None:
        """Requests dumps of tables that have come since all were dumped at the start, where they may have had rows
        before their log begins here."""
        if not tables or self._config.source.start != position_spec.INITIAL:
            return
        dumped = owed_dump_requests.whole_tables(self._state) | owed_dumps.read(self._records).keys()
        undumped = {str(table): at for table, at in tables.items() if str(table) not in dumped}
        requested = dump_requests.request_dumps(self._config, WHOLE, list(undumped), state=self._state)
        self._owe(requested)
        for table, dump in requested.dumps.items():
            log.info("%s may have had rows before its first change: it is dumped", table)
            self._sequencer.heal(TableName.parse(table), dump, undumped[table])

    def _owe(self, requested: RequestedDumps) -> None:
        owed_dumps.record_failures(self._records, "", requested.refused)
        self._owed.nudge(requested.locked)

    def _look_at_stopped(self) -> None:
        """Passes over what the source's catalogue has refused meanwhile; ends dumps of what is passed over, also those
        that were requested before anybody could know."""
        stopped = stopped_tables.read(self._records)
        refused = {name: e for name, e in stopped.items() if e.by == RepairSeenBy.SOURCE}
        for name in self._sequencer.tables.stop(refused):
            log.warning("%s stops alone, its rows are passed over: %s", name, refused[name].why)
        passed_over = {name: e for name, e in stopped.items() if self._sequencer.tables.leaves_out(name)}
        new_tables.give_up_stopped(self._state, passed_over)
