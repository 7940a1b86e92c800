"""The watermark table goes while a capture runs: dropped, with its schema, emptied, altered, or out of the publication.

The log goes on, dumps wait or fail, and once the table is there again they continue by themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.capture import config_reload
from dblog_core.capture.config_reload import ConfigFile
from dblog_core.capture.run_capture import run_capture
from dblog_core.dumps import dump_store, filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import SourceError
from dblog_core.interfaces import Problem
from dblog_core.staging.reader import lines
from dblog_core.state import recent_errors, settings_in_force
from dblog_core.state.recent_errors import RecentError
from tests.acceptance.accounts import sql_of_fixes
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS, wait_until

ROWS = 60
CHUNK = 5
WATERMARKS = "dblog_watermark"


class Shop:
    """A database with one table of `ROWS` rows, and a capture of all its tables."""

    def __init__(self, database: Database, path: Path, **source: Any) -> None:
        self.database = database
        self.path = path
        usual = database.config(path).source.model_dump()
        usual["password"] = database.account.password
        self.config = database.config(path, source={**usual, **source}, dump={"chunk_size": CHUNK})
        self.faults: list[BaseException] = []

    def make(self, name: str = "a", *, last: int = ROWS) -> None:
        values = ", ".join(f"({n}, 'v{n}')" for n in range(last))
        self.database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(20))", f"INSERT INTO {name} VALUES {values}"
        )

    @contextmanager
    def capturing(self) -> Iterator[None]:
        stop, file = threading.Event(), self.path / "file"
        file.write_text("")

        def capture() -> None:
            try:
                run_capture(self.config, stop=stop, file=ConfigFile(file, lambda _: self.config))
            except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
                self.faults.append(error)

        thread = threading.Thread(target=capture)
        thread.start()
        try:
            wait_until(lambda: wiring.open_staging(self.config).head() is not None or self.faults, "a capture runs")
            yield
        finally:
            stop.set()
            thread.join(timeout=PATIENCE_SECONDS)
        assert not thread.is_alive()
        assert not self.faults, self.faults

    def await_published(self, name: str = "a") -> None:
        """PostgreSQL: whoever locks the table when a capture begins, such as the server's own VACUUM, keeps it from its
        publication for a moment."""
        if self.config.source.plugin == "pgoutput":
            published = f"SELECT 1 FROM pg_publication_tables WHERE tablename = '{name}'"
            wait_until(lambda: self.database.query(published), "the table is published")

    def change(self, key: int, text: str, name: str = "a") -> None:
        """The log goes on: this change is staged."""
        where = self.database.name if self.database.kind == "postgres" else ""
        self.database.server.execute(f"UPDATE {self.full_name(name)} SET v = '{text}' WHERE id = {key}", database=where)
        wait_until(lambda: self.faults or self.rows(name).get(key) == text, f"the change to {text} is staged")
        assert not self.faults, self.faults

    def rows(self, name: str = "a") -> dict[int, str]:
        """What a keyed consumer ends with."""
        rows: dict[int, str] = {}
        seen: dict[int, int] = {}
        for line in lines(wiring.open_staging(self.config)):
            if line["table"] != self.full_name(name):
                continue
            if line["op"] in "cudr":
                key = line["key"]["id"]
                seen[key] = line["offset"]
                rows.pop(key, None)
                if line["op"] != "d":
                    rows[key] = line["after"]["v"]
            elif line["op"] == "t":
                rows.clear()
            elif line["op"] == "f":
                rows = {key: text for key, text in rows.items() if seen[key] > line["since"]}
        return rows

    def full_name(self, name: str) -> str:
        return name if "." in name else f"{self.database.schema}.{name}"

    def source_rows(self, name: str = "a") -> dict[int, str]:
        return {int(key): str(text) for key, text in self.database.query(f"SELECT id, v FROM {name}")}

    def dump(self, name: str = "a", *, slow: bool = False) -> Callable[..., None]:
        """Begins a dump in a thread; the function waits for its end."""
        options = {"chunk_size": CHUNK, "delay": 0.3} if slow else {}
        dump_id = filing.submit(self.config, DumpRequest((self.full_name(name),), **options))
        faults: list[BaseException] = []
        over = threading.Event()

        def work() -> None:
            while not over.is_set() and self.state_of(dump_id) not in ("done", "failed"):
                try:
                    work_loop.work(self.config, stop=over, dump_id=dump_id)
                except SourceError as error:
                    faults.append(error)
                    over.wait(0.5)

        thread = threading.Thread(target=work)
        thread.start()

        def wait(*, ends: bool = False) -> None:
            """`ends`: in any way."""
            try:
                wait_until(
                    lambda: self.state_of(dump_id) in (("done", "failed") if ends else ("done",)),
                    "the dump is done",
                    describe=lambda: (self.state_of(dump_id), faults, self.faults),
                )
            finally:
                over.set()
                thread.join(timeout=PATIENCE_SECONDS)

        return wait

    def state_of(self, dump_id: str) -> str:
        with closing(wiring.open_state(self.config)) as state:
            return str(dump_store.read_dump(state, dump_id).state)

    def errors(self) -> str:
        with closing(wiring.open_state(self.config)) as state:
            return str(recent_errors.read(state))

    def error_about(self, words: str) -> RecentError | None:
        with closing(wiring.open_state(self.config)) as state:
            return next((error for error in recent_errors.read(state) if words in error.error), None)

    def starts(self) -> dict[str, str]:
        """The tables of which a SELECT may not have seen all that their log lacks."""
        head = wiring.open_staging(self.config).head()
        return {} if head is None else head.starts

    def knows(self) -> str:
        """The tables whose log is shown, as the state store has them."""
        with closing(wiring.open_state(self.config)) as state:
            return " ".join(settings_in_force.read_shown(state) or ())

    def problems(self) -> list[Problem]:
        return [problem for problem in wiring.open_source(self.config.source).check() if problem.fatal]


@pytest.fixture
def shop(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(config_reload, "NEWCOMERS", 1.0)
    shop = Shop(database, tmp_path)
    shop.make()
    return shop


STATEMENTS = {
    "dropped": ["DROP TABLE {0}"],
    "emptied": ["TRUNCATE TABLE {0}"],
    "with another column": ["ALTER TABLE {0} ADD COLUMN at timestamp NULL"],
    "renamed": ["ALTER TABLE {0} RENAME TO away"],
    "with a renamed column, and back": [
        "ALTER TABLE {0} RENAME COLUMN payload TO load_",
        "INSERT INTO {0} (worker, load_) VALUES ('somebody', 'x')",
        "ALTER TABLE {0} RENAME COLUMN load_ TO payload",
    ],
    "without its payload, and dropped": [
        "DELETE FROM {0}",
        "ALTER TABLE {0} DROP COLUMN payload",
        "INSERT INTO {0} (worker) VALUES ('somebody')",
        "DROP TABLE {0}",
    ],
}


@pytest.mark.parametrize("what", STATEMENTS)
def test_dumps_continue_once_the_watermark_table_is_there_again(shop: Shop, what: str) -> None:
    with shop.capturing():
        shop.change(1, "before")
        dump = shop.dump(slow=True)
        wait_until(lambda: len(shop.rows()) > CHUNK, "the dump has begun")
        shop.database.execute(*(statement.format(WATERMARKS) for statement in STATEMENTS[what]))
        shop.change(1, "meanwhile")
        dump()
        shop.change(1, "after")
        shop.dump()()
    assert shop.rows() == shop.source_rows()


def test_a_dropped_schema_ends_neither_the_log_nor_dumps_for_good(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables are gone, and are captured again once somebody has made them; a restart in between is no matter."""
    monkeypatch.setattr(config_reload, "NEWCOMERS", 1.0)
    is_postgres = database.kind == "postgres"
    other = "other" if is_postgres else f"{database.name}_other"
    who = f'"{database.account.user}"' if is_postgres else f"'{database.account.user}'@'{database.server.host}'"
    shop = Shop(database, tmp_path, tables=[f"{database.schema}.*", f"{other}.*"])
    shop.make()
    database.execute(f"CREATE {'SCHEMA' if is_postgres else 'DATABASE'} {other}")
    database.execute(f"CREATE TABLE {other}.b (id int PRIMARY KEY, v varchar(20))")
    usage = [f"GRANT USAGE ON SCHEMA {other} TO {who}", f"GRANT SELECT ON {other}.b TO {who}"]
    database.execute(*(usage if is_postgres else [f"GRANT SELECT ON {other}.* TO {who}"]))
    database.execute(f"INSERT INTO {other}.b VALUES (1, 'first')")
    if is_postgres:
        gone = ["DROP SCHEMA public CASCADE"]
        again = ["CREATE SCHEMA public", f"GRANT USAGE, CREATE ON SCHEMA public TO {who}"]
    else:
        gone, again = [f"DROP DATABASE {database.name}"], [f"CREATE DATABASE {database.name}"]
    try:
        with shop.capturing():
            shop.change(1, "before", f"{other}.b")
            dump = shop.dump(slow=True)
            wait_until(lambda: len(shop.rows()) > CHUNK, "the dump has begun")
            database.server.execute(*gone, database=database.name if is_postgres else "")
            shop.change(1, "meanwhile", f"{other}.b")
            wait_until(lambda: "watermark" in shop.errors(), "the error is recorded", describe=shop.errors)
        with shop.capturing():
            shop.change(1, "restarted", f"{other}.b")
            database.server.execute(*again, database=database.name if is_postgres else "")
            shop.make(last=7)
            if is_postgres:
                database.execute(f"GRANT SELECT ON a TO {who}")
            dump(ends=True)
            wait_until(lambda: shop.rows() == shop.source_rows(), "a is captured again", describe=shop.rows)
            shop.dump()()
            shop.change(1, "after")
            shop.change(1, "after", f"{other}.b")
        assert shop.rows() == shop.source_rows()
    finally:
        if not is_postgres:
            database.server.execute(f"CREATE DATABASE IF NOT EXISTS {database.name}", f"DROP DATABASE {other}")


def test_an_account_that_may_not_make_it_again_gets_the_sql_and_the_log_goes_on(
    database: Database, tmp_path: Path
) -> None:
    shop = Shop(database, tmp_path)
    shop.make()
    user = database.account.user
    publication = f"dblog_{database.name}"
    if database.kind == "postgres":
        database.execute(f'REVOKE CREATE ON SCHEMA public FROM PUBLIC, "{user}"', f"DROP PUBLICATION {publication}")
        make = [statement for problem in shop.problems() for statement in problem.fix.split("; ")]
    else:
        account = f"'{user}'@'{database.server.host}'"
        table = f"{database.name}.{WATERMARKS}"
        columns = "(worker varchar(64) NOT NULL PRIMARY KEY, payload longtext NOT NULL)"
        make = [f"REVOKE CREATE ON {table} FROM {account}", f"CREATE TABLE {table} {columns} ENGINE=InnoDB"]
    database.execute(*make)
    assert shop.problems() == []
    with shop.capturing():
        shop.change(1, "before")
        dump = shop.dump(slow=True)
        wait_until(lambda: len(shop.rows()) > CHUNK, "the dump has begun")
        database.execute(f"DROP TABLE {WATERMARKS}")
        shop.change(1, "meanwhile")
        error = wait_until(lambda: shop.error_about("watermark table"), "the error is recorded", describe=shop.errors)
        assert "no table can be dumped" in error.error
    with shop.capturing():
        shop.change(1, "restarted")
        assert len(shop.rows()) < ROWS
        is_postgres = database.kind == "postgres"
        database.execute(*(error.fix.split("; ") if is_postgres else sql_of_fixes([{"fix": error.fix}])))
        dump()
    assert shop.rows() == shop.source_rows()


@pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)
@pytest.mark.parametrize("by_account", [True, False])
def test_a_watermark_table_that_leaves_the_publication_comes_back_and_no_attempt_waits_for_its_rows(
    database: Database, tmp_path: Path, by_account: bool
) -> None:
    shop = Shop(database, tmp_path)
    shop.make()
    user, publication = database.account.user, f"dblog_{database.name}"
    database.execute(
        f"DROP PUBLICATION {publication}",
        f"CREATE PUBLICATION {publication} FOR TABLE a WITH (publish_via_partition_root = true)",
        f'ALTER TABLE a OWNER TO "{user}"',
        f'GRANT CREATE ON DATABASE {database.name} TO "{user}"',
        f'ALTER PUBLICATION {publication} OWNER TO "{user}"',
    )
    with shop.capturing():
        shop.change(1, "before")
        dump = shop.dump(slow=True)
        wait_until(lambda: len(shop.rows()) > CHUNK, "the dump has begun")
        if by_account:
            database.execute(f"ALTER PUBLICATION {publication} DROP TABLE {WATERMARKS}")
        else:
            database.execute(f"ALTER PUBLICATION {publication} OWNER TO {database.server.admin.user}")
            database.execute(f"ALTER PUBLICATION {publication} DROP TABLE {WATERMARKS}")
            error = wait_until(lambda: shop.error_about("does not show"), "it is told", describe=shop.errors)
            shop.change(1, "meanwhile")
            database.execute(*error.fix.split("; "))
        dump()
    assert shop.rows() == shop.source_rows()
