"""A table with every type of MySQL and MariaDB that is supported, and rows at the types' ends."""

# ruff: noqa: E501  (a row of values reads better in one block)
from __future__ import annotations

from dblog_core.local.packages import trees
from dblog_core.local.servers.mysql import MysqlServer

COMMON = {
    "id": "bigint unsigned NOT NULL PRIMARY KEY",
    "i1": "tinyint",
    "u1": "tinyint unsigned",
    "i2": "smallint",
    "u2": "smallint unsigned",
    "i3": "mediumint",
    "u3": "mediumint unsigned",
    "i4": "int",
    "u4": "int unsigned",
    "i8": "bigint",
    "u8": "bigint unsigned",
    "filled": "int(8) zerofill",
    "d10": "decimal(10,2)",
    "d18": "decimal(18,9)",
    "d38": "decimal(38,10)",
    "d65": "decimal(65,30)",
    "d0": "decimal(5,0)",
    "d20": "decimal(20,20)",
    "dz": "decimal(50,5) zerofill",
    "f": "float",
    "g": "double",
    "c": "char(10)",
    "c255": "char(255)",
    "c_latin1": "char(10) CHARACTER SET latin1",
    "v": "varchar(300)",
    "v_latin1": "varchar(20) CHARACTER SET latin1",
    "v_ucs2": "varchar(20) CHARACTER SET ucs2",
    "v_utf16": "varchar(20) CHARACTER SET utf16",
    "v_utf16le": "varchar(20) CHARACTER SET utf16le",
    "v_utf32": "varchar(20) CHARACTER SET utf32",
    "v_ascii": "varchar(20) CHARACTER SET ascii",
    "v_cp1251": "varchar(20) CHARACTER SET cp1251",
    "t1": "tinytext",
    "t2": "text",
    "t3": "mediumtext",
    "t4": "longtext",
    "b": "binary(16)",
    "b255": "binary(255)",
    "vb": "varbinary(300)",
    "b1": "tinyblob",
    "b2": "blob",
    "b3": "mediumblob",
    "b4": "longblob",
    "da": "date",
    "dt": "datetime",
    "dt3": "datetime(3)",
    "dt6": "datetime(6)",
    "ts": "timestamp NULL",
    "ts1": "timestamp(1) NULL",
    "ts6": "timestamp(6) NULL",
    "ti": "time",
    "ti1": "time(1)",
    "ti3": "time(3)",
    "ti6": "time(6)",
    "y": "year",
    "e": "enum('a','bé','c,d')",
    "e_latin1": "enum('ä','ö') CHARACTER SET latin1",
    "s": "set('x','y','zß')",
    "e_odd": r"""enum('','it''s',' b','a,b','"q"','back\\slash','日本😀','%s')""",
    "s_odd": r"""set('it''s','',' b','"q"','back\\slash','日本😀','%s')""",
    "s_empty": "set('','x','y')",
    "e_ucs2": "enum('ä','x y') CHARACTER SET ucs2",
    "s_utf16": "set('😀','x y') CHARACTER SET utf16",
    "e_binary": "enum('é','b') CHARACTER SET binary",
    "e300": f"enum({','.join(f'{chr(39)}l{i}{chr(39)}' for i in range(300))})",
    "s64": f"set({','.join(f'{chr(39)}l{i}{chr(39)}' for i in range(64))})",
    "bit1": "bit(1)",
    "bit20": "bit(20)",
    "bit64": "bit(64)",
    "j": "json",
    "ge": "geometry",
    "po": "point",
    "d65_0": "decimal(65,0)",
    "d30": "decimal(30,30)",
    "f74": "float(7,4)",
    "g103": "double(10,3)",
    "national": "national varchar(5)",
    "unseen": "int INVISIBLE",
    "virtual_": "int AS (i2 + 1) VIRTUAL",
    "stored_": "int AS (i2 + 2) STORED",
}
GENERATED = ("virtual_", "stored_")
MYSQL = {"vec": "vector(3)"}
"""From version 9 on."""
MARIADB = {"inet4_": "inet4", "inet6_": "inet6", "uuid_": "uuid", "uuid1_": "uuid"}
MARIADB_ROWS: tuple[dict[str, object], ...] = (
    {"inet4_": "255.255.255.255", "inet6_": "::", "uuid_": "ffffffff-ffff-ffff-ffff-ffffffffffff",
     "uuid1_": "123e4567-e89b-12d3-a456-426655440000"},
    {"inet4_": "0.0.0.0", "inet6_": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "uuid_": "00000000-0000-0000-0000-000000000000",
     "uuid1_": "6ccd780c-baba-1026-9564-5b8c656024db"},
    {"inet4_": "10.0.0.0", "inet6_": "::ffff:10.0.0.0", "uuid_": "01020304-0506-4708-8900-000000000000"},
)  # fmt: skip

JSON = (
    '{"b": 1, "aa": [1, 2.5, -3, 1e100, true, false, null, "x\\"\\u0001\\n\\u007fé\\ud83d\\ude00/"], "max": 18446744073709551615,'
    ' "min": -9223372036854775808, "o": {}, "e": [], "f": 0.1, "g": 1.0, "16": 65535, "32": -2147483648, "u32": 4294967295,'
    ' "tiny": 1.5e-300, "long": "' + "z" * 300 + '"}'
)

DEEP = '{"k": ' + "[" * 29 + "1.0000000000000000000001, 12345678901234567890123, 1e308, 5e-324" + "]" * 29 + "}"
"""As deep as MariaDB checks documents; with numbers beyond 64 bits and beyond a double's digits."""

ROWS: tuple[dict[str, object], ...] = (
    {
        "i1": -128, "u1": 255, "i2": -32768, "u2": 65535, "i3": -8388608, "u3": 16777215, "i4": -(2**31), "u4": 2**32 - 1,
        "i8": -(2**63), "u8": 2**64 - 1, "filled": 42, "d10": "-12345678.90", "d18": "-999999999.999999999",
        "d38": "-1234567890123456789012345678.0123456789",
        "d65": "-12345678901234567890123456789012345.123456789012345678901234567890", "d0": "-99999",
        "d20": "-0.00000000000000000001", "dz": "123.5", "f": 1.1, "g": -1.7976931348623157e308, "c": "ab  ", "c255": "é" * 255,
        "c_latin1": "Ä€x  ", "v": "日本😀  ", "v_latin1": "é€\u0081\u009d", "v_ucs2": "日本", "v_utf16": "😀x", "v_utf16le": "😀y",
        "v_utf32": "😀z", "v_ascii": "plain", "v_cp1251": "Привет", "t1": "t", "t2": "", "t3": "x" * 70_000, "t4": "y'\\\"",
        "b": b"ab\0\0", "b255": b"\0\xff" * 100, "vb": b"\0\xff", "b1": b"", "b2": b"z\0", "b3": b"q" * 70_000, "b4": bytes(range(256)),
        "da": "0001-01-01", "dt": "1000-01-01 00:00:00", "dt3": "9999-12-31 23:59:59.999", "dt6": "2024-02-29 12:34:56.123456",
        "ts": "1970-01-01 00:00:01", "ts1": "2038-01-19 03:14:07.9", "ts6": "2024-01-01 00:00:00.000001", "ti": "-838:59:59",
        "ti1": "-00:00:00.1", "ti3": "-12:34:56.789", "ti6": "838:59:58.999999", "y": 2155, "e": "bé", "e_latin1": "ö", "s": "x,zß",
        "bit1": 1, "bit20": 0xABCDE, "bit64": 2**64 - 1, "j": JSON, "e_odd": "a,b", "s_odd": 0b1111111, "s_empty": "x,y",
        "e_ucs2": "ä", "s_utf16": "😀,x y", "e_binary": "é", "e300": "l299", "s64": 2**64 - 1, "d65_0": "-" + "9" * 65,
        "d30": "-0." + "9" * 30, "f74": 1.23456, "g103": -2.3456, "national": "日本", "unseen": 5,
    },
    {
        "i1": 127, "u1": 0, "i2": 32767, "u2": 0, "i3": 8388607, "u3": 0, "i4": 2**31 - 1, "u4": 0, "i8": 2**63 - 1, "u8": 0,
        "filled": 0, "d10": "0.01", "d18": "999999999.999999999", "d38": "0.0000000001", "d65": "0.000000000000000000000000000001",
        "d0": "0", "d20": "0.99999999999999999999", "dz": "0", "f": 3.4028234663852886e38, "g": 2.2250738585072014e-308, "c": "",
        "c255": "", "c_latin1": "", "v": "", "v_latin1": "", "v_ucs2": "", "v_utf16": "", "v_utf16le": "", "v_utf32": "", "v_ascii": "",
        "v_cp1251": "", "t1": "", "t2": "x", "t3": "", "t4": "", "b": b"", "b255": b"", "vb": b"", "b1": b"\0", "b2": b"", "b3": b"",
        "b4": b"", "da": "9999-12-31", "dt": "9999-12-31 23:59:59", "dt3": "2024-01-01 00:00:00.1", "dt6": "1969-12-31 23:59:59.999999",
        "ts": "2024-05-05 05:05:05", "ts1": "2024-05-05 05:05:05", "ts6": "2024-05-05 05:05:05", "ti": "00:00:00", "ti1": "00:00:00.1",
        "ti3": "12:34:56.789", "ti6": "-838:59:58.000001", "y": 1901, "e": "a", "e_latin1": "ä", "s": "", "bit1": 0, "bit20": 0,
        "bit64": 0, "j": '"s"', "e_odd": "", "s_odd": 0b10, "s_empty": 3, "e_ucs2": "x y", "s_utf16": "", "e_binary": "b",
        "e300": "l255", "s64": 1 << 63, "d65_0": "0", "d30": "0", "f74": 0, "g103": 0, "national": "", "unseen": -1,
    },
    {
        "f": -0.0, "g": 5e-324, "d10": "99999999.99", "d38": "9999999999999999999999999999.9999999999", "ti": "-00:00:01",
        "ti1": "-00:00:01.9", "ti3": "-00:00:00.001", "ti6": "-00:00:00.000001", "y": 0, "e": "c,d", "s": "x,y,zß", "j": DEEP,
        "c": " x", "v": "a\0b", "i3": -1, "i8": -1, "dt6": "2000-02-29 00:00:00.5", "da": "2000-02-29", "e_odd": "%s",
        "s_odd": 0b1110, "s_empty": 1, "e300": "l256", "s64": 0, "f74": -0.0, "national": "é  ",
    },
    {},
)  # fmt: skip


def columns(kind: str) -> dict[str, str]:
    return {**COMMON, **(MARIADB if kind == "mariadb" else MYSQL if MysqlServer.package is trees.MYSQL else {})}


def create(kind: str, name: str) -> str:
    return f"CREATE TABLE `{name}` ({', '.join(f'{c} {t}' for c, t in columns(kind).items())}) CHARACTER SET utf8mb4"


def inserts(kind: str, name: str) -> list[tuple[str, tuple[object, ...]]]:
    """(statement, values) for each row; shapes and vectors, which are written by functions, in the first two."""
    statements = []
    for number, common in enumerate(ROWS):
        row = {**common, **(MARIADB_ROWS[number] if kind == "mariadb" and number < len(MARIADB_ROWS) else {})}
        names = ["id", *row]
        marks = ["%s"] * (1 + len(row))
        if number < 2:
            names += ["ge", "po"]
            marks += ["ST_GeomFromText('LINESTRING(0 0,1 2.5,-3 4)')", "ST_GeomFromText('POINT(1 2)')"]
            if "vec" in columns(kind):
                names.append("vec")
                marks.append("STRING_TO_VECTOR('[1,-2.5,3e10]')")
        identity = 2**64 - 1 if number == 0 else number
        statements.append(
            (f"INSERT INTO `{name}` ({', '.join(names)}) VALUES ({', '.join(marks)})", (identity, *row.values()))
        )
    return statements
