"""Errors go into logs, the state store and pages: no value of a row comes with them."""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.errors
import pyarrow as pa
import pymysql
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
        (1062, f"Duplicate entry '{VALUE}' for key 'people.k'", "Duplicate entry '…' for key 'people.k' (1062)"),
        (
            1366,
            f"Incorrect string value: '{VALUE}' for column 'n' at row 1",
            "Incorrect string value: '…' for column 'n' at row 1 (1366)",
        ),
        (1292, f"Truncated incorrect DOUBLE value: '{VALUE}'", "Truncated incorrect DOUBLE value: '…' (1292)"),
        (1146, "Table 'shop.people' doesn't exist", "Table 'shop.people' doesn't exist (1146)"),
        (1814, "Tablespace has been discarded for table 'p'", "Tablespace has been discarded for table 'p' (1814)"),
    ],
)  # fmt: skip
def test_what_mysql_says_is_told_without_values(code: int, text: str, expected_text: str) -> None:
    assert server_messages.by_mysql(pymysql.err.DataError(code, text)) == expected_text


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1062, f"Doppelter Eintrag {VALUE}"),  # in another language
        (1292, f"Incorrect datetime value: '{VALUE}' in function str_to_date"),
        (1064, f"You have an error in your SQL syntax near '{VALUE}' at line 1"),
        (1526, f"Table has no partition for value {VALUE}"),
        (
            1557,
            f"Upholding foreign key constraints for table 'p', entry '{VALUE}', key 1 would lead to a duplicate entry",
        ),
        (1644, VALUE),  # by SIGNAL
        (1690, f"BIGINT value is out of range in '({VALUE} + 1)'"),
        (3140, f"Invalid JSON text: {VALUE}"),
        (3854, f"Cannot convert string '{VALUE}' from binary to utf8mb4"),
        (59_999, VALUE),  # of a newer server
    ],
)
def test_the_text_of_an_error_of_mysql_that_may_quote_rows_is_left_out(code: int, text: str) -> None:
    told = server_messages.by_mysql(pymysql.err.DataError(code, text))
    assert VALUE not in told
    assert str(code) in told


def postgres_error(kind: type[psycopg2.Error], code: str | None, *lines: str) -> psycopg2.Error:
    error: Any = kind("\n".join(lines))
    error.__setstate__({"pgcode": code, "pgerror": "\n".join(lines)})
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("error", "expected_text"),
    [
        (
            postgres_error(psycopg2.errors.UndefinedTable, "42P01", 'relation "p" does not exist', f"LINE 1: {VALUE}"),
            'relation "p" does not exist',
        ),
        (
            postgres_error(
                psycopg2.errors.ObjectInUse, "55006", "it is active", 'CONTEXT:  slot "s", output plugin "pgoutput"'
            ),
            "it is active",
        ),
        (postgres_error(psycopg2.OperationalError, None, "connection to server failed"), "connection to server failed"),
        (postgres_error(psycopg2.OperationalError, None, "FATAL:  no", f"DETAIL:  {VALUE}"), "FATAL: no"),
    ],
)  # fmt: skip
def test_what_postgres_says_is_told_without_values(error: psycopg2.Error, expected_text: str) -> None:
    assert server_messages.by_postgres(error) == expected_text


@pytest.mark.parametrize(
    "error",
    [
        postgres_error(psycopg2.errors.UniqueViolation, "23505", "twice", f"DETAIL:  Key (email)=({VALUE}) exists."),
        postgres_error(psycopg2.errors.CheckViolation, "23514", f"no {VALUE}"),
        postgres_error(psycopg2.errors.InvalidTextRepresentation, "22P02", f'invalid input syntax: "{VALUE}"'),
        postgres_error(psycopg2.errors.RaiseException, "P0001", VALUE),
        postgres_error(psycopg2.errors.SyntaxError, "42601", f'syntax error at or near "{VALUE}"'),
        postgres_error(psycopg2.errors.InternalError_, "XX000", VALUE),
        # An error with the SQLSTATE of a missing grant, raised by a function of users.
        postgres_error(psycopg2.errors.InsufficientPrivilege, "42501", VALUE, "CONTEXT:  PL/pgSQL function f() line 1"),
        postgres_error(psycopg2.DatabaseError, "ZZ999", VALUE),
        postgres_error(psycopg2.OperationalError, None, f"ERROR:  {VALUE}"),
        postgres_error(psycopg2.DataError, None, VALUE),
    ],
)
def test_the_text_of_an_error_of_postgres_that_may_quote_rows_is_left_out(error: psycopg2.Error) -> None:
    told = server_messages.by_postgres(error)
    assert VALUE not in told
    assert type(error).__name__ in told


PACKAGES = ("dblog_core", "spark_jobs")
DRIVERS = ("pymysql", "psycopg2")
HARMLESS_USES = ("args", "pgcode", "__cause__", "original_exception")
"""What code may read of a driver's error: its number, not its text."""


def driver_errors(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Names that hold an error of a driver, each with the code in which it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            if any(driver in ast.unparse(node.type) for driver in DRIVERS):
                yield node.name, ast.Module(node.body, [])
        elif isinstance(node, ast.FunctionDef):
            for argument in node.args.args:
                if argument.annotation and re.search(r"(psycopg2|pymysql)\.\S*Error", ast.unparse(argument.annotation)):
                    yield argument.arg, ast.Module(node.body, [])


def text_uses(name: str, code: ast.AST) -> Iterator[str]:
    """Expressions that may show the text of the error `name`."""
    parents = {child: node for node in ast.walk(code) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(code):
        if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
            continue
        parent = parents[node]
        if isinstance(parent, ast.Attribute) and parent.attr in HARMLESS_USES:
            above = parents[parent]
            if parent.attr != "args" or not isinstance(above, ast.Subscript) or ast.unparse(above.slice) == "0":
                continue
        if isinstance(parent, ast.Raise | ast.Assign):
            continue
        if isinstance(parent, ast.Call):
            called = ast.unparse(parent.func)
            passes_on = re.search(
                r"(^|[._])(by_mysql|by_postgres|mysql_code|translate|_?\w*error|_refuse_incomplete|is_of_table)$",
                called,
            )
            if called in ("isinstance", "getattr", "type") or passes_on:
                continue
        yield ast.unparse(parent)


def test_no_code_reads_the_text_of_a_drivers_error() -> None:
    root = Path(server_messages.__file__).parents[2]
    found = [
        f"{file.relative_to(root)}: {use}"
        for package in PACKAGES
        for file in (root / package).rglob("*.py")
        if file.name != "server_messages.py" and not file.is_relative_to(root / "dblog_core" / "local")
        for name, code in driver_errors(ast.parse(file.read_text()))
        for use in text_uses(name, code)
    ]
    assert found == []


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
