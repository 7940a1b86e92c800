"""Which columns that MariaDB's log calls binary are of its own types, by what is known of the table."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pytest

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.sources.mysql.ddl.column_forms import ColumnForm, TableForm
from dblog_core.sources.mysql.ddl.known_forms import Answer, KnownForms
from dblog_core.sources.mysql.position import MysqlGtids, Position
from dblog_core.sources.mysql.row_events.native_types import NativeTypes
from dblog_core.sources.mysql.row_events.table_map import TableVersion
from dblog_core.sources.mysql.values.types import ColumnType, Kind, UnsupportedType

T = TableName("shop", "T")
BINARY = ColumnForm("BINARY", (16,))
UUID = ColumnForm("UUID")
NUMBER = ColumnForm("INT")


def version(*unnamed: str) -> TableVersion:
    names = ("id", "U", "b")
    columns = (ColumnType(Kind.INTEGER, pa.int32(), "int", width=4), *[_sixteen()] * 2)
    shape = tuple(Column(name, column.text, column.arrow) for name, column in zip(names, columns, strict=True))
    return TableVersion(TableSchema(T, shape, ("id",)), columns, unnamed=unnamed or ("U", "b"))


def _sixteen() -> ColumnType:
    return ColumnType(Kind.PADDED, pa.binary(), "binary", prefix=1, width=16)


class Catalogue:
    """Answers with the last of `forms` until another is put behind it."""

    def __init__(self, *forms: dict[str, ColumnForm | None] | None, there: bool = True) -> None:
        self.forms = list(forms)
        self.there = there
        self.asked = -1  # KnownForms asks about all tables when it is made

    def ask(self, _: Collection[TableName] | None) -> Answer:
        self.asked += 1
        columns = self.forms.pop(0) if len(self.forms) > 1 else self.forms[0]
        end = Position("binlog.000001", 4, MysqlGtids.parse(""))
        return Answer({} if columns is None else {T: TableForm(columns)}, end)

    def types(self) -> tuple[NativeTypes, KnownForms]:
        known = KnownForms(self.ask, lambda table: table.in_lower_case)
        return NativeTypes(known, lambda _: self.there, lambda _: True), known


def test_the_types_of_the_catalogue_whatever_the_case_of_their_names() -> None:
    catalogue = Catalogue({"id": NUMBER, "u": UUID, "b": BINARY})
    types, _ = catalogue.types()
    assert types.find(version()) == {"U": "uuid"}
    assert types.find(version("b")) == {}
    assert catalogue.asked == 0


def test_what_a_statement_has_led_to_counts_before_the_catalogue() -> None:
    types, known = Catalogue({"id": NUMBER, "u": BINARY, "b": BINARY}).types()
    known.put(T.in_lower_case, TableForm({"id": NUMBER, "u": BINARY, "b": ColumnForm("INET6")}))
    assert types.find(version()) == {"b": "inet6"}


def test_a_statement_whose_result_is_not_known_has_the_catalogue_asked_again() -> None:
    catalogue = Catalogue({"id": NUMBER, "u": BINARY, "b": BINARY}, {"id": NUMBER, "u": UUID, "b": BINARY})
    types, known = catalogue.types()
    assert types.find(version()) == {}
    for after in (None, TableForm({"id": NUMBER, "u": None, "b": BINARY})):
        known.put(T.in_lower_case, after)
        assert types.find(version()) == {"U": "uuid"}
        assert types.find(version()) == {"U": "uuid"}
    assert catalogue.asked == 2


def test_a_table_that_is_gone_has_bytes() -> None:
    catalogue = Catalogue(None, there=False)
    assert catalogue.types()[0].find(version()) == {}


def test_a_locked_table_is_held_and_asked_about_once_until_the_next_batch() -> None:
    catalogue = Catalogue(None)
    types, known = catalogue.types()
    for _ in range(2):
        with pytest.raises(UnsupportedType, match=r"the log calls U, b binary.*its definition is locked") as error:
            types.find(version())
        assert error.value.passes and not error.value.catalogued
    assert catalogue.asked == 1
    catalogue.forms = [{"id": NUMBER, "u": UUID, "b": BINARY}]
    known.ask_missing()
    assert types.find(version()) == {"U": "uuid"}


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ({"id": NUMBER, "other": UUID, "b": BINARY}, None),
        ({"id": NUMBER, "u": UUID}, None),
        ({"id": NUMBER, "u": UUID, "b": None}, None),
        ({"id": NUMBER, "u": UUID, "b": BINARY, "more": UUID}, {"U": "uuid"}),
    ],
)
def test_columns_that_have_other_names_by_now_are_not_guessed(
    now: dict[str, ColumnForm | None], found: dict[str, str] | None
) -> None:
    types, _ = Catalogue(now).types()
    if found is not None:
        assert types.find(version()) == found
        return
    with pytest.raises(UnsupportedType, match="has no column of that name now") as error:
        types.find(version())
    assert error.value.passes


def test_our_own_tables_are_not_asked_about() -> None:
    catalogue = Catalogue(None)
    known = KnownForms(catalogue.ask, lambda table: table)
    assert NativeTypes(known, lambda _: True, lambda _: False).find(version()) == {}
    assert catalogue.asked == 0
