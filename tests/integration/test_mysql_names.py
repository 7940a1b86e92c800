"""Names of tables as statements in the log have them: in another case, and in the character set of any session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import dump_store
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.sources.mysql.ddl import statement_text
from dblog_core.sources.mysql.values.charsets import Charsets
from dblog_core.staging.reader import lines
from tests.fix_servers import Database

pytestmark = [pytest.mark.in_turn]
NewDatabase = Callable[[MysqlServer], Database]


@pytest.fixture(params=["mysql", "mariadb"])
def of_any_case(request: pytest.FixtureRequest, server_root: Path) -> Iterator[MysqlServer]:
    kind = MysqlServer if request.param == "mysql" else MariadbServer
    server = kind(server_root / f"any-case-{request.param}", options={"lower_case_table_names": "1"})
    server.start()
    yield server
    server.kill()


def run(connection: Any, charset: str, codec: str, *statements: str) -> None:
    """Runs statements as a session of another character set does, whose bytes the log keeps."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET NAMES {charset}")
    for statement in statements:
        connection._execute_command(3, statement.encode(codec))
        connection._read_query_result()


def test_statements_are_about_the_tables_that_the_server_takes_them_for(
    of_any_case: MysqlServer, new_database: NewDatabase, tmp_path: Path
) -> None:
    database = new_database(of_any_case)
    other = f"{database.name}_other"
    config = database.config(tmp_path, source={"tables": [f"{database.name}*.*"]})
    stop = threading.Event()
    tables = ("orders", "aufträge", "誠表", "ソ表", "moved", "dropped")
    database.execute(
        *(f"CREATE TABLE `{table}` (id int PRIMARY KEY, v varchar(9))" for table in tables),
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10),"
        " PARTITION p1 VALUES LESS THAN (20))",
        f"CREATE DATABASE {other}", f"CREATE TABLE {other}.with_its_database (id int PRIMARY KEY)",
        f"GRANT SELECT ON {other}.* TO '{database.account.user}'@'{database.server.host}'",
    )  # fmt: skip
    run_capture(config, stop=stop, until_current=True)
    database.execute(
        *(f"INSERT INTO `{table}` VALUES (1, 'x')" for table in tables), "INSERT INTO parted VALUES (1)",
        f"INSERT INTO {other}.with_its_database VALUES (1)",
    )  # fmt: skip
    connection = database.connect()
    try:
        run(connection, "latin1", "latin-1", "TRUNCATE TABLE AUFTRÄGE", "TRUNCATE Orders")
        run(connection, "gbk", "gbk", "TRUNCATE TABLE `誠表`")
        run(connection, "sjis", "shift_jis", "RENAME TABLE `ソ表` TO `ソ`, Moved TO MOVED_away")
        run(connection, "utf8mb4", "utf-8", "ALTER TABLE PARTED DROP PARTITION p0", "DROP TABLE Dropped")
        run(connection, "utf8mb4", "utf-8", f"DROP DATABASE {other.upper()}")
    finally:
        connection.close()
    run_capture(config, stop=stop, until_current=True)
    emptied = [line["table"].partition(".")[2] for line in lines(wiring.open_staging(config)) if line["op"] == "t"]
    assert sorted(emptied) == sorted([*tables, "with_its_database"])
    with closing(wiring.open_state(config)) as state:
        dumped = {table.partition(".")[2] for dump in dump_store.list_dumps(state) for table in dump.tables}
        assert dumped == {"parted", "ソ", "moved_away"}


@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_a_statements_characters_are_the_servers(database: Database) -> None:
    charset_names = {
        str(row[0]) for row in database.query("SELECT CHARACTER_SET_NAME FROM information_schema.CHARACTER_SETS")
    }
    for charset in charset_names & statement_text.CODECS.keys():
        pairs = [bytes([a, b]) for a in range(0x81, 0xFF) for b in range(0x40, 0xFF) if b != 0x7F]
        readings = {pair: statement_text.decode_statement(pair, 1, Charsets({1: charset}, {})) for pair in pairs}
        read = {pair: text for pair, text in readings.items() if len(text) == 1 and statement_text.is_read(text)}
        joined = b"|".join(read).hex()
        (rows,) = database.query(f"SELECT CONVERT(CONVERT(x'{joined}' USING {charset}) USING utf8mb4)")
        texts_of_server = dict(zip(read, str(rows[0]).split("|"), strict=True))
        # What the server has no character for cannot stand in a name.
        wrong = {
            pair: (read[pair], text)
            for pair, text in texts_of_server.items()
            if text not in (read[pair], "?", "\ufffd")
        }
        assert not wrong, (charset, wrong)
