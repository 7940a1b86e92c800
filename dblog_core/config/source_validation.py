"""What is wrong with `[source]`: its kind, its start, and entries for single tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from dblog_core.config.connection_validation import FEWEST_SECRET_CHARACTERS, RANDOM_TEXT, check_authority_of_postgres
from dblog_core.config.faults import Fault, Place
from dblog_core.config.fields import Unset
from dblog_core.config.raw_config import RawConfig
from dblog_core.model import position_spec, table_names, table_patterns

_POSTGRES_ONLY = ("slot", "publication", "plugin", "read_replica")
_MYSQL_ONLY = ("server_id", "zero_dates")
_IN_CONNECTION = ("host", "port", "user", "password")


def check_source(raw: RawConfig) -> Iterator[Fault]:
    """What does not fit the kind of database; its connection, its start, and the list of its tables."""
    source = raw.section("source")
    kind = source.get("kind")
    foreign = {"postgres": _MYSQL_ONLY, "mysql": _POSTGRES_ONLY, "mariadb": _POSTGRES_ONLY}.get(str(kind), ())
    for key in foreign:
        if key in source:
            yield Fault(("source", key), f"has no meaning for kind = {kind}", "remove it")
    if source.get("airflow_connection"):
        for key in _IN_CONNECTION:
            if key in source:
                yield Fault(("source", key), "is in airflow_connection too", "remove one of the two")
    yield from _check_start(raw.text("source", "start"), str(kind))
    if kind == "postgres":
        yield from check_authority_of_postgres(("source",), source)
    for i, pattern in enumerate(tables := raw.texts(source.get("tables"))):
        if pattern in tables[:i]:
            yield Fault(("source", "tables", i), "stands there twice", "remove one")


def _check_start(start: str | None, kind: str) -> Iterator[Fault]:
    if start in (None, position_spec.LATEST, position_spec.INITIAL) or kind not in position_spec.KINDS:
        return
    try:
        position_spec.parse(start, kind)
    except ValueError as error:
        yield Fault(("source", "start"), str(error), 'correct it, or use "latest", "initial" or "earliest"')


def check_columns(raw: RawConfig) -> Iterator[Fault]:
    """A column has one rule at most, in an entry of a table that is captured."""
    captured = raw.texts(raw.section("source").get("tables"))
    for table, rules in raw.section("source", "columns").items():
        place = ("source", "columns", table)
        yield from _check_pattern(place, table)
        yield from check_is_captured(place, table, captured)
        if not isinstance(rules, Mapping):
            continue
        seen: dict[str, str] = {}
        for rule in ("exclude", "mask", "hash"):
            for i, column in enumerate(raw.texts(rules.get(rule))):
                if column in seen:
                    yield Fault((*place, rule, i), f"is under {seen[column]} too", "a column can have one rule")
                seen[column] = rule
        for column in raw.section("source", "columns", table, "staged_as"):
            if column in seen:
                yield Fault((*place, "staged_as", column), f"is under {seen[column]} too", "a column can have one rule")


def check_keys(raw: RawConfig) -> Iterator[Fault]:
    """A key names columns of a table that is captured, once each, and no rule changes them."""
    captured = raw.texts(raw.section("source").get("tables"))
    for table, key in raw.section("source", "keys").items():
        place = ("source", "keys", table)
        yield from _check_pattern(place, table)
        yield from check_is_captured(place, table, captured)
        if key == []:
            yield Fault(place, "names no column", "name the table's unique, never-null columns")
        rules = raw.section("source", "columns", table)
        for i, column in enumerate(columns := raw.texts(key)):
            if column in columns[:i]:
                yield Fault((*place, i), "stands there twice", "remove one")
            for rule in ("exclude", "mask", "hash"):
                if column in raw.texts(rules.get(rule)):
                    yield _key_rule_fault(table, i, rule)
            if column in raw.section("source", "columns", table, "staged_as"):
                yield _key_rule_fault(table, i, "staged_as")


def _key_rule_fault(table: str, entry: int, rule: str) -> Fault:
    return Fault(
        ("source", "keys", table, entry),
        f"is a key column, and under {rule}",
        "the key as it is identifies rows: choose another key, or remove the rule",
    )


def check_hash_key(raw: RawConfig) -> Iterator[Fault]:
    """The key cannot be guessed."""
    key = raw.text("source", "hash_key")
    if key is not None and not isinstance(key, Unset) and len(key) < FEWEST_SECRET_CHARACTERS:
        what = f"is shorter than {FEWEST_SECRET_CHARACTERS} characters: anybody who sees hashes could guess it"
        yield Fault(("source", "hash_key"), what, RANDOM_TEXT)


def _check_pattern(place: Place, table: str) -> Iterator[Fault]:
    """An entry is for one table: as a pattern it would be taken for a name, and meet none."""
    if set(table) & {"*", "?"}:
        yield Fault(place, "is a pattern, and an entry is for one table", "write an entry for each table by its name")


def check_is_captured(place: Place, table: str, captured: Iterable[str]) -> Iterator[Fault]:
    """A rule that nothing captured meets is a slip of the pen, and would leave what it hides in the open."""
    if re.match(table_names.FORM, table) and captured and not table_patterns.match_text(table, captured):
        yield Fault(place, "is no table of this capture", "no pattern of [source] tables matches it")
