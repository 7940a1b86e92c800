"""What the log of MySQL and MariaDB tells of changes of a table's columns."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.model import values
from dblog_core.model.events import SchemaSeen
from dblog_core.rows.column_rules import Rules
from dblog_core.sources.mysql.source import MysqlSource
from dblog_core.sources.mysql.sql import catalogue
from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest
from tests.fix_servers import Database
from tests.integration.mysql_source.log_rows import batches, changes, check, execute

pytestmark = pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)


def test_changed_shape_is_told_before_its_rows(database: Database, source: MysqlSource) -> None:
    execute(database, "CREATE TABLE a (id int PRIMARY KEY)")
    start = source.current_position()
    execute(
        database, "INSERT INTO a VALUES (1)", "ALTER TABLE a ADD COLUMN n int DEFAULT 5", "INSERT INTO a VALUES (2, 3)"
    )
    log_batches = list(batches(source, start))
    shapes = [[c.name for c in s.schema.columns] for b in log_batches for s in b.signals if isinstance(s, SchemaSeen)]
    assert shapes == [["id"], ["id", "n"]]
    assert [row["after"] for row in changes(log_batches)] == [{"id": 1}, {"id": 2, "n": 3}]


CONSTANTS = [f"c{number}" for number in range(1, 10)]
"""The columns added below of which the statement tells what older rows hold in them."""


ALTERS: list[tuple[str, dict[str, str] | None]] = [
    ("RENAME COLUMN a TO x", {"x": "a"}),
    ("RENAME COLUMN x TO b, RENAME COLUMN b TO x", {"b": "x", "x": "b"}),
    ("CHANGE n m bigint NULL COMMENT 'it, too' FIRST, ADD COLUMN e int NULL AFTER id", {"m": "n"}),
    ("ADD f decimal(5,2) DEFAULT 1.25, RENAME COLUMN X TO `a b`", {"a b": "x"}),
    ('RENAME COLUMN "a b" TO a', {"a": "a b"}),
    ("DROP COLUMN b, ADD COLUMN b varchar(9) DEFAULT 'new'", None),
    ("RENAME COLUMN id TO k", {"k": "id"}),
    ("ADD INDEX i (a)", None),
    (
        "ADD c1 int unsigned NOT NULL, ADD c2 decimal(6,3) DEFAULT '-1.5', ADD c3 varchar(9) DEFAULT 'it''s ', "
        "ADD c4 enum('a','b') DEFAULT 'b', ADD c5 date DEFAULT '2024-02-29', ADD c6 char(4) NOT NULL, "
        "ADD c7 datetime(3) DEFAULT '2024-02-29 01:02:03', ADD c8 double DEFAULT 0.1, ADD c9 bool DEFAULT true, "
        "ADD c10 char(4) DEFAULT 'a ', ADD c11 enum('a','b') DEFAULT 'B', ADD c12 float DEFAULT 0.1, "
        "ADD c13 timestamp NOT NULL DEFAULT '2024-02-29 01:02:03', ADD c14 text, RENAME COLUMN m TO mm",
        {"mm": "m"},
    ),
    ("RENAME COLUMN a TO y /* why */", None),
]


def test_what_is_told_of_renamed_columns_is_what_the_server_made_of_a_row(
    database: Database, source: MysqlSource, tmp_path: Path
) -> None:
    execute(database, "CREATE TABLE w (id int PRIMARY KEY, a varchar(9), b varchar(9), n bigint)")
    start = source.current_position()
    witnesses = []
    execute(database, "INSERT INTO w VALUES (1, 'a', 'b', 7)")
    for number, (what, _) in enumerate(ALTERS):
        key = "id" if number < 7 else "k"
        with database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM w WHERE {key} = 1")
            witnesses.append(dict(zip([c[0] for c in cursor.description], cursor.fetchone(), strict=True)))
            cursor.execute("SET sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'")
            cursor.execute(f"ALTER TABLE w {what}")
            cursor.execute("SET sql_mode = ''")
            cursor.execute(f"INSERT INTO w ({'k' if number >= 6 else 'id'}) VALUES ({number + 2})")
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM w WHERE k = 1")
        witnesses.append(dict(zip([c[0] for c in cursor.description], cursor.fetchone(), strict=True)))
    staging = Staging(str(tmp_path / "staging"), source="s")
    staging.publish(Manifest("s", 1, 1, 1, 0, start, 0, "", None, 0))
    head = staging.head()
    assert head is not None
    log = Sequencer(staging, source="s", epoch=1, head=head, visibility=LogOrder(), rules=Rules({}))
    for batch in batches(source, start):
        log.process(batch)
    marks = [m for m in log.seal(0).marks if m.op == "s" and m.table.endswith(".w")]
    marks_by_renames = {frozenset((m.renamed or {}).items()): m for m in marks}
    for (before, after), (what, renamed) in zip(itertools.pairwise(witnesses), ALTERS, strict=True):
        if renamed is not None:
            mark = marks_by_renames[frozenset(renamed.items())]
            assert {n: before[o] for n, o in renamed.items()} == {n: after[n] for n in renamed}, what
            assert {n: values.to_json(after[n]) for n in mark.filled or {}} == (mark.filled or {})
    assert sum(m.renamed is not None for m in marks) == sum(r is not None for _, r in ALTERS)
    assert [sorted(m.filled) for m in marks if m.filled] == [["e"], ["f"], sorted([*CONSTANTS, "c14"])]


def test_a_key_that_is_added_while_the_catalogue_is_read_is_read_with_its_column(
    database: Database, source: MysqlSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns and indexes are two questions."""
    execute(database, "CREATE TABLE a (v int)", "CREATE TABLE b (id int PRIMARY KEY)", "CREATE TABLE gone (v int)")
    ask = catalogue._ask_by_table
    added = ["ALTER TABLE a ADD COLUMN id int NOT NULL PRIMARY KEY", "ALTER TABLE gone ADD id int PRIMARY KEY"]

    def ask_and_alter(connection: Any, question: str, *rest: Any) -> Any:
        if question == catalogue._INDEXES and "DROP TABLE gone" not in added:
            execute(database, *added)
            added[:] = ["DROP TABLE gone"]
        elif question == catalogue._COLUMNS and added == ["DROP TABLE gone"]:
            execute(database, *added)
        return ask(connection, question, *rest)

    monkeypatch.setattr(catalogue, "_ask_by_table", ask_and_alter)
    shapes = {str(schema.table.name): schema for schema in source.tables()}
    assert {name: [column.name for column in schema.key_columns] for name, schema in shapes.items()} == {
        "a": ["id"],
        "b": ["id"],
    }
    assert [column.name for column in shapes["a"].columns] == ["v", "id"]


def test_a_key_of_which_the_account_sees_no_column_is_none(database: Database, source: MysqlSource) -> None:
    """MySQL shows the index all the same."""
    who = f"'{database.account.user}'@'127.0.0.1'"
    execute(
        database,
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        f"REVOKE SELECT ON `{database.name}`.* FROM {who}",
        f"GRANT SELECT (v) ON a TO {who}",
        f"GRANT SELECT ON b TO {who}",
    )
    assert [schema.table.name for schema in source.tables() if schema.key] == ["b"]
    expected = "a: column id: it is in the key" if database.kind == "mysql" else "a has no primary key"
    assert expected in check(source)
