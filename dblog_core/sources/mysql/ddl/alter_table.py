"""What an ALTER TABLE does to columns, where that is certain: which are renamed, added, dropped or converted.

A wrong reading would be wrong rows. So a statement is read to its last token by a grammar that knows little, and
whatever it does not know, comments and names beyond ASCII included, makes the whole statement one that says nothing.
Values of a column that gets another type (CHANGE, MODIFY) stay what they are only for types of one form each, and
where the session was strict: the server has refused what would have lost something then. Where the form is another one
(a fraction of seconds that is rounded, bytes that are padded, the order of a SET's labels) the column is `revalued`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dblog_core.model.column_defaults import Constant, Kind
from dblog_core.model.schema_changes import Step
from dblog_core.sources.mysql.ddl.alter_tokens import AlterTokens, BeyondGrammar

_STRICT = (1 << 21) | (1 << 22)
"""STRICT_TRANS_TABLES and STRICT_ALL_TABLES in a session's sql_mode, as QUERY events have it."""

_SAME_VALUES = frozenset(["TINYINT", "SMALLINT", "MEDIUMINT", "INT", "INTEGER", "BIGINT", "DECIMAL", "NUMERIC", "DATE"])
_TEXTS = frozenset(["CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM", "SET"])
_NULLABLE = (
    _SAME_VALUES
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
_KEEPING = _SAME_VALUES | frozenset(["VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM"])
"""Types that a strict session gives a column only where each value stays what it is, or the Arrow type is another."""
_OPTIONS = frozenset(["ENGINE", "AUTO_INCREMENT", "ROW_FORMAT", "COMMENT", "STATS_PERSISTENT", "STATS_AUTO_RECALC"])
_NO_ROWS_LOST = ("ADD", "REORGANIZE", "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "REPAIR")
"""What is done to partitions so that each row finds one again, or it fails."""
NOTHING = Step()
"""What a statement does that leaves all columns as they are: one about indexes or partitions alone."""
_INDEXES = frozenset(["INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "PRIMARY", "CONSTRAINT", "FOREIGN", "CHECK"])


_RETYPES = re.compile(r"\b(MODIFY|CHANGE)\b", re.IGNORECASE)


def may_retype(sql: str) -> bool:
    """Whether an ALTER TABLE may give a column another type, also one in which every value is the same (`step`)."""
    return _RETYPES.search(sql) is not None


def step(sql: str, mode: int | None) -> Step | None:
    """What an ALTER TABLE (`mode`: its session's sql_mode) does to the table's columns; None: that is not certain."""
    # Without its session's sql_mode nobody knows whether double quotes are a name, nor whether it was strict.
    if mode is None:
        return None
    try:
        return _read_alter(AlterTokens(sql, mode), strict=bool(mode & _STRICT))
    except BeyondGrammar:
        return None


def _read_alter(tokens: AlterTokens, *, strict: bool) -> Step:
    tokens.expect("ALTER", "TABLE")
    tokens.take_name()
    if tokens.take("."):
        tokens.take_name()
    if _is_about_partitions(tokens):
        return Step()
    columns = _Columns()
    _take_part(tokens, columns, strict=strict)
    while not tokens.is_at_end:
        tokens.expect(",")
        _take_part(tokens, columns, strict=strict)
    return Step(
        columns.renamed,
        tuple(columns.nulls),
        columns.constants,
        tuple(columns.unknown),
        tuple(columns.dropped),
        tuple(columns.revalued),
    )


@dataclass(slots=True)
class _Columns:
    """What the parts of a statement do to columns (`Step`)."""

    renamed: dict[str, str] = field(default_factory=dict)
    nulls: list[str] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    revalued: list[str] = field(default_factory=list)

    def rename(self, old: str, new: str) -> None:
        """Notes a renaming. Raises BeyondGrammar for a column that is renamed twice."""
        # What two renamings of one column make of it is not certain.
        if old.lower() in {name.lower() for name in self.renamed}:
            raise BeyondGrammar
        self.renamed[old] = new

    def add(self, name: str, definition: _Definition | None) -> None:
        """`definition`: None where it says nothing."""
        if definition is not None and definition.holds_null:
            self.nulls.append(name)
        elif (
            definition is not None
            and (constant := _constant_in_old_rows(definition)) is not None
            and name not in self.constants
        ):
            self.constants[name] = constant
        else:
            self.unknown.append(name)


def _take_part(tokens: AlterTokens, columns: _Columns, *, strict: bool) -> None:
    """One of the parts that commas stand between."""
    if tokens.take("RENAME", "COLUMN"):
        columns.rename(*_take_renaming(tokens))
    elif tokens.take("CHANGE"):
        tokens.take("COLUMN")
        old = tokens.take_name()
        new = tokens.take_name()
        same = old.lower() == new.lower()
        if not _may_convert(tokens, _KEEPING if same else _SAME_VALUES, strict=strict):
            columns.rename(old, new)
        elif same:
            columns.revalued.append(new)
        else:  # as if it were another column
            columns.dropped.append(old)
            columns.unknown.append(new)
    elif tokens.take("MODIFY"):
        tokens.take("COLUMN")
        name = tokens.take_name()
        if _may_convert(tokens, _KEEPING, strict=strict):
            columns.revalued.append(name)
    elif tokens.take("ADD"):
        if not _skip_index(tokens):
            tokens.take("COLUMN")
            columns.add(tokens.take_name(), _take_added_column(tokens))
    elif tokens.take("RENAME", "INDEX") or tokens.take("RENAME", "KEY"):
        _take_renaming(tokens)
    elif tokens.take("DROP"):
        _take_drop(tokens, columns)
    elif not _touches_no_value(tokens, columns, strict=strict):
        raise BeyondGrammar


@dataclass(slots=True)
class _Definition:
    """What is read of a column's definition: the word of its type, the numbers and texts in brackets after it, whether
    it may be NULL, and its default, a number or a text, if it has one that is not NULL."""

    type: str
    within: list[str]
    nullable: bool = True
    default: tuple[str, str] | None = None

    @property
    def holds_null(self) -> bool:
        """Whether rows from before the column have NULL in it."""
        return self.nullable and self.default is None


def _constant_in_old_rows(column: _Definition) -> Constant | None:
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


def _kind_of(column: _Definition) -> Kind | None:
    """The kind of values that a column has; None for those whose default the server may store in another form."""
    if column.type in _INTEGERS or column.type in ("DECIMAL", "NUMERIC") or (column.type, column.within) == _DOUBLE:
        return "number"
    if column.type in _TEXTS - {"SET"}:
        return "text" if column.default is not None or column.type != "ENUM" else None
    return {"DATE": "date", "DATETIME": "moment"}.get(column.type)  # type: ignore[return-value]


def _take_drop(tokens: AlterTokens, columns: _Columns) -> None:
    if tokens.take("PRIMARY", "KEY"):
        return
    if tokens.take("FOREIGN", "KEY") or any(tokens.take(word) for word in ("INDEX", "KEY", "CONSTRAINT", "CHECK")):
        tokens.take_name()
        return
    tokens.take("COLUMN")
    columns.dropped.append(tokens.take_name())


def _touches_no_value(tokens: AlterTokens, columns: _Columns, *, strict: bool) -> bool:
    """Steps over a part that leaves every value as it is; False where none stands here."""
    if tokens.take("ALGORITHM") or tokens.take("LOCK"):
        tokens.take("=")
        tokens.take_one_of("word")
    elif tokens.take("FORCE"):
        return True
    elif tokens.peek()[1] in _OPTIONS:
        tokens.take_one_of("word")
        tokens.take("=")
        tokens.take_one_of("word", "number", "text")
    elif tokens.take("ALTER"):
        tokens.take("COLUMN")
        # SET DEFAULT is about later rows. For a column that this statement adds, it decides what older rows get.
        if tokens.take_name().lower() in {name.lower() for name in columns.constants}:
            raise BeyondGrammar
        if not tokens.take("DROP", "DEFAULT"):
            tokens.expect("SET", "DEFAULT")
            tokens.take_one_of("number", "text", "word")
    # A strict session refuses it where a character has no form in the new set.
    elif strict and tokens.take("CONVERT", "TO", "CHARACTER", "SET"):
        tokens.take_one_of("word")
        if tokens.take("COLLATE"):
            tokens.take_one_of("word")
    else:
        return False
    return True


def _may_convert(tokens: AlterTokens, keeping: frozenset[str], *, strict: bool) -> bool:
    """Steps over the new definition of a column; whether its values may be others by that."""
    kind = tokens.peek()[1]
    _take_definition(tokens, _NULLABLE)
    _skip_place(tokens)
    return not (strict and kind in keeping)


def _is_about_partitions(tokens: AlterTokens) -> bool:
    """Whether all of it is about partitions: `statements` looks for those that go or are emptied."""
    if any(tokens.take(verb, "PARTITION") for verb in _NO_ROWS_LOST) or tokens.take("REMOVE", "PARTITIONING"):
        tokens.skip_rest()
    elif tokens.take("DROP", "PARTITION") or tokens.take("TRUNCATE", "PARTITION"):
        tokens.take_name()
        while tokens.take(","):
            tokens.take_name()
    else:
        return False
    if not tokens.is_at_end:
        raise BeyondGrammar
    return True


def _take_renaming(tokens: AlterTokens) -> tuple[str, str]:
    old = tokens.take_name()
    tokens.expect("TO")
    return old, tokens.take_name()


def _skip_index(tokens: AlterTokens) -> bool:
    """Steps over an index or a constraint; whether one stands here."""
    if tokens.peek()[0] != "word" or tokens.peek()[1] not in _INDEXES:
        return False
    tokens.skip_part()
    return True


def _take_definition(tokens: AlterTokens, types: frozenset[str]) -> _Definition:
    """Steps over a column's definition."""
    kind = tokens.take_one_of("word")
    if kind not in types:
        raise BeyondGrammar
    definition = _Definition(kind, tokens.take_brackets())
    tokens.take("UNSIGNED")
    if kind in _TEXTS and (tokens.take("CHARACTER", "SET") or tokens.take("CHARSET")):
        tokens.take_one_of("word")
    if kind in _TEXTS and tokens.take("COLLATE"):
        tokens.take_one_of("word")
    while True:
        if tokens.take("NOT", "NULL"):
            definition.nullable = False
        elif tokens.take("DEFAULT"):
            if kind in _INTEGERS and (tokens.peek()[1] in ("TRUE", "FALSE")):
                definition.default = ("number", str(int(tokens.take_one_of("word") == "TRUE")))
            elif not tokens.take("NULL"):
                definition.default = tokens.take_literal()
        elif tokens.take("COMMENT"):
            tokens.take_one_of("text")
        elif not tokens.take("NULL"):
            return definition


def _take_added_column(tokens: AlterTokens) -> _Definition | None:
    """Steps over the definition of an added column; None where it is beyond the grammar."""
    start = tokens.at
    try:
        definition = _take_definition(tokens, _NULLABLE)
        _skip_place(tokens)
        if tokens.is_at_end or tokens.peek() == ("sign", ","):
            return definition
    except BeyondGrammar:
        pass
    # Beyond the grammar: step over it again, to the next comma, as a column of which nothing is known.
    tokens.at = start
    tokens.take_one_of("word")
    tokens.skip_part()
    return None


def _skip_place(tokens: AlterTokens) -> None:
    if not tokens.take("FIRST") and tokens.take("AFTER"):
        tokens.take_name()
