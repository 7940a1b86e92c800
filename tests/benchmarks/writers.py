"""A load on the source: rows inserted by a few connections, at a steady rate or as fast as they go."""

from __future__ import annotations

import random
import threading
import time
from types import TracebackType

from tests.benchmarks.data import Table
from tests.fix_servers import Database

CONNECTIONS = 4
FIRST = 1_000_000_000  # keys of theirs begin here, after what was filled in


class Writers:
    """While entered, each connection inserts one row a transaction; `tables` take turns.

    `rate`: transactions a second of all together; None: as fast as the server answers. `committed` says when (monotonic
    seconds) the commit of which key was answered. `hot`: keys of rows that are there; each insert is then followed by
    an update of one of them, in a transaction of its own.
    """

    def __init__(
        self,
        database: Database,
        *tables: Table,
        rate: float | None,
        first: int = FIRST,
        hot: range | None = None,
    ) -> None:
        self._database = database
        self._tables = tables
        self._rate = rate
        self._first = first
        self._hot = hot
        self._updated = [0] * CONNECTIONS
        self._stop = threading.Event()
        self._failed: list[Exception] = []
        self._threads = [threading.Thread(target=self._run_guarded, args=(n,)) for n in range(CONNECTIONS)]
        self._counts = [0] * CONNECTIONS
        self.committed: dict[int, float] = {}

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failed and error is None:
            raise self._failed[0]

    def table_of(self, key: int) -> Table:
        """The table of a key of theirs."""
        return self._tables[(key - self._first) // CONNECTIONS % len(self._tables)]

    @property
    def count(self) -> int:
        """Transactions so far."""
        return sum(self._counts) + sum(self._updated)

    def measure(self, seconds: float) -> float:
        """Transactions a second over that span."""
        before = self.count
        began = time.monotonic()
        self._stop.wait(seconds)
        return (self.count - before) / (time.monotonic() - began)

    def _run_guarded(self, number: int) -> None:
        try:
            self._run(number)
        except Exception as error:  # noqa: BLE001 - raised by `__exit__`
            self._failed.append(error)
            self._stop.set()

    def _run(self, number: int) -> None:
        connection = self._database.connect()
        begin = time.monotonic()
        step = CONNECTIONS / self._rate if self._rate else 0.0
        inserts = [_insert(t, self._database.kind) for t in self._tables]
        dice = random.Random(number)
        try:
            with connection.cursor() as cursor:
                while not self._stop.is_set():
                    key = self._first + self._counts[number] * CONNECTIONS + number
                    cursor.execute(inserts[self._counts[number] % len(inserts)].replace("{key}", str(key)))
                    self.committed[key] = time.monotonic()
                    self._counts[number] += 1
                    if self._hot is not None:
                        cursor.execute(_update(dice.choice(self._tables), dice.choice(self._hot)))
                        self._updated[number] += 1
                    self._stop.wait(max(0.0, begin + self._counts[number] * step - time.monotonic()))
        finally:
            connection.close()


def _insert(table: Table, kind: str) -> str:
    key = "SELECT {key}::bigint AS i" if kind == "postgres" else "SELECT {key} AS i"
    return f"INSERT INTO {table.name} SELECT {table.values(kind)} FROM ({key}) AS row_to_make"


def _update(table: Table, key: int) -> str:
    """Its second column is a number."""
    column = table.columns[1].name
    return f"UPDATE {table.name} SET {column} = {column} + 1 WHERE {table.columns[0].name} = {key}"
