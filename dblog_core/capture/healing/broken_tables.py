"""Tables whose copies are not right: the leader stops them, or requests dumps that heal them.

What the log asks for is done before the manifest that goes past the place. A crash between the two must not lose it,
and to do it twice does no harm. The leader looks at the source's catalogue from time to time.
"""

from __future__ import annotations

import logging

from dblog_core.capture.healing import dump_requests, new_tables, owed_dump_requests
from dblog_core.capture.healing.dump_requests import RequestedDumps
from dblog_core.capture.healing.unlogged_rewrites import Stamps
from dblog_core.capture.sequencer import Sequencer
from dblog_core.capture.term_parts import Parts
from dblog_core.dumps.requests import SHAPES, WHOLE
from dblog_core.errors import LeaseLost, VersionConflict
from dblog_core.model import position_spec
from dblog_core.model.events import Transaction
from dblog_core.model.schema import TableName
from dblog_core.staging.manifest import Manifest
from dblog_core.state import owed_dumps, stopped_tables
from dblog_core.state.stopped_tables import RepairSeenBy, StoppedTable

log = logging.getLogger(__name__)

STAMPS_SECONDS = 5.0
"""Between two looks for rows that were changed and no log says so."""


class BrokenTables:
    """Of one term; the capture's loop owns it."""

    def __init__(self, parts: Parts, sequencer: Sequencer) -> None:
        self._config = parts.config
        self._state = parts.state
        self._source = parts.source
        self._clock = parts.clock
        self._sequencer = sequencer
        self._owed = owed_dump_requests.OwedDumps(parts.config, parts.state, parts.clock)
        self._stamps = Stamps(parts.state)
        self._stamped_at = float("-inf")
        self._healed: list[str] = []  # dumps of these are requested, and the next manifest says so

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
        rewritten = follow_ups.take_rewritten()
        requested = dump_requests.request_dumps(self._config, WHOLE, list(map(str, rewritten)), state=self._state)
        if requested.left_out:
            log.warning("rows came or went without row events, and no dump can bring them: %s", requested.reasons)
            # They wait until the catalogue shows that they can be dumped.
            stopped_tables.owe(self._state, requested.left_out)
        for table, since in rewritten.items():
            if (dump := requested.dumps.get(str(table))) is not None:
                self._healed.append(str(table))
                self._sequencer.heal(table, dump, since)
        self._owe(requested)
        self._dump_unproven(unproven)

    def take_published(self, manifest: Manifest) -> None:
        """After the manifest with their dumps: a crash in between has them dumped again."""
        if self._healed:
            stopped_tables.forget(self._state, self._healed)
            self._healed = []
        self._owed.forget_paid(manifest.marks)

    def look(self) -> None:
        """Looks at what others have recorded, at the source's stamps, and at dumps that are owed."""
        self._look_at_stopped()
        self.look_at_stamps()
        self._owed.request_due(self._sequencer.tables.leaves_out, offset=self._sequencer.last_offset)

    def look_at_stamps(self) -> None:
        """Has tables dumped whose rows now differ from what the log says."""
        now = self._clock.monotonic()
        if now - self._stamped_at < STAMPS_SECONDS or (stamps := self._source.stamps()) is None:
            return
        self._stamped_at = now
        for name in (changed := self._stamps.look(stamps)):
            log.warning("%s, or its publication, was altered in a way that no log shows: it is dumped", name)
            self._sequencer.record_rewrite(TableName.parse(name))
        stopped_tables.add_left_out(self._state, self._stamps.left_out)
        self._owed.nudge([*changed, *self._stamps.reshaped])
        for name in self._stamps.reshaped:
            self._sequencer.tables.record_reshape(TableName.parse(name))
        # Otherwise the stamps are saved once the manifest is published that has requested the dumps.
        if not changed and not self._sequencer.dirty:
            self.save_stamps()

    def save_stamps(self) -> None:
        """After the dumps that they ask for: a crash in between has them found again."""
        try:
            self._stamps.save()
        except VersionConflict as error:
            raise LeaseLost("another capture leads; this one stands by", where=self._config.state.url) from error

    def _stop_unreadable(self) -> None:
        for name, fault in self._sequencer.tables.take_unreadable().items():
            log.warning("%s stops alone, its rows are passed over: %s\n  fix: %s", name, fault.why, fault.fix)
            stopped_tables.add_by_log(self._state, name, fault)
            stopped = StoppedTable(fault.why, fault.fix, RepairSeenBy.LOG)
            new_tables.give_up_stopped(self._state, {name: stopped})

    def _dump_unproven(self, tables: dict[TableName, Transaction]) -> None:
        """Requests dumps of tables that have come since all were dumped at the start, where they may have had rows
        before their log begins here."""
        if not tables or self._config.source.start != position_spec.INITIAL:
            return
        dumped = owed_dump_requests.whole_tables(self._state) | owed_dumps.read(self._state).keys()
        undumped = {str(table): at for table, at in tables.items() if str(table) not in dumped}
        requested = dump_requests.request_dumps(self._config, WHOLE, list(undumped), state=self._state)
        self._owe(requested)
        for table, dump in requested.dumps.items():
            log.info("%s may have had rows before its first change: it is dumped", table)
            self._sequencer.heal(TableName.parse(table), dump, undumped[table])

    def _owe(self, requested: RequestedDumps) -> None:
        owed_dumps.record_failures(self._state, "", requested.refused)
        self._owed.nudge(requested.locked)

    def _look_at_stopped(self) -> None:
        """Passes over what the source's catalogue has refused meanwhile; ends dumps of what is passed over, also those
        that were requested before anybody could know."""
        stopped = stopped_tables.read(self._state)
        refused = {name: e for name, e in stopped.items() if e.by == RepairSeenBy.SOURCE}
        for name in self._sequencer.tables.stop(refused):
            log.warning("%s stops alone, its rows are passed over: %s", name, refused[name].why)
        passed_over = {name: e for name, e in stopped.items() if self._sequencer.tables.leaves_out(name)}
        new_tables.give_up_stopped(self._state, passed_over)
