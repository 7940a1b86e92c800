"""A table with types of PostgreSQL of every staged form, and rows at the types' ends."""

# ruff: noqa: E501  (a row of values reads better in one block)
from __future__ import annotations

TYPES = (
    "CREATE EXTENSION hstore",
    "CREATE EXTENSION ltree",
    "CREATE EXTENSION citext",
    "CREATE TYPE two AS (a int, b text)",
    "CREATE TYPE feeling AS ENUM ('sad', 'ok', 'happy, very')",
    "CREATE DOMAIN place AS inet",
    r"""CREATE TYPE odd AS ENUM ('', 'it''s', ' b ', '"q"', 'back\slash', '日本', '{x}', 'NULL')""",
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE DOMAIN fair_price AS price CHECK (value > 0)",
    "CREATE TYPE nest AS (t two, ints int[], p fair_price, n numeric)",
    "CREATE DOMAIN nest_egg AS nest",
    "CREATE DOMAIN numbers AS int[]",
    "CREATE TYPE stretch AS RANGE (subtype = float8)",
)
COLUMNS = {
    "id": "int PRIMARY KEY",
    "bo": "boolean",
    "i2": "smallint",
    "i4": "integer",
    "i8": "bigint",
    "f4": "real",
    "f8": "double precision",
    "n": "numeric",
    "n12": "numeric(12,2)",
    "n20": "numeric(20,0)",
    "n38": "numeric(38,38)",
    "n60": "numeric(60,5)",
    "by": "bytea",
    "da": "date",
    "ts": "timestamp",
    "ts3": "timestamp(3)",
    "tz": "timestamptz",
    "ti": "time",
    "tiz": "timetz",
    "iv": "interval",
    "t": "text",
    "v": "varchar(9)",
    "c": "char(5)",
    '"C "" 1"': "char",
    "nm": "name",
    "j": "json",
    "jb": "jsonb",
    "u": "uuid",
    "m6": "macaddr",
    "m8": "macaddr8",
    "ine": "place",
    "ci": "cidr",
    "ints": "int[]",
    "texts": "text[]",
    "p": "two",
    "e": "feeling",
    "b5": "bit(5)",
    "vb": "bit varying",
    "x": "xml",
    "rg": "int4range",
    "mo": "money",
    "q": '"char"',
    "o": "oid",
    "tsv": "tsvector",
    "pt": "point",
    "odd": "odd",
    "odds": "odd[]",
    "fair": "fair_price",
    "fairs": "fair_price[]",
    "nest": "nest",
    "nests": "nest[]",
    "egg": "nest_egg",
    "dims": "numbers",
    "stretch": "stretch",
    "ns": "numeric[]",
    "f8s": "float8[]",
    "tzs": "timestamptz[]",
    "bys": "bytea[]",
    "n5": "numeric(5,-2)",
    "n2": "numeric(2,5)",
    "mr": "int4multirange",
    "tzr": "tstzrange",
    "h": "hstore",
    "l": "ltree",
    "cit": "citext",
}

_LONG = "repeat('é, ', 600)"
ROWS: tuple[dict[str, str], ...] = (
    {
        "bo": "true", "i2": "-32768", "i4": "-2147483648", "i8": "-9223372036854775808", "f4": "1.1",
        "f8": "-1.7976931348623157e308", "n": "123456789012345678901234567890.000100", "n12": "-9999999999.99",
        "n20": "18446744073709551615", "n38": "0.00000000000000000000000000000000000001", "n60": "-1.5", "by": r"'\x00ff'",
        "da": "'0001-01-01'", "ts": "'9999-12-31 23:59:59.999999'", "ts3": "'2024-01-01 00:00:00.1'",
        "tz": "'1969-12-31 23:59:59.999999+00'", "ti": "'24:00:00'", "tiz": "'12:34:56.5+05:30'",
        "iv": "'1 day -00:00:01'", "t": "'a,b é東😀'", "v": "'x  '", "c": "'ab'", '"C "" 1"': "'c'", "nm": "'nm'",
        "j": """'{"a" : 1}'""", "jb": """'{"b": 1.10, "a": [null]}'""", "u": "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
        "m6": "'08:00:2b:01:02:03'", "m8": "'08:00:2b:01:02:03:04:05'", "ine": "'10.0.0.1'", "ci": "'10.0.0.0/8'",
        "ints": "'{1,NULL}'", "texts": """'{"a,b",NULL}'""", "p": "ROW(1, 'x y')", "e": "'happy, very'", "b5": "'10101'",
        "vb": "'1'", "x": "'<a/>'", "rg": "'[1,5)'", "mo": "'12.34'", "q": "'x'", "o": "4294967295", "tsv": "'a:1'",
        "pt": "'(1,2)'", "odd": "''", "odds": "enum_range(NULL::odd)", "fair": "1.5", "fairs": "'{1,2.25}'",
        "nest": """ROW(ROW(1, 'x "y" ,\\'), ARRAY[1,NULL], 1.5, 'NaN')""", "nests": "ARRAY[ROW(NULL,NULL,NULL,NULL)::nest, NULL]",
        "egg": "ROW(ROW(NULL, ''), '{}', 2, 1e400)", "dims": "'[0:1][2:3]={{1,2},{3,NULL}}'", "stretch": "stretch(0.1, 1e300)",
        "ns": "'{NaN,-Infinity,1.10,NULL}'", "f8s": "'{NaN,Infinity,-0,0.1,5e-324}'", "n5": "12345", "n2": "0.00012",
        "tzs": "'{2024-01-01 12:00+05:30,infinity}'", "bys": r"""ARRAY['\x00ff', '\x', NULL]::bytea[]""", "mr": "'{[1,2),[5,6)}'",
        "tzr": "'[2024-01-01 00:00+05, infinity)'", "h": """'a=>1, "b c"=>NULL, "q\\""=>"é,"'""", "l": "'top.a_1'", "cit": "'MiXed É'",
    },
    {
        "bo": "false", "i2": "32767", "i4": "0", "i8": "9223372036854775807", "f4": "'NaN'", "f8": "'NaN'", "n": "'NaN'",
        "n12": "0", "n20": "0", "n38": "-0.5", "n60": "0", "by": "''", "da": "'9999-12-31'", "ts": "'0001-01-01'",
        "ts3": "'1582-10-10 12:00'", "tz": "'2024-01-01 00:00:00.5+00'", "ti": "'00:00'", "tiz": "'00:00+00'", "iv": "'0'",
        "t": "''", "v": "''", "c": "''", '"C "" 1"': "''", "nm": "''", "j": "'1'", "jb": "'1'", "ine": "'::1/64'",
        "ints": "'{}'", "texts": "'{}'", "p": "ROW(NULL, NULL)", "e": "'sad'", "b5": "'00000'", "vb": "''", "x": "''",
        "rg": "'empty'", "mo": "'0'", "q": "''", "o": "0", "tsv": "''", "pt": "'(0,0)'",
        "odd": "'NULL'", "odds": "'{}'", "nests": "'{}'", "dims": "array(SELECT generate_series(1, 20000))", "stretch": "'empty'",
        "n5": "-12355", "n2": "0", "mr": "'{}'", "h": "''", "l": "''", "cit": "''", "bys": "'{}'",
    },
    {
        "f4": "'-0'", "f8": "'-0'", "n": "0.10", "n12": "1.5", "by": "decode(repeat('ab', 3000), 'hex')",
        "da": "'1582-10-10'", "ts": "'1900-01-01 00:00:00.120'", "tz": "'0001-01-01 00:00+00'", "t": _LONG,
        "j": f"""('"' || {_LONG} || '"')::json""", "jb": f"""('"' || {_LONG} || '"')::jsonb""",
        "x": f"{_LONG}::xml",
    },
    {
        "f4": "'Infinity'", "f8": "'-Infinity'", "n": "'-Infinity'", "n12": "'-0.00'", "q": "(-1)::\"char\"",
        "iv": "'178000000 years -11 mons 2147483647 days -2562047788:00:54.775807'", "tiz": "'24:00-15:59'",
        "j": """'{"b":1e400, "a" : 1, "a":2}'""", "jb": """'{"bb": 1e400, "a": -1e-400, "é": "\\u0001", "aa": 1234567890123456789012.10}'""",
        "x": """'<?xml version="1.0" encoding="latin1"?><a>é</a>'""", "odd": r"""'back\slash'""",
    },
    {"jb": "(repeat('[', 1000) || repeat(']', 1000))::jsonb", "n": "1e131071", "iv": "'-1 mons +1 day'", "x": "'<?xml version=\"1.1\" standalone=\"yes\"?><a/>'"},
    {"f4": "1e-45", "f8": "5e-324", "n": "0"},
    {"f4": "3.4028234663852886e38", "f8": "4611686018427387904", "n": "0.0"},
    {"f4": "16777217", "f8": "0.00097656249999999989"},
    {"f4": "1e-20", "f8": "'Infinity'::float8 - 'Infinity'"},
    {"f8": "0"},
    {},
)  # fmt: skip


def create(name: str) -> list[str]:
    """The statements that make the table and its types."""
    return [*TYPES, f"CREATE TABLE {name} ({', '.join(f'{column} {kind}' for column, kind in COLUMNS.items())})"]


def inserts(name: str) -> list[str]:
    """A statement for each row."""
    return [
        f"INSERT INTO {name} ({', '.join(['id', *row])}) VALUES ({', '.join([str(number), *row.values()])})"
        for number, row in enumerate(ROWS)
    ]
