"""The desk of the capture's leader: carries out what lies in the inbox, in the order in which it came.

A dump is filed in three steps, each safe to be found half done by the next process, also beside a slow one:

1. its tasks are written under a fresh id; nobody sees them without its request;
2. the signal's node changes from waiting to filing, with that id and the request: of two only one can do that;
3. the request is created, as that node has it, and the node says done.

So a signal files one dump, and never half of one; tasks of who came second in step 2 stay unseen.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace

from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_records, dump_store, filing, task_store
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import DblogError, LeaseLost, RequestError, VersionConflict
from dblog_core.interfaces import Clock, StateStore
from dblog_core.model import table_patterns
from dblog_core.model.schema import TableName
from dblog_core.signals import inbox, message
from dblog_core.signals.message import Order, Verb
from dblog_core.signals.signal_record import SignalRecord, SignalState

log = logging.getLogger(__name__)


class SignalProcessor:
    """Signals of one source, carried out one after the other."""

    def __init__(self, config: Config, state: StateStore, clock: Clock) -> None:
        self._config = config
        self._state = state
        self._clock = clock
        self._over_at_us: dict[str, int] = {}  # names of signals that are over, and when they came

    def carry_out_waiting(self) -> None:
        """Carries out what waits. Raises what may pass: the same signal is then the next one again."""
        names = inbox.node_names(self._state)
        # Only names that the store still has, so that the map stays bounded.
        self._over_at_us = {name: at for name in names if (at := self._over_at_us.get(name)) is not None}
        for record in inbox.list_signals(self._state, [name for name in names if name not in self._over_at_us]):
            if not record.state.is_over:
                self._carry_out(record)
            self._over_at_us[inbox.node_name(record.id)] = record.at_us
        self._forget_old_signals()

    def _carry_out(self, record: SignalRecord) -> None:
        """Until it is over. Raises what may pass, and VersionConflict where another continues with it."""
        try:
            self._carry_out_by_type(record)
        except DblogError as error:
            # A dump that no entry of the state store can hold is refused: it must not keep all others waiting.
            if error.transient or isinstance(error, (VersionConflict, LeaseLost)):
                raise
            log.warning("the signal %s is refused: %s", record.id, error)
            after = replace(record, state=SignalState.REFUSED, error=error.reason, fix=error.fix)
            self._change_signal(record, after)

    def _carry_out_by_type(self, record: SignalRecord) -> None:
        if record.state is SignalState.FILING:
            self._file_dump(record)
            return
        request = message.translate(record.message, kind=self._config.source.kind)
        if isinstance(request, DumpRequest):
            self._request_dump(record, request)
        else:
            what = carry_out_order(self._state, request, record.id)
            self._change_signal(record, replace(record, state=SignalState.DONE, what=what))

    def _request_dump(self, record: SignalRecord, request: DumpRequest) -> None:
        def new_id() -> str:
            return f"{inbox.slug(record.id)}-{secrets.token_hex(3)}"

        draft = filing.make_draft(
            self._config, request, requested_by=dump_records.SIGNAL, clock=self._clock, new_id=new_id
        )
        # Step 1: nobody sees the tasks until the request below exists.
        task_store.write_tasks(self._state, draft.id, draft.tasks)
        dump_request = replace(draft.record, signal=record.id)
        after = replace(record, state=SignalState.FILING, dump=draft.id, request=dump_request)
        self._change_signal(record, after)
        self._file_dump(after)

    def _file_dump(self, record: SignalRecord) -> None:
        assert record.dump is not None and record.request is not None  # step 2 has written both
        try:
            dump_store.file_dump(self._state, record.dump, record.request)
        except VersionConflict:
            log.info("the dump of signal %s was filed before", record.id)
        self._change_signal(record, replace(record, state=SignalState.DONE, what="requested", request=None))

    def _change_signal(self, before: SignalRecord, after: SignalRecord) -> None:
        if not inbox.change_signal(self._state, before, after):
            raise VersionConflict("another capture carries out this signal", where=f"signal {before.id}")

    def _forget_old_signals(self) -> None:
        """Ids of long ago, and of less long ago where there are very many."""
        now = int(self._clock.time() * 1e6)
        by_age = sorted(self._over_at_us, key=lambda name: (self._over_at_us[name], name), reverse=True)
        forgotten = [name for name in by_age[inbox.MOST :] if self._over_at_us[name] < now - inbox.SURELY_KEPT_US]
        forgotten += [name for name in by_age[: inbox.MOST] if self._over_at_us[name] < now - inbox.KEPT_US]
        for name in forgotten:
            if (record := inbox.read_signal(self._state, name)) is not None:
                inbox.forget_signal(self._state, record)


def carry_out_order(state: StateStore, order: Order, signal_id: str) -> str:
    """Pauses, resumes or stops the dumps that are meant, and tells which those were.

    Never dumps that the system has requested: a copy is not right before their end. Raises RequestError where one dump
    is named and there is none.
    """
    dump_ids = [
        status.id
        for status in dump_store.list_unfinished_dumps(state)
        if _is_meant(status, order) and _order_dump(state, status, order, signal_id)
    ]
    if order.dump is not None and not dump_ids:
        raise RequestError(
            f"no unfinished dump is, or was requested by, {order.dump!r}", fix="`dblog dumps` lists them"
        )
    return f"{order.verb.value}: {', '.join(dump_ids) or 'no dump'}"


def _is_meant(status: DumpStatus, order: Order) -> bool:
    if status.requested_by == dump_records.SYSTEM or order.dump not in (None, status.id, status.signal):
        return False
    return order.tables is None or bool(_tables(status, order.tables))


def _tables(status: DumpStatus, patterns: tuple[str, ...]) -> set[str]:
    """The tables of the dump that are meant and not over."""
    return {t.table for t in status.tasks if not t.over and table_patterns.matches(TableName.parse(t.table), patterns)}


def _order_dump(state: StateStore, status: DumpStatus, order: Order, signal_id: str) -> bool:
    """Whether the dump has not ended before."""
    try:
        match order.verb:
            case Verb.PAUSE:
                control.pause(state, status.id)
            case Verb.RESUME:
                control.resume(state, status.id)
            case Verb.STOP if order.tables is not None:
                control.stop_tables(state, status.id, _tables(status, order.tables), f"stopped by signal {signal_id}")
            case Verb.STOP:
                control.cancel(state, status.id)
    except RequestError as error:
        if dump_store.is_dump_over(state, status.id):
            log.info("%s", error)
            return False
        raise
    return True
