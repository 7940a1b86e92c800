"""The demo's database: five tables with integer, text, composite and binary keys, and their rows.

The same tables on all servers; what differs is in `Dialect`. The servers make the rows themselves, from numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DATABASE = "shop"
ROWS: Mapping[str, int] = {
    "orders": 70_000,
    "customers": 30_000,
    "order_lines": 70_000,
    "sessions": 28_000,
    "documents": 4_000,
}
TABLES = tuple(ROWS)
SIZES: Mapping[str, Mapping[str, int]] = {"usual": ROWS, "small": {table: rows // 10 for table, rows in ROWS.items()}}
_BATCH = 5_000


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a kind of server calls things. `schema`: where the tables are, in database `shop`."""

    schema: str
    types: Mapping[str, str]
    half: str
    _digest: str
    _unhex: str
    _json: str
    _day: str
    _moment: str
    utc: str
    extra: tuple[str, ...] = ()

    def digest(self, text: str) -> str:
        """32 hex digits."""
        return self._digest.format(text)

    def unhex(self, text: str) -> str:
        return self._unhex.format(text)

    def json(self, text: str) -> str:
        return self._json.format(text)

    def day(self, days: str) -> str:
        """The date so many days after the beginning of 2015."""
        return self._day.format(days)

    def moment(self, seconds: str) -> str:
        """The time so many seconds after the beginning of 2020."""
        return self._moment.format(seconds)


_MYSQL = Dialect(
    schema=DATABASE,
    types={
        "binary16": "BINARY(16)",
        "blob": "BLOB",
        "text": "MEDIUMTEXT",
        "json": "JSON",
        "moment": "DATETIME(6)",
        "instant": "TIMESTAMP(6) NULL",
        "double": "DOUBLE",
        "flag": "BOOLEAN",
    },
    half="DIV 2",
    _digest="LEFT(SHA2({}, 256), 32)",  # MySQL 9 has no md5 any more
    _unhex="UNHEX({})",
    _json="{}",
    _day="DATE_ADD(DATE '2015-01-01', INTERVAL ({}) DAY)",
    _moment="DATE_ADD(TIMESTAMP '2020-01-01 00:00:00', INTERVAL ({}) * 1000000 MICROSECOND)",
    utc="SET time_zone = '+00:00'",
)
_POSTGRES = Dialect(
    schema="public",
    types={
        "binary16": "BYTEA",
        "blob": "BYTEA",
        "text": "TEXT",
        "json": "JSONB",
        "moment": "TIMESTAMP(6)",
        "instant": "TIMESTAMPTZ(6)",
        "double": "DOUBLE PRECISION",
        "flag": "BOOLEAN",
    },
    half="/ 2",
    _digest="md5({})",
    _unhex="decode({}, 'hex')",
    _json="CAST({} AS jsonb)",
    _day="DATE '2015-01-01' + CAST({} AS integer)",
    _moment="TIMESTAMP '2020-01-01 00:00:00' + ({}) * INTERVAL '1 second'",
    utc="SET timezone = 'UTC'",
    # Large values out of line and not compressed: an update of another column then leaves them out of the log.
    extra=(
        "ALTER TABLE documents ALTER body SET STORAGE EXTERNAL",
        "ALTER TABLE documents ALTER scan SET STORAGE EXTERNAL",
    ),
)


def dialect(kind: str) -> Dialect:
    """That of `mysql`, `mariadb` or `postgres`."""
    return _POSTGRES if kind == "postgres" else _MYSQL


_COLUMNS = {
    "orders": (
        "id BIGINT NOT NULL PRIMARY KEY, customer VARCHAR(40) NOT NULL, total DECIMAL(14,2) NOT NULL, "
        "status VARCHAR(12) NOT NULL, paid {flag}, created {moment} NOT NULL, shipped DATE, details {json}, "
        "comment {text}"
    ),
    "customers": (
        "code VARCHAR(40) NOT NULL PRIMARY KEY, name VARCHAR(120) NOT NULL, email VARCHAR(120), joined DATE NOT NULL, "
        "rating {double}, balance DECIMAL(30,10), seen {instant}, attributes {json}"
    ),
    "order_lines": (
        "order_id BIGINT NOT NULL, sku VARCHAR(20) NOT NULL, line INTEGER NOT NULL, quantity INTEGER NOT NULL, "
        "price DECIMAL(12,4) NOT NULL, weight {double}, PRIMARY KEY (order_id, sku, line)"
    ),
    "sessions": (
        "id {binary16} NOT NULL PRIMARY KEY, customer VARCHAR(40), agent VARCHAR(200), started {instant}, "
        "hits SMALLINT NOT NULL, cookie {blob}"
    ),
    "documents": (
        "id INTEGER NOT NULL PRIMARY KEY, title VARCHAR(200) NOT NULL, body {text}, scan {blob}, tags {json}, "
        "version INTEGER NOT NULL"
    ),
}


def _values(server: Dialect, customers: int) -> Mapping[str, str]:
    """The columns of row number `n`, as SQL that all servers understand."""

    def digest(what: str) -> str:
        return server.digest(f"concat('{what}', n)")

    customer = f"concat('C', lpad(concat(n % {customers} + 1), 6, '0'))"
    gift = "CASE n % 2 WHEN 0 THEN 'true' ELSE 'false' END"
    details = server.json(f"""concat('{{"gift": ', {gift}, ', "points": ', n % 97, '}}')""")
    tier = server.json(f"""concat('{{"tier": ', n % 5, ', "tags": ["a", "', {digest("tag")}, '"]}}')""")
    tags = server.json("""concat('[', n % 11, ', "x"]')""")
    cookie = server.unhex(f"concat('00ff', {digest('cookie')}, '00')")
    body = f"repeat({digest('body')}, CASE WHEN n % 8 = 0 THEN 200 ELSE 8 END)"
    scan = server.unhex(f"repeat({digest('scan')}, CASE WHEN n % 8 = 0 THEN 250 ELSE 4 END)")
    return {
        "orders": (
            f"n, {customer}, n * 0.37, CASE n % 3 WHEN 0 THEN 'new' WHEN 1 THEN 'packed' ELSE 'sent' END, "
            f"CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN true ELSE false END, {server.moment('n * 61.000123')}, "
            f"CASE WHEN n % 5 = 0 THEN NULL ELSE {server.day('n % 3650')} END, {details}, "
            f"CASE WHEN n % 4 = 0 THEN NULL ELSE concat('Grüße ✓ ', {digest('order')}) END"
        ),
        "customers": (
            f"concat('C', lpad(concat(n), 6, '0')), concat('Name ', substring({digest('name')}, 1, 12)), "
            f"CASE WHEN n % 7 = 0 THEN NULL ELSE concat('c', n, '@shop.example') END, "
            f"{server.day('n % 3650')}, n / 8.0, "
            f"n * -12345.0123456789, CASE WHEN n % 9 = 0 THEN NULL ELSE {server.moment('n')} END, {tier}"
        ),
        "order_lines": (
            f"(n + 1) {server.half}, concat('SKU-', lpad(concat(n % 900), 4, '0')), n % 2 + 1, n % 12 + 1, "
            "n % 5000 / 100.0 + 0.0025, CASE WHEN n % 6 = 0 THEN NULL ELSE n / 16.0 END"
        ),
        "sessions": (
            f"{server.unhex(session_id(server, 'n'))}, {customer}, concat('Agent/', n % 17, '.', n % 5), "
            f"{server.moment('n * 7.25')}, n % 300, CASE WHEN n % 3 = 0 THEN NULL ELSE {cookie} END"
        ),
        "documents": f"n, concat('Document ', n), {body}, {scan}, {tags}, 1",
    }


def session_id(server: Dialect, number: str) -> str:
    """The key of a session in hex, as SQL; some end in zero bytes, which MySQL's log leaves out of BINARY(16)."""
    digest = server.digest(f"concat('session', {number})")
    return f"concat(substring({digest}, 1, 28), CASE WHEN {number} % 4 = 0 THEN '0000' ELSE 'ab01' END)"


def session_key(kind: str, number: int) -> bytes:
    """The key of the session of that number, as `load` has made it."""
    # The same digests as the SQL of `Dialect` makes.
    algorithm = "md5" if kind == "postgres" else "sha256"
    digest = hashlib.new(algorithm, f"session{number}".encode(), usedforsecurity=False).hexdigest()
    return bytes.fromhex(digest[:28] + ("0000" if number % 4 == 0 else "ab01"))


def load(connection: Any, kind: str, rows: Mapping[str, int] = ROWS) -> int:
    """Creates the tables in an empty database (autocommit connection), with so many rows each; returns their sum."""
    server = dialect(kind)
    with connection.cursor() as cursor:
        cursor.execute(server.utc)
        # The server makes the rows from numbers by itself: much faster than sending them.
        cursor.execute("CREATE TABLE numbers (n INTEGER NOT NULL PRIMARY KEY)")
        most = max(rows.values())
        # In parts, so that no statement grows with the number of rows.
        for first in range(1, most + 1, _BATCH):
            values = ",".join(f"({n})" for n in range(first, min(first + _BATCH, most + 1)))
            cursor.execute(f"INSERT INTO numbers VALUES {values}")
        for table in TABLES:
            cursor.execute(f"CREATE TABLE {table} ({_COLUMNS[table].format(**server.types)})")
        for statement in server.extra:
            cursor.execute(statement)
        for table, values in _values(server, rows["customers"]).items():
            cursor.execute(f"INSERT INTO {table} SELECT {values} FROM numbers WHERE n <= {rows[table]}")
        cursor.execute("DROP TABLE numbers")
    return sum(rows.values())
