"""Servers whose settings for new sessions would change what our SELECTs bring: ours are the same on all of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import work_loop
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import DumpRequest
from dblog_core.staging.reader import lines
from tests.fix_servers import Database

pytestmark = [pytest.mark.in_turn]
both = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


@contextlib.contextmanager
def setting(database: Database, name: str, value: str) -> Iterator[None]:
    """Of the server, for new sessions."""
    usual = database.query(f"SELECT @@GLOBAL.{name}")[0][0]
    database.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        database.execute(f"SET GLOBAL {name} = {usual!r}")


@contextlib.contextmanager
def capturing(config: Config) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=run_capture, args=(config,), kwargs={"stop": stop})
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def dump_rows(config: Config) -> dict[str, list[dict[str, object]]]:
    """The rows of a dump of all tables, by table."""
    dump_id = submit(config, DumpRequest(tables=None))
    work_loop.work(config, stop=threading.Event(), once=True, dump_id=dump_id)
    assert work_loop.wait(config, dump_id, stop=threading.Event()).state == "done"
    rows_by_op: dict[str, list[dict[str, object]]] = {}
    for line in lines(wiring.open_staging(config)):
        if line["op"] == "r":
            rows_by_op.setdefault(line["table"].partition(".")[2], []).append(line["after"])
    return rows_by_op


@both
@pytest.mark.parametrize("level", ["READ-UNCOMMITTED", "READ-COMMITTED", "SERIALIZABLE"])
def test_a_dump_reads_what_is_committed(database: Database, tmp_path: Path, level: str) -> None:
    config = database.config(tmp_path, dump={"chunk_size": 10})
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 1), (2, 2), (3, 3)")
    name = "transaction_isolation" if database.kind == "mysql" else "tx_isolation"
    other = database.connect()
    try:
        with setting(database, name, f"'{level}'"), other.cursor() as cursor, capturing(config):
            cursor.execute("BEGIN")
            for statement in (
                "INSERT INTO a VALUES (4, 4)",
                "UPDATE a SET v = 0 WHERE id = 1",
                "DELETE FROM a WHERE id = 2",
            ):
                cursor.execute(statement)
            rows = dump_rows(config)
            cursor.execute("ROLLBACK")
    finally:
        other.close()
    assert rows == {"a": [{"id": number, "v": number} for number in (1, 2, 3)]}


@both
def test_all_rows_of_all_tables_come_where_sessions_are_given_few(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path, dump={"chunk_size": 10})
    names = [f"t{number}" for number in range(5)]
    database.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)" for name in names))
    database.execute(*(f"INSERT INTO {name} SELECT seq.id, 1 FROM ({_numbers(35)}) AS seq" for name in names))
    with setting(database, "sql_select_limit", "2"), capturing(config):
        dumped_rows = dump_rows(config)
    assert {name: len(rows) for name, rows in dumped_rows.items()} == dict.fromkeys(names, 35)


def _numbers(count: int) -> str:
    return " UNION ALL ".join(f"SELECT {number} AS id" for number in range(count))


@pytest.mark.parametrize("source_kind", ["mysql"], indirect=True)
def test_a_key_that_the_server_has_made_and_hides(database: Database, tmp_path: Path) -> None:
    config = database.config(tmp_path)
    with (
        setting(database, "sql_generate_invisible_primary_key", "1"),
        setting(database, "show_gipk_in_create_table_and_information_schema", "0"),
    ):
        database.execute("CREATE TABLE a (v int)", "INSERT INTO a VALUES (10), (20)")
        run_capture(config, stop=threading.Event(), until_current=True)
        database.execute("INSERT INTO a VALUES (30)", "UPDATE a SET v = 11 WHERE v = 10", "DELETE FROM a WHERE v = 20")
        with capturing(config):
            rows = dump_rows(config)
    log = [(line["op"], line["key"]) for line in lines(wiring.open_staging(config)) if line["op"] in "cud"]
    assert log == [("c", {"my_row_id": "3"}), ("u", {"my_row_id": "1"}), ("d", {"my_row_id": "2"})]
    assert rows == {"a": [{"my_row_id": "1", "v": 11}, {"my_row_id": "3", "v": 30}]}
