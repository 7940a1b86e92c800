"""The capture: waits for the lease, then turns the source's log into published segments, one loop, until it is asked to
stop.

There is one way back from every fault that may pass (a broken connection, a full disk, a lost lease): what is not
published is thrown away, and the log is read again from the last manifest. Nothing is acknowledged before it is
published, so nothing is lost; nothing is published twice, since a manifest's number can be taken once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.config_reload import ConfigFile, Found, Handover, Newcomers
from dblog_core.capture.healing.shown_tables import NewTables
from dblog_core.capture.stop_condition import AtPosition, Goal, find_goal
from dblog_core.capture.term import CaptureOutcome, run_term
from dblog_core.capture.term_parts import HOUSEKEEPING_SECONDS, Parts
from dblog_core.clock import SystemClock, spawn_thread
from dblog_core.config.settings import Config
from dblog_core.errors import DblogError, LeaseLost, SegmentTaken, SourceRefused, SourceUnavailable
from dblog_core.interfaces import Clock, Lease, Source, Spawn
from dblog_core.model.position_spec import Place
from dblog_core.notifications.channels import Receiver
from dblog_core.staging import Staging, table_records
from dblog_core.staging.manifest import Manifest
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import recent_errors, settings_in_force
from dblog_core.state.capture_status import CaptureStatus
from dblog_core.state.lease_holder import CAPTURE, holder_name
from dblog_core.state.settings_in_force import LiveSettings

__all__ = ["CAPTURE", "CaptureOutcome", "CaptureStatus", "holder_name", "refuse", "run_capture"]

log = logging.getLogger(__name__)

BACKOFF = (0.5, 1.0, 2.0, 5.0)  # seconds between attempts after a fault that may pass
PART = "capture"  # whose errors they are
CLOSING = 5.0  # seconds after a change of configuration in which the source may still be busy with the last term

OnStatus = Callable[[CaptureStatus], None]


def run_capture(
    config: Config,
    *,
    stop: threading.Event,
    slice_seconds: float | None = None,
    until_current: bool = False,
    until: Place | None = None,
    fresh_start: bool = False,
    file: ConfigFile | None = None,
    on_status: OnStatus | None = None,
    receivers: Sequence[Receiver] = (),
    clock: Clock | None = None,
    spawn: Spawn = spawn_thread,
) -> CaptureOutcome:
    """Captures until `stop` is set, the slice is over, or all is staged that was committed at the start
    (`until_current`) or up to a place (`until`).

    `fresh_start`: give up the log between the last manifest and the source's present end, and request a dump of all
    tables, which brings what changed in between and removes what was deleted. `file`: looked at about once a second;
    what may change while a capture runs (`reload`) comes into force by a new term, under the same lease.
    `receivers`: of notices, beside those that the configuration names.

    Raises SourceRefused with every finding of the preflight, and whatever stops a capture for good (UnknownLogEvent,
    LogPositionLost, ValueOutOfRange, CorruptSegment). Faults that may pass are waited out.
    """
    if stop.is_set():  # before the process has come so far: it has done nothing, and nothing is to be checked
        return CaptureOutcome.STOPPED
    source = wiring.open_source(config.source)
    staging = wiring.open_staging(config)
    state = wiring.open_state(config)
    clock = clock or SystemClock()
    try:
        refuse(source, config, staging)
        parts = Parts(config, source, staging, state, clock, spawn, tuple(receivers))
        capture = _Capture(parts, stop, slice_seconds, on_status, fresh_start)
        with capture.watching(file):
            return capture.run(until_current=until_current, until=until)
    except DblogError as error:
        recent_errors.record(state, PART, error, clock.time())
        raise
    finally:
        state.close()


def refuse(source: Source, config: Config, staging: Staging) -> None:
    """Raises SourceRefused with every problem that prevents a correct capture; a table that was captured so far stops
    alone, and who drops the last one of a pattern stops no other."""
    fatal = [p for p in source.check() if p.fatal]
    before = read_settings(staging) if fatal else None
    problems = [p for p in fatal if not settings_in_force.stops_alone(p, before, config.source)]
    if problems:
        lines = [f"  - {p.what}\n    fix: {p.fix}" for p in problems]
        raise SourceRefused("\n".join([f"{len(problems)} problem(s) prevent a correct capture", *lines]))
    for pattern in filter(None, (problem.pattern for problem in fatal)):
        log.warning("no table fits %s any longer: all other tables are captured", pattern)


def read_settings(staging: Staging) -> LiveSettings | None:
    """The settings in force; None where there are none yet."""
    return settings_in_force.read_in_force(table_records.read_newest(staging, settings_in_force.NODE))


def _make_ready(config: Config, staging: Staging) -> frozenset[str]:
    """Raises DblogError unless the source can be captured with it; makes what is missing there. Returns the tables
    that somebody keeps locked, so that their log is not shown yet."""
    source = wiring.open_source(config.source)
    refuse(source, config, staging)
    return source.prepare()


class _Capture:
    """Standby and leader in turn."""

    def __init__(
        self,
        parts: Parts,
        stop: threading.Event,
        slice_seconds: float | None,
        on_status: OnStatus | None,
        fresh_start: bool,
    ) -> None:
        self._parts = parts
        self._stop = stop
        self._on_status = on_status
        self.fresh_start = fresh_start
        self.records: TableRecords | None = None
        self._ends = None if slice_seconds is None else parts.clock.monotonic() + slice_seconds
        self._goal: Goal | None = None
        self._arrival = CaptureOutcome.CURRENT
        self._faults = 0
        self._holder = holder_name()
        self._next = Handover[Parts]()  # what the next term works with
        self._new_tables = Handover[NewTables]()
        self._began_at: int | None = None  # the newest segment at the first look

    def run(self, *, until_current: bool, until: Place | None) -> CaptureOutcome:
        source = self._parts.source
        if until_current:
            # Before the wait for the lease: it means what is committed now, however long another capture leads.
            self._goal = AtPosition(source, source.current_position())
        elif until is not None:
            self._goal = find_goal(source, self._parts.clock, until)
            self._arrival = CaptureOutcome.REACHED
        while True:
            try:
                if (outcome := self._outcome_at_head()) is not None:
                    return outcome
                lease = self._parts.state.acquire(
                    CAPTURE, self._holder, ttl=self._parts.config.state.ttl, wait=HOUSEKEEPING_SECONDS
                )
                if lease is None:
                    self._stand_by()
                    continue
                try:
                    self._lead(lease)
                finally:
                    # A standby then takes over at once, and does not wait until the lease ends.
                    lease.release()
            except (SegmentTaken, LeaseLost) as error:
                # Nothing of the term counts that is not published; another capture continues after the last manifest.
                log.warning("no longer the leader: %s", error)
            except DblogError as error:
                self._recover(error)

    def outcome(self, position: str | None = None, commit_time: int | None = None) -> CaptureOutcome | None:
        """Why to end now; `position`: up to where all is published, with the time of the last transaction before it;
        None: that is inside a transaction, so no goal is reached."""
        if self._stop.is_set():
            return CaptureOutcome.STOPPED
        if self._ends is not None and self._parts.clock.monotonic() >= self._ends:
            return CaptureOutcome.SLICE_OVER
        is_at_goal = self._goal is not None and position is not None and self._goal.is_reached(position, commit_time)
        return self._arrival if is_at_goal else None

    def _outcome_at_head(self) -> CaptureOutcome | None:
        """The same by the newest segment, which any capture may have published."""
        if (outcome := self.outcome()) is not None or self._goal is None:
            return outcome
        head = self._parts.staging.head()
        return None if head is None or head.partial else self.outcome(head.position, head.commit_time)

    @contextmanager
    def watching(self, file: ConfigFile | None) -> Iterator[None]:
        """Looks at the file meanwhile, and for tables that are made."""
        if file is None:
            yield
            return
        over = threading.Event()
        clock = self._parts.clock
        ready = partial(_make_ready, staging=self._parts.staging.handle())
        watch = config_reload.Watch(self._parts.config, file, clock, ready=ready)
        newcomers = Newcomers(self._parts.state, clock, ready=ready)

        def look() -> None:
            while not clock.wait(over, config_reload.LOOK):
                if (config := watch.look()) is not None:
                    self._next.put(self._with(config))
                elif self._next.is_empty:
                    parts = self._parts
                    found = self._find_newcomers(newcomers, parts)
                    if found.needs_term:
                        self._next.put_if_empty(self._with(parts.config))
                    elif found.new is not None:
                        self._new_tables.put(found.new)

        watcher = self._parts.spawn("configuration", look)
        try:
            yield
        finally:
            over.set()
            watcher.join(timeout=self._parts.config.state.ttl)

    def _find_newcomers(self, newcomers: Newcomers, parts: Parts) -> Found:
        """Tables that were made meanwhile; while no term follows the log, the next one looks for them."""
        records = self.records
        return Found() if records is None else newcomers.look(parts.config, parts.source, records)

    def has_new_configuration(self) -> bool:
        """Whether another configuration should come into force."""
        return not self._next.is_empty

    def take_new_tables(self) -> NewTables | None:
        """Tables that the log shows since the last call."""
        return self._new_tables.take()

    def _lead(self, lease: Lease) -> None:
        """Terms under one lease, each with the configuration that is newest then."""
        clock = self._parts.clock
        closing = float("-inf")
        first = True
        while self._outcome_at_head() is None:
            self._take_next()
            self._keep_to_the_old_inside_a_transaction()
            try:
                run_term(self, self._parts, lease, first=first)
                first = False
                closing = clock.monotonic() + CLOSING
            except SourceUnavailable:
                # The server may not have noticed yet that the term before this one has closed its log.
                if clock.monotonic() >= closing or not lease.valid():
                    raise
                clock.wait(self._stop, 0.05)

    def _take_next(self) -> None:
        if (parts := self._next.take()) is not None:
            self._parts = parts

    def _keep_to_the_old_inside_a_transaction(self) -> None:
        """How many of its rows are staged was counted by the tables that were in force: so they stay until it ends."""
        head = self._parts.staging.head()
        if head is None or not head.partial or self.fresh_start:
            return
        # The settings of the term before, which may have been that of another process.
        before = read_settings(self._parts.staging)
        if before is not None and before != settings_in_force.LiveSettings.of(self._parts.config.source):
            old_config = settings_in_force.with_live_settings(self._parts.config, before)
            self._next.put_if_empty(self._parts)  # the file may have changed once more
            self._parts = self._with(old_config)

    def _with(self, config: Config) -> Parts:
        return replace(self._parts, config=config, source=wiring.open_source(config.source))

    def has_gone_on(self, head: Manifest) -> bool:
        """Whether something was published since the first look, which is remembered."""
        if self._began_at is None:
            self._began_at = head.segment
        return head.segment > self._began_at

    def look_first_at(self, head: Manifest) -> None:
        """From here on, only what is published after `head` counts as having gone on."""
        self._began_at = head.segment

    def healthy(self) -> None:
        """The leader has made progress: the next fault is a first one."""
        self._faults = 0

    def tell(self, status: CaptureStatus) -> None:
        if self._on_status is not None:
            self._on_status(status)

    def _stand_by(self) -> None:
        self._take_next()
        leader = self._parts.state.leader(CAPTURE)
        head = self._parts.staging.head()
        if head is not None:
            self.has_gone_on(head)
        self.tell(
            CaptureStatus(
                leading=False,
                epoch=leader.epoch if leader else None,
                segment=head.segment if head else 0,
                offset=head.last_offset if head else 0,
                position=head.log_position if head else "",
                lag_seconds=None,
                rows_per_second=0.0,
                windows=0,
                leader=leader.holder if leader else None,
            )
        )

    def _recover(self, error: DblogError) -> None:
        """Waits before the next attempt. Raises the error where another attempt cannot help."""
        if not error.transient:
            raise error
        delay = BACKOFF[min(self._faults, len(BACKOFF) - 1)]
        self._faults += 1
        log.warning("trying again in %.1f s: %s", delay, error)
        recent_errors.record(self._parts.state, PART, error, self._parts.clock.time())
        self.tell(CaptureStatus(False, None, 0, 0, "", None, 0.0, 0, None, str(error)))
        self._parts.clock.wait(self._stop, delay)
