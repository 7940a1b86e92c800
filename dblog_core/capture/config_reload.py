"""A configuration that changes while its capture runs: what may change, and what the tables in force were before.

    the file changes -> `Watch.look`: read, compared, checked -> the capture begins a term with it, under its lease
    a table is made, takes another's name, or loses a partition
                     -> `Newcomers.look`: where the log does not tell of that, the capture begins a term
    a term begins    -> `taken_in`: which tables the one before did not read -> a dump of each -> `put_in_force`

The state store keeps what was in force last (node `tables`), and of a source that shows the log of chosen tables alone
(PostgreSQL's publication) which those were (node `shown`: `identities`). So it makes no difference whether the file has
changed under a running capture, while none ran, or whether a standby with another file takes over. The dump is filed
before the node: a crash between the two at worst dumps twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

from dblog_core.config.settings import Config, SourceConfig
from dblog_core.errors import ConfigError, DblogError
from dblog_core.interfaces import Clock, Json, Problem, Source, StateStore
from dblog_core.model import table_identity, table_patterns
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.rows.column_rules import key_digest
from dblog_core.state import stopped_tables

log = logging.getLogger(__name__)

LOOK = 1.0  # seconds between two looks at the file
AGAIN = 10.0  # seconds after which a change that the source did not allow is tried again: it may be mended there
NEWCOMERS = 10.0  # seconds between two looks for tables that were made meanwhile
_NODE = "tables"
_SHOWN = "shown"
_LIVE = ("tables", "columns", "keys")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """Where the configuration comes from; `load` reads it whole, and raises ConfigError."""

    path: Path
    load: Callable[[Path], Config]


# What is in force -----------------------------------------------------------------------------------------------------


def live(source: SourceConfig) -> Json:
    """What of the source may change while a capture runs, as JSON; and which key hashes have, by its digest."""
    given: Json = source.model_dump(mode="json", include=set(_LIVE))
    digest = key_digest(source.hash_key.get_secret_value())
    return {**given, "hash_key": digest} if digest else given


def with_live(config: Config, settings: Json) -> Config:
    """The configuration with these settings of `live`. Raises pydantic's ValidationError where they are none."""
    given = {name: settings[name] for name in _LIVE}
    read = SourceConfig.model_validate({"name": "x", "kind": config.source.kind, "database": "x", **given})
    source = config.source.model_copy(update={name: getattr(read, name) for name in _LIVE})
    return config.model_copy(update={"source": source})


def in_force(state: StateStore) -> Json | None:
    """The settings that the last term began with; None where there was none."""
    entry = state.get(_NODE)
    return None if entry is None else orjson.loads(entry.data)


def put_in_force(state: StateStore, settings: Json) -> None:
    """Remembers the settings that a term begins with. Raises VersionConflict where another capture does so too."""
    _put(state, _NODE, settings)


def shown(state: StateStore) -> set[str] | None:
    """The tables whose log the source showed to the last term (`identities`); None where nothing is known of that."""
    entry = state.get(_SHOWN)
    return None if entry is None else set(orjson.loads(entry.data))


def put_shown(state: StateStore, tables: Iterable[str]) -> None:
    """Remembers the tables whose log a term is shown. Raises VersionConflict where another capture does so too."""
    _put(state, _SHOWN, sorted(table_identity.remembered(tables)))


def _put(state: StateStore, node: str, value: object) -> None:
    data, entry = orjson.dumps(value), state.get(node)
    if entry is None:
        state.create(node, data)
    elif entry.data != data:
        state.update(node, data, entry.version)


def taken_in(before: Json, source: SourceConfig, tables: Iterable[TableSchema]) -> list[TableSchema]:
    """Those of the source's `tables` of which the log was not read as it is now: new ones, and those whose key or
    column rules have changed."""
    return [t for t in tables if is_new(t.table, before, source)]


def is_new(table: TableName, before: Json, source: SourceConfig) -> bool:
    """Whether the log of a table was not read as it is to be now."""
    name, now = str(table), live(source)
    changed = any(before[section].get(name) != now[section].get(name) for section in ("columns", "keys"))
    return changed or not _same_key(before, now, name) or not table_patterns.matches(table, before["tables"])


def stops_alone(problem: Problem, before: Json | None, source: SourceConfig) -> bool:
    """Whether it stops a table that was captured so far, and no other: what is newly asked for has to be right."""
    if problem.table is None or before is None:
        return False
    return not is_new(TableName.parse(problem.table), before, source)


def same_rules(state: StateStore, source: SourceConfig, table: str) -> bool:
    """Whether the column rules in force for a table are those of a configuration; also where none are in force yet."""
    settings = in_force(state)
    if settings is None:
        return True
    now = live(source)
    return bool(settings["columns"].get(table) == now["columns"].get(table)) and _same_key(settings, now, table)


def _same_key(before: Json, now: Json, table: str) -> bool:
    """Whether the hashes of a table's columns are keyed alike; so also where it has none."""
    hashed = now["columns"].get(table, {}).get("hash")
    return not hashed or before.get("hash_key") == now.get("hash_key")


def is_captured(table: str, settings: Json) -> bool:
    """Whether the log of a table is read under these settings."""
    return table_patterns.matches(TableName.parse(table), settings["tables"])


# Changes of the file --------------------------------------------------------------------------------------------------


class Watch:
    """Looks at the file, and says what to go on with; what it cannot go on with is warned about once."""

    def __init__(self, config: Config, file: ConfigFile, clock: Clock, *, ready: Callable[[Config], None]) -> None:
        """`ready`: raises DblogError where the source cannot be captured with a configuration, and prepares it."""
        self._config, self._file, self._clock, self._ready = config, file, clock, ready
        self._seen: bytes | None = None
        self._warned = ""
        self._again = float("-inf")

    def look(self) -> Config | None:
        """The configuration to go on with; None while nothing is to change."""
        try:
            seen = self._content()
            if seen == self._seen and self._clock.monotonic() < self._again:
                return None
            self._seen, self._again = seen, float("inf")
            changed = self._changed()
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

    def _changed(self) -> Config | None:
        """What the file says now, where that may come into force. Raises ConfigError."""
        found = self._file.load(self._file.path)
        if with_live(found, live(self._config.source)) != self._config:
            raise ConfigError(
                "more has changed than tables, columns and keys of [source]",
                where=str(self._file.path),
                fix="start the capture again, or take the other changes back",
            )
        return None if found == self._config else found

    def _warn(self, text: str) -> None:
        if text != self._warned:
            log.warning("the changed configuration is not in force: %s", text)
        self._warned = text


class Newcomers:
    """Looks for tables that were made under a pattern in force, of which the source does not show the log yet, for
    those that the source refuses by now, and for stopped ones that are mended."""

    def __init__(self, state: StateStore, clock: Clock, *, ready: Callable[[Config], None]) -> None:
        """`ready`: as that of `Watch`; it has the source show them."""
        self._state, self._clock, self._ready = state, clock, ready
        self._next = clock.monotonic() + NEWCOMERS
        self._warned = ""

    def look(self, config: Config, source: Source) -> bool:
        """Whether a new term is to take some of them in; those that are refused are stopped without one."""
        if self._clock.monotonic() < self._next:
            return False
        self._next = self._clock.monotonic() + NEWCOMERS
        try:
            mended = self._look_at_stopped(source)
            if not self._others(source) and not mended:
                return False
            self._ready(config)
        except DblogError as error:
            if str(error) != self._warned:
                log.warning("a new table is not captured yet: %s", error)
            self._warned = str(error)
            return False
        self._warned = ""
        return True

    def _look_at_stopped(self, source: Source) -> bool:
        """Notes what the source refuses; whether something that it has refused is mended."""
        refused = stopped_tables.by_source(source.refused())
        stopped_tables.change(self._state, lambda known: {**known, **refused})
        known = stopped_tables.read(self._state)
        return any(entry["by"] != stopped_tables.LOG and table not in refused for table, entry in known.items())

    def _others(self, source: Source) -> bool:
        known, now = shown(self._state), source.identities()
        if known is None or now is None:
            return False
        if table_identity.others(known, now):
            return True
        self._remember(known, now)
        return False

    def _remember(self, known: set[str], now: frozenset[str]) -> None:
        """New, empty partitions: when one of them goes, it is to be missed."""
        if more := table_identity.remembered(now) - known:
            put_shown(self._state, known | more)
