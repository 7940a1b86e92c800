"""What a term finds at its start of tables that may hold rows of one with rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from pydantic import SecretStr

from dblog_core.capture.healing import unruled_tables
from dblog_core.capture.term_parts import Parts
from dblog_core.config.source import ColumnRules
from dblog_core.interfaces import Problem
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows import column_rule_faults
from dblog_core.state import settings_in_force, stopped_tables
from dblog_core.state.memory import MemoryState
from dblog_core.state.settings_in_force import LiveSettings, RulesInForce
from tests.unit.staged import manifest

HIDING = {"shop.people": ColumnRules(mask=("v",))}


def shape(name: str, *columns: str) -> TableSchema:
    return TableSchema(TableName("shop", name), tuple(Column(c, "text", pa.string()) for c in columns), columns[:1])


class Catalogue:
    """Of a source with these tables, and rules for others."""

    def __init__(self, tables: Sequence[TableSchema], rules: dict[str, ColumnRules]) -> None:
        self._tables, self._rules = tables, rules
        self.numbers: dict[str, dict[str, str]] | None = None

    def tables(self) -> tuple[TableSchema, ...]:
        return tuple(self._tables)

    def column_numbers(self) -> dict[str, dict[str, str]] | None:
        return self.numbers

    def list_refusals(self) -> tuple[Problem, ...]:
        return tuple(column_rule_faults.of_missing([str(t.table) for t in self._tables], self._rules))


def parts(*tables: TableSchema, rules: dict[str, ColumnRules] = HIDING) -> Parts:
    source = SimpleNamespace(columns=rules, tables=["shop.*"], keys={}, hash_key=SecretStr(""))
    made = SimpleNamespace(config=SimpleNamespace(source=source), source=Catalogue(tables, rules), state=MemoryState())
    return cast(Parts, made)


def find_stopped(of: Parts) -> set[str]:
    return set(stopped_tables.find_unruled(stopped_tables.read(of.state)))


def test_a_new_table_with_the_hidden_columns_of_a_missing_one_is_taken_for_it() -> None:
    term = parts(shape("kept", "id", "v"), shape("seen", "id", "v"), shape("plain", "id", "w"))
    unruled_tables.stop_unruled(term, replace(manifest(1, 1, 0), schemas={"shop.seen": "0" * 16}), None)
    assert find_stopped(term) == {"shop.kept"}


@pytest.mark.parametrize(
    ("tables", "rules"),
    [
        ((shape("people", "id", "v"), shape("kept", "id", "v")), HIDING),
        ((shape("kept", "id", "v"),), {**HIDING, "shop.kept": ColumnRules()}),
        ((shape("kept", "id", "v"),), {"shop.people": ColumnRules(staged_as={"v": "text"})}),
    ],
    ids=["the table with rules is there", "an entry", "rules that hide nothing"],
)
def test_other_new_tables_are_taken_in(tables: tuple[TableSchema, ...], rules: dict[str, ColumnRules]) -> None:
    term = parts(*tables, rules=rules)
    unruled_tables.stop_unruled(term, manifest(1, 1, 0), None)
    assert find_stopped(term) == set()


@pytest.mark.parametrize(
    ("now", "stopped"),
    [
        ({"shop.kept@7"}, {"shop.kept"}),
        ({"shop.people@8", "shop.kept@7"}, {"shop.kept"}),
        ({"shop.people@7", "shop.kept@8"}, set()),
        ({"shop.people@7", "shop.detached@71"}, {"shop.detached"}),
        ({"shop.people@7", "shop.other@9", "shop.other@9/71!"}, {"shop.other"}),
    ],
    ids=["renamed", "swapped", "another one", "a detached partition", "a partition of another table"],
)
def test_a_table_keeps_its_oid_under_another_name(now: set[str], stopped: set[str]) -> None:
    term = parts(shape("people", "id", "v"))
    settings_in_force.put_shown(term.state, {"shop.people@7", "shop.people@7/71"})
    unruled_tables.stop_unruled(term, manifest(1, 1, 0), frozenset(now))
    assert find_stopped(term) == stopped


def test_a_table_stays_stopped_until_it_has_other_rules_or_is_gone() -> None:
    before = LiveSettings(["shop.*"], {"shop.people": RulesInForce(mask=("v",))}, {})
    term = parts(shape("kept", "id", "v"))
    unruled_tables.stop_unruled(term, manifest(1, 1, 0), None)
    stopped = stopped_tables.read(term.state)
    assert unruled_tables.find_still_stopped(term, stopped, before) == stopped
    for mended in (parts(), parts(shape("kept", "id", "v"), rules={**HIDING, "shop.kept": ColumnRules()})):
        assert unruled_tables.find_still_stopped(mended, stopped, before) == {}


def test_a_column_that_gave_its_name_away_is_found_also_where_a_term_began_between_the_two_statements() -> None:
    term = parts(shape("people", "id", "v", "w"))
    catalogue = cast(Catalogue, term.source)
    for numbers in ({"id": "7/1", "v": "7/2", "w": "7/3"}, {"id": "7/1", "old_v": "7/2", "w": "7/3"}):
        catalogue.numbers = {"shop.people": numbers}
        unruled_tables.stop_unruled(term, manifest(1, 1, 0), frozenset())
        assert find_stopped(term) == set()
    catalogue.numbers = {"shop.people": {"id": "7/1", "old_v": "7/2", "v": "7/3"}}
    unruled_tables.stop_unruled(term, manifest(1, 1, 0), frozenset())
    assert find_stopped(term) == {"shop.people"}
