"""Rows of a table with rules that come under a name without any."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.config.source import ColumnRules
from dblog_core.model import table_identity
from dblog_core.model.events import RowsMoved, SchemaSeen
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows.column_rules import Rules

RULED, KEPT, OTHER = (TableName("shop", name) for name in ("people", "kept", "other"))
HIDING = {"shop.people": ColumnRules(mask=("v",)), "shop.other": ColumnRules(staged_as={"n": "text"})}


def shape(table: TableName) -> TableSchema:
    return TableSchema(table, (Column("id", "int", pa.int32()), Column("v", "text", pa.string())), ("id",))


def is_stopped(rules: Rules, table: TableName) -> bool:
    return rules.misfit(shape(table)) is not None


def test_a_table_that_takes_over_rows_of_one_with_rules_needs_an_entry() -> None:
    rules = Rules(HIDING)
    assert not is_stopped(rules, KEPT)
    rules.inherited.follow([RowsMoved(0, 0, (RULED, KEPT), (KEPT,))])
    misfit = rules.misfit(shape(KEPT))
    assert misfit is not None and misfit.table == "shop.kept" and '[source.columns."shop.kept"]' in misfit.fix
    assert "is what shop.people was" in misfit.what and misfit.what.endswith("the rules there hide v")
    decided = Rules({**HIDING, "shop.kept": ColumnRules()})
    decided.inherited.follow([RowsMoved(0, 0, (RULED, KEPT), (KEPT,))])
    assert not is_stopped(decided, KEPT)


@pytest.mark.parametrize(
    "moved",
    [
        RowsMoved(0, 0, (RULED, KEPT), ()),
        RowsMoved(0, 0, (OTHER, KEPT), (KEPT,)),
        RowsMoved(0, 0, (TableName("shop", "PEOPLE"), KEPT), (KEPT,)),
    ],
    ids=["kept is gone", "nothing is hidden there", "another table on this server"],
)
def test_a_table_that_takes_over_no_hidden_rows_needs_none(moved: RowsMoved) -> None:
    rules = Rules(HIDING)
    rules.inherited.follow([moved])
    assert not is_stopped(rules, KEPT)


def test_where_the_server_does_not_mind_the_case_neither_do_rules() -> None:
    rules = Rules({"Shop.People": ColumnRules(exclude=("v",))})
    rules.inherited.follow([RowsMoved(0, 0, (RULED, KEPT), (KEPT,), any_case=True)])
    assert is_stopped(rules, TableName("shop", "Kept"))


def test_a_table_is_the_same_under_another_name_by_its_oid() -> None:
    rules = Rules(HIDING)
    rules.inherited.note_owners({7: "shop.people", 8: "shop.other", 9: "shop.kept"})
    rules.inherited.follow([SchemaSeen(0, 0, shape(KEPT), oid=9), SchemaSeen(0, 0, shape(OTHER), oid=8)])
    assert not is_stopped(rules, KEPT)
    # One takes the place of another: both oids have new names.
    rules.inherited.follow([SchemaSeen(0, 0, shape(RULED), oid=9), SchemaSeen(0, 0, shape(KEPT), oid=7)])
    assert is_stopped(rules, KEPT)
    late = TableName("shop", "late")
    rules.inherited.follow([SchemaSeen(0, 0, shape(late), oid=9)])
    assert is_stopped(rules, late)


def test_a_table_that_was_opened_by_an_entry_stays_so_under_its_next_name() -> None:
    rules = Rules({**HIDING, "shop.kept": ColumnRules()})
    rules.inherited.note_owners({7: "shop.people"})
    late = TableName("shop", "late")
    rules.inherited.follow([SchemaSeen(0, 0, shape(KEPT), oid=7), SchemaSeen(0, 0, shape(late), oid=7)])
    assert not is_stopped(rules, KEPT) and not is_stopped(rules, late)


def test_partitions_are_of_the_table_whose_rows_they_hold() -> None:
    entries = [
        table_identity.write_entry("shop.people", 7),
        table_identity.write_entry("shop.people", 7, 71),
        table_identity.write_entry("shop.people", 7, 72, brought_rows=True),
        "shop.of_an_older_version",
    ]
    assert table_identity.find_owners(entries) == dict.fromkeys((7, 71, 72), "shop.people")
