"""Columns of every type of PostgreSQL, and values at the types' ends."""

from __future__ import annotations

from tests.fix_servers import Database

ALL_TYPES = {
    "id": ("bigint PRIMARY KEY", ["1", "2", "3"]),
    "b": ("boolean", ["true", "false", "NULL"]),
    "i2": ("smallint", ["-32768", "32767", "NULL"]),
    "i4": ("integer", ["-2147483648", "2147483647", "NULL"]),
    "i8": ("bigint", ["-9223372036854775808", "9223372036854775807", "NULL"]),
    "f4": ("real", ["1e-45", "3.4028235e38", "NULL"]),
    "f8": ("double precision", ["5e-324", "1.7976931348623157e308", "NULL"]),
    "n": ("numeric(12,2)", ["-9999999999.99", "0.01", "NULL"]),
    "n38": ("numeric(38,10)", ["9999999999999999999999999999.9999999999", "-0.0000000001", "NULL"]),
    "wide": ("numeric(60,5)", ["1234567890123456789012345678901234567890123456789012345.12345", "0", "NULL"]),
    "free": ("numeric", ["1e-30", "123456789012345678901234567890.000100", "NULL"]),
    "v": ("varchar(10)", ["''", "'a\"b\\\n,é'", "NULL"]),
    "c": ("char(5)", ["'x'", "''", "NULL"]),
    "t": ("text", ["'NULL'", "E'tab\\there \\r\\n line'", "NULL"]),
    "bin": ("bytea", [r"'\x'", r"'\x0001ff5c78'", "NULL"]),
    "d": ("date", ["'0001-01-01'", "'9999-12-31'", "NULL"]),
    "ts": ("timestamp", ["'0001-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'", "NULL"]),
    "ts3": ("timestamp(3)", ["'2024-02-29 12:00:00.123'", "'1969-12-31 23:59:59.5'", "NULL"]),
    "tz": ("timestamptz", ["'2024-01-01 12:00:00.5+05:30'", "'0001-01-02 00:00:00Z'", "NULL"]),
    "tm": ("time", ["'24:00:00'", "'00:00:00.000001'", "NULL"]),
    "tmz": ("timetz", ["'12:00:00+02'", "'00:00:00-15:59'", "NULL"]),
    "iv": ("interval", ["'1 year -2 days 03:04:05.6'", "'0'", "NULL"]),
    "ia": ("integer[]", ["'{1,NULL,3}'", "'{{1,2},{3,4}}'", "NULL"]),
    "ta": ("text[]", ["ARRAY['a,b','\"']", "'{}'", "NULL"]),
    "mood": ("mood", ["'fine'", "'so, so'", "NULL"]),
    "small": ("small_number", ["7", "1", "NULL"]),
    "nested": ("nested_price", ["1.50", "2", "NULL"]),
    "pair": ("pair", ["ROW(1,'x y')", "ROW(NULL,'')", "NULL"]),
    "bits": ("bit(3)", ["'101'", "'000'", "NULL"]),
    "vbits": ("varbit", ["'1'", "''", "NULL"]),
    "js": ("json", ['\'{"a" : 1.10, "value":12}\'', "'null'", "NULL"]),
    "jb": ("jsonb", ['\'{"b":1.10,"a":["\\u00e9"]}\'', "'5'", "NULL"]),
    "u": ("uuid", ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'00000000-0000-0000-0000-000000000000'", "NULL"]),
    "money": ("money", ["12.34", "-5", "NULL"]),
    "rng": ("int4range", ["'[1,5]'", "'empty'", "NULL"]),
    "ip": ("inet", ["'10.0.0.1'", "'::1/64'", "NULL"]),
    "mac": ("macaddr", ["'08:00:2b:01:02:03'", "'00:00:00:00:00:00'", "NULL"]),
    "x": ("xml", ["'<a b=\"1\"/>'", "'x'", "NULL"]),
    "reg": ("regclass", ["'types'", "'pg_class'", "NULL"]),
    "o": ("oid", ["4294967295", "0", "NULL"]),
    "ch": ('"char"', ["'x'", "''", "NULL"]),
    "p": ("point", ["'(1.5,-2)'", "'(0,0)'", "NULL"]),
}


def make_types(lab: Database) -> None:
    lab.execute(
        "CREATE TYPE mood AS ENUM ('fine', 'so, so')",
        "CREATE DOMAIN small_number AS integer CHECK (value > 0)",
        "CREATE DOMAIN price AS numeric(10,2)",
        "CREATE DOMAIN nested_price AS price",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE types (" + ", ".join(f'"{name}" {kind}' for name, (kind, _) in ALL_TYPES.items()) + ")",
    )
