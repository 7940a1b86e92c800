"""What of the configuration the capture goes by, in the table records, and what is new in another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import orjson

from dblog_core.config.settings import Config
from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.interfaces import Json, Nodes, Problem
from dblog_core.model import table_identity, table_patterns
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.rows.column_rules import key_digest

NODE = "tables"
SHOWN_NODE = "shown"


@dataclass(frozen=True, slots=True)
class RulesInForce:
    """The rules for the columns of one table, as `[source.columns]` has them.

    `others`: rules of another version, which this one does not know. No rules of this version equal such ones.
    """

    exclude: tuple[str, ...] = ()
    mask: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    staged_as: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: ColumnRules) -> Self:
        return cls(rules.exclude, rules.mask, rules.hash, dict(rules.staged_as))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """A rule that an earlier version did not know is not there, and is empty."""
        lists = {name: tuple(data.get(name, ())) for name in ("exclude", "mask", "hash")}
        others = {name: value for name, value in data.items() if name not in lists and name != "staged_as"}
        return cls(**lists, staged_as=data.get("staged_as", {}), others=others)

    def to_json(self) -> Json:
        lists = {"exclude": list(self.exclude), "mask": list(self.mask), "hash": list(self.hash)}
        return {**lists, "staged_as": dict(self.staged_as), **self.others}


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """What of the source may change while a capture runs: patterns of tables, and by table the rules for its columns,
    and its key.

    `hash_key`: digest of the key that hashes have; None: they have none.
    """

    tables: list[str]
    columns: dict[str, RulesInForce]
    keys: dict[str, list[str]]
    hash_key: str | None = None

    @classmethod
    def of(cls, source: SourceConfig) -> Self:
        return cls(
            tables=list(source.tables),
            columns={table: RulesInForce.of(rules) for table, rules in source.columns.items()},
            keys={table: list(key) for table, key in source.keys.items()},
            hash_key=key_digest(source.hash_key.get_secret_value()) or None,
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        columns = {table: RulesInForce.from_json(rules) for table, rules in data.get("columns", {}).items()}
        return cls(data["tables"], columns, data.get("keys", {}), data.get("hash_key"))

    def to_json(self) -> Json:
        hash_key = {"hash_key": self.hash_key} if self.hash_key else {}
        return {**self.to_source_json(), **hash_key}

    def to_source_json(self) -> Json:
        """The settings by their names in `[source]`, which has no digest."""
        columns = {table: rules.to_json() for table, rules in self.columns.items()}
        return {"tables": self.tables, "columns": columns, "keys": self.keys}


def with_live_settings(config: Config, settings: LiveSettings) -> Config:
    """The configuration with these settings. Raises pydantic's ValidationError where they are none."""
    values = settings.to_source_json()
    read = SourceConfig.model_validate({"name": "x", "kind": config.source.kind, "database": "x", **values})
    source = config.source.model_copy(update={name: getattr(read, name) for name in values})
    return config.model_copy(update={"source": source})


def read_in_force(records: Nodes) -> LiveSettings | None:
    """The settings that the last term began with; None where there was none."""
    entry = records.get(NODE)
    return None if entry is None else LiveSettings.from_json(orjson.loads(entry.data))


def put_in_force(records: Nodes, settings: LiveSettings) -> None:
    """Remembers the settings that a term begins with."""
    _put(records, NODE, settings.to_json())


def read_shown(records: Nodes) -> set[str] | None:
    """The tables whose log the source showed to the last term (`identities`); None where nothing is known of that."""
    entry = records.get(SHOWN_NODE)
    return None if entry is None else set(orjson.loads(entry.data))


def put_shown(records: Nodes, tables: Iterable[str]) -> None:
    """Remembers the tables whose log a term is shown."""
    _put(records, SHOWN_NODE, sorted(table_identity.entries_to_remember(tables)))


def _put(records: Nodes, node: str, value: object) -> None:
    data = orjson.dumps(value)
    entry = records.get(node)
    if entry is None:
        records.create(node, data)
    elif entry.data != data:
        records.update(node, data, entry.version)


def find_new_tables(before: LiveSettings, source: SourceConfig, tables: Iterable[TableSchema]) -> list[TableSchema]:
    """Those of the source's `tables` of which the log was not read as it is now: new ones, and those whose key or
    column rules have changed."""
    return [t for t in tables if is_new(t.table, before, source)]


def is_new(table: TableName, before: LiveSettings, source: SourceConfig) -> bool:
    """Whether the log of a table was read in another way than now."""
    name = str(table)
    now = LiveSettings.of(source)
    if before.columns.get(name) != now.columns.get(name) or before.keys.get(name) != now.keys.get(name):
        return True
    return not _has_same_hash_key(before, now, name) or not table_patterns.matches(table, before.tables)


def stops_alone(problem: Problem, before: LiveSettings | None, source: SourceConfig) -> bool:
    """Whether it stops tables that were captured so far, and no other; or its last table has left a pattern; or it
    stops dumps alone. What is newly asked for has to be right."""
    if before is not None and problem.pattern in before.tables:
        return True
    tables = problem.tables or ((problem.table,) if problem.table else ())
    if before is None or not (tables or problem.of_dumps):
        return False
    return not any(is_new(TableName.parse(table), before, source) for table in tables)


def has_same_rules(records: Nodes, source: SourceConfig, table: str) -> bool:
    """Whether the column rules in force for a table are those of a configuration; also where none are in force yet."""
    settings = read_in_force(records)
    if settings is None:
        return True
    now = LiveSettings.of(source)
    return settings.columns.get(table) == now.columns.get(table) and _has_same_hash_key(settings, now, table)


def _has_same_hash_key(before: LiveSettings, now: LiveSettings, table: str) -> bool:
    """Whether the hashes of a table's columns are keyed alike; so also where it has none."""
    rules = now.columns.get(table)
    return rules is None or not rules.hash or before.hash_key == now.hash_key


def is_captured(table: str, settings: LiveSettings) -> bool:
    """Whether the log of a table is read under these settings."""
    return table_patterns.matches(TableName.parse(table), settings.tables)
