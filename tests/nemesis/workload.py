"""Writers over few hot and many cold keys; every row carries the number of the operation that wrote it.

Each writer owns the keys that are its number modulo the writers, so operation numbers grow along every key's history
and a row that goes back is seen at once. Now and then a table is truncated; once a column is added to another, and
`shapes` changes its columns all the time.

A column of `shapes` is named by a number that no other has, which is its default too, and by how often it was renamed:
`x12r3`. So a name tells which column it is (`column_of`), and what rows have in it that were there before it.
"""

from __future__ import annotations

import random
import re
import threading
from typing import Any

from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS

TABLES = ("accounts", "names", "small", "shapes")
COLUMNS = {
    "accounts": ["id", "op", "amount", "note"],
    "names": ["id", "op", "big"],
    "small": ["id", "op", "note"],
    "shapes": ["id", "op", "x0"],
}
ADDED = ("accounts", "extra")  # the column that comes meanwhile
HOT = 20
COLD = 2_000
SMALL = 300
SHAPES = 5  # columns of `shapes` at most, so that some are dropped
_NUMBERED = re.compile(r"x(\d+)(r\d+)?")


def column_of(name: str) -> str:
    """The column that a name of any time stands for."""
    return f"x{match[1]}" if (match := _NUMBERED.fullmatch(name)) else name


def default_of(table: str, column: str) -> Any:
    """What rows have in a column that came after them; KeyError if it was always there."""
    if (table, column) == ADDED:
        return None
    if table == "shapes" and (match := _NUMBERED.fullmatch(column)):
        return int(match[1])
    raise KeyError(column)


def create_tables(database: Database) -> None:
    """`accounts` with an integer key, `names` with a text key that changes, `small` that is truncated; all filled."""
    text = "longtext" if database.kind != "postgres" else "text"
    database.execute(
        f"CREATE TABLE accounts (id bigint PRIMARY KEY, op bigint NOT NULL, amount decimal(12,2), note {text})",
        f"CREATE TABLE names (id varchar(40) PRIMARY KEY, op bigint NOT NULL, big {text})",
        "CREATE TABLE small (id bigint PRIMARY KEY, op bigint NOT NULL, note varchar(20))",
        "CREATE TABLE shapes (id bigint PRIMARY KEY, op bigint NOT NULL, x0 int DEFAULT 0)",
    )
    if database.kind == "postgres":  # stored out of line: an update that leaves such a value alone leaves it out
        database.execute("ALTER TABLE names ALTER big SET STORAGE EXTERNAL")
    connection = database.connect()
    try:
        with connection.cursor() as cursor:
            rows = [(i, 0, i / 4, f"cold {i}") for i in range(COLD)]
            cursor.executemany("INSERT INTO accounts VALUES (%s, %s, %s, %s)", rows)
            names = [(f"n{i}", 0, "x" * (3000 if i % 50 == 0 else 20)) for i in range(COLD // 4)]
            cursor.executemany("INSERT INTO names VALUES (%s, %s, %s)", names)
            cursor.executemany("INSERT INTO small VALUES (%s, %s, %s)", [(i, 0, f"small {i}") for i in range(SMALL)])
            cursor.executemany("INSERT INTO shapes VALUES (%s, %s, %s)", [(i, 0, i * 3) for i in range(SMALL)])
    finally:
        connection.close()


class Writers:
    """`count` threads that write until stopped, reconnecting when the server goes away.

    `statements`: the part of the first one's transactions before which a statement comes that is no row change.
    """

    def __init__(self, database: Database, *, seed: int, count: int = 2, statements: float = 0.04) -> None:
        self._database = database
        self._count = count
        self._statements = statements
        self._stop = threading.Event()
        self._added = threading.Event()
        self.transactions = self.truncates = self.alters = 0
        self.faults: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number, random.Random(seed * 100 + number)))
            for number in range(count)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=PATIENCE_SECONDS)

    @property
    def has_added(self) -> bool:
        """Whether the column has come."""
        return self._added.is_set()

    def _run(self, number: int, draw: random.Random) -> None:
        operation = number + self._count
        while not self._stop.is_set():
            try:
                connection = self._database.connect()
            except Exception:  # noqa: BLE001 - the server was killed on purpose: until it is back
                self._stop.wait(0.1)
                continue
            try:
                while not self._stop.is_set():
                    self._statement(connection, number, draw)
                    operation = self._transaction(connection, number, operation, draw)
                    self.transactions += 1
                    self._stop.wait(draw.random() * 0.02)
            except Exception as error:  # noqa: BLE001 - as above; what is no lost connection fails the run
                if not _is_undone(error):
                    self.faults.append(error)
                    return
                operation += 1000 * self._count  # a commit whose answer was lost may have used the numbers before
            finally:
                connection.close()

    def _statement(self, connection: Any, number: int, draw: random.Random) -> None:
        """Now and then what is no row change; the first writer alone, so that two never wait for each other."""
        if number or draw.random() > self._statements:
            return
        with connection.cursor() as cursor:
            if draw.random() < 0.8:
                self.alters += 1  # before it: its answer may be lost
                cursor.execute(self._alter(self._shape(cursor), draw))
            elif self.transactions > 150 and not self.has_added:
                if not self._has_column(cursor):
                    cursor.execute(f"ALTER TABLE {ADDED[0]} ADD COLUMN {ADDED[1]} varchar(20)")
                self._added.set()
            else:
                cursor.execute(f"TRUNCATE TABLE {self._database.schema}.small")
                self.truncates += 1

    def _shape(self, cursor: Any) -> list[str]:
        """The columns of `shapes` that come and go, as they are now; for the first writer, which alone changes them."""
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = 'shapes' "
            "ORDER BY ordinal_position",
            (self._database.schema,),
        )
        return [str(row[0]) for row in cursor.fetchall()][2:]

    def _alter(self, names: list[str], draw: random.Random) -> str:
        """A change of the shape of `shapes`, whose columns are `names`."""
        table = f"ALTER TABLE {self._database.schema}.shapes"
        postgres = self._database.kind == "postgres"
        number = self.alters
        name = draw.choice(names) if names else ""
        match draw.randrange(6):
            case 0 | 1 if len(names) < SHAPES:
                return f"{table} ADD COLUMN x{number} int {'NOT NULL ' * draw.randrange(2)}DEFAULT {number}"
            case 2 if len(names) > 1:
                return f"{table} DROP COLUMN {name}"
            case 3 | 4 if names:
                return f"{table} RENAME COLUMN {name} TO {column_of(name)}r{number}"
            case 5 if names:
                change = f"ALTER COLUMN {name} TYPE bigint" if postgres else f"MODIFY COLUMN {name} bigint"
                return f"{table} {change}"
        # Every row is written anew, and has the values that it had.
        return f"{table} ALTER COLUMN op TYPE bigint USING op + 0" if postgres else f"{table} FORCE"

    def _has_column(self, cursor: Any) -> bool:
        """Whether an ALTER whose answer was lost has come to pass."""
        cursor.execute(
            "SELECT 1 FROM information_schema.columns WHERE table_schema = %s AND table_name = %s AND column_name = %s",
            (self._database.schema, *ADDED),
        )
        return cursor.fetchone() is not None

    def _transaction(self, connection: Any, number: int, operation: int, draw: random.Random) -> int:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for _ in range(draw.choice((1, 1, 1, 2, 5))):
                undone = draw.random() < 0.05
                if undone:
                    cursor.execute("SAVEPOINT here")
                operation += self._count
                self._operation(cursor, number, operation, draw)
                if undone:
                    cursor.execute("ROLLBACK TO SAVEPOINT here")
            cursor.execute("ROLLBACK" if draw.random() < 0.1 else "COMMIT")
        return operation

    def _operation(self, cursor: Any, number: int, operation: int, draw: random.Random) -> None:
        key = draw.randrange(HOT if draw.random() < 0.5 else COLD * 2) // self._count * self._count + number
        name = f"n{key}"
        other = f"n{key + COLD * 2}"
        match draw.randrange(12):
            case 10 | 11:
                key = key % SMALL // self._count * self._count + number
                self._write_shapes(cursor, number, key, operation, draw)
            case 0:
                cursor.execute("DELETE FROM accounts WHERE id = %s", (key,))
            case 1:
                cursor.execute("DELETE FROM names WHERE id = %s", (name,))
            case 2 | 3:
                updated = cursor.execute("UPDATE accounts SET op = %s WHERE id = %s", (operation, key))
                if not (cursor.rowcount if updated is None else updated):
                    values = (key, operation, operation / 8, f"é {operation}")
                    cursor.execute("INSERT INTO accounts (id, op, amount, note) VALUES (%s, %s, %s, %s)", values)
            case 4:
                values = (operation, f"note {operation}", key)
                column = ADDED[1] if self.has_added and operation % 3 == 0 else "note"
                cursor.execute(f"UPDATE accounts SET op = %s, {column} = %s WHERE id = %s", values)
            case 5:
                cursor.execute("DELETE FROM names WHERE id = %s", (other,))
                cursor.execute("UPDATE names SET id = %s, op = %s WHERE id = %s", (other, operation, name))
            case 6:
                cursor.execute("UPDATE names SET op = %s WHERE id = %s", (operation, name))
            case 7:
                cursor.execute("DELETE FROM small WHERE id = %s", (key % SMALL // self._count * self._count + number,))
            case 8:
                key = key % SMALL // self._count * self._count + number
                cursor.execute("DELETE FROM small WHERE id = %s", (key,))
                cursor.execute("INSERT INTO small VALUES (%s, %s, %s)", (key, operation, f"again {operation}"))
            case _:
                cursor.execute("DELETE FROM names WHERE id = %s", (name,))
                big = "y" * (2600 + operation % 100 if operation % 3 == 0 else 10)
                cursor.execute("INSERT INTO names VALUES (%s, %s, %s)", (name, operation, big))

    def _write_shapes(self, cursor: Any, number: int, key: int, operation: int, draw: random.Random) -> None:
        """Columns that come and go are named by the writer alone that changes them; others have their default."""
        if draw.random() < 0.5:
            names = [] if number else self._shape(cursor)
            sets = "".join(f", {name} = {operation}" for name in names if draw.random() < 0.5)
            cursor.execute(f"UPDATE shapes SET op = {operation}{sets} WHERE id = {key}")
            return
        cursor.execute("DELETE FROM shapes WHERE id = %s", (key,))
        if operation % 3:
            cursor.execute("INSERT INTO shapes (id, op) VALUES (%s, %s)", (key, operation))


def _is_undone(error: BaseException) -> bool:
    """Whether the server went away or broke a deadlock of the two writers: errors that undo the transaction."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else None
    if type(error).__module__.startswith("pymysql"):
        return code in (0, 1053, 1205, 1213, 1412, 2003, 2006, 2013) or type(error).__name__ == "InterfaceError"
    return type(error).__name__ in ("OperationalError", "InterfaceError", "AdminShutdown", "DeadlockDetected")
