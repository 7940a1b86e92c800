"""What an ALTER TABLE does to columns, where that is certain: which are renamed, added, dropped or converted.

A wrong reading would be wrong rows. So a statement is read to its last token by a grammar that knows little, and
whatever it does not know, comments and names beyond ASCII included, makes the whole statement one that says nothing.
Values of a column whose type is given anew (CHANGE, MODIFY) stay what they are only for types of one form each, and
where the session was strict: the server has refused what would have lost something then. Where the form is another one
(a fraction of seconds that is rounded, bytes that are padded, the order of a SET's labels) the column is `revalued`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dblog_core.model.column_defaults import Constant, Kind
from dblog_core.model.schema_changes import Step

_ANSI_QUOTES, _STRICT = 1 << 2, (1 << 21) | (1 << 22)
"""Bits of a session's sql_mode, as QUERY events have it."""

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<double>"(?:[^"\\])*")
  | (?P<text>'(?:[^'\\]|'')*')
  | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?![\w$]))
  | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
  | (?P<sign>[(),.=])
    """,
    re.VERBOSE,
)
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
_NO_NAMES = frozenset(
    ["INDEX", "KEY", "UNIQUE", "PRIMARY", "FULLTEXT", "SPATIAL", "FOREIGN", "CONSTRAINT", "CHECK", "PARTITION",
     "COLUMN", "PERIOD", "SYSTEM", "IF", "TO", "NULL", "NOT", "DEFAULT", "FIRST", "AFTER", "AS", "GENERATED"]
)  # fmt: skip
_KEEPING = _SAME_VALUES | frozenset(["VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT", "ENUM"])
"""Types that a strict session gives a column only where each value stays what it is, or the Arrow type is another."""
_OPTIONS = frozenset(["ENGINE", "AUTO_INCREMENT", "ROW_FORMAT", "COMMENT", "STATS_PERSISTENT", "STATS_AUTO_RECALC"])
_NO_ROWS_LOST = ("ADD", "REORGANIZE", "COALESCE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "REPAIR")
"""What is done to partitions so that each row finds one again, or it fails."""
NOTHING = Step()
"""What a statement does that leaves all columns as they are: one about indexes or partitions alone."""
_INDEXES = frozenset(["INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "PRIMARY", "CONSTRAINT", "FOREIGN", "CHECK"])


class _Unread(Exception):
    """The statement is beyond the grammar."""


class _Read:
    """The tokens of a statement: kind, text (words in upper case), and the name that it is if it is one."""

    def __init__(self, sql: str, mode: int) -> None:
        self._found: list[tuple[str, str, str]] = []
        self.at = at = 0
        while at < len(sql):
            match = _TOKEN.match(sql, at)
            if match is None or not match[0].isascii():
                raise _Unread
            text, at = match[0], match.end()
            match match.lastgroup:
                case "quoted":
                    self._found.append(("name", "", text[1:-1].replace("``", "`")))
                case "text":
                    self._found.append(("text", "", text[1:-1].replace("''", "'")))
                case "double":
                    self._found.append(("name" if mode & _ANSI_QUOTES else "text", "", text[1:-1]))
                case "word":
                    self._found.append(("word", text.upper(), text))
                case "number" | "sign" as kind:
                    self._found.append((kind, text, text))

    @property
    def ended(self) -> bool:
        return self.at == len(self._found)

    def peek(self) -> tuple[str, str]:
        return ("", "") if self.ended else self._found[self.at][:2]

    def take(self, *texts: str) -> bool:
        """Steps over these words or signs if they stand here."""
        here = self._found[self.at : self.at + len(texts)]
        if [text for kind, text, _ in here if kind in ("word", "sign")] != list(texts):
            return False
        self.at += len(texts)
        return True

    def must(self, *texts: str) -> None:
        if not self.take(*texts):
            raise _Unread

    def one_of(self, *kinds: str) -> str:
        kind, text = self.peek()
        if kind not in kinds:
            raise _Unread
        self.at += 1
        return text

    def name(self) -> str:
        kind, text = self.peek()
        if kind not in ("name", "word") or (kind == "word" and text in _NO_NAMES):
            raise _Unread
        self.at += 1
        return self._found[self.at - 1][2]

    def literal(self) -> tuple[str, str]:
        """A number or a text, and which of them it is."""
        kind = self.peek()[0]
        self.one_of("number", "text")
        return kind, self._found[self.at - 1][2]

    def brackets(self) -> list[str]:
        """Steps over what stands in brackets, if anything does; its numbers and texts."""
        depth, start = 0, self.at
        while not self.ended and (depth or self.peek() == ("sign", "(")):
            depth += {"(": 1, ")": -1}.get(self.peek()[1] if self.peek()[0] == "sign" else "", 0)
            self.at += 1
        if depth:
            raise _Unread
        return [text for kind, _, text in self._found[start : self.at] if kind in ("number", "text")]

    def rest(self) -> None:
        """Steps to the end."""
        self.at = len(self._found)

    def skip(self) -> None:
        """Steps to the next comma outside of brackets, or the end."""
        while not self.ended and self.peek() != ("sign", ","):
            if self.peek() == ("sign", ")"):
                raise _Unread
            if self.peek() == ("sign", "("):
                self.brackets()
            else:
                self.at += 1


_RETYPES = re.compile(r"\b(MODIFY|CHANGE)\b", re.IGNORECASE)


def may_retype(sql: str) -> bool:
    """Whether an ALTER TABLE may give a column another type, also one in which every value is the same (`step`)."""
    return _RETYPES.search(sql) is not None


def step(sql: str, mode: int | None) -> Step | None:
    """What an ALTER TABLE (`mode`: its session's sql_mode) does to the table's columns; None: that is not certain."""
    if mode is None:
        return None
    try:
        return _alter(_Read(sql, mode), strict=bool(mode & _STRICT))
    except _Unread:
        return None


def _alter(read: _Read, *, strict: bool) -> Step:
    read.must("ALTER", "TABLE")
    read.name()
    if read.take("."):
        read.name()
    if _partitions(read):
        return Step()
    columns = _Columns()
    _part(read, columns, strict=strict)
    while not read.ended:
        read.must(",")
        _part(read, columns, strict=strict)
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
        if old.lower() in {name.lower() for name in self.renamed}:
            raise _Unread
        self.renamed[old] = new

    def add(self, name: str, definition: _Definition | None) -> None:
        """`definition`: None where it says nothing."""
        if definition is not None and definition.holds_null:
            self.nulls.append(name)
        elif definition is not None and (constant := _constant(definition)) is not None and name not in self.constants:
            self.constants[name] = constant
        else:
            self.unknown.append(name)


def _part(read: _Read, columns: _Columns, *, strict: bool) -> None:
    """One of the parts that commas stand between."""
    if read.take("RENAME", "COLUMN"):
        columns.rename(*_pair(read))
    elif read.take("CHANGE"):
        read.take("COLUMN")
        old, new = read.name(), read.name()
        same = old.lower() == new.lower()
        if not _converted(read, _KEEPING if same else _SAME_VALUES, strict=strict):
            columns.rename(old, new)
        elif same:
            columns.revalued.append(new)
        else:  # as if it were another column
            columns.dropped.append(old)
            columns.unknown.append(new)
    elif read.take("MODIFY"):
        read.take("COLUMN")
        name = read.name()
        if _converted(read, _KEEPING, strict=strict):
            columns.revalued.append(name)
    elif read.take("ADD"):
        if not _index(read):
            read.take("COLUMN")
            columns.add(read.name(), _added(read))
    elif read.take("RENAME", "INDEX") or read.take("RENAME", "KEY"):
        _pair(read)
    elif read.take("DROP"):
        _drop(read, columns)
    elif not _touches_no_value(read, columns, strict=strict):
        raise _Unread


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


def _constant(column: _Definition) -> Constant | None:
    """What rows from before hold in an added column where that is not NULL; None: that is not certain."""
    if (kind := _kind(column)) is None:
        return None
    if column.default is None:
        return _IMPLICIT.get(kind)
    is_text, text = column.default[0] == "text", column.default[1]
    match kind:
        case "number" if (found := _NUMBER.fullmatch(text)) is not None:
            return Constant("number", text) if float(found[0]) else _IMPLICIT["number"]  # no -0
        case "text" if is_text and (column.type not in ("ENUM", "CHAR") or text == text.rstrip(" ")):
            return Constant("text", text) if column.type != "ENUM" or text in column.within else None
        case "date" if is_text and _DATE.fullmatch(text):
            return Constant("date", text)
        case "moment" if is_text and _MOMENT.fullmatch(text):
            return Constant("moment", text)
    return None


def _kind(column: _Definition) -> Kind | None:
    """The kind of values that a column has; None for those whose default the server may store in another form."""
    if column.type in _INTEGERS or column.type in ("DECIMAL", "NUMERIC") or (column.type, column.within) == _DOUBLE:
        return "number"
    if column.type in _TEXTS - {"SET"}:
        return "text" if column.default is not None or column.type != "ENUM" else None
    return {"DATE": "date", "DATETIME": "moment"}.get(column.type)  # type: ignore[return-value]


def _drop(read: _Read, columns: _Columns) -> None:
    if read.take("PRIMARY", "KEY"):
        return
    if read.take("FOREIGN", "KEY") or any(read.take(word) for word in ("INDEX", "KEY", "CONSTRAINT", "CHECK")):
        read.name()
        return
    read.take("COLUMN")
    columns.dropped.append(read.name())


def _touches_no_value(read: _Read, columns: _Columns, *, strict: bool) -> bool:
    """Steps over a part that leaves every value as it is; False where none stands here."""
    if read.take("ALGORITHM") or read.take("LOCK"):
        read.take("=")
        read.one_of("word")
    elif read.take("FORCE"):
        return True
    elif read.peek()[1] in _OPTIONS:
        read.one_of("word")
        read.take("=")
        read.one_of("word", "number", "text")
    elif read.take("ALTER"):
        read.take("COLUMN")
        if read.name().lower() in {name.lower() for name in columns.constants}:
            raise _Unread
        if not read.take("DROP", "DEFAULT"):
            read.must("SET", "DEFAULT")
            read.one_of("number", "text", "word")
    elif strict and read.take("CONVERT", "TO", "CHARACTER", "SET"):
        read.one_of("word")
        if read.take("COLLATE"):
            read.one_of("word")
    else:
        return False
    return True


def _converted(read: _Read, keeping: frozenset[str], *, strict: bool) -> bool:
    """Steps over the definition that a column is given anew; whether its values may be others by that."""
    kind = read.peek()[1]
    _definition(read, _NULLABLE)
    _place(read)
    return not (strict and kind in keeping)


def _partitions(read: _Read) -> bool:
    """Whether all of it is about partitions: those that go or are emptied are told apart (`statements`)."""
    if any(read.take(verb, "PARTITION") for verb in _NO_ROWS_LOST) or read.take("REMOVE", "PARTITIONING"):
        read.rest()
    elif read.take("DROP", "PARTITION") or read.take("TRUNCATE", "PARTITION"):
        read.name()
        while read.take(","):
            read.name()
    else:
        return False
    if not read.ended:
        raise _Unread
    return True


def _pair(read: _Read) -> tuple[str, str]:
    old = read.name()
    read.must("TO")
    return old, read.name()


def _index(read: _Read) -> bool:
    """Steps over an index or a constraint; whether one stands here."""
    if read.peek()[0] != "word" or read.peek()[1] not in _INDEXES:
        return False
    read.skip()
    return True


def _definition(read: _Read, types: frozenset[str]) -> _Definition:
    """Steps over a column's definition."""
    kind = read.one_of("word")
    if kind not in types:
        raise _Unread
    found = _Definition(kind, read.brackets())
    read.take("UNSIGNED")
    if kind in _TEXTS and (read.take("CHARACTER", "SET") or read.take("CHARSET")):
        read.one_of("word")
    if kind in _TEXTS and read.take("COLLATE"):
        read.one_of("word")
    while True:
        if read.take("NOT", "NULL"):
            found.nullable = False
        elif read.take("DEFAULT"):
            if kind in _INTEGERS and (read.peek()[1] in ("TRUE", "FALSE")):
                found.default = ("number", str(int(read.one_of("word") == "TRUE")))
            elif not read.take("NULL"):
                found.default = read.literal()
        elif read.take("COMMENT"):
            read.one_of("text")
        elif not read.take("NULL"):
            return found


def _added(read: _Read) -> _Definition | None:
    """Steps over the definition of an added column; None where it is beyond the grammar."""
    start = read.at
    try:
        found = _definition(read, _NULLABLE)
        _place(read)
        if read.ended or read.peek() == ("sign", ","):
            return found
    except _Unread:
        pass
    read.at = start
    read.one_of("word")
    read.skip()
    return None


def _place(read: _Read) -> None:
    if not read.take("FIRST") and read.take("AFTER"):
        read.name()
