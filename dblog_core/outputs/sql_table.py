"""A table of lines in a database: exactly once, since the place lies in the same transaction as the lines.

    TABLE          output, line_offset (together the key), op, table_name, row_key, position, transaction_id,
                   commit_time, origin, line: each line a row, `row_key` and `line` as JSON text
    TABLE_place    output (the key), place, epoch

Each delivery locks its row of TABLE_place first and compares place and epoch: a relay that was replaced, whatever it
wakes up with, finds others there and writes nothing. What differs between servers is a `Dialect`.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import orjson

from dblog_core.errors import OutputRefused, OutputTaken, PoisonLine
from dblog_core.interfaces import Json

COLUMNS = (
    *("output", "line_offset", "op", "table_name", "row_key", "position", "transaction_id", "commit_time"),
    *("origin", "line"),
)
TWICE = "the table has lines that its place does not cover: restore both together, or empty both"
"""What to do about a line that is there already."""


class Dialect(Protocol):
    """One kind of server."""

    where: str
    create: tuple[str, ...]
    """Statements that make both tables where they are missing."""
    insert: str
    """INSERT … VALUES of `COLUMNS`."""
    place: str
    """The place table's name, as SQL."""

    def connect(self) -> Any:
        """A connection that commits on request only. Raises OutputUnavailable, OutputRefused."""

    def insert_rows(self, cursor: Any, rows: Sequence[tuple[Any, ...]]) -> None: ...

    def probe(self, cursor: Any, name: str) -> None:
        """Looks whether this user may do all that the output does; what it leaves is rolled back."""

    def max_line_bytes(self, cursor: Any) -> int | None:
        """Bytes that a line may have; None: no limit that would break the connection."""

    def to_driver_time(self, time: dt.datetime) -> dt.datetime:
        """The time as the driver takes it."""

    def translate_errors(self) -> AbstractContextManager[None]:
        """Turns the driver's errors into ours: PoisonLine where the server refuses a value."""


class TableOutput:
    """The `Output` of `dialect`; `name`: SOURCE.OUTPUT, so that outputs can share a table."""

    exactly_once = True

    def __init__(self, dialect: Dialect, name: str) -> None:
        self._dialect = dialect
        self._name = name
        self._connection: Any = None
        self._epoch = 0
        self._place: int | None = None
        self._max_line_bytes: int | None = None
        self._place_is_locked = False

    def open(self, epoch: int) -> int | None:
        self.close()
        self._connection = self._dialect.connect()
        with self._dialect.translate_errors(), self._connection.cursor() as cursor:
            for statement in self._dialect.create:
                cursor.execute(statement)
            self._connection.commit()
            self._max_line_bytes = self._dialect.max_line_bytes(cursor)
            position = self._lock(cursor)
            if position is None:
                statement = f"INSERT INTO {self._dialect.place} (output, place, epoch) VALUES (%s, NULL, %s)"
                cursor.execute(statement, (self._name, epoch))
            # A relay with a newer lease has been here, so ours is over.
            elif position[1] > epoch:
                raise self._taken_error(position[1])
            elif position[1] < epoch:
                statement = f"UPDATE {self._dialect.place} SET epoch = %s WHERE output = %s"
                cursor.execute(statement, (epoch, self._name))
            self._connection.commit()
        self._place = position[0] if position else None
        self._epoch = epoch
        self._place_is_locked = False
        return self._place

    def probe(self, *, held: bool) -> None:
        """It waits for no lock of a relay's: `held` means nothing."""
        connection = self._dialect.connect()
        try:
            with self._dialect.translate_errors(), connection.cursor() as cursor:
                self._dialect.probe(cursor, f"{self._name} {uuid.uuid4().hex}")
                connection.rollback()
        except PoisonLine:  # a constraint of somebody's own does not take what no line is: the rights are there
            pass
        finally:
            connection.close()

    def write(self, lines: Sequence[Json]) -> None:
        rows = [self._row(line) for line in lines]
        with self._dialect.translate_errors(), self._connection.cursor() as cursor:
            if not self._place_is_locked:
                position = self._lock(cursor)
                # Under the lock: from here to the commit nobody can change them.
                if position != (self._place, self._epoch):
                    raise self._taken_error(position[1] if position else 0)
                self._place_is_locked = True
            self._dialect.insert_rows(cursor, rows)

    def commit(self, offset: int) -> None:
        assert self._place_is_locked, "nothing was written"
        try:
            with self._dialect.translate_errors(), self._connection.cursor() as cursor:
                statement = f"UPDATE {self._dialect.place} SET place = %s WHERE output = %s"
                cursor.execute(statement, (offset, self._name))
                self._connection.commit()
        except PoisonLine as error:  # a constraint that is looked at late: it does not say which line
            raise OutputRefused(
                f"the commit is refused: {error.message}",
                where=self._dialect.where,
                fix="remove what the table's lines do not satisfy",
            ) from error
        self._place = offset
        self._place_is_locked = False

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _lock(self, cursor: Any) -> tuple[int | None, int] | None:
        """Place and epoch, which nobody else can change until our transaction ends."""
        statement = f"SELECT place, epoch FROM {self._dialect.place} WHERE output = %s FOR UPDATE"
        cursor.execute(statement, (self._name,))
        row = cursor.fetchone()
        return None if row is None else (row[0], row[1])

    def _row(self, line: Json) -> tuple[Any, ...]:
        text = orjson.dumps(line).decode()
        if self._max_line_bytes is not None and len(text.encode()) > self._max_line_bytes:
            raise PoisonLine(
                f"it has more than {self._max_line_bytes} bytes", where=self._dialect.where, offset=line["offset"]
            )
        key = None if line["key"] is None else orjson.dumps(line["key"]).decode()
        time = self._dialect.to_driver_time(dt.datetime.fromisoformat(line["commit_time"]))
        rest = (line["position"], line["transaction"], time, line["origin"], text)
        return (self._name, line["offset"], line["op"], line["table"], key, *rest)

    def _taken_error(self, epoch: int) -> OutputTaken:
        return OutputTaken(
            "another relay has gone on",
            where=self._dialect.where,
            epoch=epoch,
        )
