"""Schemas, tables, columns and types of the worst names on real servers: log, dump and verification."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.model.schema import TableName
from dblog_core.monitoring.preflight import findings
from dblog_core.staging.reader import lines
from tests.fix_day import OfADay
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.integration.test_read_only import capturing, run_dump
from tests.plain_judge import PlainLake
from tests.waiting import wait_until
from tests.worst_names import SCHEMAS, TABLES

A_DAY = 6
ALWAYS = ("a`b", 'a"b', "a%b", "%s %(x)s", "a.b", ".", "a\\b", "a\nb")
LABELS = ("it's", "100%s", "a\\b")


class Worst:
    """Tables of the worst names, one in each schema in turn; each has two rows that are there before its capture."""

    def __init__(self, database: Database, names: list[str]) -> None:
        self.database, self.postgres = database, database.kind == "postgres"
        # The databases of a server are shared with other tests.
        own_schemas = [s if self.postgres else f"{s} {database.name}" for s in SCHEMAS[database.kind]]
        self.tables = [
            TableName(schema, name) for schema, name in zip(itertools.cycle(own_schemas), names, strict=False)
        ]
        self.schemas = own_schemas

    def quote(self, *parts: str) -> str:
        mark = '"' if self.postgres else "`"
        return ".".join(mark + part.replace(mark, mark * 2) + mark for part in parts)

    def of(self, table: TableName) -> str:
        return self.quote(table.schema, table.name)

    def create(self) -> None:
        user, labels = self.database.account.user, ", ".join("'" + each.replace("'", "''") + "'" for each in LABELS)
        labels = labels if self.postgres else labels.replace("\\", "\\\\")
        for schema in self.schemas:
            self.database.execute(f"CREATE SCHEMA {self.quote(schema)}")
        for table in self.tables:
            kind = f"enum ({labels})"
            if self.postgres:
                kind = self.quote("public", table.name)
                self.database.execute(f"CREATE TYPE {kind} AS ENUM ({labels})")
            name = self.quote(table.name)
            self.database.execute(
                f"CREATE TABLE {self.of(table)} ({name} varchar(40), kind {kind}, v int, PRIMARY KEY ({name}, kind))",
                self._insert(table, "one", 1),
                self._insert(table, "gone", 1),
            )
        if self.postgres:
            for schema in map(self.quote, self.schemas):
                self.database.execute(
                    f"GRANT USAGE ON SCHEMA {schema} TO {user}",
                    f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user}",
                )
        else:
            self.database.execute(f"GRANT SELECT ON *.* TO '{user}'@'{self.database.server.host}'")

    def change(self) -> None:
        for table in self.tables:
            name = self.quote(table.name)
            self.database.execute(
                self._insert(table, "two", 2),
                f"UPDATE {self.of(table)} SET v = 3 WHERE {name} = 'one'",
                f"DELETE FROM {self.of(table)} WHERE {name} = 'gone'",
            )

    def drop(self) -> None:
        for schema in self.schemas if not self.postgres else ():
            self.database.execute(f"DROP SCHEMA IF EXISTS {self.quote(schema)}")

    def _insert(self, table: TableName, key: str, value: int) -> str:
        label = LABELS[value % len(LABELS)].replace("'", "''")
        label = label if self.postgres else label.replace("\\", "\\\\")
        return f"INSERT INTO {self.of(table)} VALUES ('{key}', '{label}', {value})"


@pytest.mark.in_turn("kind")
@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres", "wal2json"])
def test_every_name_goes_through_log_dump_and_verification(
    kind: str,
    request: pytest.FixtureRequest,
    new_database: Callable[[Any], Database],
    verify_plainly: Callable[[Config], tuple[Verify, PlainLake]],
    of_a_day: OfADay,
    tmp_path: Path,
) -> None:
    server = "postgres" if kind == "wal2json" else kind
    database = new_database(request.getfixturevalue(server))
    others = [name for name in TABLES[server] if name not in ALWAYS]
    worst = Worst(database, [*ALWAYS, *of_a_day(others, A_DAY)])
    masked = next(table for table in worst.tables if not set(table.name) & {"*", "?"})
    source = {
        "tables": [str(TableName(schema, "*")) for schema in worst.schemas],
        "columns": {str(masked): {"mask": ["v"]}},
        **({"plugin": "wal2json"} if kind == "wal2json" else {}),
    }
    usual = database.config(tmp_path).source.model_dump(exclude_unset=True)
    config = database.config(tmp_path, source={**usual, **source})
    try:
        worst.create()
        assert [each for each in findings(config) if each.problem.fatal] == []
        with capturing(config):
            dump_of_one_table = run_dump(config, tables=(str(worst.tables[0]),))
            assert (dump_of_one_table.tables, dump_of_one_table.rows) == ((str(worst.tables[0]),), 2)
            worst.change()
            every = run_dump(config, tables=None)
            assert sorted(every.tables) == sorted(map(str, worst.tables))
            verify, _ = verify_plainly(config)
            report = verify(config)
            table_outcomes = sorted((t.table, t.rows, t.outcome) for t in report.tables)
            assert table_outcomes == sorted((str(t), 2, "equal") for t in worst.tables)
            truncated = worst.tables[0]
            database.execute(f"TRUNCATE TABLE {worst.of(truncated)}")
            emptied = wait_until(
                lambda: [line for line in lines(wiring.open_staging(config)) if line["op"] == "t"],
                "the TRUNCATE is staged",
            )
            assert [line["table"] for line in emptied] == [str(truncated)]
        staged = list(lines(wiring.open_staging(config)))
        log = [line for line in staged if line["op"] in ("c", "u", "d") and line["origin"] == "log"]
        assert {line["table"] for line in log} == set(map(str, worst.tables))
        for table in worst.tables:
            table_lines = [line for line in log if line["table"] == str(table)]
            assert [line["op"] for line in table_lines] == ["c", "u", "d"] and set(table_lines[0]["key"]) == {
                table.name,
                "kind",
            }
            assert [line["after"]["v"] for line in table_lines[:2]] == ([0, 0] if table == masked else [2, 3])
    finally:
        worst.drop()
