"""PostgreSQL: rows that print another text than before, without a row event and without a new file of their table.

The oracle is the server: all rows as text before and after a statement.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any

import orjson
import pytest

from dblog_core.capture.healing.unlogged_rewrites import mixed_up
from dblog_core.config.settings import Config
from dblog_core.interfaces import Source
from dblog_core.model.table_stamp import TableStamp
from dblog_core.sources.postgres.session_settings import FORMS
from dblog_core.wiring import open_source
from tests.fix_servers import Database

pytestmark = pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)

TYPES = (
    "CREATE TYPE mood AS ENUM ('ok', 'bad')",
    "CREATE TYPE other AS ENUM ('a', 'z')",
    "CREATE DOMAIN mood_domain AS mood",
    "CREATE DOMAIN domain_of_domain AS mood_domain DEFAULT 'bad'",
    "CREATE DOMAIN domain_of_array AS mood[]",
    "CREATE TYPE mood_range AS RANGE (subtype = mood)",
    "CREATE TYPE point3 AS (a int, m mood)",
    "CREATE TYPE nested AS (x text, p point3[])",
    "CREATE TABLE row_type (a int, m mood_domain)",
    "CREATE DOMAIN composite_domain AS point3",
    "CREATE DOMAIN text_domain AS text",
)
VALUES = {
    "mood": "'ok'",
    "mood[]": "'{ok,bad}'",
    "mood[][]": "'{{ok},{bad}}'",
    "mood_domain": "'ok'",
    "mood_domain[]": "'{ok}'",
    "domain_of_domain": "'ok'",
    "domain_of_domain[]": "'{ok}'",
    "domain_of_array": "'{ok}'",
    "domain_of_array[]": """'{"{ok}"}'""",
    "mood_range": "'[ok,bad)'",
    "mood_range[]": """'{"[ok,bad)"}'""",
    "mood_multirange": "'{[ok,bad)}'",
    "point3": "'(1,ok)'",
    "point3[]": """'{"(1,ok)"}'""",
    "nested": """ROW('t', ARRAY[ROW(1, 'ok')::point3])::nested""",
    "composite_domain": "'(1,ok)'",
    "composite_domain[]": """'{"(1,ok)"}'""",
    "row_type": "'(1,ok)'",
    "row_type[]": """'{"(1,ok)"}'""",
    "other": "'a'",
    "text": "'ok'",
    "int[]": "'{1}'",
}
"""Types of a column and a value of each."""
CHANGES = (
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
    "ALTER TYPE other RENAME VALUE 'a' TO 'b'",
    "ALTER TYPE point3 ADD ATTRIBUTE more text",
    "ALTER TYPE point3 DROP ATTRIBUTE a",
    "ALTER TABLE row_type ADD more int",
    "ALTER TABLE row_type DROP a",
)
"""Statements about types."""
HARMLESS = (
    "ALTER TYPE mood ADD VALUE 'new'",
    "ALTER TYPE mood ADD VALUE 'first' BEFORE 'ok'",
    "ALTER TYPE mood RENAME TO temper",
    "ALTER DOMAIN mood_domain SET DEFAULT 'bad'",
    "ALTER DOMAIN mood_domain ADD CONSTRAINT c CHECK (VALUE <> 'bad') NOT VALID",
    "ALTER TYPE point3 RENAME ATTRIBUTE a TO b",
    "ALTER TABLE row_type RENAME a TO b",
    "CREATE SCHEMA elsewhere; ALTER TYPE mood SET SCHEMA elsewhere",
)
"""Statements about types that change no text."""


NAMES = {f"c{number}": column for number, column in enumerate(VALUES)}
"""The columns of one table, and their types."""


def stamp(source: Source) -> TableStamp:
    stamps = source.stamps()
    assert stamps is not None
    return TableStamp.from_json(orjson.loads(orjson.dumps(stamps["public.a"].to_json())))


def printed(database: Database, *columns: str) -> dict[str, list[Any]]:
    """The text of all rows by column, as sessions of the capture print it."""
    with closing(database.connect()) as connection, connection.cursor() as cursor:
        for name, value in FORMS.items():
            cursor.execute(f"SET {name} = '{value}'")
        texts = ", ".join(f"format('%s', {column})" for column in columns)
        cursor.execute(f"SELECT {texts} FROM public.a ORDER BY id")
        return dict(zip(columns, zip(*cursor.fetchall(), strict=True), strict=True))


def recreate(database: Database, columns: dict[str, str], values: Iterable[str]) -> None:
    """Types and a table with these columns, with a row of these values and a row of NULL."""
    database.execute(
        "DROP SCHEMA IF EXISTS elsewhere CASCADE",
        "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT ALL ON SCHEMA public TO public",
        *TYPES,
        f"CREATE TABLE a (id int PRIMARY KEY, {', '.join(f'{name} {column}' for name, column in columns.items())})",
        f"INSERT INTO a VALUES (1, {', '.join(values)}), (2{', NULL' * len(columns)})",
    )


def find_told(before: TableStamp, now: TableStamp) -> set[str]:
    """The columns for which alone a dump would be due."""

    def of(stamp: TableStamp, name: str) -> TableStamp:
        return replace(stamp, columns={name: stamp.columns[name]})

    return {name for name in before.columns if mixed_up(of(before, name), of(now, name))}


def test_columns_whose_types_print_another_text_are_told_and_no_others(
    database: Database, source_config: Config
) -> None:
    source = open_source(source_config.source)
    for change in (*CHANGES, *HARMLESS):
        recreate(database, NAMES, VALUES.values())
        before = stamp(source)
        text = printed(database, *NAMES)
        database.execute(change)
        text_after = printed(database, *NAMES)
        told = find_told(before, stamp(source))
        changed = {name for name in NAMES if text[name] != text_after[name]}
        assert changed <= told, (change, [NAMES[name] for name in changed - told])
        if change in HARMLESS:
            assert not told and not changed, (change, [NAMES[name] for name in told])
        else:
            assert changed, change


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
def test_any_statements_about_types_are_told_where_they_change_a_text(
    database: Database, source_config: Config, seed: int
) -> None:
    source = open_source(source_config.source)
    chance = random.Random(seed)
    recreate(database, NAMES, VALUES.values())
    for step in range(25):
        before = stamp(source)
        text = printed(database, *NAMES)
        statements = [_any_statement(database, chance, f"{seed}_{step}_{n}") for n in range(chance.randint(1, 4))]
        text_after = printed(database, *NAMES)
        told = find_told(before, stamp(source))
        changed = {name for name in NAMES if text[name] != text_after[name]}
        assert changed <= told, (statements, [NAMES[name] for name in changed - told])


def _any_statement(database: Database, chance: random.Random, new: str) -> str:
    """Carries out a statement about some type; returns it."""
    labels = [label for (label,) in database.query("SELECT enumlabel FROM pg_enum WHERE enumtypid = 'mood'::regtype")]
    attributes = [
        name
        for (name,) in database.query(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'point3'::regclass AND attnum > 0 AND NOT attisdropped"
        )
    ]
    statement = chance.choice(
        [
            f"ALTER TYPE mood RENAME VALUE '{chance.choice(labels)}' TO 'label{new}'",
            f"ALTER TYPE mood ADD VALUE 'label{new}' BEFORE '{chance.choice(labels)}'",
            f"ALTER TYPE point3 ADD ATTRIBUTE a{new} mood_domain[]",
            f"ALTER TYPE point3 RENAME ATTRIBUTE {chance.choice(attributes)} TO r{new}",
            f"ALTER TYPE point3 DROP ATTRIBUTE {chance.choice(attributes)}, ADD ATTRIBUTE d{new} int",
            f"ALTER TABLE row_type ADD a{new} point3",
        ]
    )
    database.execute(statement)
    return statement


def test_labels_that_change_their_names_among_each_other_are_told(database: Database, source_config: Config) -> None:
    source = open_source(source_config.source)
    recreate(database, NAMES, VALUES.values())
    before = stamp(source)
    for old, new in (("ok", "x"), ("bad", "ok"), ("x", "bad")):
        database.execute(f"ALTER TYPE mood RENAME VALUE '{old}' TO '{new}'")
    told = {NAMES[name] for name in find_told(before, stamp(source))}
    assert told == VALUES.keys() - {"other", "text", "int[]"}


def test_a_function_that_prints_a_type_may_be_replaced(database: Database, source_config: Config) -> None:
    source = open_source(source_config.source)
    recreate(database, {"v": "text"}, ["'ok'"])
    database.execute("CREATE EXTENSION citext; ALTER TABLE a ADD w citext[] DEFAULT '{Ok}'")
    before = stamp(source)
    text = printed(database, "w")
    database.execute(
        "CREATE OR REPLACE FUNCTION citextout(citext) RETURNS cstring IMMUTABLE STRICT LANGUAGE internal "
        "AS 'unknownout'"
    )
    assert printed(database, "w") != text and find_told(before, stamp(source)) == {"w"}


BINARY = (
    ("cidr", "inet", "'10.1.2.3/32'"),
    ("oid", "regclass", "1259"),
    ("regclass", "oid", "'pg_class'"),
    ("int", "oid", "-1"),
    ("oid", "regrole", "10"),
    ("cidr[]", "inet[]", "'{10.1.2.3/32}'"),
    ("xml", "text", "'<a/>'"),
    ("timestamp", "timestamptz", "'2020-01-01'"),
    ("mood_domain", "mood", "'ok'"),
    ("mood", "mood_domain", "'ok'"),
    ("text", "varchar", "'a '"),
    ("varchar(3)", "text", "'a '"),
    ("varchar(3)", "varchar(9)", "'a '"),
    ("varchar", "bpchar", "'a '"),
    ("numeric(5,2)", "numeric(9,2)", "1.50"),
    ("numeric(5,2)", "numeric", "1.50"),
    ("numeric", "numeric(9,1)", "1.55"),
    ("bit(3)", "varbit", "B'101'"),
    ("varbit(3)", "varbit(9)", "B'101'"),
    ("timestamp(0)", "timestamp(6)", "'2020-01-01'"),
    ("timestamp(6)", "timestamp(0)", "'2020-01-01 00:00:00.7'"),
    ("time(0)", "time", "'10:00'"),
    ("interval(0)", "interval", "'1 day'"),
    ("interval day", "interval", "'1 day'"),
    ("char(3)", "char(5)", "'a'"),
    ("char(3)", "text", "'a'"),
    ("name", "text", "'a'"),
    ("int", "bigint", "1"),
    ("int", "text", "1"),
    ("bytea", "text", r"'\x6161'"),
    ("json", "jsonb", """'{"b":1,  "a":2}'"""),
    ("text", "mood", "'ok'"),
    ("mood", "text", "'ok'"),
    ("mood[]", "text[]", "'{ok}'"),
    ("point3", "text", "'(1,ok)'"),
    ("money", "numeric", "1"),
    ("text", "text_domain", "'ok'"),
    ("text[]", "text_domain[]", "'{ok}'"),
    ("citext", "text", "'Ok'"),
    ("text", "citext", "'Ok'"),
)
"""The type of a column before and after, and a value."""
KEEPS_THE_TEXT = {
    *(("text", "varchar"), ("varchar(3)", "text"), ("varchar(3)", "varchar(9)"), ("numeric(5,2)", "numeric(9,2)")),
    *(("numeric(5,2)", "numeric"), ("bit(3)", "varbit"), ("varbit(3)", "varbit(9)"), ("time(0)", "time")),
    *(("timestamp(0)", "timestamp(6)"), ("interval(0)", "interval"), ("interval day", "interval")),
    *(("mood_domain", "mood"), ("mood", "mood_domain"), ("text", "text_domain")),
}
"""What is known to keep each value's bytes and text."""


@pytest.mark.parametrize(("before_type", "after_type", "value"), BINARY)
def test_a_column_of_another_type_is_told_unless_that_prints_alike(
    database: Database, source_config: Config, before_type: str, after_type: str, value: str
) -> None:
    source = open_source(source_config.source)
    database.execute("CREATE EXTENSION IF NOT EXISTS citext SCHEMA pg_catalog")
    recreate(database, {"v": before_type}, [value])
    before = stamp(source)
    text = printed(database, "v")
    database.execute(f"SET TimeZone = 'UTC'; ALTER TABLE a ALTER v TYPE {after_type} USING v::{after_type}")
    has_changed = printed(database, "v") != text
    assert mixed_up(before, stamp(source)) >= has_changed
    if (before_type, after_type) in KEEPS_THE_TEXT:
        assert not has_changed and not mixed_up(before, stamp(source))
