"""A session that reads the catalogue of MariaDB takes a lock first, which nodes of a cluster refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

from dblog_core.sources.mysql.sql import catalogue


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
