"""What statements prove of two shapes of a table: which columns are the same, and what added ones hold."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from dblog_core.model.column_defaults import Constant
from dblog_core.model.schema import Column, TableSchema
from dblog_core.model.schema_changes import (
    MOST_STEPS,
    Facts,
    Layout,
    Pending,
    Step,
    match_layouts,
    match_names_in_another_case,
    prove_changes,
)
from dblog_core.schema_evolution.renames import Renames, describe_stale
from dblog_core.staging.manifest import LogMark
from tests.unit.staged import table
from tests.unit.statement_facts import BASE, EXTRA, FIVE, rename_columns


def test_facts_follow_names_from_statement_to_statement() -> None:
    then = rename_columns(BASE, "id", "c", "a")
    assert prove_changes(BASE, then, [Step({"a": "x"}), Step({"B": "a"}), Step({"X": "c"})]) == Facts(
        {"c": "a", "a": "b"}, {}
    )
    assert prove_changes(BASE, rename_columns(BASE, "id", "b", "a"), [Step({"a": "b", "b": "a"})]) == Facts(
        {"b": "a", "a": "b"}, {}
    )
    assert prove_changes(BASE, rename_columns(BASE, "k", "a", "b", key=("k",)), [Step({"id": "k"})]) == Facts(
        {"k": "id"}, {}
    )
    more = replace(BASE, columns=(*BASE.columns, replace(BASE.columns[1], name="n")))
    assert prove_changes(BASE, more, [Step(nulls=("m",)), Step({"m": "n"})]) == Facts({}, {"n": None})
    assert prove_changes(BASE, more, [Step(unknown=("n",))]) == Facts({}, {})
    assert prove_changes(BASE, more, [Step(constants={"n": FIVE})]) == Facts({}, {})  # it became a text later
    more = replace(BASE, columns=(*BASE.columns, EXTRA[1]))
    assert prove_changes(BASE, more, [Step(constants={"m": FIVE}), Step({"M": "n"})]) == Facts({}, {"n": 5})
    assert prove_changes(BASE, more, [Step(constants={"n": FIVE}), Step(revalued=("N",))]) == Facts({}, {})


@pytest.mark.parametrize(
    ("constant", "source_type", "kind", "value"),
    [
        (FIVE, "int", pa.int32(), 5),
        (Constant("number", "300"), "tinyint", pa.int8(), None),
        (Constant("number", "1.0"), "int", pa.int32(), None),
        (Constant("number", "1.5"), "decimal(9,2)", pa.decimal128(9, 2), "1.50"),
        (Constant("number", "1.555"), "decimal(9,2)", pa.decimal128(9, 2), None),
        (Constant("number", "1.5"), "decimal(65,2)", pa.string(), None),
        (Constant("number", "0.1"), "double", pa.float64(), 0.1),
        (FIVE, "varchar(9)", pa.string(), None),  # MODIFY made a text of it
        (Constant("text", "5"), "int", pa.int32(), None),
        (Constant("text", "a "), "varchar(9)", pa.string(), "a "),
        (Constant("text", "a "), "char(9)", pa.string(), None),
        (Constant("text", "a "), "character(9)", pa.string(), "a "),
        (Constant("text", "{}"), "json", pa.string(), None),
        (Constant("text", "{a}"), "text[]", pa.string(), None),
        (Constant("date", "2024-02-29"), "date", pa.date32(), "2024-02-29"),
        (Constant("date", "2023-02-29"), "date", pa.date32(), None),
        (Constant("date", "infinity"), "date", pa.date32(), None),
        (Constant("date", "2024-02-29"), "datetime", pa.timestamp("us"), None),
        (Constant("moment", "2024-02-29 01:02:03.5"), "datetime(1)", pa.timestamp("us"), "2024-02-29T01:02:03.500000"),
        (
            Constant("moment", "2024-02-29 01:02:03+00"),
            "timestamp with time zone",
            pa.timestamp("us", tz="UTC"),
            "2024-02-29T01:02:03Z",
        ),
        (Constant("flag", "t"), "boolean", pa.bool_(), True),
        (Constant("flag", "f"), "boolean", pa.bool_(), False),
    ],
)
def test_a_constant_is_a_value_of_its_column_or_not_known(
    constant: Constant, source_type: str, kind: pa.DataType, value: object
) -> None:
    assert constant.value(Column("c", source_type, kind)) == value


@pytest.mark.parametrize(
    ("after", "steps"),
    [
        (rename_columns(BASE, "id", "c", "b"), [Step({"x": "c"})]),  # of a column that it did not have
        (rename_columns(BASE, "id", "c", "b"), [Step({"a": "d"})]),  # to a name that it does not have
        (rename_columns(BASE, "id", "c", "d"), [Step({"a": "c"})]),  # and nothing said of the other
        (rename_columns(BASE, "id", "c", "b"), [Step({"a": "b"}), Step({"b": "c"})]),  # a name that was taken
        (rename_columns(BASE, "id", "c", "b", key=("c",)), [Step({"a": "c"})]),  # with another key
        (replace(BASE, columns=(*BASE.columns[:2], replace(BASE.columns[0], name="c"))), [Step({"b": "c"})]),  # retyped
        (replace(BASE, columns=BASE.columns[:2]), [Step({"a": "b"}), Step({"b": "a"})]),  # and a drop
    ],
)
def test_statements_that_do_not_lead_to_the_shape_prove_nothing(after: TableSchema, steps: list[Step]) -> None:
    assert prove_changes(BASE, after, steps) is None


def test_names_of_older_rows_are_those_of_now() -> None:
    marks = [
        LogMark(10, "s", "shop.t", "p", 0, renamed={"b": "a", "a": "b"}),
        LogMark(20, "s", "shop.t", "p", 0),
        LogMark(30, "s", "shop.t", "p", 0, renamed={"k": "id", "c": "a"}, filled={"b": None}),
    ]
    renames = Renames.of(marks)
    assert [[renames.after(o).current_name(n) for n in ("id", "a", "b", "c")] for o in (5, 10, 30)] == [
        ["k", "_dblog_stale_30_b", "c", "_dblog_stale_30_c"],
        ["k", "c", "_dblog_stale_30_b", "_dblog_stale_30_c"],
        ["id", "a", "b", "c"],
    ]
    assert (
        describe_stale("_dblog_stale_30_b") == "b_until_30" and describe_stale("_dblog_stale_30_7_x") == "7_x_until_30"
    )
    assert renames.rename_columns(BASE).key == ("k",) and renames.last_offset == 30
    assert renames.columns_with_known_value == {"b"} and renames.after(30).columns_with_known_value == set()


def test_places_prove_what_columns_are_where_the_table_never_had_others() -> None:
    more = rename_columns(BASE, "k", "b", "a", key=("k",))
    more = replace(more, columns=(*more.columns, *EXTRA))
    facts_of_layouts = match_layouts(BASE, more, "1/2", Layout("1/2", {"k": None, "m": 5}))
    assert facts_of_layouts == Facts({"k": "id", "b": "a", "a": "b"}, {"m": 5})
    assert match_layouts(BASE, BASE, "1/2", Layout("1/2")) == Facts({}, {})


@pytest.mark.parametrize(
    ("before", "after", "token"),
    [
        (BASE, rename_columns(BASE, "id", "c", "b"), None),
        (BASE, rename_columns(BASE, "id", "c", "b"), "1/3"),  # rows were written anew, or it is another table
        (BASE, replace(BASE, columns=BASE.columns[:2]), "1/2"),
        (BASE, table("shop.t", id=pa.int64(), c=pa.int64(), b=pa.string()), "1/2"),
        (BASE, rename_columns(BASE, "k", "a", "b", key=("a",)), "1/2"),
    ],
)
def test_places_prove_nothing_otherwise(before: TableSchema, after: TableSchema, token: str | None) -> None:
    assert match_layouts(before, after, token, Layout("1/2", {"c": None})) is None
    assert match_layouts(before, after, "1/2", None) is None


def test_statements_that_no_row_follows_are_remembered_up_to_a_number() -> None:
    shape = table("shop.t", id=pa.int64(), c=pa.int64())
    name = str(shape.table)
    pending = Pending({})
    for _ in range(10 * MOST_STEPS):
        pending.add(shape.table, Step(), [name])
    assert pending.to_json() == {}, "what touches no column is nothing to remember"
    for number in range(10 * MOST_STEPS):
        pending.add(shape.table, Step(renamed={"cd"[number % 2]: "dc"[number % 2]}), [name])
    assert pending.to_json() == {name: None}
    assert pending.settle(shape, shape, plain=True) is None


def test_a_name_that_comes_back_in_another_case_is_matched_where_no_other_column_can_be_meant() -> None:
    same = rename_columns(BASE, "id", "A", "b")
    assert match_names_in_another_case(BASE, same) == {"A": "a"}
    assert match_names_in_another_case(BASE, BASE) == {}
    assert match_names_in_another_case(BASE, rename_columns(BASE, "id", "c", "b")) == {}
    # Another type, a column of the key, two names that differ only in case.
    other_type = replace(same, columns=(same.columns[0], replace(same.columns[1], type=pa.int8()), same.columns[2]))
    assert match_names_in_another_case(BASE, other_type) == {}
    assert match_names_in_another_case(BASE, rename_columns(BASE, "ID", "a", "b", key=("ID",))) == {}
    assert match_names_in_another_case(BASE, rename_columns(BASE, "id", "A", "b", key=("A",))) == {}
    twins = replace(BASE, columns=(*BASE.columns, replace(BASE.columns[1], name="A")))
    assert match_names_in_another_case(BASE, twins) == {}
    assert match_names_in_another_case(twins, rename_columns(BASE, "id", "aA", "b")) == {}
    assert match_names_in_another_case(rename_columns(BASE, "id", "x", "b"), twins) == {}
