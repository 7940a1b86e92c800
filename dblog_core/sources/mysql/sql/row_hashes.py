"""Row hashes in MySQL's and MariaDB's SQL: `dblog_core.rows.row_hashes`, of what a chunk stages of each column.

A function costs the server about as much as a column does, so each field has as few as its type allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pyarrow as pa

from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.rows.column_rules import mask_of
from dblog_core.rows.row_hashes import (
    HASH,
    LONGEST,
    PRESENT,
    UNIT,
    WINDOWS,
    fields,
    is_compared,
    is_json,
    window_bounds,
    window_exponent,
)
from dblog_core.rows.value_forms import form_of
from dblog_core.sources.mysql.sql.connection import quote_identifier
from dblog_core.sources.mysql.sql.key_order import KeyOrder
from dblog_core.sources.mysql.sql.where_clause import select_column, sorted_form
from dblog_core.sources.mysql.values.types import NATIVE

_SIZED = re.compile(r"(\w+)(?:\((\d+))?")
_DIGITS = 16
_WITH_MAXIMUM = {
    *("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "date", "datetime", "timestamp"),
    *("char", "varchar", "binary", "varbinary"),
}
"""Types of which MAX is the last value in the order of an index, and has the value's own form."""
_LIMITED = ("time", "decimal", "enum", *NATIVE)
"""Types whose text is never longer than `LONGEST`, whatever their declaration."""


@dataclass(frozen=True, slots=True)
class StagedForms:
    """How columns are staged: the rules of the table, whether those of `hash` are keyed, and what becomes of zero
    dates."""

    rules: ColumnRules
    is_keyed: bool
    zero_dates: str

    @classmethod
    def of(cls, source: SourceConfig, table: TableName) -> StagedForms:
        """Those of a configuration."""
        return cls(source.rules_of(table), source.has_hash_key, source.zero_dates)


def selected_hashes(schema: TableSchema, forms: StagedForms) -> str:
    """What a SELECT lists for `Hashes`."""
    return f"{', '.join(map(select_column, schema.key_columns))}, {row_hash(schema, forms)}"


def select_range_hash(schema: TableSchema, key_order: KeyOrder, forms: StagedForms, tail: str) -> str:
    """The SELECT of a range's one row; `tail` follows the columns of the SELECT of its rows. It reads those once."""
    names = ", ".join(quote_identifier(name) for name in schema.key)
    rows = f"SELECT {names}, {row_hash(schema, forms)} AS {HASH} {tail}"
    if len(schema.key) == 1 and _base(schema.key_columns[0]) in _WITH_MAXIMUM and not key_order.octets:
        return f"SELECT MAX({names}), COUNT(*), COUNT({HASH}), SUM({HASH}) FROM ({rows}) AS hashed"
    last = ", ".join(_backwards(column, key_order) for column in schema.key_columns)
    key = ", ".join(map(select_column, schema.key_columns))
    # Window functions, so that sums and last key are of one SELECT, and so of one snapshot.
    sums = f"COUNT(*) OVER (), COUNT({HASH}) OVER (), SUM({HASH}) OVER ()"
    return f"SELECT {key}, {sums} FROM ({rows}) AS hashed ORDER BY {last} LIMIT 1"


def _backwards(column: Column, key_order: KeyOrder) -> str:
    """A SET of 64 labels has the order of a number with a sign once it is outside of its table."""
    form = sorted_form(column, key_order)
    return f"{f'CAST({form} AS UNSIGNED)' if _base(column) == 'set' else form} DESC"


def row_hash(schema: TableSchema, forms: StagedForms) -> str:
    """The hash of a row: NULL only where its text is longer than max_allowed_packet."""
    of_key = replace(forms, zero_dates="error")
    listed = [
        field
        for column in schema.columns
        if column.name not in forms.rules.exclude
        for field in _fields(column, of_key if column.name in schema.key else forms)
    ]
    # CONCAT_WS leaves NULL out together with its comma: rows with NULL in different columns would get the same text.
    text = f"CONCAT_WS(',', {', '.join(f'IFNULL({field}, {_EMPTY})' for field in listed)})"
    # 16 digits are 64 bits; a negative base has CONV read them as a number with a sign.
    return f"CAST(CONV(LEFT(SHA2({text}, 256), {_DIGITS}), 16, -10) AS SIGNED)"


_EMPTY = "''"
_BLANK = "' '"


def _fields(column: Column, forms: StagedForms) -> list[str]:
    """The column's fields, each NULL where the column is."""
    rules = forms.rules
    value = _present(column, forms.zero_dates)
    if form := form_of(column, rules.staged_as):
        return _staged_form(form, column, value)
    if column.name in rules.hash:
        return _digest(value, column, is_keyed=forms.is_keyed)
    if column.name in rules.mask:
        return [f"IF({value} IS NULL, NULL, '{field}')" for field in fields(mask_of(column.type).as_py(), column)]
    if pa.types.is_string(column.type):
        return _content(_text(column, value), column)
    if pa.types.is_binary(column.type):
        return _binary(column, value)
    if pa.types.is_floating(column.type):
        return [_float(select_column(column))]
    if pa.types.is_timestamp(column.type):
        return [_timestamp(column, value)]
    return [_number(column, value)]


def _staged_form(form: str, column: Column, value: str) -> list[str]:
    """What `staged_as` stages, see `dblog_core.rows.value_forms`."""
    match form:
        case "double":
            return [_float(f"({value} + 0e0)")]
        case "bigint":
            return [_number(column, value)]
        case "microseconds":
            return [f"TIMESTAMPDIFF(MICROSECOND, {_MIDNIGHT}, ADDTIME({_MIDNIGHT}, {value}))"]
        case "text":
            return _content(_text(column, value), column)
    digits = _binary(column, value)[-1] if _base(column) == "bit" else f"LOWER(HEX({value}))"
    text = digits if form == "hex" else f"REPLACE(TO_BASE64(UNHEX({digits})), {_LINE_END}, {_EMPTY})"
    return [f"LENGTH({text})", f"IF(LENGTH({text}) > {LONGEST}, SHA2({text}, 256), {text})"]


_MIDNIGHT = "TIMESTAMP'2000-01-01 00:00:00'"
_LINE_END = "CHAR(10)"


def _present(column: Column, zero_dates: str) -> str:
    """The column, NULL where its date does not exist and is staged as none."""
    name = quote_identifier(column.name)
    if not (zero_dates == "null" or column.or_null) or not (
        pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
    ):
        return name
    exists = f"{name} >= '0001-01-01' AND DAYOFMONTH({name}) BETWEEN 1 AND DAYOFMONTH(LAST_DAY({name}))"
    return f"IF({exists}, {name}, NULL)"


def _number(column: Column, value: str) -> str:
    """Its digits; a sum has none of the zeros in front that ZEROFILL and YEAR add."""
    return f"({value} + 0)" if _base(column) == "year" or "zerofill" in column.source_type.lower() else value


def _timestamp(column: Column, value: str) -> str:
    # The server prints every digit of the column; the text that is hashed has no zeros at the end of a fraction.
    return f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {value}))" if _size(column) else value


def _text(column: Column, value: str) -> str:
    # What is hashed is UTF-8, whatever the character set of the column and the session.
    return f"CONVERT({_number(column, value)} USING utf8mb4)"


def _content(text: str, column: Column) -> list[str]:
    if is_json(column):
        return [f"SHA2({text}, 256)"]
    size = _size(column) or 0
    # The length comes first, so that a comma in a text is not taken for the end of its field.
    short = _base(column) in _LIMITED or (_base(column) in ("char", "varchar") and 4 * size <= LONGEST)
    return [f"LENGTH({text})", text if short else f"IF(LENGTH({text}) > {LONGEST}, SHA2({text}, 256), {text})"]


def _binary(column: Column, value: str) -> list[str]:
    size = _size(column) or 1
    base = _base(column)
    if base == "bit":  # printed as a number, without the zeros in front
        octets = (size + 7) // 8
        return [f"IF({value} IS NULL, NULL, {octets})", f"LPAD(LOWER(HEX({value} + 0)), {2 * octets}, '0')"]
    digits = f"LOWER(HEX({value}))"
    short = base in ("binary", "varbinary") and size <= LONGEST
    return [f"LENGTH({value})", digits if short else f"IF(LENGTH({value}) > {LONGEST}, SHA2({value}, 256), {digits})"]


def _digest(value: str, column: Column, *, is_keyed: bool) -> list[str]:
    """What the rule `hash` stages, see `dblog_core.rows.column_rules`."""
    if is_keyed or not is_compared(Column(column.name, column.source_type, pa.string())):
        return [f"IF({value} IS NULL, NULL, '{PRESENT}')"]
    kind = column.type
    text = _text(column, value)
    if pa.types.is_binary(kind):
        text = value
    elif pa.types.is_timestamp(kind):
        zone = "Z" if kind.tz else ""
        whole, exact = (f"DATE_FORMAT({value}, '{form}{zone}')" for form in (_SECONDS, _SECONDS + ".%%f"))
        text = f"CONVERT(IF(MICROSECOND({value}) = 0, {whole}, {exact}) USING utf8mb4)"
    digest = f"SHA2({text}, 256)"
    return [f"SHA2({digest}, 256)"] if is_json(column) else [f"IF({value} IS NULL, NULL, 64)", digest]


_SECONDS = "%%Y-%%m-%%dT%%H:%%i:%%s"


def _float(value: str) -> str:
    # Printed floats are rounded. Whole part and fraction as integers are exact; other magnitudes are first scaled by a
    # power of two, which rounds nothing.
    low, high = (f"{bound:.17e}" for bound in window_bounds(0))
    usual = f"{value} = 0 OR ABS({value}) >= {low} AND ABS({value}) < {high}"
    lows = ", ".join(f"{window_bounds(window)[0]:.17e}" for window in WINDOWS[1:])
    window = f"(INTERVAL(ABS({value}), {lows}) + ({WINDOWS[0]}))"
    scale = f"POW(2, {window_exponent(1)} * {window})"
    scaled = f"({value} * {scale} * {scale})"
    return f"CASE WHEN {usual} THEN {_parts(value)} WHEN {value} <> 0 THEN {_parts(scaled, window)} END"


def _parts(scaled: str, *window: str) -> str:
    whole = f"CAST(TRUNCATE({scaled}, 0) AS SIGNED)"
    fraction = f"CAST(MOD({scaled}, 1) * {UNIT:.17e} AS SIGNED)"
    return f"CONCAT_WS({', '.join((_BLANK, whole, fraction, *window))})"


def _base(column: Column) -> str:
    match = _SIZED.match(column.source_type)
    return match[1].lower() if match else ""


def _size(column: Column) -> int | None:
    """The number in brackets behind the type's name."""
    match = _SIZED.match(column.source_type)
    return int(match[2]) if match and match[2] else None
