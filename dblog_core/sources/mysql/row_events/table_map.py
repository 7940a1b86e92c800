"""TABLE_MAP events: the shape of the rows that follow, from the metadata that `binlog_row_metadata=FULL` adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows import source_key_faults
from dblog_core.sources.mysql.values import charsets, types
from dblog_core.sources.mysql.values.charsets import Charsets, Decode
from dblog_core.sources.mysql.values.multibyte import Multibyte
from dblog_core.sources.mysql.values.types import ColumnType, Kind, UnsupportedType

# The server's numbers of column types (enum_field_types in its field_types.h).
TINY = 1
SHORT = 2
LONG = 3
FLOAT = 4
DOUBLE = 5
LONGLONG = 8
INT24 = 9
DATE = 10
YEAR = 13
VARCHAR = 15
BIT = 16
TIMESTAMP2 = 17
DATETIME2 = 18
TIME2 = 19
VECTOR = 242
JSON = 245
NEWDECIMAL = 246
ENUM = 247
SET = 248
BLOB = 252
VAR_STRING = 253
STRING = 254
GEOMETRY = 255

_INTEGERS = {TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8}
_NUMERIC = {*_INTEGERS, NEWDECIMAL, FLOAT, DOUBLE, YEAR}
_META_BYTES = {
    **dict.fromkeys((TINY, SHORT, INT24, LONG, LONGLONG, DATE, YEAR), 0),
    **dict.fromkeys((FLOAT, DOUBLE, TIMESTAMP2, DATETIME2, TIME2, BLOB, GEOMETRY, JSON, VECTOR), 1),
    **dict.fromkeys((VARCHAR, VAR_STRING, STRING, ENUM, SET, BIT, NEWDECIMAL), 2),
}
# Types of old tables and of MariaDB's compressed columns, by name for the message.
_KNOWN_UNSUPPORTED = {
    7: "timestamp in the format before MySQL 5.6",
    11: "time in the format before MySQL 5.6",
    12: "datetime in the format before MySQL 5.6",
    14: "date in an internal format",
    0: "decimal in the format before MySQL 5.0",
    140: "a COMPRESSED blob or text",
    141: "a COMPRESSED varchar or varbinary",
    244: "an array",
}
# Optional metadata fields (libbinlogevents, rows_event.h)
_SIGNEDNESS = 1
_DEFAULT_CHARSET = 2
_COLUMN_CHARSET = 3
_NAMES = 4
_SET_LABELS = 5
_ENUM_LABELS = 6
_KEY = 8
_KEY_WITH_PREFIX = 9
_LABEL_DEFAULT_CHARSET = 10
_LABEL_COLUMN_CHARSET = 11


@dataclass(frozen=True, slots=True)
class TableMapHead:
    """What is needed to tell whether the rows are wanted; `rest`: the offset of the column count."""

    table_id: int
    table: TableName
    rest: int


class ColumnsNotNamed(UnsupportedType):
    """The log does not describe columns, by a setting of the server: of each table that changes meanwhile."""

    def __init__(self) -> None:
        super().__init__(
            "the log does not name the columns: binlog_row_metadata is not FULL",
            "SET PERSIST binlog_row_metadata = 'FULL'",
            catalogued=False,
        )


@dataclass(frozen=True, slots=True)
class Unread:
    """A table whose rows cannot be read as the log describes it: why, and what to do about it. `catalogued`: whether
    the catalogue says so too, and so shows when it is repaired; `passes`: the same description may be readable
    later."""

    table: TableName
    why: str
    fix: str
    catalogued: bool = True
    passes: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class TableVersion:
    """One shape of one table in the log: its schema and how each column's bytes are read. Equal to itself alone.

    `excluded`: places of columns that never reach staging; `unnamed`: columns that the log calls binary, and that may
    be of one of MariaDB's own types (`types.NATIVE`).
    """

    schema: TableSchema
    columns: tuple[ColumnType, ...]
    excluded: frozenset[int] = frozenset()
    unnamed: tuple[str, ...] = ()


def lenenc(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer and the offset after it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    if first not in (252, 253, 254):
        raise ValueError(f"{first} begins no length-encoded integer")
    size = (2, 3, 8)[first - 252]
    return int.from_bytes(data[at + 1 : at + 1 + size], "little"), at + 1 + size


def head(body: bytes) -> TableMapHead:
    """Reads the table's id and name only."""
    # Number (6 bytes), flags (2), length of the schema's name (1), the name, a zero byte; then the table's name alike.
    at = 9 + body[8]
    schema = body[9:at].decode()
    length = body[at + 1]
    name = body[at + 2 : at + 2 + length].decode()
    return TableMapHead(int.from_bytes(body[:6], "little"), TableName(schema, name), at + 3 + length)


def parse(
    body: bytes,
    *,
    server: Charsets,
    keys: tuple[str, ...],
    mariadb: bool,
    primary_key: Callable[[TableName], Sequence[str]],
    native: Mapping[str, str] | None = None,
) -> TableVersion:
    """The table version of a TABLE_MAP body. `keys`: its entry in [source.keys]; `primary_key`: as in `Lookups`;
    `native`: the types of columns that the log calls binary, where they are MariaDB's own.

    Raises UnsupportedType where a column is not enough for exact values, or the table is none that can be captured;
    ColumnsNotNamed where the metadata itself is not.
    """
    start = head(body)
    count, at = lenenc(body, start.rest)
    # One byte a column; what kind of ENUM, SET or CHAR it is stands in the metadata behind.
    codes = list(body[at : at + count])
    at += count
    meta_length, at = lenenc(body, at)
    # A bit for each column that may be NULL lies between the metadata and the optional fields.
    fields = dict(_fields(body, at + meta_length + (count + 7) // 8))
    if _NAMES not in fields and count:
        raise ColumnsNotNamed
    names = tuple(text.decode() for text in _strings(fields[_NAMES]))
    metas, codes = _metas(body, at, codes, names)
    columns = _columns(codes, metas, fields, server, mariadb, names)
    unnamed = tuple(name for name, column in zip(names, columns, strict=True) if mariadb and _may_be_native(column))
    types_of = native or {}
    columns = tuple(_with_type(column, types_of.get(name)) for name, column in zip(names, columns, strict=True))
    shape = tuple(Column(name, column.text, column.arrow) for name, column in zip(names, columns, strict=True))
    key = _choose_key(start.table, _key(fields, names), keys, names, primary_key)
    for name, column in zip(names, columns, strict=True):
        of_set = column.kind is Kind.SET
        has_twins = isinstance(column.decode, Multibyte) and column.decode.has_twins and not column.labels
        if name in key and not keys and has_twins:
            raise UnsupportedType(f"column {name}: {types.TWINS}")
        if name in key and (why := types.why_alike(column.labels, of_set=of_set)) is not None:
            # The catalogue prints some characters as question marks: there its labels may be alike, or not be.
            in_catalogue = types.why_alike(types.in_catalogue(column.labels), of_set=of_set) is not None
            raise UnsupportedType(f"column {name}: {why}", catalogued=in_catalogue)
    return TableVersion(TableSchema(start.table, shape, key), columns, unnamed=unnamed)


def _may_be_native(column: ColumnType) -> bool:
    return column.kind is Kind.PADDED and column.width in types.NATIVE_WIDTHS.values()


def _with_type(column: ColumnType, native: str | None) -> ColumnType:
    """The column as a type of MariaDB's own; None: as the log calls it."""
    if native is None or column.width != types.NATIVE_WIDTHS[native]:
        return column
    return replace(column, kind=types.NATIVE[native], arrow=pa.string(), text=native)


def with_types(version: TableVersion, schema: TableSchema) -> TableVersion:
    """The version whose columns become the types of another schema of the same columns."""
    if schema is version.schema:
        return version
    pairs = zip(version.columns, schema.columns, strict=True)
    columns = (replace(c, arrow=target.type, or_null=target.or_null) for c, target in pairs)
    return replace(version, schema=schema, columns=tuple(columns))


def _metas(body: bytes, at: int, codes: list[int], names: tuple[str, ...]) -> tuple[list[bytes], list[int]]:
    """Each column's metadata bytes, and its real type: ENUM and SET are disguised as STRING."""
    metas = []
    real = []
    for name, code in zip(names, codes, strict=True):
        if code not in _META_BYTES:
            type_name = _KNOWN_UNSUPPORTED.get(code, "unknown")
            raise UnsupportedType(f"column {name}: type {code} ({type_name}) is not supported")
        meta = body[at : at + _META_BYTES[code]]
        at += len(meta)
        metas.append(meta)
        # CHAR, ENUM and SET have one code in the list; the first byte of the metadata tells them apart.
        real.append(meta[0] if code == STRING and meta[0] in (ENUM, SET) else code)
    return metas, real


def _fields(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at < len(body):
        field = body[at]
        length, at = lenenc(body, at + 1)
        yield field, body[at : at + length]
        at += length


def _numbers(data: bytes) -> list[int]:
    numbers = []
    at = 0
    while at < len(data):
        number, at = lenenc(data, at)
        numbers.append(number)
    return numbers


def _strings(data: bytes, at: int = 0, count: int | None = None) -> list[bytes]:
    texts: list[bytes] = []
    while at < len(data) if count is None else len(texts) < count:
        length, at = lenenc(data, at)
        texts.append(data[at : at + length])
        at += length
    return texts


def _label_lists(data: bytes) -> Iterator[list[bytes]]:
    at = 0
    while at < len(data):
        count, at = lenenc(data, at)
        labels = _strings(data, at, count)
        yield labels
        for label in labels:
            at = lenenc(data, at)[1] + len(label)


def _collation_ids(fields: dict[int, bytes], default: int, listed: int, count: int) -> list[int]:
    """A collation for each of `count` columns, from either of the two ways in which the log packs them."""
    if listed in fields:
        return _numbers(fields[listed])
    if default not in fields:
        return []
    first, *pairs = _numbers(fields[default])
    others = dict(zip(pairs[::2], pairs[1::2], strict=True))
    return [others.get(i, first) for i in range(count)]


def _columns(
    codes: list[int],
    metas: list[bytes],
    fields: dict[int, bytes],
    server: Charsets,
    mariadb: bool,
    names: tuple[str, ...],
) -> tuple[ColumnType, ...]:
    bits = fields.get(_SIGNEDNESS, b"")
    numeric = [i for i, code in enumerate(codes) if code in _NUMERIC]
    # One bit for each numeric column, the first one highest; a shorter field means that the rest is signed.
    unsigned = {i for n, i in enumerate(numeric) if n // 8 < len(bits) and bits[n // 8] & (0x80 >> n % 8)}
    # Each server counts one more type among its character columns: its collation is that of binary strings.
    character = {STRING, VAR_STRING, VARCHAR, BLOB, GEOMETRY if mariadb else VECTOR}
    texts = [i for i, code in enumerate(codes) if code in character]
    ids = dict(zip(texts, _collation_ids(fields, _DEFAULT_CHARSET, _COLUMN_CHARSET, len(texts)), strict=False))
    labelled = [i for i, code in enumerate(codes) if code in (ENUM, SET)]
    ids.update(
        zip(
            labelled, _collation_ids(fields, _LABEL_DEFAULT_CHARSET, _LABEL_COLUMN_CHARSET, len(labelled)), strict=False
        )
    )
    enums = _label_lists(fields.get(_ENUM_LABELS, b""))
    sets = _label_lists(fields.get(_SET_LABELS, b""))
    columns = []
    for i, (code, meta) in enumerate(zip(codes, metas, strict=True)):
        try:
            if code in (ENUM, SET):
                labels = next(enums if code == ENUM else sets)
                charset = _charset(ids, i, server)
                columns.append(_type_with_labels(code, meta, labels, _decoder(charset, server)))
            elif code in (STRING, VAR_STRING, VARCHAR, BLOB):
                columns.append(_textual(code, meta, _charset(ids, i, server), server))
            else:
                columns.append(_plain(code, meta, i in unsigned))
        except UnsupportedType as error:
            raise UnsupportedType(f"column {names[i]}: {error}", catalogued=error.catalogued) from error
    return tuple(columns)


def _charset(ids: dict[int, int], i: int, server: Charsets) -> str:
    charset = server.collations.get(ids.get(i, -1))
    if charset is None:
        raise UnsupportedType(f"its collation ({ids.get(i, 'not given')}) is unknown", catalogued=False)
    if charset != charsets.BINARY and not charsets.is_supported(charset):
        raise UnsupportedType(f"character set {charset} is not supported")
    return charset


def _decoder(charset: str, server: Charsets) -> Decode | None:
    try:
        return server.decoder(charset)
    except ValueError as error:
        raise UnsupportedType(str(error), catalogued=False) from error


def _type_with_labels(code: int, meta: bytes, labels: list[bytes], decode: Decode | None) -> ColumnType:
    try:
        texts = tuple(decode(label) if decode else label.decode() for label in labels)
    except ValueError as error:
        raise UnsupportedType(f"a label is no text of its character set: {error}", catalogued=False) from error
    kind = Kind.ENUM if code == ENUM else Kind.SET
    return ColumnType(kind, pa.string(), kind.name.lower(), width=meta[1], labels=texts)


def _textual(code: int, meta: bytes, charset: str, server: Charsets) -> ColumnType:
    binary = charset == charsets.BINARY
    if code == BLOB:
        prefix = meta[0]
        length = 0
        text = "blob" if binary else "text"
    elif code == STRING:
        # The two high bits of a length above 255 hide, inverted, in the type byte.
        length = ((meta[0] & 0x30) ^ 0x30) << 4 | meta[1]
        prefix = 2 if length > 255 else 1
        text = "binary" if binary else "char"
    else:
        length = int.from_bytes(meta, "little")
        prefix = 2 if length > 255 else 1
        text = "varbinary" if binary else "varchar"
    if not binary:
        return ColumnType(Kind.TEXT, pa.string(), text, prefix=prefix, decode=_decoder(charset, server))
    if code == STRING:
        return ColumnType(Kind.PADDED, pa.binary(), text, prefix=prefix, width=length)
    return ColumnType(Kind.BINARY, pa.binary(), text, prefix=prefix)


def _plain(code: int, meta: bytes, unsigned: bool) -> ColumnType:
    if code in _INTEGERS:
        return types.integer(_INTEGERS[code], unsigned)
    if code == NEWDECIMAL:
        return types.decimal(meta[0], meta[1])
    # The metadata of BIT: bits beyond whole bytes, then whole bytes.
    if code == BIT:
        return ColumnType(Kind.BIT, pa.binary(), "bit", width=meta[1] + (meta[0] > 0), precision=8 * meta[1] + meta[0])
    if code in (JSON, GEOMETRY, VECTOR):
        kind, text = (
            (Kind.JSON, "json") if code == JSON else (Kind.BINARY, "geometry" if code == GEOMETRY else "vector")
        )
        return ColumnType(kind, pa.string() if code == JSON else pa.binary(), text, prefix=meta[0])
    return _FIXED[code](meta[0] if meta else 0)


def _temporal(kind: Kind, arrow: pa.DataType, text: str, whole: int, fsp: int) -> ColumnType:
    if fsp > 6:
        raise UnsupportedType(f"{text}({fsp}) has more than six digits of a second")
    return ColumnType(kind, arrow, text, width=whole + (fsp + 1) // 2, scale=fsp)


_FIXED: dict[int, Callable[[int], ColumnType]] = {
    FLOAT: lambda _: ColumnType(Kind.FLOAT, pa.float32(), "float", width=4),
    DOUBLE: lambda _: ColumnType(Kind.DOUBLE, pa.float64(), "double", width=8),
    DATE: lambda _: ColumnType(Kind.DATE, pa.date32(), "date", width=3),
    YEAR: lambda _: ColumnType(Kind.YEAR, pa.int16(), "year", width=1),
    TIMESTAMP2: lambda fsp: _temporal(Kind.TIMESTAMP, pa.timestamp("us", tz="UTC"), "timestamp", 4, fsp),
    DATETIME2: lambda fsp: _temporal(Kind.DATETIME, pa.timestamp("us"), "datetime", 5, fsp),
    TIME2: lambda fsp: _temporal(Kind.TIME, pa.string(), "time", 3, fsp),
}


def _key(fields: dict[int, bytes], names: tuple[str, ...]) -> tuple[str, ...]:
    if _KEY in fields:
        return tuple(names[i] for i in _numbers(fields[_KEY]))
    # Pairs of column and prefix length: what is unique in its prefix is unique as a whole.
    return tuple(names[i] for i in _numbers(fields.get(_KEY_WITH_PREFIX, b""))[::2])


def _choose_key(
    table: TableName,
    logged: tuple[str, ...],
    entry: tuple[str, ...],
    names: tuple[str, ...],
    primary_key: Callable[[TableName], Sequence[str]],
) -> tuple[str, ...]:
    """`logged`: the key that the log names. Of a table without a primary key the servers name the first of those that
    are unique and never null, and do not say so: the catalogue does. Raises UnsupportedType."""
    contradiction = source_key_faults.explain_contradiction(table, entry, logged, ignore_case=True)
    if logged and not contradiction:
        return logged
    if contradiction and set(primary_key(table)) == set(logged):
        raise UnsupportedType(contradiction, source_key_faults.contradiction_fix(table))
    return _existing(entry, names)


def _existing(keys: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    if missing := [key for key in keys if key not in names]:
        why = f"[source.keys] names columns that the table does not have: {', '.join(missing)}"
        raise UnsupportedType(why, "correct the table's entry in [source.keys]")
    return keys
