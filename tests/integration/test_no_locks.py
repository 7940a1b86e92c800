"""A dump takes no locks: read from the servers' own lock views while it runs, as often as they answer.

What a dump may hold: the shared lock of a SELECT that runs (it keeps the table's definition as it is, and nobody from
writing), and what writing its own row in the watermark table takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_store
from dblog_core.local.servers.mariadb import MariadbServer
from dblog_core.local.servers.mysql import MysqlServer
from dblog_core.local.servers.server import DatabaseServer
from tests.fix_servers import Database
from tests.nemesis.processes import Dblog, kill
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.in_turn, pytest.mark.one_of(6)]

ROWS = 200_000
CHUNK = 20_000
WIDE = ("wide", "wide_pkey")
WATERMARK = ("dblog_watermark", "dblog_watermark_pkey")
LOCK_COMMANDS = ("Com_lock_tables", "Com_flush", "Com_lock_instance", "Com_backup", "Com_backup_lock")

_POSTGRES = """
    SELECT coalesce(l.relation::regclass::text, l.locktype), l.mode FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE a.usename = %s AND l.locktype NOT IN ('virtualxid', 'object')
"""
_METADATA = """
    SELECT COALESCE(m.OBJECT_NAME, m.OBJECT_TYPE), m.LOCK_TYPE FROM performance_schema.metadata_locks m
    JOIN performance_schema.threads t ON t.THREAD_ID = m.OWNER_THREAD_ID WHERE t.PROCESSLIST_USER = %s
    AND NOT (m.OBJECT_TYPE = 'USER LEVEL LOCK' AND m.OBJECT_NAME LIKE 'dblog catalogue %%')  -- a name of our own alone
"""
_ROWS = """
    SELECT d.OBJECT_NAME, CONCAT(d.LOCK_TYPE, ' ', d.LOCK_MODE) FROM performance_schema.data_locks d
    JOIN performance_schema.threads t USING (THREAD_ID) WHERE t.PROCESSLIST_USER = %s
"""
_MARIADB_ROWS = """
    SELECT IF(p.INFO LIKE '%%dblog_watermark%%', 'dblog_watermark', 'wide'), 'row or table'
    FROM information_schema.INNODB_TRX JOIN information_schema.PROCESSLIST p ON p.ID = trx_mysql_thread_id
    WHERE p.USER = %s AND p.INFO IS NOT NULL AND trx_tables_locked + trx_rows_locked > 0
"""
_VIEWS = {"postgres": [_POSTGRES], "mysql": [_METADATA, _ROWS], "mariadb": [_METADATA, _MARIADB_ROWS]}
_SHARED = {"AccessShareLock", "SHARED_READ", "SHARED_HIGH_PRIO"}  # a SELECT's; the last one: of the catalogue
_CONNECTING = "ACL CACHE"  # MySQL: a session that begins reads the accounts' cache
# A transaction's own number and its intentions, which nobody waits for but who wants the whole server.
_NOBODYS = {"ExclusiveLock", "INTENTION_EXCLUSIVE", "BACKUP_DML", "BACKUP_TRANS_DML", "BACKUP_COMMIT"}


@pytest.fixture(scope="module")
def watched_mysql(server_root: Path) -> Iterator[MysqlServer]:
    yield from running(MysqlServer(server_root / "watched-mysql", options={"performance_schema": "ON"}))


@pytest.fixture(scope="module")
def watched_mariadb(server_root: Path) -> Iterator[MariadbServer]:
    metadata = {"performance_schema": "ON", "performance_schema_instrument": "wait/lock/metadata/sql/mdl=ON"}
    yield from running(MariadbServer(server_root / "watched-mariadb", options=metadata))


def running(server: Any) -> Iterator[Any]:
    server.start()
    yield server
    server.kill()


@pytest.fixture
def source_server(source_kind: str, request: pytest.FixtureRequest) -> DatabaseServer:
    """The usual servers show no metadata locks: performance_schema is off there."""
    name = source_kind if source_kind == "postgres" else f"watched_{source_kind}"
    server: DatabaseServer = request.getfixturevalue(name)
    return server


@pytest.fixture
def config(database: Database, tmp_path: Path) -> Config:
    database.execute("CREATE TABLE wide (id int PRIMARY KEY, n int NOT NULL, note varchar(200))")
    if database.kind == "postgres":
        rows = f"SELECT i, 0, repeat('x', 150) FROM generate_series(1, {ROWS}) i"
    else:
        digit = "(" + " UNION ".join(f"SELECT {d} d" for d in range(10)) + ")"
        number = "a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d + 1"
        joined = ", ".join(f"{digit} {name}" for name in "abcefg")
        rows = f"SELECT {number}, 0, REPEAT('x', 150) FROM {joined} WHERE g.d < {ROWS // 100_000}"
    database.execute(f"INSERT INTO wide {rows}")
    return database.config(tmp_path, dump={"chunk_size": CHUNK})


@pytest.fixture
def dblog(config: Config, tmp_path: Path) -> Iterator[Dblog]:
    commands = Dblog(config, tmp_path)
    yield commands
    commands.close()
    print(commands.output())  # pytest shows it where the test has failed


class Locks:
    """What a user's sessions hold, look by look."""

    def __init__(self, database: Database, user: str) -> None:
        self._connection = database.connect()
        self._user = user
        self._views = _VIEWS[database.kind]
        self.looks = 0
        self.seen = set[tuple[str, str]]()

    def look(self) -> None:
        with self._connection.cursor() as cursor:
            for view in self._views:
                cursor.execute(view, (self._user,))
                self.seen |= {(str(name).rpartition(".")[2], str(mode)) for name, mode in cursor.fetchall()}
        self.looks += 1

    @property
    def forbidden(self) -> set[tuple[str, str]]:
        return {
            (name, mode)
            for name, mode in self.seen
            if name not in (*WATERMARK, _CONNECTING) and mode not in _SHARED and (name in WIDE or mode not in _NOBODYS)
        }

    def close(self) -> None:
        self._connection.close()


def lock_commands(database: Database) -> dict[str, int]:
    """How often the server was asked to lock or flush; PostgreSQL keeps no such count, and its view shows them all."""
    if database.kind == "postgres":
        return {}
    names = ", ".join(f"'{name}'" for name in LOCK_COMMANDS)
    return dict(database.query(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({names})"))


def test_a_dump_holds_nothing_but_the_shared_lock_of_a_running_select(
    database: Database, config: Config, dblog: Dblog
) -> None:
    dblog.run("capture", "--until-current")
    capture = dblog.start("capture")
    before = lock_commands(database)
    with closing(Locks(database, config.source.user)) as locks:
        for _ in range(2):
            dump = dblog.start("dump", "--table", f"{database.schema}.wide", "--workers", "2", "--wait")
            while dump.poll() is None:
                locks.look()
            assert dump.returncode == 0
        print(f"{database.kind}: {locks.looks} looks, seen {sorted(locks.seen)}")
        assert locks.forbidden == set()
        assert any(name == "wide" and mode in _SHARED for name, mode in locks.seen), "no SELECT was caught at work"
    assert lock_commands(database) == before
    kill(capture)


def test_the_views_show_locks_where_there_are_any(database: Database, config: Config) -> None:
    """That the test above can fail: what a locking read and a table lock look like in the same views."""
    statements = ["SELECT * FROM wide WHERE id < 9 FOR UPDATE"]
    statements += ["LOCK TABLE wide IN SHARE MODE" if database.kind == "postgres" else "LOCK TABLES wide READ"]
    if database.kind == "mysql":
        statements.append("SELECT * FROM wide WHERE id < 9 LOCK IN SHARE MODE")
    for statement in statements:
        before = lock_commands(database)
        with closing(database.connect()) as session, closing(Locks(database, database.server.admin.user)) as locks:
            with session.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute(statement)
                locks.look()
            # MariaDB keeps a table lock of this kind outside these views: its count of commands tells.
            assert locks.forbidden or lock_commands(database) != before, (statement, locks.seen)


def test_writers_and_an_alter_go_on_between_the_chunks(database: Database, config: Config, dblog: Dblog) -> None:
    """Each would fail within fifteen seconds where anything of the dump outlived its SELECT: the dump goes on for
    longer. A SELECT itself lasts for as long as its reader stands still."""
    dblog.run("capture", "--until-current")
    capture = dblog.start("capture")
    dump = dblog.start("dump", "--table", f"{database.schema}.wide", "--chunk-size", "10000", "--delay", "5", "--wait")
    postgres = database.kind == "postgres"
    limits = ["lock_timeout = '15s'"] if postgres else ["lock_wait_timeout = 15", "innodb_lock_wait_timeout = 15"]
    with closing(database.connect()) as session, session.cursor() as cursor:
        for limit in limits:
            cursor.execute(f"SET {limit}")
        wait_until(lambda: chunks(config) > 1, "some chunks")
        for n in range(1, 11):
            cursor.execute("UPDATE wide SET n = %s WHERE id %% 10000 = 5", (n,))
            cursor.execute("ALTER TABLE wide ALTER n SET DEFAULT %s", (n,))
        cursor.execute("ALTER TABLE wide ADD COLUMN more int")
        cursor.execute("UPDATE wide SET more = 1 WHERE id < 100")
    assert dump.poll() is None, "the dump was to last longer than this"
    with closing(wiring.open_state(config)) as state:
        (dump_id,) = (dump.id for dump in dump_store.list_dumps(state))
        control.retune(state, dump_id, delay=0)
    assert dump.wait(PATIENCE_SECONDS) == 0
    kill(capture)


def chunks(config: Config) -> int:
    return sum(len(manifest.chunks) for manifest in wiring.open_staging(config).manifests())
