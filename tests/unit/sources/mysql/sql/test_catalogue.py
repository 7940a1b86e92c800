"""A session that reads the catalogue of MariaDB takes a lock first, which nodes of a cluster refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.sql import catalogue
from dblog_core.sources.mysql.sql.catalogue import Described


class Refusing:
    """A connection to a MariaDB server that answers every statement with an error of this number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def get_server_info(self) -> str:
        return "10.11.19-MariaDB"

    @contextmanager
    def cursor(self) -> Iterator[Refusing]:
        yield self

    def execute(self, *_: object) -> None:
        raise pymysql.err.NotSupportedError(self._number, "refused")


def test_a_node_of_a_cluster_is_read_without_the_lock() -> None:
    connection: Any = Refusing(1235)
    catalogue.wait_for_no_table(connection)


def test_any_other_refusal_is_an_error() -> None:
    connection: Any = Refusing(1227)
    with pytest.raises(pymysql.err.NotSupportedError, match="1227"):
        catalogue.wait_for_no_table(connection)


T, U = (TableName("shop", name) for name in "tu")


@pytest.mark.parametrize("number", [1033, 1146, 1194, 1296, 1356, 1449, 1812, 1814, 145, 59_999])
def test_a_table_that_the_server_cannot_open_is_refused_alone(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def describe(_: Any, tables: list[TableName], *__: Any) -> list[Described]:
        if T in tables:
            raise pymysql.err.OperationalError(number, "Tablespace is discarded for table, 't'")
        return [Described(table, None) for table in tables]

    monkeypatch.setattr(catalogue, "_describe_once", describe)
    connection: Any = None
    broken, other = catalogue.describe_all(connection, [T, U], {}, {})
    assert (broken.table, broken.schema, other.faults) == (T, None, ())
    assert "its definition cannot be read" in broken.faults[0] and str(number) in broken.faults[0]


@pytest.mark.parametrize("number", [1045, 1142, 1205, 1227, 1684, 1290, 2006, 2013, 3024])
def test_an_error_of_the_whole_server_is_no_fault_of_a_table(number: int) -> None:
    connection: Any = Refusing(number)
    with pytest.raises(pymysql.err.MySQLError, match=str(number)):
        catalogue.describe_all(connection, [T, U], {}, {})
    with pytest.raises(pymysql.err.MySQLError, match=str(number)):
        catalogue.primary_key(connection, T)


def test_no_log_waits_for_a_table_that_the_server_cannot_open() -> None:
    connection: Any = Refusing(1814)
    assert catalogue.primary_key(connection, T) == () and catalogue.is_table(connection, T)
    assert catalogue.suspects(connection, [T, U]) == {T, U}
