"""Keys of rows with a value that nobody knows: kept until a dump, requested by the merge itself, has brought them.

A key is recorded before the commit that leaves its row out, and forgotten when the lake has it or it is deleted; a
crash in between at worst asks for a dump twice. A dump that ended without bringing a key (the row changed at that very
moment, or it was cancelled) is asked for again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import orjson

from dblog_core.config.settings import Config
from dblog_core.errors import DblogError, LakeError
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_from_json, key_text
from spark_jobs.merging.merge_records import Records

_DIRECTORY = "withheld"
_PER_REQUEST = 5_000
_AGAIN_SECONDS = 30.0  # between two requests for the same table where dumps end without bringing its keys


class Dumps(Protocol):
    """How the merge asks for dumps."""

    def submit(self, table: str, keys: list[Any]) -> str:
        """Requests a dump of JSON keys and returns its id."""

    def is_over(self, dump: str) -> bool:
        """Whether the dump has ended, whichever way."""


class ControlDumps:
    """Dumps through the state store."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def submit(self, table: str, keys: list[Any]) -> str:
        from dblog_core.dumps.filing import submit
        from dblog_core.dumps.requests import DumpRequest

        return submit(self._config, DumpRequest(tables=(table,), keys=tuple(keys)), requested_by="system")

    def is_over(self, dump: str) -> bool:
        from contextlib import closing

        from dblog_core.dumps.dump_store import is_dump_over
        from dblog_core.wiring import open_state

        with closing(open_state(self._config)) as state:
            return is_dump_over(state, dump)


class Withheld:
    """LAKE/_dblog/withheld/EPOCH.json: per table, each key as JSON text with the id of its dump, or None.

    Each merger writes a file of its own, so that one that wakes up late overwrites nothing of its successor's.
    """

    def __init__(self, records: Records, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._records = records
        self._check: Callable[[], None] = lambda: None
        self._file = ""
        self._monotonic = monotonic
        self._lock = threading.Lock()  # tables merge in threads
        self._keys: dict[str, dict[str, str | None]] = {}
        self._requested_at: dict[str, float] = {}

    def load(self, epoch: int, check: Callable[[], None]) -> None:
        """Continues from the newest file, as merger `epoch`; `check` raises LeaseLost once there is another one."""
        self._check = check
        self._file = _name(epoch)
        earlier = sorted(name for name in (self._records.directory / _DIRECTORY).names() if name < f"{epoch:012d}")
        newest = f"{_DIRECTORY}/{earlier[-1]}" if earlier else "withheld.json"  # the name before there were epochs
        self._keys = self._records.read(newest) or {}
        self._records.write(self._file, self._keys)  # even if empty: what an older merger still writes is out of date
        for name in earlier:
            (self._records.directory / _DIRECTORY / name).remove()

    def keys(self, table: str, schema: TableSchema) -> list[Key]:
        """The keys that the table waits for."""
        return [key_from_json(orjson.loads(text), schema) for text in self._keys.get(table, {})]

    def waits(self, table: str) -> bool:
        return bool(self._keys.get(table))

    def count(self, table: str) -> int:
        return len(self._keys.get(table, {}))

    def add(self, table: str, keys: Iterable[Key]) -> None:
        """Records keys, durably."""
        texts = {key_text(key): None for key in keys}
        if texts.keys() - self._keys.get(table, {}).keys():
            self._save(table, {**texts, **self._keys.get(table, {})})

    def forget(self, table: str, keys: Iterable[Key]) -> None:
        """The lake has these keys now, or they are deleted."""
        settled_keys = {key_text(key) for key in keys}
        if settled_keys & self._keys.get(table, {}).keys():
            self._save(table, {text: dump for text, dump in self._keys[table].items() if text not in settled_keys})

    def _save(self, table: str, keys: dict[str, str | None]) -> None:
        with self._lock:
            self._keys[table] = keys
            self._keys = {name: waiting for name, waiting in self._keys.items() if waiting}
            self._check()
            self._records.write(self._file, self._keys)

    def find_ended(self, dumps: Dumps) -> set[str]:
        """The dumps that keys wait for and that have ended: all they bring is staged."""
        return {
            d for d in {d for keys in self._keys.values() for d in keys.values()} if d is not None and dumps.is_over(d)
        }

    def request_dumps(self, dumps: Dumps, *, ended: set[str], but_for: Collection[str] = ()) -> None:
        """Requests what no running dump brings; `ended`: those whose rows have all been merged since; `but_for`: tables
        that a full dump is on its way for."""
        for table, keys in list(self._keys.items()):
            if table in but_for:
                continue
            texts = [text for text, dump in keys.items() if dump is None]
            if (repeated := [text for text, dump in keys.items() if dump in ended]) and self._may_repeat(table):
                texts += repeated
            for i in range(0, len(texts), _PER_REQUEST):
                some = texts[i : i + _PER_REQUEST]
                self._requested_at[table] = self._monotonic()
                self._save(table, {**self._keys[table], **dict.fromkeys(some, self._submit(dumps, table, some))})

    def _may_repeat(self, table: str) -> bool:
        requested_at = self._requested_at.get(table)
        return requested_at is None or self._monotonic() - requested_at >= _AGAIN_SECONDS

    def _submit(self, dumps: Dumps, table: str, texts: list[str]) -> str:
        try:
            return dumps.submit(table, [orjson.loads(text) for text in texts])
        except DblogError as error:
            raise LakeError(
                f"{len(texts)} rows are withheld, and their dump cannot be requested: {error.message}",
                where=table,
                fix=error.fix or "merge again when the source and the state store can be reached",
            ) from error


def _name(epoch: int) -> str:
    return f"{_DIRECTORY}/{epoch:012d}.json"
