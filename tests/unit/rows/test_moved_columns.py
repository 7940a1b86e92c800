"""Columns under a rule that get another name while another column takes theirs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dblog_core.config.source import ColumnRules
from dblog_core.model.events import Altered, Created, RowsMoved, SchemaSeen
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.model.schema_changes import Step
from dblog_core.rows.column_rules import Rules

PEOPLE = TableName("shop", "people")
AWAY, TAKEN = Step({"v": "old_v"}), Step({"w": "v"})


def shape(*columns: str) -> TableSchema:
    return TableSchema(PEOPLE, tuple(Column(c, "text", pa.string()) for c in columns), columns[:1])


def altered(step: Step | None, table: TableName = PEOPLE, *, any_case: bool = False) -> Altered:
    return Altered(0, 0, table, step, any_case)


SWAPPED = shape("id", "old_v", "v")


def rules(*, exclude: tuple[str, ...] = ("v",)) -> Rules:
    return Rules({"shop.people": ColumnRules(exclude=exclude)})


@pytest.mark.parametrize("steps", [(AWAY, TAKEN), (Step({"v": "old_v", "w": "v"}),), (AWAY, Step(nulls=("v",)))])
def test_a_rule_whose_column_was_renamed_does_not_hide_the_one_that_took_its_name(steps: tuple[Step, ...]) -> None:
    of_table = rules()
    of_table.follow([altered(step) for step in steps])
    misfit = of_table.misfit(SWAPPED)
    assert misfit is not None and of_table.lacks_rules(SWAPPED)
    assert "shop.people had in the column v is in old_v now" in misfit.what and "name old_v in the rules" in misfit.fix
    assert of_table.misfit(shape("id", "v", "w")) is None  # rows of before
    assert of_table.moved.find_taken(PEOPLE) == misfit


def test_statements_name_tables_and_columns_in_any_case() -> None:
    of_table = rules()
    of_table.follow([altered(Step({"V": "Old_V", "W": "v"}), TableName("SHOP", "People"), any_case=True)])
    assert of_table.lacks_rules(shape("id", "Old_V", "v"))


@pytest.mark.parametrize(
    "signals",
    [
        [altered(AWAY), altered(Step({"old_v": "v"}))],
        [altered(Step(dropped=("v",))), altered(TAKEN)],
        [altered(AWAY), altered(Step(dropped=("old_v",))), altered(TAKEN)],
        [altered(AWAY, TableName("shop", "others")), altered(TAKEN, TableName("shop", "others"))],
        [altered(AWAY, TableName("shop", "PEOPLE")), altered(TAKEN)],
        [altered(AWAY), Created(0, 0, PEOPLE)],
        [altered(AWAY), RowsMoved(0, 0, (PEOPLE, TableName("shop", "new")), (PEOPLE,))],
        [altered(None)],
    ],
    ids=["back again", "dropped", "dropped later", "another table", "another case", "made again", "swapped", "unknown"],
)
def test_a_rule_fits_while_its_column_has_its_name_or_is_gone(signals: list[Altered]) -> None:
    of_table = rules()
    of_table.follow(signals)
    assert of_table.misfit(SWAPPED) is None and of_table.moved.find_taken(PEOPLE) is None


def test_hidden_columns_may_take_each_others_names() -> None:
    of_table = rules(exclude=("v", "old_v"))
    of_table.follow([altered(Step({"v": "old_v", "old_v": "v"}))])
    assert of_table.misfit(SWAPPED) is None


@pytest.mark.parametrize(
    ("numbers", "lacks"),
    [
        ({"id": "7/1", "old_v": "7/2", "v": "7/3"}, True),
        ({"id": "7/1", "v": "7/2", "old_v": "7/3"}, False),
        ({"id": "7/1", "old_v": "7/4", "v": "7/5"}, False),
        ({"id": "8/1", "old_v": "8/2", "v": "8/3"}, False),
    ],
    ids=["taken", "as before", "dropped and added", "another table"],
)
def test_a_column_keeps_its_number_under_another_name(numbers: dict[str, str], lacks: bool) -> None:
    of_table = rules()
    of_table.moved.note_numbers({"shop.people": {"id": "7/1", "v": "7/2", "w": "7/3"}, "shop.others": {"v": "9/1"}})
    of_table.follow([SchemaSeen(0, 0, SWAPPED, numbers=numbers)])
    assert of_table.lacks_rules(SWAPPED) is lacks
    # Without numbers nothing is learned, and nothing forgotten.
    of_table.follow([SchemaSeen(0, 0, SWAPPED)])
    assert of_table.lacks_rules(SWAPPED) is lacks


def test_the_first_numbers_that_the_log_shows_count_from_then_on() -> None:
    of_table = rules()
    of_table.follow([SchemaSeen(0, 0, SWAPPED, numbers={"id": "7/1", "v": "7/2", "w": "7/3"})])
    assert not of_table.lacks_rules(SWAPPED)
    of_table.follow([SchemaSeen(0, 0, SWAPPED, numbers={"id": "7/1", "old_v": "7/2", "v": "7/3"})])
    assert of_table.lacks_rules(SWAPPED)
