"""Row hashes in PostgreSQL's SQL: `dblog_core.rows.row_hashes`, of what a chunk stages of each column.

Levels of SELECT, each over a `t`: the innermost reads the table's rows and makes the texts that the hash needs more
than once; above it each row gets its hash; above that, a range its sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from dblog_core.config.source import ColumnRules
from dblog_core.model.schema import Column
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
from dblog_core.sources.postgres.values import types

_PLAIN = ("text", "character varying")
_WITH_MAXIMUM = {
    *("smallint", "integer", "bigint", "numeric", "date", "text", "character varying"),
    *("timestamp without time zone", "timestamp with time zone"),
}
"""Types of which max is the last value in the order of an index, and has the value's own form."""
_MOST = 49
"""Fields of one call of concat, each with a comma: a function takes 100 arguments at most."""
_COMMA = ", ',', "
_BLANK = "' '"
_SECONDS = 'YYYY-MM-DD"T"HH24:MI:SS'


@dataclass(frozen=True, slots=True)
class HashQuery:
    """What is hashed of a table's columns, as they are now. `is_keyed`: whether the rule `hash` takes a key, which the
    server does not get; `recoded`: text has other octets there than in UTF-8.

    `tail` is what follows the columns in a SELECT of the table's rows, in key order; `sent` are the key's columns of a
    `t`, as they are sent.
    """

    columns: Sequence[Column]
    key: Sequence[str]
    rules: ColumnRules
    is_keyed: bool
    recoded: bool

    def hashes(self, tail: str, sent: str) -> str:
        """The SELECT of `Hashes`."""
        return f"SELECT {sent}, {self._row_hash()} FROM ({self._rows(tail)}) AS t ORDER BY {self._names()}"

    def range(self, tail: str, sent: str) -> str:
        """The SELECT of a range's one row; it reads the range's rows once."""
        names = self._names()
        rows = f"SELECT {names}, {self._row_hash()} AS {HASH} FROM ({self._rows(tail)}) AS t OFFSET 0"
        if len(self.key) == 1 and self._has_maximum(self.key[0]):
            return f"SELECT max({names}), count(*), count({HASH}), sum({HASH})::numeric(38,0) FROM ({rows}) AS t"
        # Window functions, so that sums and last key are of one SELECT, and so of one snapshot.
        sums = f"count(*) OVER (), count({HASH}) OVER (), sum({HASH}) OVER ()::numeric(38,0)"
        return f"SELECT {sent}, {sums} FROM ({rows}) AS t ORDER BY {self._names(' DESC')} LIMIT 1"

    def _has_maximum(self, name: str) -> bool:
        (kind,) = (column.source_type for column in self.columns if column.name == name)
        return types.comparable(kind) in _WITH_MAXIMUM

    def _names(self, direction: str = "") -> str:
        return ", ".join(f"t.{quote_identifier(name)}{direction}" for name in self.key)

    def _rows(self, tail: str) -> str:
        """The innermost SELECT: columns under their names, and the text forms beside them."""
        text_forms = [f"{_form(c)} AS {_form_name(n)}" for n, c in enumerate(self.columns) if _has_form(c)]
        # OFFSET 0 keeps the planner from merging the levels, which would make each text as often as it is used.
        return f"SELECT {', '.join([*map(_name_column, self.columns), *text_forms])} {tail} OFFSET 0"

    def _row_hash(self) -> str:
        listed = [field for c in self.columns if c.name not in self.rules.exclude for field in self._fields(c)]
        parts = [listed[i : i + _MOST] for i in range(0, len(listed), _MOST)]
        text = " || ',' || ".join(f"concat({_COMMA.join(part)})" for part in parts)
        # The text form of bytea begins with \x, and x is how a literal of bits begins.
        return f"substr(sha256(textsend({text}))::text, 2, 17)::bit(64)::bigint"

    def _fields(self, column: Column) -> list[str]:
        """The column's fields, each NULL where the column is: concat makes an empty text of it."""
        kind = column.type
        name = _name_column(column)
        if form := form_of(column, self.rules.staged_as):
            return self._staged_form(form, name)
        if column.name in self.rules.hash:
            return self._digest(column)
        if column.name in self.rules.mask:
            return [f"CASE WHEN {_is_there(column)} THEN '{f}' END" for f in fields(mask_of(kind).as_py(), column)]
        if pa.types.is_string(kind):
            text = self._text_of(column)
            return [f"encode(sha256(textsend({text})), 'hex')"] if is_json(column) else self._text(text)
        if pa.types.is_binary(kind):
            return [
                f"octet_length({name})",
                f"encode(CASE WHEN octet_length({name}) > {LONGEST} THEN sha256({name}) ELSE {name} END, 'hex')",
            ]
        if pa.types.is_floating(kind):
            return [_float(f"{name}::float8" if kind == pa.float32() else name)]
        # The session's zone is UTC.
        value = f"{name}::timestamp" if pa.types.is_timestamp(kind) and kind.tz else name
        if column.or_null:
            return [f"CASE WHEN {value} >= '0001-01-01' AND {value} < '10000-01-01' THEN {value} END"]
        return [value]

    def _staged_form(self, form: str, name: str) -> list[str]:
        """What `staged_as` stages, see `dblog_core.rows.value_forms`."""
        match form:
            case "double":
                return [_float(f"{name}::float8")]
            case "bigint":
                return [name]
            case "microseconds":
                return [f"(extract(epoch FROM {name}) * 1000000)::bigint"]
            case "hex":
                return self._text(f"encode({name}, 'hex')")
            case "base64":
                return self._text(f"replace(encode({name}, 'base64'), chr(10), '')")
        return self._text(f"{name}::text")

    def _text(self, text: str) -> list[str]:
        # octet_length counts in the database's own encoding, textsend gives the session's UTF-8.
        size = f"octet_length(textsend({text}))" if self.recoded else f"octet_length({text})"
        return [size, f"CASE WHEN {size} > {LONGEST} THEN encode(sha256(textsend({text})), 'hex') ELSE {text} END"]

    def _text_of(self, column: Column) -> str:
        return f"t.{_form_name(self.columns.index(column))}" if _has_form(column) else _name_column(column)

    def _digest(self, column: Column) -> list[str]:
        """What the rule `hash` stages, see `dblog_core.rows.column_rules`."""
        is_there = _is_there(column)
        if self.is_keyed or not is_compared(Column(column.name, column.source_type, pa.string())):
            return [f"CASE WHEN {is_there} THEN '{PRESENT}' END"]
        hashed = f"encode(sha256({self._bytes_to_hash(column)}), 'hex')"
        if is_json(column):
            hashed = f"encode(sha256(textsend({hashed})), 'hex')"
        listed = [] if is_json(column) else ["64"]
        return [f"CASE WHEN {is_there} THEN {field} END" for field in (*listed, hashed)]

    def _bytes_to_hash(self, column: Column) -> str:
        """The bytes whose SHA-256 is staged."""
        kind = column.type
        name = _name_column(column)
        if pa.types.is_binary(kind):
            return name
        if pa.types.is_string(kind):
            return f"textsend({self._text_of(column)})"
        if pa.types.is_boolean(kind):
            return f"textsend(CASE WHEN {name} THEN 'True' ELSE 'False' END)"
        if pa.types.is_timestamp(kind):
            whole, exact = (
                f"to_char({name}, '{form}{'Z' if kind.tz else ''}')" for form in (_SECONDS, _SECONDS + ".US")
            )
            return f"textsend(CASE WHEN {name} = date_trunc('second', {name}) THEN {whole} ELSE {exact} END)"
        return f"textsend({name}::text)"


def quote_identifier(name: str) -> str:
    """An identifier as SQL, whatever it contains."""
    return '"' + name.replace('"', '""') + '"'


def _name_column(column: Column) -> str:
    return f"t.{quote_identifier(column.name)}"


def _has_form(column: Column) -> bool:
    """Whether the column's text has to be made first."""
    return pa.types.is_string(column.type) and types.comparable(column.source_type) not in _PLAIN


def _form_name(number: int) -> str:
    return f"_dblog_{number}"


def _form(column: Column) -> str:
    """The text as the server prints the value; see `chunk_rows.select_column`."""
    return f"CASE WHEN {_is_there(column)} THEN format('%s', {_name_column(column)}) END"


def _is_there(column: Column) -> str:
    """Not `IS NOT NULL`: that fails for a row that holds a NULL."""
    return f"{_name_column(column)} IS DISTINCT FROM NULL"


def _float(value: str) -> str:
    """In the order of floats here NaN is larger than infinity, and that than every other value."""
    # Whole part and fraction as integers are exact on every server; other magnitudes are first scaled by a power of
    # two, which rounds nothing.
    low, high = map(_literal, window_bounds(0))
    usual = f"{value} = 0 OR abs({value}) >= {low} AND abs({value}) < {high}"
    lows = ", ".join(repr(window_bounds(window)[0]) for window in WINDOWS[1:])
    window = f"(width_bucket(abs({value}), '{{{lows}}}'::float8[]) + ({WINDOWS[0]}))"
    scale = f"power('2'::float8, {window_exponent(1)} * {window})"
    scaled = f"({value} * {scale} * {scale})"
    return (
        f"CASE WHEN {usual} THEN {_parts(value)} WHEN abs({value}) >= 'Infinity' THEN {value}::text"
        f" WHEN {value} <> 0 THEN {_parts(scaled, _BLANK, window)} END"
    )


def _parts(scaled: str, *window: str) -> str:
    whole = f"trunc({scaled})::bigint"
    fraction = f"(({scaled} - trunc({scaled})) * {_literal(UNIT)})::bigint"
    return f"concat({', '.join((whole, _BLANK, fraction, *window))})"


def _literal(number: float) -> str:
    return f"'{number!r}'::float8"
