"""The mapping of every column type as docs/types.md shows it: the types are asked of the code, the examples of servers.

`python -m tests.types_page` writes the page's tables anew. `tests/unit/test_types_page.py` holds page and code together,
`tests/integration/test_types_page.py` the examples and real servers.
"""

# ruff: noqa: E501, DTZ001  (a row of the page reads better in one line; DATETIME has no zone)
from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from dblog_core.delta_writer.delta_types import describe
from dblog_core.delta_writer.shape import name_of_type
from dblog_core.model.values import to_json
from dblog_core.sources.mysql.values import types as mysql
from dblog_core.sources.postgres.values import types as postgres

PAGE = Path(__file__).parents[1] / "docs" / "types.md"
MYSQL = "mysql"
MARIADB = "mariadb"
POSTGRES = "postgres"
BOTH = (MYSQL, MARIADB)


@dataclass(frozen=True, slots=True)
class Row:
    """Column types with one mapping, as the server's catalogue prints them; only `declared` is on the page.

    `examples`: SQL of a value of the first type, and the value that is staged for it. `edges`: what the table says of
    the ends of the type's range and of special values.
    """

    declared: tuple[str, ...]
    examples: tuple[tuple[str, Any], ...]
    edges: str = ""
    on: tuple[str, ...] = BOTH


def _plain(declared: str, *values: Any, edges: str = "") -> Row:
    """A type whose values are written in SQL as Python prints them."""
    return Row((declared,), tuple((str(value), value) for value in values), edges)


def _quoted_row(declared: str | tuple[str, ...], *values: str, edges: str = "", on: tuple[str, ...] = BOTH) -> Row:
    """Types that are staged as the very text that a value is written as."""
    listed = (declared,) if isinstance(declared, str) else declared
    return Row(listed, tuple(("'" + value.replace("'", "''") + "'", value) for value in values), edges, on)


_NO_DATE = 'A date with a zero part or of no calendar: an error, NULL with `zero_dates = "null"`, or NULL or the server\'s text with `staged_as`'
_CHARSETS = "every character set of the servers, as they convert it themselves. Of one that is not Unicode, dblog asks the server what each code becomes; a code that stands for nothing is its `?`. Bytes that are no code (half a pair of surrogates, say) are an error"
_NINES = "9" * 35 + "." + "9" * 30
_SHAPES = ("point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon")
_ORIGIN = bytes(4) + bytes.fromhex("0101000000") + bytes(16)

MYSQL_ROWS = (
    _plain("tinyint", -128, 127, edges="`BOOL` is `tinyint(1)`: 0 and 1, as all other values that it can hold"),
    _plain("smallint", -(2**15), 2**15 - 1),
    _plain("mediumint", -(2**23), 2**23 - 1),
    _plain("int", -(2**31), 2**31 - 1),
    _plain("bigint", -(2**63), 2**63 - 1),
    _plain("tinyint unsigned", 0, 255, edges="unsigned types take the next wider type; `ZEROFILL` only prints zeros: they are not staged"),
    _plain("smallint unsigned", 0, 2**16 - 1),
    _plain("mediumint unsigned", 0, 2**24 - 1),
    _plain("int unsigned", 0, 2**32 - 1),
    Row(("bigint unsigned",), (("0", Decimal(0)), (str(2**64 - 1), Decimal(2**64 - 1))), "Delta has no unsigned 64 bits: the decimal holds all of them, and JSON's text keeps every digit. `SERIAL` is this"),
    Row(("decimal(10,2)",), (("-99999999.99", Decimal("-99999999.99")), ("0", Decimal("0.00"))), "up to 38 digits: the same precision and scale"),
    Row(("decimal(38,30)",), ((f"-{'9' * 8}.{'9' * 30}", Decimal(f"-{'9' * 8}.{'9' * 30}")),)),
    Row(("decimal(65,30)", "decimal(39,0)"), ((f"'-{_NINES}'", f"-{_NINES}"), ("0.5", f"0.5{'0' * 29}")), "39 to 65 digits, more than Delta's 38: the server's text with every digit of the scale"),
    Row(("float",), (("-3.4028234663852886e38", -3.4028234663852886e38), ("0.1", 0.10000000149011612)), "the exact value of the four bytes, not the six digits that a SELECT prints; `float(7,4)` and `unsigned` alike. The server has neither NaN nor infinities; -0 stays -0"),
    Row(("double",), (("-1.7976931348623157e308", -1.7976931348623157e308), ("0.1", 0.1)), "the same eight bytes"),
    Row(("bit(12)", "bit(64)"), (("b'101010111100'", b"\x0a\xbc"),), "as many bytes as the bits need, the highest first"),
    _quoted_row(("char(10)", "varchar(300)", "tinytext", "text", "mediumtext", "longtext"), "", "é日😀", edges=_CHARSETS),
    Row(("binary(4)",), (("x'00ff'", b"\0\xff\0\0"),), "with the zero bytes up to its length that a SELECT gives and the log leaves out"),
    Row(("varbinary(300)", "tinyblob", "blob", "mediumblob", "longblob"), (("x''", b""), ("x'00ff'", b"\0\xff")), "the same bytes"),
    Row(("date",), (("'1000-01-01'", dt.date(1000, 1, 1)), ("'9999-12-31'", dt.date(9999, 12, 31))), _NO_DATE),
    Row(("datetime(6)", "datetime", "datetime(3)"), (("'1000-01-01 00:00:00'", dt.datetime(1000, 1, 1)), ("'9999-12-31 23:59:59.999999'", dt.datetime(9999, 12, 31, 23, 59, 59, 999999))), f"the clock's numbers, shifted by no time zone. {_NO_DATE}"),
    Row(("timestamp(6)", "timestamp"), (("'1970-01-01 00:00:01'", dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)), ("'2038-01-19 03:14:07.999999'", dt.datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=dt.UTC))), "the moment in UTC, whatever the time zone of server and session; `0000-00-00` as above"),
    _quoted_row(("time(6)", "time"), "-838:59:59.000000", "838:59:59.000000", "-00:00:00.000001", edges="no time of a day, but hours up to 838 with a sign: the server's text"),
    Row(("year",), (("1901", 1901), ("2155", 2155), ("0", 0)), "`0000` is 0"),
    _quoted_row("enum('a','b c')", "a", "b c", edges="the label as it was when the row was written; the empty text for a value that was not valid"),
    _quoted_row("set('a','b c')", "", "a,b c", edges="the labels in their order, joined by commas; a label holds no comma"),
    _quoted_row("json", "[1.5, 1e100, 18446744073709551615]", '{"b": 1, "aa": null}', edges="what `CAST(… AS CHAR)` prints: keys in the server's order, all digits of decimals; dates and bytes in it as the server prints them. MariaDB's is `longtext`: the text as it was written", on=(MYSQL,)),
    Row(("geometry", *_SHAPES), (("ST_GeomFromText('POINT(0 0)')", _ORIGIN),), "the server's own form: four bytes of SRID, the lowest first, and WKB"),
    Row(("geomcollection",), (("ST_GeomFromText('GEOMETRYCOLLECTION EMPTY')", bytes(4) + bytes.fromhex("010700000000000000")),), "as above", (MYSQL,)),
    Row(("geometrycollection",), (("ST_GeomFromText('GEOMETRYCOLLECTION EMPTY')", bytes(4) + bytes.fromhex("010700000000000000")),), "as above", (MARIADB,)),
    Row(("vector(2)",), (("STRING_TO_VECTOR('[1,-2]')", bytes.fromhex("0000803f000000c0")),), "four bytes a number, as the server stores them", (MYSQL,)),
    _quoted_row("inet4", "10.0.0.1", edges="the server's text. The log calls these three `binary`, and the catalogue tells them apart: rows of a table that is gone when they are read come as bytes", on=(MARIADB,)),
    _quoted_row("inet6", "::1", "::ffff:10.0.0.1", edges="as above", on=(MARIADB,)),
    _quoted_row("uuid", "123e4567-e89b-12d3-a456-426655440000", edges="as above, in lower case", on=(MARIADB,)),
)  # fmt: skip
"""MySQL 9 and MariaDB 10.11."""

MYSQL_NAMES = frozenset(
    {
        *("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit"),
        *("char", "varchar", "tinytext", "text", "mediumtext", "longtext"),
        *("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
        *("date", "datetime", "timestamp", "time", "year", "enum", "set"),
        *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
    }
)
"""`information_schema.columns.data_type` of all types of the manuals' chapter on data types that both servers have; all
others (bool, integer, numeric, real, serial, nchar, long, …) are names for these."""
NAMES = {
    MYSQL: MYSQL_NAMES | {"json", "vector", "geomcollection"},
    MARIADB: MYSQL_NAMES | {"geometrycollection", "inet4", "inet6", "uuid"},
}

_FAR = "Before year 1, after 9999, `infinity` and `-infinity`: an error that names the column, or the server's text or NULL with `staged_as`"
_PRINTED = "the server's text"

POSTGRES_ROWS = (
    Row(("boolean",), (("true", True), ("false", False))),
    _plain("smallint", -(2**15), 2**15 - 1),
    _plain("integer", -(2**31), 2**31 - 1),
    _plain("bigint", -(2**63), 2**63 - 1),
    Row(("real",), (("1.1", 1.100000023841858), ("'NaN'", float("nan")), ("'-Infinity'", float("-inf"))), "the same four bytes; there is one NaN; -0 stays -0"),
    Row(("double precision",), (("-1.7976931348623157e308", -1.7976931348623157e308), ("'NaN'", float("nan")), ("'Infinity'", float("inf"))), "the same eight bytes"),
    Row(("numeric(10,2)",), (("-99999999.99", Decimal("-99999999.99")), ("0", Decimal("0.00"))), "up to 38 digits: the same precision and scale. `NaN`, which such a column can hold: an error that names the column, or the server's text (or a double) with `staged_as`"),
    Row(("numeric(38,38)",), ((f"-0.{'9' * 38}", Decimal(f"-0.{'9' * 38}")),)),
    Row(("numeric", "numeric(39,2)", "numeric(5,-2)", "numeric(2,5)"), (("1e-20", "0." + "0" * 19 + "1"), ("1.10", "1.10"), ("'NaN'", "NaN"), ("'-Infinity'", "-Infinity")), "without a precision, of more than 38 digits, or of a scale that is negative or above the precision: the server's text with every digit"),
    _quoted_row(("text", "character varying(9)", "character varying"), "", "é日😀", edges="text that is no UTF-8 (in a database of encoding `SQL_ASCII`): an error that names the column"),
    Row(("character(4)", "bpchar"), (("'é'", "é   "),), "with the blanks up to its length"),
    _quoted_row(("name", '"char"'), "x", edges=_PRINTED),
    Row(("bytea",), ((r"'\x'", b""), (r"'\x00ff'", b"\0\xff")), "the same bytes"),
    Row(("date",), (("'0001-01-01'", dt.date(1, 1, 1)), ("'9999-12-31'", dt.date(9999, 12, 31))), _FAR),
    Row(("timestamp without time zone", "timestamp(3) without time zone"), (("'0001-01-01'", dt.datetime(1, 1, 1)), ("'9999-12-31 23:59:59.999999'", dt.datetime(9999, 12, 31, 23, 59, 59, 999999))), f"shifted by no time zone. {_FAR}"),
    Row(("timestamp with time zone", "timestamp(3) with time zone"), (("'2024-01-01 12:00+05:30'", dt.datetime(2024, 1, 1, 6, 30, tzinfo=dt.UTC)),), f"the moment in UTC, whatever the time zone of server and session. {_FAR}"),
    _quoted_row(("time without time zone", "time(3) without time zone"), "00:00:00.000001", "24:00:00", edges="the server's text: `24:00:00` is a time to it"),
    _quoted_row(("time with time zone", "time(3) with time zone"), "12:34:56+05:30", edges="the server's text, with the zone that was written"),
    _quoted_row(("interval", "interval day to second"), "1 year 2 mons -3 days +04:05:06.789", edges="the server's text in style `postgres`: months, days and seconds are three numbers that have no sum"),
    _quoted_row("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", edges=_PRINTED),
    _quoted_row("json", '{"b" : 1.10, "b":1e400}', edges="the text as it was written"),
    _quoted_row("jsonb", '{"a": null, "bb": 1.10}', edges="what the server prints: keys in its order, numbers with all digits, however large"),
    _quoted_row("jsonpath", '$."a"[*]', edges=_PRINTED),
    _quoted_row("xml", "<a>é</a>", edges="the text as it was written"),
    _quoted_row(("integer[]", "text[]", "timestamp without time zone[]"), "{1,NULL}", "{{1,2},{3,4}}", "[0:1]={1,2}", edges="arrays of every type, of any dimensions and bounds: the server's text"),
    _quoted_row(("int4range", "int8range", "numrange", "daterange", "tsrange", "tstzrange"), "[1,5)", "empty", edges=_PRINTED),
    _quoted_row(("int4multirange", "int8multirange", "nummultirange", "datemultirange", "tsmultirange", "tstzmultirange"), "{[1,2),[5,6)}", edges=_PRINTED),
    _quoted_row(("bit(5)", "bit varying(9)", "bit varying"), "10101", edges="a text of `0` and `1`: leading zeros count"),
    _quoted_row(("inet", "cidr"), "10.0.0.1", "::1/64", edges="the server's text, of `inet` without a mask that is whole"),
    _quoted_row("macaddr", "08:00:2b:01:02:03", edges=_PRINTED),
    _quoted_row("macaddr8", "08:00:2b:01:02:03:04:05", edges=_PRINTED),
    Row(("money",), (("-12.34", "-$12.34"),), "the server's text under `lc_monetary = C`"),
    _quoted_row("point", "(1.5,-2)", edges="the server's text, each number the shortest that reads back as the same"),
    _quoted_row("line", "{1,-2,3}", edges=_PRINTED),
    _quoted_row("lseg", "[(0,0),(1,1)]", edges=_PRINTED),
    _quoted_row("box", "(1,1),(0,0)", edges=_PRINTED),
    _quoted_row(("path", "polygon"), "((0,0),(1,1))", edges=_PRINTED),
    _quoted_row("circle", "<(0,0),1>", edges=_PRINTED),
    _quoted_row("tsvector", "'a':1 'b':2A", edges=_PRINTED),
    _quoted_row("tsquery", "'a' & !'b'", edges=_PRINTED),
    _quoted_row(("oid", "xid", "cid"), "4294967295", edges=_PRINTED),
    _quoted_row("xid8", "18446744073709551615", edges=_PRINTED),
    _quoted_row("tid", "(1,2)", edges=_PRINTED),
    _quoted_row(("int2vector", "oidvector"), "1 2 3", edges=_PRINTED),
    _quoted_row("pg_lsn", "16/B374D848", edges=_PRINTED),
    _quoted_row(("pg_snapshot", "txid_snapshot"), "10:20:10,14", edges=_PRINTED),
    _quoted_row("refcursor", "x", edges=_PRINTED),
    _quoted_row(("regtype", "regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator", "regproc", "regprocedure", "regrole"), "integer", edges="the name that the object had when it was read or logged, `pg_catalog` left out; its number where it is gone"),
    Row(("aclitem",), (("'postgres=r/postgres'", "postgres=r/postgres"),), _PRINTED),
    Row(("gtsvector", "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"), (), "the server's own, of which it takes no values from users"),
)  # fmt: skip
"""PostgreSQL 15."""


def catalogue_entry(declared: str) -> tuple[str, str, int | None, int | None, str | None]:
    """What MySQL's information_schema says of a column: type, whole type, precision, scale and character set."""
    match = re.match(r"(\w+)(?:\((\d+)(?:,(\d+))?\))?", declared)
    assert match
    name = match[1]
    precision, scale = (int(match[2]), int(match[3] or 0)) if name == "decimal" else (None, None)
    charset = "utf8mb4" if name.endswith(("char", "text")) or name in ("enum", "set") else None
    return name, declared, precision, scale, charset


def staged_type(kind: str, declared: str) -> pa.DataType:
    """The Arrow type that the code gives a column of a source of this kind."""
    return postgres.arrow_type(declared) if kind == POSTGRES else mysql.from_catalogue(*catalogue_entry(declared))


def print_value(value: Any, kind: pa.DataType) -> str:
    """A staged value as `dblog log` prints it."""
    return orjson.dumps(to_json(pa.scalar(value, kind).as_py())).decode()


def tables() -> dict[str, str]:
    """The page's tables by the name in the marks around them."""
    return {MYSQL: "\n".join(_table(MYSQL_ROWS, MYSQL)), POSTGRES: "\n".join(_table(POSTGRES_ROWS, POSTGRES))}


def _table(rows: tuple[Row, ...], kind: str) -> Iterator[str]:
    yield "| column type | staged (Arrow) | Delta | JSON of `log`: ends and examples | at the edges |"
    yield "|---|---|---|---|---|"
    for row in rows:
        (arrow,) = {staged_type(kind, declared) for declared in row.declared}
        alone = {(MYSQL,): " (MySQL)", (MARIADB,): " (MariaDB)"}.get(row.on, "") if kind == MYSQL else ""
        cells = (
            ", ".join(map(_code, row.declared)) + alone,
            _code(str(arrow)),
            _code(describe(name_of_type(arrow))),
            " ".join(_code(print_value(value, arrow)) for _, value in row.examples),
            row.edges,
        )
        yield f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def write_tables(page: str) -> str:
    """The page with its tables as they must be."""
    for name, table in tables().items():
        marked = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)
        parts = marked.split(page)
        assert len(parts) == 4, f"{PAGE} has no place for the table {name}"
        page = f"{parts[0]}{parts[1]}{table}\n{parts[2]}{parts[3]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(write_tables(PAGE.read_text()))
