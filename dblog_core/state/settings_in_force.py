"""What of the configuration the capture goes by, in the state store, and what is new in another one."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from dblog_core.config.settings import Config, SourceConfig
from dblog_core.interfaces import Json, Problem, StateStore
from dblog_core.model import table_identity, table_patterns
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.rows.column_rules import key_digest

_NODE = "tables"
_SHOWN = "shown"
_LIVE = ("tables", "columns", "keys")


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
