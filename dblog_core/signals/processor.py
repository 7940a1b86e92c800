"""The desk of the capture's leader: carries out what lies in the inbox, in the order in which it came.

A dump is filed in three steps, each safe to be found half done by whoever comes next, also beside another who is slow:

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
from dblog_core.dumps import control, dump_records, dump_store, filing
from dblog_core.dumps.dump_records import DumpRecord
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import DblogError, RequestError, StateError, VersionConflict
from dblog_core.interfaces import Clock, Json, StateStore
from dblog_core.model import table_patterns
from dblog_core.model.schema import TableName
from dblog_core.signals import inbox, message
from dblog_core.signals.message import Message, Said, Word

log = logging.getLogger(__name__)


class Desk:
    """Signals of one source, carried out one after the other."""

    def __init__(self, config: Config, state: StateStore, clock: Clock) -> None:
        self._config, self._state, self._clock = config, state, clock
        self._over: dict[str, int] = {}  # names of signals that are over, and when they came

    def look(self) -> None:
        """Carries out what waits. Raises what may pass: the same signal is then the next one again."""
        names = inbox.names(self._state)
        self._over = {name: at for name in names if (at := self._over.get(name)) is not None}
        for record in inbox.every(self._state, [name for name in names if name not in self._over]):
            if record["state"] not in inbox.OVER:
                self._carry_out(record)
            self._over[inbox.key(record["id"])] = record["at"]
        self._forget()

    def _carry_out(self, record: Json) -> None:
        """Until it is over. Raises what may pass, and VersionConflict where another goes on with it."""
        try:
            self._do(record)
        except StateError:
            raise
        except DblogError as error:
            if error.transient:
                raise
            log.warning("the signal %s is refused: %s", record["id"], error)
            self._change(record, state=inbox.REFUSED, error=error.reason, fix=error.fix)

    def _do(self, record: Json) -> None:
        if record["state"] == inbox.FILING:
            self._file(record)
            return
        asked = message.translated(Message(record["id"], record["type"], record["data"]), kind=self._config.source.kind)
        if isinstance(asked, DumpRequest):
            self._request(record, asked)
        else:
            what = say(self._state, asked, record["id"])
            self._change(record, state=inbox.DONE, what=what)

    def _request(self, record: Json, request: DumpRequest) -> None:
        def new_id() -> str:
            return f"{inbox.slug(record['id'])}-{secrets.token_hex(3)}"

        draft = filing.make_draft(
            self._config, request, requested_by=dump_records.SIGNAL, clock=self._clock, new_id=new_id
        )
        dump_store.write_tasks(self._state, draft.id, draft.tasks)
        filed = replace(draft.record, signal=record["id"]).to_json()
        self._file(self._change(record, state=inbox.FILING, dump=draft.id, request=filed))

    def _file(self, record: Json) -> None:
        try:
            dump_store.file_dump(self._state, record["dump"], DumpRecord.from_json(record["request"]))
        except VersionConflict:
            log.info("the dump of signal %s was filed before", record["id"])
        self._change(record, state=inbox.DONE, what="requested", request=None)

    def _change(self, record: Json, **changes: object) -> Json:
        if (after := inbox.change(self._state, record, changes)) is None:
            raise VersionConflict(
                "another capture carries it out", where=f"signal {record['id']}", fix="none: this one leaves it alone"
            )
        return after

    def _forget(self) -> None:
        """Ids of long ago, and of less long ago where there are very many."""
        now = int(self._clock.time() * 1e6)
        by_age = sorted(self._over, key=lambda name: (self._over[name], name), reverse=True)
        gone = [name for name in by_age[inbox.MOST :] if self._over[name] < now - inbox.SURELY_KEPT]
        gone += [name for name in by_age[: inbox.MOST] if self._over[name] < now - inbox.KEPT]
        for name in gone:
            if (record := inbox.read(self._state, name)) is not None:
                inbox.forget(self._state, record)


def say(state: StateStore, said: Said, signal_id: str) -> str:
    """Pauses, resumes or stops the dumps that are meant, and tells which those were.

    Never dumps that the system has requested: a copy is not right before their end. Raises RequestError where one dump
    is named and there is none.
    """
    met = [
        status.id
        for status in dump_store.list_unfinished_dumps(state)
        if _meant(status, said) and _say(state, status, said, signal_id)
    ]
    if said.dump is not None and not met:
        raise RequestError(f"no unfinished dump is, or was requested by, {said.dump!r}", fix="`dblog dumps` lists them")
    return f"{said.word.value}: {', '.join(met) or 'no dump'}"


def _meant(status: DumpStatus, said: Said) -> bool:
    if status.requested_by == dump_records.SYSTEM or said.dump not in (None, status.id, status.signal):
        return False
    return said.tables is None or bool(_tables(status, said.tables))


def _tables(status: DumpStatus, given: tuple[str, ...]) -> set[str]:
    """The tables of the dump that are meant and not over."""
    return {t.table for t in status.tasks if not t.over and table_patterns.matches(TableName.parse(t.table), given)}


def _say(state: StateStore, status: DumpStatus, said: Said, signal_id: str) -> bool:
    """Whether the dump has not ended before."""
    try:
        match said.word:
            case Word.PAUSE:
                control.pause(state, status.id)
            case Word.RESUME:
                control.resume(state, status.id)
            case Word.STOP if said.tables is not None:
                control.stop_tables(state, status.id, _tables(status, said.tables), f"stopped by signal {signal_id}")
            case Word.STOP:
                control.cancel(state, status.id)
    except RequestError as error:
        if dump_store.is_dump_over(state, status.id):
            log.info("%s", error)
            return False
        raise
    return True
