"""A table `a` with every type that its database stages, and rows at the types' ends."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from tests.fix_servers import Database
from tests.integration import mysql_types, postgres_types


def make(database: Database) -> None:
    create(database)
    fill(database)


def create(database: Database) -> None:
    if database.kind == "postgres":
        database.execute(*postgres_types.create("a"))
    else:
        database.execute(mysql_types.create(database.kind, "a"))


def fill(database: Database) -> None:
    if database.kind == "postgres":
        database.execute(*postgres_types.inserts("a"))
        return
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for statement, values in mysql_types.inserts(database.kind, "a"):
            cursor.execute(statement, values)


def copy(database: Database, cursor: Any, column: str, *, giver: object, taker: object) -> None:
    """Gives the row with key `taker` the value that the one with `giver` has in a column."""
    if database.kind == "postgres":
        quoted = '"' + column.replace('"', '""') + '"'
        cursor.execute(f"UPDATE a SET {quoted} = (SELECT {quoted} FROM a WHERE id = {giver}) WHERE id = {taker}")
    else:
        giver_query = f"(SELECT {column} AS given FROM a WHERE id = {giver}) AS g"
        cursor.execute(f"UPDATE a JOIN {giver_query} SET a.{column} = g.given WHERE a.id = {taker}")
