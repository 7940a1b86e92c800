"""The forms of statements of `tests/conformance`, without a server: what is written in them is understood whole."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from dblog_core.model.schema import Column, TableName, TableSchema
from tests.conformance import judge
from tests.conformance.cases import FORMS
from tests.conformance.forms import Case, Form, Maker, woven


def make_cases(kind: str, seed: int) -> list[Case]:
    module = FORMS[kind]
    draw = random.Random(seed)
    maker = Maker(kind, "t_ab", draw, module.values(kind))
    return [maker.case(form) for form in module.forms(kind, draw)]


@pytest.mark.parametrize("kind", FORMS)
def test_every_hole_of_every_form_is_filled_and_a_seed_gives_the_same_statements(kind: str) -> None:
    for seed in range(3):
        first = make_cases(kind, seed)
        assert [case.steps for case in first] == [case.steps for case in make_cases(kind, seed)]
    assert sum(len(case.steps) for case in first) > 1000
    assert not [case.form.name for case in first if len(case.steps) < 2]
    letters = {case.form.name: {stop.table for stop in case.stops} - set(case.tables.values()) for case in first}
    assert not [name for name, unknown in letters.items() if unknown]


def test_what_stands_in_front_of_a_statement_is_no_part_of_it() -> None:
    form = Form("f", "2|! [mysql] {latin1} SELECT <t>.x,\n  1\n[mariadb] SELECT 2\nLOAD <file> <<< a\\tb\\n\n")
    case = Maker("mysql", "db", random.Random(1), {}).case(form)
    first, second = case.steps
    assert (first.session, first.may_fail, first.codec) == (2, True, "latin1")
    assert first.sql == f"SELECT `{case.tables['t']}`.x,\n1"
    assert (second.sql, second.file, second.session, second.may_fail) == ("LOAD 'file'", "a\tb\n", 1, False)


def test_the_steps_of_a_case_stay_in_order_and_none_is_lost() -> None:
    cases = make_cases("postgres", 5)
    ran: dict[int, list[object]] = {case.number: list(case.steps[: case.early]) for case in cases}
    for case, step in woven(cases, random.Random(2)):
        ran[case.number].append(step)
    assert all(ran[case.number] == case.steps for case in cases)


def test_a_step_that_is_not_ready_waits_for_the_other_cases_but_not_for_ever() -> None:
    first, second = [case for case in make_cases("postgres", 5) if case.steps[case.early :]][:2]
    ran: list[int] = []

    def ready(case: Case, _step: object) -> bool:
        return case is second or ran.count(second.number) == len(second.steps) - second.early

    for case, _ in woven([first, second], random.Random(2), ready=ready):
        ran.append(case.number)
    assert ran == [case.number for case in (second, first) for _ in case.steps[case.early :]]
    never = list(woven([first, second], random.Random(2), ready=lambda *_: False))
    assert len(never) == len(ran)


def test_a_copy_that_lacks_a_row_has_one_too_many_or_another_value_is_told() -> None:

    schema = TableSchema(
        TableName("s", "t"), (Column("id", "int", pa.int32()), Column("v", "text", pa.string())), ("id",)
    )
    source = [{"id": "1", "v": "a"}, {"id": "2", "v": None}]
    rows = [{"id": 1, "v": "a"}, {"id": 2, "v": None}]
    assert judge.differences(schema, source, rows) is None
    for wrong in (rows[:1], [*rows, {"id": 3, "v": "x"}], [rows[0], {"id": 2, "v": "None"}], [rows[0], {"id": 2}]):
        assert judge.differences(schema, source, wrong) is not None
