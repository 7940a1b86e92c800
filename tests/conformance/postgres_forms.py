"""Forms of statements of PostgreSQL, and those that are made of tables of types and settings."""

# ruff: noqa: E501  (a statement reads better in one line)
from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.forms import Form, Make, read_forms
from tests.contract import any_postgres
from tests.contract.any_value import decimals, integers
from tests.integration import postgres_types

_FILE = Path(__file__).with_name("postgres.sql")
FIRST = postgres_types.TYPES
"""Statements that come before all others: the types of the columns."""


def values(kind: str) -> dict[str, Make]:
    """What fills the holes of forms."""
    columns = any_postgres.COLUMNS
    common: dict[str, Make] = {
        "int": integers(-(2**31), 2**31 - 1),
        "small": lambda r: str(r.randint(0, 99)),
        "key": lambda r: str(r.randint(1, 12)),
        "text": columns["v"],
        "word": lambda r: "'" + "".join(r.choices("abcdxyz", k=r.randint(1, 8))) + "'",
        "dec": decimals(10, 2),
        "date": columns["da"],
        "ts": any_postgres._zonedtime,
        "json": columns["j"],
        "jsonb": columns["jb"],
    }
    return {**common, **{f"val_{name}": make for name, make in columns.items() if name.isidentifier()}}


_ROUND = """
INSERT INTO <t> VALUES (1, <text>, 1, <date>, <ts>, 0.1, '1 day 2 hours', '\\x00ff', '{1.5,2.5}'), (2, <text>, 2, <date>, <ts>, 1e-7, '-1 mon', '', NULL), (3, <text>, NULL, NULL, NULL, NULL, NULL, NULL, '{}')
UPDATE <t> SET v = <text>, n = n - 1 WHERE id = 1
UPDATE <t> SET id = id + 20 WHERE id = 2
ALTER TABLE <t> ADD COLUMN e int DEFAULT 6
INSERT INTO <t> (id, v, z, f) VALUES (5, <text>, <ts>, 1.0 / 3)
DELETE FROM <t> WHERE id = 3
"""
_TABLE = "CREATE TABLE <t> (id int PRIMARY KEY, v text, n bigint, d date, z timestamptz, f float8, i interval, b bytea, fs float4[])"
SETTINGS = """\
DateStyle = 'ISO, MDY'
DateStyle = 'Postgres, YMD'
IntervalStyle = iso_8601
IntervalStyle = sql_standard
TimeZone = 'Asia/Kolkata'
TimeZone = '<-03:30>+03:30'
bytea_output = escape
extra_float_digits = -15
xmlbinary = hex
xmloption = document
standard_conforming_strings = on
client_encoding = 'UTF8'
lc_monetary = 'C'
lc_numeric = 'C'
session_replication_role = replica
session_replication_role = local
synchronous_commit = off
synchronous_commit = remote_apply
default_transaction_isolation = serializable
default_transaction_read_only = off
default_transaction_deferrable = on
default_toast_compression = pglz
default_table_access_method = heap
default_statistics_target = 1
constraint_exclusion = on
row_security = off
check_function_bodies = off
search_path = public, pg_catalog
temp_tablespaces = ''
array_nulls = off
quote_all_identifiers = on
escape_string_warning = off
transform_null_equals = on
gin_fuzzy_search_limit = 5
logical_decoding_work_mem = '64kB'
commit_delay = 10
wal_compression = on
track_commit_timestamp = on
plan_cache_mode = force_generic_plan
jit = off
enable_partitionwise_join = on
lock_timeout = '60s'
idle_in_transaction_session_timeout = '60s'
debug_logical_replication_streaming = immediate
createrole_self_grant = ''
icu_validation_level = error
allow_system_table_mods = on
vacuum_freeze_min_age = 0
""".splitlines()
"""Settings of a session; a server that does not know one, or has it for itself, refuses it."""


def forms(kind: str, draw: random.Random) -> Iterator[Form]:
    """Those that are written, and those that are made of types and settings."""
    yield from read_forms(_FILE, kind)
    yield from _types(draw)
    yield from (Form(f"setting {setting}", f"!SET {setting}\n{_TABLE}{_ROUND}") for setting in SETTINGS)


def _types(draw: random.Random) -> Iterator[Form]:
    names = [name for name in postgres_types.COLUMNS if name in any_postgres.COLUMNS and name.isidentifier()]
    draw.shuffle(names)
    for first in range(0, len(names), 6):
        group = names[first : first + 6]
        columns = ", ".join(f"{name} {postgres_types.COLUMNS[name]}" for name in group)
        listed = ", ".join(group)
        holes = ", ".join(f"<val_{name}>" for name in group)
        text = [f"CREATE TABLE <t> (id int PRIMARY KEY, {columns})"]
        text += [
            f"?ALTER TABLE <t> ALTER {name} SET STORAGE EXTERNAL" for name in group if name in ("t", "by", "j", "jb")
        ]
        text += [f"INSERT INTO <t> (id, {listed}) VALUES ({n}, {holes}), ({n + 1}, {holes})" for n in (1, 3, 5)]
        text += ["INSERT INTO <t> (id) VALUES (9)"]
        text += [f"UPDATE <t> SET {name} = <val_{name}> WHERE id = <key>" for name in group]
        text += [
            "UPDATE <t> SET id = id + 20 WHERE id = <key>",
            f"UPDATE <t> SET {draw.choice(group)} = NULL WHERE id = <key>",
        ]
        text += ["DELETE FROM <t> WHERE id = <key>"]
        yield Form(f"types {listed}", "\n".join(text), plain=draw.random() < 0.5)
