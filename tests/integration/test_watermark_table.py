"""A watermark table in another schema (MySQL, MariaDB: database) than the tables, with no more rights than the
documentation names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.interfaces import Problem
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.integration.test_read_only import capturing, config_of, rows_of, run_dump

MARKS = "marks"
ROWS = 50


@dataclass(frozen=True, slots=True)
class Apart:
    """A database with a table, and the schema that the watermark table is to be in."""

    database: Database
    schema: str
    config: Config

    @property
    def table(self) -> str:
        return f"{self.database.schema}.a"

    def problems(self) -> list[Problem]:
        return [problem for problem in wiring.open_source(self.config.source).check() if problem.fatal]

    def grant(self) -> None:
        """What docs/operations.md says; on PostgreSQL the SQL that `check` prints for an administrator."""
        if self.database.kind == "postgres":
            self.database.execute(*(problem.fix for problem in self.problems()))
            return
        who = f"'{self.database.account.user}'@'{self.database.server.host}'"
        self.database.execute(f"GRANT CREATE, SELECT, INSERT, UPDATE ON {self.schema}.{MARKS} TO {who}")


@pytest.fixture
def apart(database: Database, tmp_path: Path) -> Iterator[Apart]:
    """The pattern matches the watermark table too; the user has no right to write a table in a usual place."""
    user = database.account.user
    postgres = database.kind == "postgres"
    schema, pattern = ("apart", "*.*") if postgres else (f"{database.name}_apart", f"{database.name}*.*")
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int NOT NULL)",
        f"INSERT INTO a VALUES {', '.join(f'({n}, 0)' for n in range(ROWS))}",
    )
    if postgres:
        database.execute(
            f'REVOKE CREATE ON SCHEMA public FROM "{user}"',
            f'REVOKE CREATE ON DATABASE {database.name} FROM "{user}"',
            f"DROP PUBLICATION dblog_{database.name}",
        )
    else:
        usual = f"{database.name}.dblog_watermark FROM '{user}'@'{database.server.host}'"
        database.execute(f"REVOKE CREATE, INSERT, UPDATE ON {usual}", f"CREATE DATABASE {schema}")
    config = config_of(database, tmp_path, read_only=False, tables=[pattern], watermark_table=f"{schema}.{MARKS}")
    yield Apart(database, schema, config)
    if not postgres:
        database.execute(f"DROP DATABASE {schema}")


def test_watermarks_are_written_apart_with_the_least_rights_and_are_no_rows_of_the_log(apart: Apart) -> None:
    assert any(f"{apart.schema}.{MARKS}" in problem.what for problem in apart.problems()), apart.problems()
    apart.grant()
    assert apart.problems() == []
    with capturing(apart.config):
        assert run_dump(apart.config, tables=(apart.table,)).rows == ROWS
        apart.database.execute("UPDATE a SET v = 1 WHERE id = 7")
        assert run_dump(apart.config, tables=(apart.table,), keys=(7,)).rows == 1
    assert apart.database.query(f"SELECT worker FROM {apart.schema}.{MARKS}") != []
    existence_query = (
        "SELECT 1 FROM information_schema.tables WHERE table_name = 'dblog_watermark' AND table_schema = '{}'"
    )
    assert apart.database.query(existence_query.format(apart.database.schema)) == []
    assert [str(schema.table) for schema in wiring.open_source(apart.config.source).tables()] == [apart.table]
    assert {line["table"] for line in lines(wiring.open_staging(apart.config))} == {apart.table}
    values = {key: row["v"] for key, row in rows_of(apart.config, apart.table).items()}
    assert values == {key: int(key == 7) for key in range(ROWS)}


def strange_rows(source: str) -> Iterator[str]:
    """Texts that stand in the watermark table and are no watermarks of `source`: of people, of another source's newer
    workers, and of nobody whom we know."""
    mark = {"source": source, "task": "d/1", "attempt": 1, "ordinal": 0, "window": "w", "table": "shop.a", "parts": 1}
    mark["heals"] = None
    high = {"file": None, "rows": 0, "bytes": 0, "checksum": "", "schema": "f", "last_key": None, "final": False}
    yield from ("", "cleaned", "{}", "[]", "null", '"text"', '{"dblog": 1}')
    attempts = ("1", None, True)
    others = ({"ordinal": -1}, {"table": "none"}, {"more": 1}, {"task": 7})
    for changed in (*({"attempt": attempt} for attempt in attempts), *others):
        yield json.dumps({"dblog": 1, "kind": "low", "mark": {**mark, **changed}})
    yield json.dumps({"dblog": 2, "kind": "low", "mark": mark})
    yield json.dumps({"dblog": 2, "kind": "low", "mark": {**mark, "source": "another", "new": 1}})
    yield json.dumps({"dblog": 1, "kind": "none", "mark": mark, **high})
    yield json.dumps({"dblog": 1, "kind": "high", "mark": mark, **high, "absent": 7})
    yield json.dumps({"dblog": 1, "kind": "high", "mark": mark, **high, "absent": [], "rows": "many"})
    yield json.dumps({"dblog": 1, "kind": "probe", "source": source, "window": "w", "table": "shop.a", "high": "yes"})


@pytest.mark.in_turn
def test_rows_that_are_no_watermarks_stop_nothing(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is a chunk whose last key is negative taken for one."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v int NOT NULL)", "INSERT INTO a VALUES (-2, 0), (-1, 0)")
    table = f"{database.schema}.a"
    config = config_of(database, tmp_path, read_only=False, tables=[table])
    texts = list(strange_rows(database.name))
    with capturing(config):
        with closing(database.connect()) as connection, connection.cursor() as cursor:
            rows = [(f"somebody-{number}", text) for number, text in enumerate(texts)]
            cursor.executemany("INSERT INTO dblog_watermark (worker, payload) VALUES (%s, %s)", rows)
        database.execute("UPDATE dblog_watermark SET payload = 'anonymised'", "UPDATE a SET v = 1 WHERE id = -1")
        assert run_dump(config, tables=(table,)).rows == 2
        database.execute("DELETE FROM dblog_watermark WHERE worker LIKE 'somebody%'")
        assert run_dump(config, tables=(table,), keys=(-2,)).rows == 1
    assert {key: row["v"] for key, row in rows_of(config, table).items()} == {-2: 0, -1: 1}
    warnings = [
        record.getMessage() for record in caplog.records if "not a watermark of this version" in record.getMessage()
    ]
    assert 2 <= len(warnings) <= 10 and "only dblog may write that table" in warnings[0]
    assert not any('"another"' in text for text in warnings), "another source's are not ours to read"
