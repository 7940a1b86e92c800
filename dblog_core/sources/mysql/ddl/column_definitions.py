"""The definition of a column in an ALTER TABLE, and what rows that were there hold in a column that is added."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dblog_core.model.column_defaults import Constant, Kind
from dblog_core.sources.mysql.ddl import column_forms
from dblog_core.sources.mysql.ddl.alter_tokens import AlterTokens, BeyondGrammar
from dblog_core.sources.mysql.ddl.column_forms import ColumnForm
from dblog_core.sources.mysql.values.types import LARGEST_DECIMAL

SAME_VALUES = frozenset(["TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "DECIMAL", "NUMERIC", "DATE"])
_TEXTS = frozenset(["CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET"])
NULLABLE = (
    SAME_VALUES
    | _TEXTS
    | frozenset(
        ["FLOAT", "DOUBLE", "DATETIME", "TIME", "YEAR", "BINARY", "VARBINARY", "BIT", "JSON", "BOOL", "BOOLEAN"]
    )
    | frozenset(["TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"])
)
"""Types that a column has NULL in, unless it says NOT NULL. An old server's TIMESTAMP has the time instead."""
_INTEGERS = frozenset(["TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "BOOL", "BOOLEAN"])
_DOUBLE: tuple[str, list[str]] = ("DOUBLE", [])
"""One of a fixed number of digits rounds."""
_IMPLICIT: dict[Kind, Constant] = {"number": Constant("number", "0"), "text": Constant("text", "")}
"""What a column that is NOT NULL and has no default holds in rows from before, by its kind."""
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(_DATE.pattern + r" [0-9]{2}:[0-9]{2}:[0-9]{2}")


@dataclass(slots=True)
class Definition:
    """What is read of a column's definition: the word of its type, the numbers and texts in brackets after it, whether
    it may be NULL, and its default, a number or a text, if it has one that is not NULL.

    `is_plain`: numbers, or texts, are all that stands in the brackets; `charset`: as it is written, or that of the
    collation; `is_numbered`: AUTO_INCREMENT; `is_stamped`: with each update it gets the present time; `says_null`: that
    it may be NULL is written.
    """

    type: str
    within: list[str]
    is_plain: bool = True
    nullable: bool = True
    default: tuple[str, str] | None = None
    charset: str = ""
    is_unsigned: bool = False
    is_numbered: bool = False
    is_stamped: bool = False
    says_null: bool = False

    @property
    def is_long(self) -> bool:
        """Whether it is a decimal that is staged as text, of which no type tells the scale."""
        digits = int(self.within[0]) if self.within and self.within[0].isdecimal() else 0
        return self.type in ("DECIMAL", "NUMERIC") and digits > LARGEST_DECIMAL

    def form(self, table_charset: str) -> ColumnForm | None:
        """How a column is stored that has this definition; None where that is not certain. `table_charset`: of columns
        that name none; empty: it is not known."""
        is_labelled = self.type in ("ENUM", "SET")
        numbers = () if is_labelled else tuple(int(number) for number in self.within if number.isdecimal())
        if not self.is_plain or (not is_labelled and len(numbers) != len(self.within)):
            return None
        return column_forms.make_form(
            self.type,
            numbers,
            unsigned=self.is_unsigned,
            charset=self.charset or table_charset,
            labels=tuple(self.within) if is_labelled else (),
            nullable=self.nullable and (self.says_null or self.type != "TIMESTAMP"),
            is_numbered=self.is_numbered,
        )

    @property
    def holds_null(self) -> bool:
        """Whether rows from before the column have NULL in it."""
        return self.nullable and self.default is None


def constant_in_old_rows(column: Definition) -> Constant | None:
    """What rows from before hold in an added column where that is not NULL; None: that is not certain."""
    if (kind := _kind_of(column)) is None:
        return None
    if column.default is None:
        return _IMPLICIT.get(kind)
    is_text = column.default[0] == "text"
    text = column.default[1]
    match kind:
        case "number" if (digits := _NUMBER.fullmatch(text)) is not None:
            return Constant("number", text) if float(digits[0]) else _IMPLICIT["number"]  # no -0
        # The server drops blanks at the end of a CHAR and of an ENUM's label: such a default is not what rows hold.
        case "text" if is_text and (column.type not in ("ENUM", "CHAR") or text == text.rstrip(" ")):
            return Constant("text", text) if column.type != "ENUM" or text in column.within else None
        case "date" if is_text and _DATE.fullmatch(text):
            return Constant("date", text)
        # Whole seconds alone: a fraction is rounded to the digits of the column.
        case "moment" if is_text and _MOMENT.fullmatch(text):
            return Constant("moment", text)
    return None


def _kind_of(column: Definition) -> Kind | None:
    """The kind of values that a column has; None for those whose default the server may store in another form."""
    if column.type in _INTEGERS or column.type in ("DECIMAL", "NUMERIC") or (column.type, column.within) == _DOUBLE:
        return "number"
    if column.type in _TEXTS - {"SET"}:
        return "text" if column.default is not None or column.type != "ENUM" else None
    return {"DATE": "date", "DATETIME": "moment"}.get(column.type)  # type: ignore[return-value]


def take_definition(tokens: AlterTokens, types: frozenset[str]) -> Definition:
    """Steps over a column's definition, of one of these types. Raises BeyondGrammar."""
    kind = tokens.take_one_of("word")
    if kind not in types:
        raise BeyondGrammar
    start = tokens.at
    definition = Definition(kind, tokens.take_brackets())
    definition.is_plain = tokens.is_plain_list(start)
    definition.is_unsigned = tokens.take("UNSIGNED")
    if kind in _TEXTS and (tokens.take("CHARACTER", "SET") or tokens.take("CHARSET")):
        definition.charset = take_charset(tokens)
    if kind in _TEXTS and tokens.take("COLLATE"):
        collation = tokens.take_one_of("word")
        definition.charset = definition.charset or column_forms.charset_of(collation)
    while _take_attribute(tokens, definition):
        pass
    return definition


def _take_attribute(tokens: AlterTokens, definition: Definition) -> bool:
    """Steps over something behind a column's type; False where nothing stands here that is known."""
    if tokens.take("NOT", "NULL"):
        definition.nullable = False
    elif tokens.take("DEFAULT"):
        if definition.type in _INTEGERS and (tokens.peek()[1] in ("TRUE", "FALSE")):
            definition.default = ("number", str(int(tokens.take_one_of("word") == "TRUE")))
        elif _take_present_time(tokens):
            definition.default = ("word", "CURRENT_TIMESTAMP")
        elif not tokens.take("NULL"):
            definition.default = tokens.take_literal()
    elif tokens.take("ON", "UPDATE"):
        if not _take_present_time(tokens):
            raise BeyondGrammar
        definition.is_stamped = True
    elif tokens.take("COMMENT"):
        tokens.take_one_of("text")
    elif tokens.take("AUTO_INCREMENT"):
        definition.is_numbered = True
    elif tokens.take("NULL"):
        definition.says_null = True
    else:
        return False
    return True


def _take_present_time(tokens: AlterTokens) -> bool:
    if not tokens.take("CURRENT_TIMESTAMP"):
        return False
    tokens.take_brackets()
    return True


def take_added_column(tokens: AlterTokens) -> Definition | None:
    """Steps over the definition of an added column; None where it is beyond the grammar."""
    start = tokens.at
    try:
        definition = take_definition(tokens, NULLABLE)
        skip_place(tokens)
        is_constant = not definition.is_numbered and not definition.is_stamped
        if is_constant and (tokens.is_at_end or tokens.peek() == ("sign", ",")):
            return definition
    except BeyondGrammar:
        pass
    # Beyond the grammar: step over it again, to the next comma, as a column of which nothing is known.
    tokens.at = start
    tokens.take_one_of("word")
    tokens.skip_part()
    return None


def skip_place(tokens: AlterTokens) -> None:
    """Steps over the place of a column among the others."""
    if not tokens.take("FIRST") and tokens.take("AFTER"):
        tokens.take_name()


def take_charset(tokens: AlterTokens) -> str:
    """Steps over the name of a character set."""
    return tokens.take_one_of("word").lower()
