"""MySQL's and MariaDB's strain: what their answers mean, without a replica for each."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest

from dblog_core.sources.mysql.sql import source_load


class Answer:
    """A connection, and its cursor, that gives one answer."""

    def __init__(self, answer: list[dict[str, Any]] | Exception) -> None:
        self._answer = answer

    def cursor(self, _: Any = None) -> Answer:
        return self

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def execute(self, statement: str) -> None:
        if isinstance(self._answer, Exception):
            raise self._answer

    def fetchall(self) -> list[dict[str, Any]]:
        assert isinstance(self._answer, list)
        return self._answer


@pytest.mark.parametrize(
    ("answer", "lag"),
    [
        ([], None),
        ([{"Seconds_Behind_Source": 7}], 7.0),
        ([{"Seconds_Behind_Source": 0}], 0.0),
        ([{"Seconds_Behind_Master": 3}], 3.0),
        ([{"Seconds_Behind_Source": None}], None),
        ([{"Seconds_Behind_Source": 2}, {"Seconds_Behind_Source": 9}, {"Seconds_Behind_Source": None}], 9.0),
        (pymysql.err.OperationalError(1227, "Access denied"), None),
    ],
)
def test_a_replica_tells_how_far_it_is_behind_its_slowest_channel(answer: Any, lag: float | None) -> None:
    connection: Any = Answer(answer)
    assert source_load._lag(connection) == lag


def test_a_server_that_breaks_is_no_missing_grant() -> None:
    connection: Any = Answer(pymysql.err.OperationalError(2013, "Lost connection"))
    with pytest.raises(pymysql.err.OperationalError):
        source_load._lag(connection)
