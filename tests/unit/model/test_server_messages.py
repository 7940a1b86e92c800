"""Errors go into logs, the state store and pages: no value of a row comes with them."""

from __future__ import annotations

import traceback
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dblog_core.config.source import ColumnRules
from dblog_core.errors import ValueOutOfRange
from dblog_core.model import server_messages
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows.value_forms import shape_to_read
from dblog_core.sources.mysql.sql import result_values
from dblog_core.sources.mysql.values.binary_values import ValueFault
from dblog_core.sources.postgres.values.types import from_text

VALUE = "qZx7 'of' a row"


@pytest.mark.parametrize(
    ("code", "text", "expected_text"),
    [
        (1062, f"Duplicate entry '{VALUE}' for key 'people.email'", "Duplicate entry '…' for key 'people.email'"),
        (
            1366,
            f"Incorrect string value: '{VALUE}' for column 'n' at row 1",
            "Incorrect string value: '…' for column 'n'",
        ),
        (1292, f"Truncated incorrect DOUBLE value: '{VALUE}'", "Truncated incorrect DOUBLE value: '…'"),
        (1146, "Table 'shop.people' doesn't exist", "Table 'shop.people' doesn't exist"),
    ],
)
def test_what_mysql_says_of_values_is_told_without_them(code: int, text: str, expected_text: str) -> None:
    assert server_messages.by_mysql(code, text).startswith(expected_text)


@pytest.mark.parametrize(
    ("code", "lines", "expected_text"),
    [
        (
            "23505",
            [
                'duplicate key value violates unique constraint "people_email"',
                f"DETAIL:  Key (email)=({VALUE}) already exists.",
            ],
            'duplicate key value violates unique constraint "people_email"',
        ),
        ("22P02", [f'invalid input syntax for type integer: "{VALUE}"'], 'invalid input syntax for type integer: "…"'),
        (
            "42P01",
            ['relation "people" does not exist', "LINE 1: SELECT"],
            'relation "people" does not exist LINE 1: SELECT',
        ),
        (None, ["connection to server failed"], "connection to server failed"),
    ],
)
def test_what_postgres_says_of_values_is_told_without_them(
    code: str | None, lines: list[str], expected_text: str
) -> None:
    class Error(Exception):
        pgcode = code
        diag = SimpleNamespace(message_primary=lines[0] if code else None)

    assert server_messages.by_postgres(Error("\n".join(lines))) == expected_text


TABLE = TableName("shop", "people")
NO_DAY = "1977-02-30"


@pytest.mark.parametrize("rules", [ColumnRules(), ColumnRules(mask=("born",)), ColumnRules(hash=("born",))])
def test_a_value_that_cannot_be_staged_is_shown_only_where_no_rule_hides_it(rules: ColumnRules) -> None:
    hidden = bool(rules.mask or rules.hash)
    columns = (Column("id", "int", pa.int32()), Column("born", "date", pa.date32()))
    column = shape_to_read(TableSchema(TABLE, columns, ("id",)), {str(TABLE): rules}).columns[1]
    with pytest.raises(ValueFault) as of_mysql:
        result_values.to_arrow(column, pa.array([b"2024-02-01", NO_DAY.encode()]), zero_dates="error")
    with pytest.raises(ValueOutOfRange) as of_postgres:
        from_text(pa.array(["2024-02-01", f"{NO_DAY} BC"]), column, TABLE)
    for message in (of_mysql.value, of_postgres.value):
        assert (NO_DAY in "".join(traceback.format_exception(message))) != hidden
