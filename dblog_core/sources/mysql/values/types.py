"""Column types: the server's, as its catalogue and as its log name them, and the one Arrow type that both become.

Which Delta type an Arrow type becomes stands in `dblog_core/lake_engine/tables/column_types`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa

from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.sql.connection import quote_identifier
from dblog_core.sources.mysql.values import charsets
from dblog_core.sources.mysql.values.charsets import Decode

CHANGE = "change the column, or leave the table out of source.tables"


class UnsupportedType(ValueError):
    """A column type, or a kind of table, that has no exact form here; the text says which and why, `fix` the way on.
    `catalogued`: whether the catalogue shows it too; `passes`: the log's next rows of the table may be readable."""

    def __init__(self, why: str, fix: str = CHANGE, *, catalogued: bool = True, passes: bool = False) -> None:
        super().__init__(why)
        self.fix = fix
        self.catalogued = catalogued
        self.passes = passes


class Kind(Enum):
    """How values are stored, so how they are decoded."""

    INTEGER = auto()
    UNSIGNED64 = auto()
    DECIMAL = auto()
    LONG_DECIMAL = auto()
    FLOAT = auto()
    DOUBLE = auto()
    TEXT = auto()
    BINARY = auto()
    PADDED = auto()
    DATE = auto()
    DATETIME = auto()
    TIMESTAMP = auto()
    TIME = auto()
    YEAR = auto()
    ENUM = auto()
    SET = auto()
    BIT = auto()
    JSON = auto()
    UUID = auto()
    INET4 = auto()
    INET6 = auto()


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A column's type in one table version of the log.

    `width`: bytes of a fixed value (PADDED: the length to pad to); `prefix`: bytes of the length before a variable one;
    `precision`: digits, of BIT its bits; `decode`: for text that is not UTF-8; `labels`: of ENUM and SET, in order;
    `or_null`: as a `Column`'s.
    """

    kind: Kind
    arrow: pa.DataType
    text: str
    width: int = 0
    prefix: int = 0
    precision: int = 0
    scale: int = 0
    decode: Decode | None = None
    labels: tuple[str, ...] = ()
    or_null: bool = False


_SIGNED = {1: pa.int8(), 2: pa.int16(), 3: pa.int32(), 4: pa.int32(), 8: pa.int64()}
# The next wider signed type: Delta has no unsigned ones.
_UNSIGNED = {1: pa.int16(), 2: pa.int32(), 3: pa.int32(), 4: pa.int64()}
_WIDTHS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_NAMES = {width: name for name, width in _WIDTHS.items()}
LARGEST_DECIMAL = 38
"""Digits of Arrow's, Parquet's and Delta's decimals; longer ones travel as the server's own text."""


def integer(width: int, unsigned: bool) -> ColumnType:
    """An integer of so many bytes; BIGINT UNSIGNED is a decimal, since Delta has no unsigned type."""
    text = _NAMES[width] + (" unsigned" if unsigned else "")
    if unsigned and width == 8:
        return ColumnType(Kind.UNSIGNED64, pa.decimal128(20, 0), text, width=8)
    return ColumnType(Kind.INTEGER, (_UNSIGNED if unsigned else _SIGNED)[width], text, width=width)


def decimal(precision: int, scale: int) -> ColumnType:
    """DECIMAL(precision, scale); as text where no decimal of Arrow holds its digits."""
    text = f"decimal({precision},{scale})"
    if precision > LARGEST_DECIMAL:
        return ColumnType(Kind.LONG_DECIMAL, pa.string(), text, precision=precision, scale=scale)
    return ColumnType(Kind.DECIMAL, pa.decimal128(precision, scale), text, precision=precision, scale=scale)


VERSIONED = "it is system-versioned: its log holds every version of a row, a SELECT the present one alone"


def explain_rowless(engine: str) -> str:
    """What is wrong with a table of such an engine."""
    return f"its engine {engine} keeps no rows: the table shows rows of others, or none, and the log does not say which"


def rowless_fix(table: TableName) -> str:
    """What makes such a table an ordinary one."""
    name = f"{quote_identifier(table.schema)}.{quote_identifier(table.name)}".replace("%%", "%")
    return f"leave it out of source.tables, or ALTER TABLE {name} ENGINE = InnoDB"


def unversioned_fix(table: TableName, periods: Sequence[str] = ()) -> str:
    """`periods`: the columns of its versions that the table's definition names, which go with them."""
    parts = [f"DROP COLUMN {quote_identifier(column)}" for column in periods]
    parts += ["DROP PERIOD FOR SYSTEM_TIME"] if periods else []
    parts += ["DROP SYSTEM VERSIONING"]
    statement = f"ALTER TABLE {quote_identifier(table.schema)}.{quote_identifier(table.name)} {', '.join(parts)}"
    if periods:  # the server takes it for a change of the versions too
        statement = f"SET STATEMENT system_versioning_alter_history = KEEP FOR {statement}"
    return f"leave it out of source.tables, or {statement.replace('%%', '%')}"


def in_catalogue(labels: Sequence[str]) -> list[str]:
    """Those of a column's labels that the catalogue certainly shows as they are: it has a question mark for each
    character beyond 16 bits."""
    return [label for label in labels if "?" not in label and all(ord(character) < 0x10000 for character in label)]


def why_alike(labels: Sequence[str], *, of_set: bool) -> str | None:
    """Why an ENUM or SET with these labels cannot be in a key: two of its values print alike. None: they do not."""
    if of_set and "" in labels:
        return "a SET with an empty label cannot be in a key: two of its values print alike"
    if len(set(labels)) < len(labels):
        kind = "a SET" if of_set else "an ENUM"
        return f"{kind} with a label twice cannot be in a key: two of its values print alike"
    return None


TWINS = (
    "its character set has two codes for some characters, so two keys may print alike; name the key in [source.keys] if"
    " its values differ as text"
)
"""Why text cannot be in a key before the configuration says that it may."""

NATIVE = {"inet4": Kind.INET4, "inet6": Kind.INET6, "uuid": Kind.UUID}
"""MariaDB's types that its log calls `binary`: the catalogue alone tells them from it."""
NATIVE_WIDTHS = {"inet4": 4, "inet6": 16, "uuid": 16}
"""Bytes of each."""

_BY_NAME: dict[str, pa.DataType] = {
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "datetime": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "time": pa.string(),
    "year": pa.int16(),
    "enum": pa.string(),
    "set": pa.string(),
    "bit": pa.binary(),
    "json": pa.string(),
    "vector": pa.binary(),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), pa.string()),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), pa.binary()),
    **dict.fromkeys(
        ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"), pa.binary()
    ),
    **dict.fromkeys(("geometrycollection", "geomcollection"), pa.binary()),
    **dict.fromkeys(NATIVE, pa.string()),
}


def known_names() -> list[str]:
    """The types that `from_catalogue` knows, by DATA_TYPE."""
    return ["decimal", *_WIDTHS, *_BY_NAME]


def from_catalogue(
    data_type: str, column_type: str, precision: int | None, scale: int | None, charset: str | None
) -> pa.DataType:
    """The Arrow type of a column of `information_schema.columns`. Raises UnsupportedType."""
    name = data_type.lower()
    # Temporal columns from before 5.6 carry a comment in their type, such as /* mariadb-5.3 */.
    if "/*" in column_type or " COMPRESSED" in column_type:
        raise UnsupportedType(f"{column_type}: a storage form that the log does not describe")
    if name in _WIDTHS:
        return integer(_WIDTHS[name], "unsigned" in column_type).arrow
    if name == "decimal":
        return decimal(precision or 10, scale or 0).arrow
    if name not in _BY_NAME:
        raise UnsupportedType(f"type {column_type} is not supported")
    if charset and charset != charsets.BINARY and not charsets.is_supported(charset):
        raise UnsupportedType(f"character set {charset} is not supported")
    return _BY_NAME[name]
