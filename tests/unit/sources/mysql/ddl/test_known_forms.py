"""Up to where in the log the catalogue's answer holds."""

from __future__ import annotations

from collections.abc import Collection

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.ddl.column_forms import ColumnForm, TableForm
from dblog_core.sources.mysql.ddl.known_forms import Answer, KnownForms
from dblog_core.sources.mysql.position import MysqlGtids, Position

T = TableName("shop", "T")
LOWER = TableName("shop", "t")
FORM = TableForm({"c": ColumnForm("INT")})
OTHER = TableForm({"c": ColumnForm("BIGINT")})


def place(number: int) -> Position:
    return Position("binlog.000001", 4, MysqlGtids.parse(f"3e11fa47-71ca-11e1-9e33-c80aa9429562:1-{number}"))


class Catalogue:
    def __init__(self) -> None:
        self.forms = {T: FORM}
        self.asked: list[Collection[TableName] | None] = []

    def ask(self, tables: Collection[TableName] | None) -> Answer:
        self.asked.append(tables)
        return Answer(self.forms, place(5))


def known(catalogue: Catalogue) -> KnownForms:
    return KnownForms(catalogue.ask, lambda table: table.in_lower_case)


def test_an_answer_holds_only_behind_the_end_that_the_log_had() -> None:
    forms = known(Catalogue())
    assert forms.at(LOWER, place(4)) is None
    assert forms.at(LOWER, place(5)) == forms.at(LOWER, place(9)) == FORM


def test_a_statement_before_that_end_leaves_nothing_known() -> None:
    forms = known(Catalogue())
    forms.put(LOWER, None)
    assert forms.at(LOWER, place(9)) is None


def test_after_a_crash_nothing_counts_that_was_known() -> None:
    catalogue = Catalogue()
    forms = known(catalogue)
    forms.put(LOWER, OTHER)
    forms.ask_again()
    assert forms.at(LOWER, place(4)) is None and forms.at(LOWER, place(5)) == FORM


def test_what_a_statement_leads_to_holds_at_once() -> None:
    forms = known(Catalogue())
    forms.put(LOWER, OTHER)
    assert forms.at(LOWER, place(1)) == OTHER
    forms.forget_schema("shop")
    assert forms.at(LOWER, place(9)) is None


def test_tables_of_which_nothing_is_known_are_asked_about_together_once_they_have_rows() -> None:
    catalogue = Catalogue()
    catalogue.forms = {}
    forms = known(catalogue)
    forms.ask_missing()
    catalogue.forms = {T: FORM}
    forms.note_rows(T)
    forms.ask_missing()
    forms.note_rows(T)
    forms.ask_missing()
    assert catalogue.asked == [None, [T]]
    assert forms.at(LOWER, place(5)) == FORM
