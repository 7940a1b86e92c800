"""A live workload on the demo's tables: inserts, updates, deletes, key changes and rollbacks, at a steady rate.

    python -m dblog_core.local.demo.workload --kind mysql --port 3306 --user root --rate 250 --seed 1

A process of its own, with a few connections, so that it takes nothing from who watches it. The password comes from
DBLOG_WORKLOAD_PASSWORD. Once a second it prints a JSON line of what it has done so far; SIGTERM ends it after the
transactions that are under way, with a last line.
"""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from dblog_core.local.demo import shop

PASSWORD_FROM = "DBLOG_WORKLOAD_PASSWORD"  # noqa: S105 - the name of an environment variable
_CONNECTIONS = 4
_FIRST_NEW = 10_000_000  # ids of new orders begin here, far from the loaded ones
_MYSQL_CONFLICTS = (1213, 1205, 1020, 1062)  # deadlock, lock wait, record changed, key taken


@dataclass(frozen=True, slots=True)
class WorkloadReport:
    """What all clients have done in so many seconds: transactions, and of each kind how many. `rate`: transactions a
    second since the report before."""

    transactions: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    kinds: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_line(cls, line: str) -> Self:
        return cls(**json.loads(line))

    def to_line(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self)) + "\n"

    @property
    def mean_rate(self) -> float:
        """Transactions a second over all its time."""
        return self.transactions / max(self.seconds, 1)


class Client:
    """One connection's share of the workload: a seeded sequence of transactions. `rows`: how many each table began
    with."""

    def __init__(
        self, connect: Callable[[], Any], kind: str, *, rows: Mapping[str, int], seed: int, number: int
    ) -> None:
        self._connect = connect
        self._kind = kind
        self._rows = rows
        self._number = number
        # Each client has a sequence of its own, so that a seed gives the same transactions however threads run.
        self._random = random.Random(f"{seed}/{number}")
        self._new = 0
        self._orders: list[int] = []
        self.done: Counter[str] = Counter()
        self._steps = (
            (24, self._order),
            (26, self._update_order),
            (14, self._update_customer),
            (8, self._session),
            (6, self._end_session),
            (6, self._delete_order),
            (4, self._document),
            (3, self._new_key),
            (3, self._again),
            (6, self._give_up),
        )

    def run(self, stop: threading.Event, *, rate: float) -> None:
        """`rate` transactions a second until `stop`; what another connection prevents is rolled back and counted."""
        self._connection = self._connect()
        weights, steps = zip(*self._steps, strict=True)
        due = time.monotonic()
        try:
            while not stop.is_set():
                self._transaction(self._random.choices(steps, weights)[0])
                due = max(due + 1 / rate, time.monotonic() - 1)  # a second behind is made up for, more is not
                stop.wait(max(0.0, due - time.monotonic()))
        finally:
            self._connection.close()

    def _transaction(self, step: Callable[[], str]) -> None:
        try:
            what = step()
            if what == "rollback":
                self._connection.rollback()
            else:
                self._connection.commit()
        except Exception as error:
            # The demo's clients disturb each other on purpose.
            if not self._conflict(error):
                raise
            self._connection.rollback()
            what = "conflict"
        self.done[what] += 1

    def _conflict(self, error: Exception) -> bool:
        if self._kind == "postgres":
            return getattr(error, "pgcode", None) in ("40P01", "40001", "23505")
        return bool(error.args) and error.args[0] in _MYSQL_CONFLICTS

    def _do(self, sql: str, *values: Any) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values)

    # The transactions; each returns what it was.

    def _order(self) -> str:
        self._new += 1
        # Interleaved by connection, so that two clients never make the same id.
        order = _FIRST_NEW + self._new * _CONNECTIONS + self._number
        lines = self._random.randint(1, 3)
        total = decimal.Decimal(self._random.randrange(10**7)) / 100
        details = json.dumps({"gift": bool(lines % 2), "points": self._random.randrange(100), "note": "ünï ✓"})
        self._do(
            "INSERT INTO orders VALUES (%s, %s, %s, 'new', NULL, %s, NULL, %s, %s)",
            *(order, self._customer(), total, self._now(), details, self._text(40)),
        )
        for line in range(1, lines + 1):
            price = decimal.Decimal(self._random.randrange(10**6)) / 10_000
            values = (order, f"SKU-{self._random.randrange(900):04d}", line, line * 2, price, self._random.random())
            self._do("INSERT INTO order_lines VALUES (%s, %s, %s, %s, %s, %s)", *values)
        self._orders.append(order)
        return "insert"

    def _update_order(self) -> str:
        status, paid = self._random.choice([("packed", True), ("sent", True), ("back", False)])
        self._do(
            "UPDATE orders SET status = %s, paid = %s, total = total + 0.01, shipped = %s WHERE id = %s",
            *(status, paid, self._now().date(), self._any_order()),
        )
        if self._random.random() < 0.3:
            order = self._random.randint(1, self._rows["orders"] // 2)
            self._do("UPDATE order_lines SET quantity = quantity + 1 WHERE order_id = %s", order)
        return "update"

    def _update_customer(self) -> str:
        self._do(
            "UPDATE customers SET rating = %s, balance = balance - 0.0000000001, seen = %s WHERE code = %s",
            *(self._random.gauss(0, 1e6), self._now(), self._customer()),
        )
        return "update"

    def _session(self) -> str:
        cookie = self._random.randbytes(self._random.randint(0, 60)) if self._random.random() < 0.8 else None
        number = self._random.randint(1, self._rows["sessions"])
        if self._random.random() < 0.5:
            self._do("UPDATE sessions SET hits = hits + 1, cookie = %s WHERE id = %s", cookie, self._session_id(number))
            return "update"
        key = self._random.randbytes(self._random.randint(12, 16)).ljust(16, b"\0")
        self._do("INSERT INTO sessions VALUES (%s, %s, 'new', %s, 1, %s)", key, self._customer(), self._now(), cookie)
        return "insert"

    def _end_session(self) -> str:
        number = self._random.randint(1, self._rows["sessions"])
        self._do("DELETE FROM sessions WHERE id = %s", self._session_id(number))
        return "delete"

    def _delete_order(self) -> str:
        old = not self._orders or self._random.random() < 0.5
        order = self._random.randint(1, self._rows["orders"]) if old else self._orders.pop(0)
        self._do("DELETE FROM order_lines WHERE order_id = %s", order)
        self._do("DELETE FROM orders WHERE id = %s", order)
        return "delete"

    def _document(self) -> str:
        number = self._random.randint(1, self._rows["documents"])
        if self._random.random() < 0.7:  # the large columns stay as they are
            self._do("UPDATE documents SET version = version + 1, title = %s WHERE id = %s", self._text(60), number)
        else:
            body = self._text(self._random.choice([100, 3000]))
            self._do("UPDATE documents SET body = %s, scan = NULL WHERE id = %s", body, number)
        return "update"

    def _new_key(self) -> str:
        number = self._random.randint(1, self._rows["documents"])
        which = self._random.randrange(4)
        if which == 0:
            other = number + self._rows["documents"] * self._random.randint(1, 3)
            self._do("UPDATE documents SET id = %s WHERE id = %s", other, number)
        elif which == 1:
            old = self._customer()
            self._do("UPDATE customers SET code = %s, rating = -1 WHERE code = %s", f"K{self._text(8)}", old)
        elif which == 2:
            self._do("UPDATE order_lines SET line = line + 10 WHERE order_id = %s", number)
        else:
            new = self._random.randbytes(16)
            self._do("UPDATE sessions SET id = %s WHERE id = %s", new, self._session_id(number))
        return "key change"

    def _again(self) -> str:
        """The same key deleted and inserted in one transaction, and updated once more."""
        order = self._any_order()
        self._do("DELETE FROM orders WHERE id = %s", order)
        self._do(
            "INSERT INTO orders VALUES (%s, %s, 1.10, 'again', true, %s, NULL, NULL, NULL)",
            *(order, self._customer(), self._now()),
        )
        self._do("UPDATE orders SET comment = %s WHERE id = %s", self._text(30), order)
        return "replace"

    def _give_up(self) -> str:
        self._update_order()
        self._session()
        self._do("DELETE FROM customers WHERE code = %s", self._customer())
        return "rollback"

    # Values

    def _any_order(self) -> int:
        if self._orders and self._random.random() < 0.4:
            return self._random.choice(self._orders[-200:])
        return self._random.randint(1, self._rows["orders"])

    def _customer(self) -> str:
        return f"C{self._random.randint(1, self._rows['customers']):06d}"

    def _session_id(self, number: int) -> bytes:
        return shop.session_key(self._kind, number)

    def _now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC).replace(tzinfo=None)

    def _text(self, length: int) -> str:
        return "".join(self._random.choices("abcdefghij klmnopqrstüé✓0123456789", k=length))


class Workload:
    """All clients, and what they have done together."""

    def __init__(self, connect: Callable[[], Any], kind: str, *, rows: Mapping[str, int], seed: int) -> None:
        self._clients = [Client(connect, kind, rows=rows, seed=seed, number=n) for n in range(_CONNECTIONS)]
        self._failure: list[Exception] = []

    def run(self, stop: threading.Event, *, rate: float, tell: Callable[[WorkloadReport], None]) -> None:
        """Until `stop`; tells once a second. Raises what ended a client."""
        threads = [
            threading.Thread(target=self._run_client, args=(c, stop, rate / _CONNECTIONS)) for c in self._clients
        ]
        began = before = time.monotonic()
        count = 0
        for thread in threads:
            thread.start()
        while not stop.wait(1):
            now = time.monotonic()
            total = sum(self._count_by_kind().values())
            tell(self._report(began, (total - count) / (now - before)))
            before = now
            count = total
        for thread in threads:
            thread.join()
        tell(self._report(began, 0.0))
        if self._failure:
            raise self._failure[0]

    def _run_client(self, client: Client, stop: threading.Event, rate: float) -> None:
        try:
            client.run(stop, rate=rate)
        except Exception as error:  # noqa: BLE001 - handed to `run`, which raises it
            self._failure.append(error)
            stop.set()

    def _count_by_kind(self) -> Counter[str]:
        return sum((client.done for client in self._clients), Counter())

    def _report(self, began: float, rate: float) -> WorkloadReport:
        done = self._count_by_kind()
        seconds = time.monotonic() - began
        total = sum(done.values())
        return WorkloadReport(total, round(seconds, 1), round(rate, 1), dict(done))


def connector(kind: str, *, host: str, port: int, user: str, password: str) -> Callable[[], Any]:
    """Opens connections to the demo's database, in transactions, at UTC."""
    utc = shop.dialect(kind).utc

    def connect() -> Any:
        if kind == "postgres":
            import psycopg2

            connection: Any = psycopg2.connect(host=host, port=port, user=user, password=password, dbname=shop.DATABASE)
        else:
            import pymysql

            connection = pymysql.connect(host=host, port=port, user=user, password=password, database=shop.DATABASE)
        with connection.cursor() as cursor:
            cursor.execute(utc)
        connection.commit()
        return connection

    return connect


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kind", choices=["mysql", "mariadb", "postgres"], required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--rate", type=float, default=250.0, help="transactions a second, of all connections together")
    parser.add_argument("--size", choices=list(shop.SIZES), default="usual", help="of the tables when they were filled")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started us, and tells us by SIGTERM
    connect = connector(
        options.kind, host=options.host, port=options.port, user=options.user, password=os.environ[PASSWORD_FROM]
    )

    def tell(report: WorkloadReport) -> None:
        sys.stdout.write(report.to_line())
        sys.stdout.flush()

    rows = shop.SIZES[options.size]
    Workload(connect, options.kind, rows=rows, seed=options.seed).run(stop, rate=options.rate, tell=tell)


if __name__ == "__main__":
    main()
