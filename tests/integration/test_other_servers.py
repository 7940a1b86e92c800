"""Servers that are set up otherwise than those of the other tests, as many are: captured and dumped over a kill."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import work_loop
from dblog_core.dumps.filing import submit
from dblog_core.dumps.requests import DumpRequest
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.postgres import PostgresServer
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.nemesis import oracles
from tests.nemesis.processes import Dblog, kill
from tests.nemesis.test_kills import judge_log, log_start
from tests.nemesis.workload import Writers, create_tables

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(4)]

NewDatabase = Callable[[MysqlServer], Database]
_COMMON: dict[str, str | None] = {
    "binlog_checksum": "NONE",
    "binlog_row_event_max_size": "256",  # an event for nearly each row
    "transaction_isolation": "READ-COMMITTED",
    "default_time_zone": "+05:30",
}
_MYSQL: dict[str, str | None] = {
    **_COMMON,
    "gtid_mode": "OFF",  # MySQL's own default
    "enforce_gtid_consistency": "OFF",
    "binlog_rows_query_log_events": "ON",
    "sql_mode": "ANSI",
    "character_set_server": "latin1",
}
_MARIADB: dict[str, str | None] = {
    **_COMMON,
    "lower_case_table_names": "1",
    "gtid_strict_mode": "OFF",
    "gtid_domain_id": "7",
    "log_bin_compress": "ON",
    "log_bin_compress_min_len": "10",
    "binlog_annotate_row_events": "OFF",
    "character_set_server": "latin1",
    "collation_server": "latin1_swedish_ci",
}


@pytest.fixture(params=["mysql", "mariadb"])
def otherwise(request: pytest.FixtureRequest, server_root: Path) -> Iterator[MysqlServer]:
    kind, options = (MysqlServer, _MYSQL) if request.param == "mysql" else (MariadbServer, _MARIADB)
    server = kind(server_root / f"other-{request.param}", options=options)
    server.start()
    yield server
    server.kill()


def test_log_and_dumps_are_right_over_a_kill(otherwise: MysqlServer, new_database: NewDatabase, tmp_path: Path) -> None:
    database = new_database(otherwise)
    create_tables(database)
    config = database.config(tmp_path, dump={"chunk_size": 100, "workers": 2})
    dblog = Dblog(config, tmp_path)
    start = oracles.source_rows(database)
    reference = log_start(database)
    try:
        dblog.run("check")
        dblog.run("capture", "--until-current")
        capture = dblog.start("capture")
        with Writers(database, seed=2) as writers:
            dblog.run("dump", "--all", "--wait")
            otherwise.kill()
            otherwise.start()
            dblog.run("dump", "--all", "--wait")
        assert not writers.faults, writers.faults
        kill(capture)
        dblog.run("capture", "--until-current")
        judge_log(config, database, start, reference())
    except BaseException:
        print(dblog.output())
        raise
    finally:
        dblog.close()


def test_a_database_that_is_not_in_utf8(postgres: PostgresServer, tmp_path: Path) -> None:
    """PostgreSQL turns its text into UTF-8, for the log as for chunks."""
    name = "latin"
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    user = f"dblog_{name}"
    publication = f"dblog_{name}"
    database = Database(postgres, name, postgres.create_capture_user(name, user=user, publication=publication))
    try:
        config = database.config(tmp_path)
        database.execute("CREATE TABLE a (id varchar(9) PRIMARY KEY, v text)", "INSERT INTO a VALUES ('é', 'Grüße ÿ')")
        run_capture(config, stop=threading.Event(), until_current=True)
        database.execute("INSERT INTO a VALUES ('ñ', 'señor £')")
        stop = threading.Event()
        capture = threading.Thread(target=run_capture, args=(config,), kwargs={"stop": stop})
        capture.start()
        try:
            dump_id = submit(config, DumpRequest(tables=None))
            work_loop.work(config, stop=threading.Event(), once=True, dump_id=dump_id)
            assert work_loop.wait(config, dump_id, stop=threading.Event()).state == "done"
        finally:
            stop.set()
            capture.join()
        operations = [(line["op"], line["after"]) for line in lines(wiring.open_staging(config)) if line["op"] in "cr"]
        rows = [{"id": "é", "v": "Grüße ÿ"}, {"id": "ñ", "v": "señor £"}]
        assert operations == [("c", rows[1]), *(("r", row) for row in rows)]
    finally:
        postgres.drop_database(name)
        postgres.drop_user(user)
