"""Dumps and verifications of tables whose keys are alike for longer than a server sorts by."""

from __future__ import annotations

import base64
import contextlib
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest
from psycopg2 import sql

from dblog_core.dumps import dump_store, filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.model.events import FINISHED
from dblog_core.model.watermark import Heals
from dblog_core.rows.key_progress import RowsOutOfOrder
from dblog_core.sources.mysql.sql import where_clause as mysql_conditions
from dblog_core.sources.postgres.sql import where_clause as postgres_conditions
from dblog_core.verify import source_reader
from dblog_core.wiring import open_source, open_staging, open_state
from tests.fix_servers import Database
from tests.integration.verify_shop import Plainly, Shop

ROWS = 900


class LongKeys(Shop):
    """Both tables have a key of some 650 characters that are alike; of `b` it holds a number too."""

    def fill(self) -> None:
        beginnings = ("k", "k") if self.database.kind == "postgres" else ("k(700)", "k(700)")
        self.database.execute(
            f"CREATE TABLE a (k text NOT NULL, n int, PRIMARY KEY ({beginnings[0]}))",
            f"CREATE TABLE b (i int NOT NULL, k text NOT NULL, n int, PRIMARY KEY (i, {beginnings[1]}))",
        )
        rows = [("é" * 650 + f"{n:06}", n) for n in range(ROWS)]
        random.Random(3).shuffle(rows)
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.executemany("INSERT INTO a VALUES (%s, %s)", rows)
            cursor.executemany("INSERT INTO b VALUES (%s, %s, %s)", [(n % 2, key, n) for key, n in rows])

    def file(self, table: str) -> str:
        return filing.submit(self.config, DumpRequest(tables=(table,)))

    def work(self, dump_id: str) -> DumpStatus:
        with contextlib.suppress(RowsOutOfOrder):  # which the status then tells
            work_loop.work(self.config, stop=threading.Event(), dump_id=dump_id)
        return work_loop.wait(self.config, dump_id, stop=threading.Event())

    def ended_dumps(self) -> list[str]:
        """Tables, by the marks that a whole dump of them has ended."""
        marks = (mark for manifest in open_staging(self.config).manifests() for mark in manifest.marks)
        return [mark.table for mark in marks if mark.op == FINISHED]


@pytest.fixture
def keys(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LongKeys]:
    if database.kind != "postgres":
        database.execute(f"ALTER DATABASE {database.name} CHARACTER SET utf8mb4")
        database.execute("SET GLOBAL max_sort_length = 128")
    monkeypatch.setattr(source_reader, "WINDOW_ROWS", 100)
    shop = LongKeys(database, database.config(tmp_path, dump={"chunk_size": 100}))
    shop.fill()
    try:
        with shop.capturing():
            yield shop
    finally:
        if database.kind != "postgres":
            database.execute("SET GLOBAL max_sort_length = DEFAULT")


@pytest.mark.in_turn
def test_a_dump_brings_every_row_and_a_verification_finds_just_what_is_wrong(
    keys: LongKeys, verify_plainly: Plainly
) -> None:
    for table in (keys.a, keys.b):
        dump = keys.work(keys.file(table))
        assert (dump.state, dump.rows) == ("done", ROWS)
    assert sorted(keys.ended_dumps()) == [keys.a, keys.b]
    verify, lake = verify_plainly(keys.config)
    report = verify(keys.config)
    assert report.equal, report.to_json()
    assert [(each.rows, each.lake_rows) for each in report.tables] == [(ROWS, ROWS)] * 2
    missing = ("é" * 650 + "000777",)
    lake.do(keys.a, missing, None)
    assert verify(keys.config, keys.a).tables[0].missing == missing
    assert verify(keys.config, keys.a, repair=True).equal


@pytest.mark.in_turn
@pytest.mark.parametrize(("table", "order"), [("a", "mod({}, 7)"), ("c", "{}")])
def test_a_dump_whose_rows_are_out_of_order_fails_and_tells_nobody_that_it_is_whole(
    keys: LongKeys, monkeypatch: pytest.MonkeyPatch, table: str, order: str
) -> None:
    """Of a text the server counts the rows, numbers are looked at here."""
    keys.database.execute("CREATE TABLE c (id int PRIMARY KEY, n int)")
    numbers = ", ".join(f"({n}, {n * 7 % ROWS})" for n in range(ROWS))
    keys.database.execute(f"INSERT INTO c VALUES {numbers}")
    name = f"{keys.database.schema}.{table}"
    dump_id = keys.file(name)
    monkeypatch.setattr(mysql_conditions, "order", lambda *_: order.format("`n`"))
    monkeypatch.setattr(postgres_conditions, "order", lambda *_: sql.SQL(order.format("t.n")))
    failed = keys.work(dump_id)
    assert failed.state == "failed"
    assert failed.error and "does not put the rows of" in failed.error and "rows would be skipped" in failed.error
    assert "é" not in failed.error and name in failed.error
    assert keys.ended_dumps() == []
    monkeypatch.undo()
    assert keys.work(keys.file(name)).rows == ROWS
    assert keys.ended_dumps() == [name]


RANGES = [
    ("mysql", "k varbinary(300), PRIMARY KEY (k)", Heals("Yg==", "Yw==")),
    ("mysql", "k varbinary(300), PRIMARY KEY (k(1))", None),
    ("mariadb", "k blob, PRIMARY KEY (k(1))", None),
    ("mariadb", "k uuid PRIMARY KEY", None),
]


@pytest.mark.parametrize(("source_kind", "definition", "heals"), RANGES, indirect=["source_kind"])
def test_a_range_of_keys_removes_rows_only_where_the_lake_has_the_order_of_the_source(
    database: Database, tmp_path: Path, definition: str, heals: Heals | None
) -> None:
    """Of a UUID, and of what an index holds the beginning of, the lake would take other rows for those in the range."""
    database.execute(f"CREATE TABLE a ({definition})")
    config = database.config(tmp_path)
    open_source(config.source).prepare()
    ends = [base64.b64encode(letter).decode() for letter in (b"b", b"c")]
    if "uuid" in definition:
        ends = [str(UUID(bytes=letter * 16)) for letter in (b"b", b"c")]
    request = DumpRequest(tables=(f"{database.name}.a",), key_from=ends[0], key_to=ends[1])
    dump_id = filing.submit(config, request)
    with closing(open_state(config)) as state:
        assert {task.record.heals for task in dump_store.read_dump(state, dump_id).tasks} == {heals}
