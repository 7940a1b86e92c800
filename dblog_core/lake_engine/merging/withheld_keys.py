"""Keys of rows with an unknown value: kept until a dump, requested by the merge itself, has brought them.

A key is recorded before the commit that leaves its row out, and forgotten when the lake has it or it is deleted; a
crash in between at worst asks for a dump twice. A dump that ended without bringing a key (the row changed at that very
moment, or it was cancelled) is asked for again. So is one that failed, after waits that double.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_store
from dblog_core.dumps.dump_records import OVER, DumpState
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import DblogError, LakeError, LeaseLost, RequestError
from dblog_core.lake_engine.merging.merge_records import Records
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_from_json, key_text
from dblog_core.wiring import open_state

_DIRECTORY = "withheld"
_KEYS_PER_REQUEST = 5_000
_BYTES_PER_REQUEST = 256 << 10  # of keys as JSON: a node of the state store holds them, with what else it says
_AGAIN_SECONDS = 30.0  # between two requests for the same table where dumps end without bringing its keys
_FAILED_AGAIN_SECONDS = 60.0  # after the request of a dump that failed; doubled each time
_FAILED_AGAIN_AT_MOST_SECONDS = 6 * 3600.0
_PLAN_SECONDS = 60.0  # for which a lake task waits until its dump is planned
_POLL_SECONDS = 0.2
_NOT_PLANNED = "no process with access to the source has planned the dump that brings its rows within a minute"
_HOW_TO_PLAN = "start the capture, or run `dblog work`, and do this again"


@dataclass(frozen=True, slots=True)
class DumpEnd:
    """How a dump has ended. `requested_at`: seconds UTC; None: its record is removed."""

    failed: bool
    requested_at: float | None


class Dumps(Protocol):
    """How the merge asks for dumps: another process, which has the source, carries them out."""

    def submit(self, table: str, keys: list[Any]) -> str:
        """Files a dump of JSON keys, or of the whole table where there are none, and returns its id."""

    def await_plan(self, dump: str, check: Callable[[], None]) -> None:
        """Waits until a process with the source has checked and planned the dump. `check` is called meanwhile.

        Raises LakeError where it is refused, or where none does so within a minute: it is cancelled then.
        """

    def find_end(self, dump: str) -> DumpEnd | None:
        """How the dump has ended; None: it has not."""


class StoredDumps:
    """Dumps through the state store."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def submit(self, table: str, keys: list[Any]) -> str:
        with closing(open_state(self._config)) as state:
            return dump_store.file_deferred(state, self._config.dump, table, keys)

    def await_plan(self, dump: str, check: Callable[[], None]) -> None:
        deadline = time.monotonic() + _PLAN_SECONDS
        with closing(open_state(self._config)) as state:
            while (status := dump_store.find_dump(state, dump)) is not None and status.deferred is not None:
                if status.state in OVER:
                    break
                check()
                if time.monotonic() >= deadline:
                    with contextlib.suppress(RequestError):  # it has ended right now
                        control.cancel(state, dump)
                    raise LakeError(_NOT_PLANNED, where=status.tables[0], fix=_HOW_TO_PLAN)
                time.sleep(_POLL_SECONDS)
        if status is None or status.state in (DumpState.FAILED, DumpState.CANCELLED):
            raise _refusal_error(dump, status)

    def find_end(self, dump: str) -> DumpEnd | None:
        with closing(open_state(self._config)) as state:
            if not dump_store.is_dump_over(state, dump):
                return None
            status = dump_store.find_dump(state, dump)
        if status is None:
            return DumpEnd(failed=False, requested_at=None)
        requested_at = dt.datetime.fromisoformat(status.requested_at).timestamp()
        return DumpEnd(status.state == DumpState.FAILED, requested_at)


def _refusal_error(dump: str, status: DumpStatus | None) -> LakeError:
    if status is None or not status.refused:
        return LakeError(f"dump {dump} was cancelled before it was planned", fix="ask again")
    refusal = status.refused[0]
    return LakeError(refusal.reason, where=refusal.table, fix=refusal.fix)


class Withheld:
    """LAKE/_dblog/withheld/EPOCH.json: "tables": per table, each key as JSON text with the id of its dump, or None;
    "failures": per table, how many of its dumps have failed in a row.

    Each merger writes a file of its own, so that one that wakes up late overwrites nothing of its successor's.
    """

    def __init__(
        self,
        records: Records,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._records = records
        self._now = now
        self._check: Callable[[], None] = lambda: None
        self._file = ""
        self._monotonic = monotonic
        self._lock = threading.Lock()  # tables merge in threads
        self._keys: dict[str, dict[str, str | None]] = {}
        self._failures: dict[str, int] = {}
        self._requested_at: dict[str, float] = {}

    def load(self, epoch: int, check: Callable[[], None]) -> None:
        """Continues from the newest file, as merger `epoch`; `check` raises LeaseLost once there is another one."""
        self._check = check
        self._file = _name(epoch)
        earlier = sorted(name for name in (self._records.directory / _DIRECTORY).names() if name < f"{epoch:012d}")
        newest = f"{_DIRECTORY}/{earlier[-1]}" if earlier else "withheld.json"  # the name before there were epochs
        data = self._records.read(newest) or {}
        # An earlier version wrote the tables alone. No table's name is without a dot.
        self._keys = data.get("tables", data)
        self._failures = data.get("failures", {})
        self._write()  # even if empty: what an older merger still writes is out of date
        for name in earlier:
            (self._records.directory / _DIRECTORY / name).remove()

    def keys(self, table: str, schema: TableSchema) -> list[Key]:
        """The keys that the table waits for."""
        return [_key_of_text(text, schema) for text in self._keys.get(table, {})]

    def waits(self, table: str) -> bool:
        return bool(self._keys.get(table))

    def count(self, table: str) -> int:
        return len(self._keys.get(table, {}))

    def add(self, table: str, keys: Iterable[Key]) -> None:
        """Records keys, durably."""
        texts = {key_text(key): None for key in keys}
        if texts.keys() - self._keys.get(table, {}).keys():
            self._save(table, {**texts, **self._keys.get(table, {})})

    def forget(self, table: str, keys: Iterable[Key], schema: TableSchema) -> None:
        """The lake has these keys now, or they are deleted. `schema`: the table's, in which a part of the key may have
        a wider type, and so another text, than when the key was recorded."""
        if not (settled_texts := {key_text(key) for key in keys}):
            return
        waiting = self._keys.get(table, {})
        settled = {text for text in waiting if key_text(_key_of_text(text, schema)) in settled_texts}
        if settled:
            self._save(table, {text: dump for text, dump in waiting.items() if text not in settled})

    def forget_all(self, table: str) -> None:
        """A full dump brings whatever the table waits for, also where its key is another one since."""
        if self.waits(table):
            self._save(table, {})

    def _save(self, table: str, keys: dict[str, str | None]) -> None:
        with self._lock:
            self._keys[table] = keys
            self._keys = {name: waiting for name, waiting in self._keys.items() if waiting}
            self._failures = {name: number for name, number in self._failures.items() if name in self._keys}
            self._check()
            self._write()

    def _write(self) -> None:
        self._records.write(self._file, {"tables": self._keys, "failures": self._failures})

    def find_ended(self, dumps: Dumps) -> dict[str, DumpEnd]:
        """The dumps that keys wait for and that have ended: all they bring is staged."""
        awaited = {dump for keys in self._keys.values() for dump in keys.values() if dump is not None}
        ends = {dump: dumps.find_end(dump) for dump in awaited}
        return {dump: end for dump, end in ends.items() if end is not None}

    def request_dumps(
        self, dumps: Dumps, *, ended: Mapping[str, DumpEnd], but_for: Collection[str] = ()
    ) -> list[LakeError]:
        """Requests what no running dump brings; `ended`: those whose rows have all been merged since; `but_for`: tables
        that a full dump is on its way for.

        Returns why dumps of some tables could not be requested: their keys wait for the next call. Raises LeaseLost.
        """
        faults: list[LakeError] = []
        for table, keys in list(self._keys.items()):
            if table in but_for:
                continue
            texts = [text for text, dump in keys.items() if dump is None]
            texts += self._find_repeated(table, keys, ended)
            try:
                for some in _portions(texts):
                    self._requested_at[table] = self._monotonic()
                    dump = dumps.submit(table, [orjson.loads(text) for text in some])
                    self._save(table, {**self._keys[table], **dict.fromkeys(some, dump)})
            except LeaseLost:
                raise
            except DblogError as error:
                faults.append(_no_request_error(table, len(texts), error))
        return faults

    def _find_repeated(self, table: str, keys: dict[str, str | None], ended: Mapping[str, DumpEnd]) -> list[str]:
        """Keys whose dumps have ended without bringing them, and that may be asked for again now."""
        ends = {text: ended[dump] for text, dump in keys.items() if dump is not None and dump in ended}
        if not ends:
            return []
        failed_at = [end.requested_at or 0.0 for end in ends.values() if end.failed]
        if not failed_at:
            self._failures.pop(table, None)
            return list(ends) if self._may_repeat(table) else []
        failures = self._failures.get(table, 0)
        wait = min(_FAILED_AGAIN_SECONDS * 2**failures, _FAILED_AGAIN_AT_MOST_SECONDS)
        if self._now() - max(failed_at) < wait:
            return []
        self._failures[table] = failures + 1
        return list(ends)

    def _may_repeat(self, table: str) -> bool:
        requested_at = self._requested_at.get(table)
        return requested_at is None or self._monotonic() - requested_at >= _AGAIN_SECONDS


def _key_of_text(text: str, schema: TableSchema) -> Key:
    return key_from_json(orjson.loads(text), schema)


def _portions(texts: Sequence[str]) -> Iterator[list[str]]:
    """Keys as JSON texts, in parts that a node of the state store can hold."""
    portion: list[str] = []
    size = 0
    for text in texts:
        length = len(text.encode())
        if portion and (len(portion) == _KEYS_PER_REQUEST or size + length > _BYTES_PER_REQUEST):
            yield portion
            portion = []
            size = 0
        portion.append(text)
        size += length
    if portion:
        yield portion


def _no_request_error(table: str, rows: int, error: DblogError) -> LakeError:
    return LakeError(
        f"{rows} rows are withheld, and their dump cannot be requested: {error.message}",
        where=table,
        fix=error.fix or "the next merge tries again",
    )


def _name(epoch: int) -> str:
    return f"{_DIRECTORY}/{epoch:012d}.json"
