"""Keys that no index holds whole, or that are alike for longer than a server sorts by: no row of them is lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow.compute as pc
import pytest
from psycopg2 import sql

from dblog_core.config.settings import Config
from dblog_core.errors import RequestError
from dblog_core.interfaces import ChunkReader, Source
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, keys_of
from dblog_core.rows.key_progress import RowsOutOfOrder
from dblog_core.rows.row_hashes import HASH
from dblog_core.sources.mysql.sql import where_clause as mysql_conditions
from dblog_core.sources.postgres.sql import where_clause as postgres_conditions
from dblog_core.wiring import open_source
from tests.contract.keyed import MYSQL_KINDS, shape, walk
from tests.contract.test_source import run
from tests.fix_servers import Database

ROWS = 600
ALIKE = 650
"""Characters in which all keys are alike: 1,024 octets are sorted by, unless somebody says otherwise."""


def tail(number: int) -> str:
    return f"{number:06}"


def text(number: int) -> str:
    return "x" * ALIKE + tail(number)


Case = tuple[str, list[tuple[Any, ...]]]
"""What stands in the brackets of CREATE TABLE and behind them, and rows; the column n is none of the key."""

EVERYWHERE: dict[str, Case] = {
    "text": ("(k text NOT NULL, n int, PRIMARY KEY (k(700)))", [(text(n), n) for n in range(ROWS)]),
    "of several octets": (
        "(k text NOT NULL, n int, PRIMARY KEY (k(700))) CHARACTER SET utf8mb4",
        [("日" * ALIKE + tail(n), n) for n in range(ROWS)],
    ),
    "of two words": (
        "(k text CHARACTER SET utf16 NOT NULL, n int, PRIMARY KEY (k(700)))",
        [("é" * ALIKE + tail(n), n) for n in range(ROWS)],
    ),
    "latin1": (
        "(k longtext CHARACTER SET latin1 NOT NULL, n int, PRIMARY KEY (k(2000)))",
        [("é" * 1900 + tail(n), n) for n in range(ROWS)],
    ),
    "without regard to case": (
        "(k text COLLATE utf8mb4_general_ci NOT NULL, n int, PRIMARY KEY (k(700))) CHARACTER SET utf8mb4",
        [("xX"[n % 2] * ALIKE + tail(n), n) for n in range(ROWS)],
    ),
    "blob": (
        "(k longblob NOT NULL, n int, PRIMARY KEY (k(1700)))",
        [(b"\xff" * 1650 + tail(n).encode(), n) for n in range(ROWS)],
    ),
    "the beginning of a varchar": (
        "(k varchar(2000) NOT NULL, n int, PRIMARY KEY (k(700))) CHARACTER SET utf8mb4",
        [(text(n) + "y" * (n % 900), n) for n in range(ROWS)],
    ),
    "composite": (
        "(a int NOT NULL, k text NOT NULL, b blob NOT NULL, c varchar(40) NOT NULL, n int,"
        " PRIMARY KEY (a, k(300), b(400), c)) CHARACTER SET utf8mb4",
        [
            (n % 2, "x" * 295 + str(n // 200), b"y" * 390 + f"{n // 20 % 10}".encode(), f"c{n % 20}", n)
            for n in range(ROWS)
        ],
    ),
    "whole": (
        "(k varchar(700) NOT NULL, n int, PRIMARY KEY (k)) CHARACTER SET utf8mb4",
        [(text(n), n) for n in range(ROWS)],
    ),
    "up and down": (
        "(k varchar(350) NOT NULL, l varchar(350) NOT NULL, n int, PRIMARY KEY (k, l DESC)) CHARACTER SET utf8mb4",
        [("x" * 340 + tail(n // 20), "x" * 340 + tail(n % 20), n) for n in range(ROWS)],
    ),
    "in memory": (
        "(k varchar(700) NOT NULL, n int, PRIMARY KEY (k)) ENGINE = MEMORY CHARACTER SET utf8mb4",
        [(text(n), n) for n in range(ROWS)],
    ),
    "without transactions": (
        "(k varchar(2000) NOT NULL, n int, PRIMARY KEY (k(200))) ENGINE = MyISAM CHARACTER SET utf8mb4",
        [("x" * 190 + tail(n), n) for n in range(ROWS)],
    ),
    # 'ß' is equal to 'ss', so the whole values are equal, and their beginnings are not: both rows can be there.
    "equal as a whole": (
        "(k text COLLATE utf8mb4_unicode_ci NOT NULL, n int, PRIMARY KEY (k(3))) CHARACTER SET utf8mb4",
        [("ßab", 1), ("ssab", 2), ("zz", 3), ("aaßx", 4), ("aassx", 5)],
    ),
}  # fmt: skip
MARIADB: dict[str, Case] = {
    "a place": (
        "(k point NOT NULL, n int, PRIMARY KEY (k))",
        [(b"\0\0\0\0\1\1\0\0\0" + bytes(8) + f"{n:08}".encode(), n) for n in range(ROWS)],
    ),
    "json": ("(k json NOT NULL, n int, PRIMARY KEY (k(700)))", [(f'"{text(n)}"', n) for n in range(ROWS)]),
    "by a hash": (
        "(k text NOT NULL, n int, UNIQUE (k)) CHARACTER SET utf8mb4",
        [("x" * 9000 + tail(n), n) for n in range(ROWS)],
    ),
}
POSTGRES: dict[str, Case] = {
    "text": ("(k text PRIMARY KEY, n int)", [(text(n), n) for n in range(ROWS)]),
    "of several octets": ("(k text PRIMARY KEY, n int)", [("日" * ALIKE + tail(n), n) for n in range(ROWS)]),
    "bytes": ("(k bytea PRIMARY KEY, n int)", [(text(n).encode(), n) for n in range(ROWS)]),
    "without regard to case": (
        '(k text COLLATE "no_case" PRIMARY KEY, n int)',
        [("xX"[n % 2] * ALIKE + tail(n), n) for n in range(ROWS)],
    ),
    "composite": (
        "(a int, k text, n int, PRIMARY KEY (a, k))",
        [(n % 2, text(n), n) for n in range(ROWS)],
    ),
}
CASES = [(kind, name) for kind in MYSQL_KINDS for name in EVERYWHERE]
CASES += [("mariadb", name) for name in MARIADB]
CASES += [("postgres", name) for name in POSTGRES]


@pytest.fixture(params=[None, 64], ids=["usually sorted", "little sorted"])
def sort_length(request: pytest.FixtureRequest, database: Database) -> Iterator[None]:
    """What the server gives to new sessions."""
    if request.param is None or database.kind == "postgres":
        yield
        return
    run(database, f"SET GLOBAL max_sort_length = {request.param}")
    try:
        yield
    finally:
        run(database, "SET GLOBAL max_sort_length = DEFAULT")


def fill(database: Database, case: Case) -> None:
    """Table `a`; rows are inserted in any order."""
    definition, rows = case
    run(database, f"CREATE TABLE a {definition}")
    insert(database, random.Random(7).sample(rows, len(rows)))


def insert(database: Database, rows: Sequence[tuple[Any, ...]]) -> None:
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO a VALUES ({', '.join(['%s'] * len(rows[0]))})", rows)


def hashed(reader: ChunkReader, schema: TableSchema, *, limit: int) -> dict[Key, int]:
    """As a verification reads a table."""
    hashes: dict[Key, int] = {}
    after = None
    while (answer := reader.hashes(schema, after=after, upto=None, limit=limit)).rows.num_rows:
        keys = keys_of(answer.rows, schema)
        hashes.update(zip(keys, answer.rows.column(HASH).to_pylist(), strict=True))
        after = keys[-1]
    return hashes


@pytest.mark.one_of(4)
@pytest.mark.parametrize(("source_kind", "case"), CASES, indirect=["source_kind"])
def test_every_row_is_read_once_however_long_its_key_is(
    database: Database, source: Source, source_config: Config, sort_length: None, case: str
) -> None:
    known = {"mysql": EVERYWHERE, "mariadb": EVERYWHERE | MARIADB, "postgres": POSTGRES}[database.kind]
    fill(database, known[case])
    numbers = sorted(row[-1] for row in known[case][1])
    keys = {f"{database.schema}.a": ["k"]} if case == "by a hash" else {}
    keyed = open_source(source_config.source.model_copy(update={"keys": keys}))
    limit = max(1, len(numbers) // 7)
    with closing(keyed.open_reader()) as reader:
        schema = shape(database, reader)
        read, ordered_keys = walk(reader, schema, limit=limit)
        assert sorted(read) == numbers
        assert reader.last_key(schema) == ordered_keys[-1]
        middle = ordered_keys[len(ordered_keys) // 2]
        assert walk(reader, schema, limit=limit, upto=middle)[1] == ordered_keys[: len(ordered_keys) // 2 + 1]
        boundaries = list(reader.boundaries(schema, after=None, upto=None, every=limit))
        assert boundaries == ordered_keys[limit - 1 :: limit]
        whole = reader.hashes(schema, after=None, upto=None, limit=len(numbers) + 1).rows
        assert hashed(reader, schema, limit=limit) == dict(
            zip(keys_of(whole, schema), whole.column(HASH).to_pylist(), strict=True)
        )
        part = reader.range_hash(schema, after=None, upto=None, limit=limit)
        assert (part.rows, part.last) == (limit, ordered_keys[limit - 1])
        whole_hash = reader.range_hash(schema, after=None, upto=middle, limit=10 * ROWS)
        assert whole_hash.last == middle
        listed = reader.read_keys(schema, ordered_keys[::2]).rows.column("n").to_pylist()
        assert set(listed) >= set(read[::2])
        assert reader.hashes_of(schema, ordered_keys).rows.num_rows == len(numbers)


@pytest.mark.parametrize("source_kind", MYSQL_KINDS, indirect=True)
def test_the_order_of_a_key_tells_how_much_of_it_is_unique(
    database: Database, source: Source, reader: ChunkReader
) -> None:
    """A dump that is under way must not go on where that changes; of other keys it is as it was before."""
    run(database, "CREATE TABLE a (k varchar(200) NOT NULL, n int, PRIMARY KEY (k))")
    orders = [reader.key_order(shape(database, reader))]
    assert "octets" not in orders[0]
    for length in ("(20)", "(21)", ""):
        run(database, f"ALTER TABLE a DROP PRIMARY KEY, ADD PRIMARY KEY (k{length})")
        orders.append(reader.key_order(shape(database, reader)))
    assert orders[0] == orders[3] and len(set(orders)) == 3
    run(database, "INSERT INTO a VALUES ('a', 1), ('b', 2)")
    assert walk(reader, shape(database, reader), limit=1)[0] == [1, 2]


@pytest.mark.parametrize("source_kind", ["mariadb"], indirect=True)
def test_values_of_any_length_that_no_index_has_in_order_are_refused_and_found_by_their_keys(
    database: Database, source: Source, source_config: Config
) -> None:
    run(database, "CREATE TABLE a (k mediumtext NOT NULL, n int, UNIQUE (k))", "INSERT INTO a VALUES ('x', 1)")
    keyed = open_source(source_config.source.model_copy(update={"keys": {f"{database.schema}.a": ["k"]}}))
    with closing(keyed.open_reader()) as reader:
        schema = shape(database, reader)
        with pytest.raises(RequestError, match=r"column k \(mediumtext\) holds values of any length") as refused:
            reader.read(schema, after=None, upto=None, limit=1)
        assert refused.value.fix.startswith("give the table a primary key")
        assert reader.read_keys(schema, [("x",)]).rows.column("n").to_pylist() == [1]


KEYS = {"numbers": "int", "texts": "varchar(40)", "two": "varchar(40)"}


@pytest.mark.parametrize("case", KEYS)
def test_rows_in_another_order_than_that_of_the_comparison_are_an_error(
    database: Database, source: Source, reader: ChunkReader, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Whatever the reason, a walk that could have skipped rows does not end."""
    key = "k" if case != "two" else "k, n"
    run(database, f"CREATE TABLE a (k {KEYS[case]} NOT NULL, n int NOT NULL, v int, PRIMARY KEY ({key}))")
    insert(database, [(str(1000 + n), n, (n * 7) % 50) for n in range(50)])
    schema = shape(database, reader)
    assert len(walk(reader, schema, limit=10)[0]) == 50
    monkeypatch.setattr(mysql_conditions, "order", lambda *_: "`v`")
    monkeypatch.setattr(postgres_conditions, "order", lambda *_: sql.SQL("t.v"))
    for read in (reader.read, reader.hashes):
        with pytest.raises(RowsOutOfOrder, match="rows would be skipped"):
            read(schema, after=None, upto=None, limit=10)
    if case != "numbers":
        with pytest.raises(RowsOutOfOrder, match="rows lie beyond"):
            reader.last_key(schema)
        # Of less than a whole chunk nothing follows.
        assert reader.read(schema, after=None, upto=None, limit=51).rows.num_rows == 50
    monkeypatch.undo()
    run(database, "DELETE FROM a WHERE n = 3")
    assert len(walk(reader, schema, limit=10)[0]) == 49, "the next SELECT is a new snapshot"


def test_rows_that_come_and_go_meanwhile_are_no_fault(database: Database, source: Source, reader: ChunkReader) -> None:
    run(database, "CREATE TABLE a (k varchar(40) PRIMARY KEY, n int)")
    insert(database, [(tail(2 * n), n) for n in range(300)])
    schema = shape(database, reader)
    stop = threading.Event()

    def write() -> None:
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                for number in range(1, 600, 6):
                    cursor.execute(f"INSERT INTO a VALUES ('{tail(number)}', -1)")
                cursor.execute("DELETE FROM a WHERE n < 0")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for _ in range(15):
            _, keys = walk(reader, schema, limit=20)
            assert {key for (key,) in keys} >= {tail(2 * n) for n in range(300)}
            assert pc.all(pc.is_valid(reader.hashes(schema, after=None, upto=None, limit=50).rows.column(HASH))).as_py()
    finally:
        stop.set()
        writing.join()
