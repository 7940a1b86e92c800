"""Rows of `every_type`'s table by a seed."""

from __future__ import annotations

import calendar
import random
from collections.abc import Mapping, Sequence

from tests.contract import any_mysql, any_postgres
from tests.contract.any_value import Make
from tests.integration import mysql_types


def makers(kind: str) -> Mapping[str, Make]:
    """How to make values, by the column of `every_type`'s table."""
    if kind == "postgres":
        return any_postgres.COLUMNS
    of_kind = any_mysql.OF_MYSQL if kind == "mysql" else any_mysql.OF_MARIADB
    # Not each version has each type.
    listed = mysql_types.columns(kind)
    return {**any_mysql.BOTH, **{name: make for name, make in of_kind.items() if name in listed}}


def rows(kind: str, seed: int, count: int) -> list[list[str]]:
    """So many rows: a value for each column of `makers`, with NULLs among them."""
    r = random.Random(seed)
    value_makers = makers(kind)
    return [["NULL" if r.random() < 0.1 else make(r) for make in value_makers.values()] for _ in range(count)]


def inserts(kind: str, seed: int, count: int) -> Sequence[str]:
    """A statement for each row; its key is its number, from 1000 on."""
    names = ", ".join(("id", *makers(kind)))
    return [
        f"INSERT INTO a ({names}) VALUES ({number}, {', '.join(row)})"
        for number, row in enumerate(rows(kind, seed, count), 1000)
    ]


def no_dates(seed: int, count: int) -> list[tuple[int, int, int]]:
    """Year, month and day, of a calendar or not, as MySQL takes them under ALLOW_INVALID_DATES."""
    r = random.Random(seed)
    years = (0, 1, 4, 100, 1582, 1900, 2000, 2023, 2024, 9999)
    return [(r.choice(years), r.randint(0, 12), r.choice((0, 1, 28, 29, 30, 31))) for _ in range(count)]


def is_a_date(year: int, month: int, day: int) -> bool:
    return year > 0 and month > 0 and 0 < day <= calendar.monthrange(year, month)[1]
