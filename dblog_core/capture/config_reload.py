"""A configuration that changes while its capture runs: what may change, and what the tables in force were before.

    the file changes -> `Watch.look`: read, compared, checked -> the capture begins a term with it, under its lease
    a table is made, takes another's name, or loses a partition
                     -> `Newcomers.look`: where the log does not say so, the term takes it in (`healing.shown_tables`)
    a term begins    -> `find_new_tables`: which tables the term before did not read -> a dump of each -> `put_in_force`

The manifest carries what was in force last (`table_records`), and of a source that shows the log of chosen tables
alone (PostgreSQL's publication) which those were (`shown`: `identities`). So it makes no difference whether the file
has changed under a running capture, while none ran, or whether a standby with another file takes over. The dump is
filed before the manifest: a crash between the two at worst dumps twice.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from dblog_core.capture.healing.shown_tables import NewTables
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError, DblogError, PublicationIncomplete
from dblog_core.interfaces import Clock, Nodes, Source, StateStore
from dblog_core.model import table_identity, table_names
from dblog_core.state import rule_acceptances, stopped_tables
from dblog_core.state.settings_in_force import LiveSettings, read_shown, with_live_settings

log = logging.getLogger(__name__)

LOOK = 1.0  # seconds between two looks at the file
AGAIN = 10.0  # seconds after which a change that the source did not allow is tried again: it may be mended there
NEWCOMERS = 10.0  # seconds between two looks for tables that were made meanwhile


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Where the configuration comes from; `load` reads it whole, and raises ConfigError."""

    path: Path
    load: Callable[[Path], Config]


Value = TypeVar("Value")


class Handover(Generic[Value]):
    """One value that a thread hands to another, the newest: nothing that is put meanwhile is lost with one that is
    taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: Value | None = None

    @property
    def is_empty(self) -> bool:
        return self._value is None

    def put(self, value: Value) -> None:
        """Hands over the value, in place of one that nobody has taken."""
        with self._lock:
            self._value = value

    def put_if_empty(self, value: Value) -> None:
        """Hands over the value, unless there is one, which is newer."""
        with self._lock:
            if self._value is None:
                self._value = value

    def take(self) -> Value | None:
        """The value, once."""
        with self._lock:
            value = self._value
            self._value = None
        return value


MakeReady = Callable[[Config], frozenset[str]]
"""Has the source show the log of a configuration's tables; returns those that it cannot show yet, since somebody keeps
them locked. Raises DblogError where the source cannot be captured with that configuration."""


class Watch:
    """Looks at the file, and says what to continue with; what it cannot continue with is warned about once."""

    def __init__(self, config: Config, file: ConfigFile, clock: Clock, *, ready: MakeReady) -> None:
        self._config = config
        self._file = file
        self._clock = clock
        self._ready = ready
        self._seen: bytes | None = None
        self._warned = ""
        self._again = float("-inf")

    def look(self) -> Config | None:
        """The configuration to continue with; None while nothing is to change."""
        try:
            content = self._content()
            if content == self._seen and self._clock.monotonic() < self._again:
                return None
            self._seen = content
            self._again = float("inf")
            changed = self._read_change()
            if changed is not None:
                self._ready(changed)
        except DblogError as error:
            self._again = self._clock.monotonic() + AGAIN
            self._warn(str(error))
            return None
        self._warned = ""
        if changed is not None:
            self._config = changed
        return changed

    def _content(self) -> bytes:
        try:
            return self._file.path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot be read: {error.strerror}", where=str(self._file.path), fix="put it back"
            ) from error

    def _read_change(self) -> Config | None:
        """What the file says now, where that may come into force. Raises ConfigError."""
        config = self._file.load(self._file.path)
        if with_live_settings(config, LiveSettings.of(self._config.source)) != self._config:
            raise ConfigError(
                "more has changed than tables, columns and keys of [source]",
                where=str(self._file.path),
                fix="start the capture again, or take the other changes back",
            )
        return None if config == self._config else config

    def _warn(self, text: str) -> None:
        if text != self._warned:
            log.warning("the changed configuration is not in force: %s", text)
        self._warned = text


@dataclass(frozen=True, slots=True)
class Found:
    """What `Newcomers` has found: tables that the running term takes in (None: none), or whether it takes another one:
    tables that were stopped are read again."""

    new: NewTables | None = None
    needs_term: bool = False


class Newcomers:
    """Looks for tables that were made under a pattern in force, of which the source does not show the log yet, for
    those that the source now refuses, and for stopped ones that are repaired.
    """

    def __init__(self, state: StateStore, clock: Clock, *, ready: MakeReady) -> None:
        self._state = state
        self._clock = clock
        self._ready = ready
        self._next = clock.monotonic() + NEWCOMERS
        self._warned = ""

    def look(self, config: Config, source: Source, records: Nodes) -> Found:
        """The tables that have come. Tables that are refused are stopped here. `records`: those of the term that
        follows the log."""
        if self._clock.monotonic() < self._next:
            return Found()
        self._next = self._clock.monotonic() + NEWCOMERS
        try:
            mended = stopped_tables.look_again(records, source.list_refusals)
            mended |= bool(rule_acceptances.read(self._state))
            if mended:
                self._make_ready(config)
                return Found(needs_term=True)
            return Found(self._find_new(config, source, records))
        except DblogError as error:
            self._warn(str(error))
            return Found()

    def _find_new(self, config: Config, source: Source, records: Nodes) -> NewTables | None:
        before = read_shown(records)
        now = source.identities()
        if before is None or now is None:
            return None
        locked = frozenset[str]()
        if table_identity.find_other_tables(before, now):
            locked = self._make_ready(config)
            now = table_identity.leave_out(now, locked)
        if table_identity.entries_to_remember(now) <= before and not table_identity.find_other_tables(before, now):
            return None
        others = table_identity.find_other_tables(before, now)
        schemas = [schema for schema in source.tables() if str(schema.table) in others] if others else []
        return NewTables(
            frozenset(before),
            now,
            tuple(schema.table for schema in schemas if schema.key),
            tuple(schema.table for schema in schemas if not schema.key),
        )

    def _make_ready(self, config: Config) -> frozenset[str]:
        """Has the source show what it can; returns the tables that it cannot show yet, of which it warns."""
        try:
            locked = self._ready(config)
        except PublicationIncomplete as error:
            self._warn(str(error))
            return error.tables
        if locked:
            self._warn(_explain_locked(locked))
        else:
            self._warned = ""
        return locked

    def _warn(self, text: str) -> None:
        if text != self._warned:
            log.warning("some tables are not captured: %s", text)
        self._warned = text


def _explain_locked(tables: frozenset[str]) -> str:
    return f"somebody has locked {table_names.some(sorted(tables))}"
