"""What the catalogue says of a table, asked again only when the table has another definition: chunk after chunk asks.

SHOW CREATE TABLE costs the server a tenth of what information_schema does, and its text holds all that a shape and the
order of a key depend on.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.sql.connection import LOCKED, is_of_table, rows
from dblog_core.sources.mysql.sql.watermarks import qualify

Found = TypeVar("Found")

_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")
_NOT_TO_BE_SEEN = {1044, 1049, 1142, 1143, 1146, *LOCKED}
"""It is not there, may not be read, or somebody has locked it for longer than we wait: the catalogue tells the rest. So
it does of a table that the server cannot open."""


class Definitions:
    """What one connection has found out about tables, under the definitions that they had then."""

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection
        self._known: dict[TableName, tuple[str, Any]] = {}

    def look(self, table: TableName, ask: Callable[[], Found]) -> Found:
        """What `ask` finds in the catalogue now, or found when the table had the definition that it has now.

        It asks the same of a table every time. Raises what `ask` raises, and the driver's errors.
        """
        last_answer = self._known.get(table)
        if last_answer is not None and last_answer[0] == self._text(table):
            answer: Found = last_answer[1]
            return answer
        with self._keep_definition(table) as is_kept:
            text = self._text(table)
            answer = ask()
        # Without the lock the answer may be of another definition than the text: good now, not for later.
        if is_kept and text is not None:
            self._known[table] = text, answer
        return answer

    def _text(self, table: TableName) -> str | None:
        """The definition; None where there is no such table, or it may not be asked for."""
        try:
            definition = rows(self._connection, f"SHOW CREATE TABLE {qualify(table)}")
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _NOT_TO_BE_SEEN and not is_of_table(error):
                raise
            return None
        return _COUNTER.sub("", str(definition[0][1]))

    @contextlib.contextmanager
    def _keep_definition(self, table: TableName) -> Iterator[bool]:
        """Nobody alters the table meanwhile: a transaction that has opened it keeps its definition, as any SELECT does.

        Otherwise it could have one definition, then another, and then the first again, while the catalogue is read.
        False where it cannot be opened.
        """
        rows(self._connection, "START TRANSACTION")
        try:
            yield self._try_open(table)
        finally:
            rows(self._connection, "COMMIT")  # within the transaction no SELECT would be a new snapshot

    def _try_open(self, table: TableName) -> bool:
        try:
            rows(self._connection, f"SELECT 1 FROM {qualify(table)} LIMIT 0")
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _NOT_TO_BE_SEEN and not is_of_table(error):
                raise
            return False
        return True
