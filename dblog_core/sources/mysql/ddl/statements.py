"""What a statement in the log means for us: the least that must be understood of SQL, and a refusal for the rest.

Rows travel as row events; statements are transaction control, DDL, and changes that somebody logged in statement form.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from dblog_core.model.schema import TableName, folded


class Means(Enum):
    BEGIN = auto()
    COMMIT = auto()
    ROLLBACK = auto()
    ROLLBACK_TO = auto()
    XA_START = auto()
    XA_COMMIT = auto()
    """The second phase, like the next: a prepared transaction's rows count from here on."""
    XA_ROLLBACK = auto()
    EMPTIES = auto()
    """All rows of `tables` are gone: TRUNCATE, DROP, CREATE OR REPLACE."""
    REWRITES = auto()
    """Rows of `tables` come without row events: CREATE … SELECT in statement form."""
    SWAPS = auto()
    """Rows of `tables` change places without row events: RENAME, swapped partitions and files. What had the name of one
    in `gone` has another one now, and nothing else has taken it."""
    DROPS_PARTITIONS = auto()
    """Some rows of `tables` are gone: DROP PARTITION, TRUNCATE PARTITION."""
    DROPS_SCHEMA = auto()
    CHANGES_ROWS = auto()
    """A change of rows in statement form: what it touches (triggers, cascades) cannot be known."""
    HARMLESS = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Statement:
    means: Means
    tables: tuple[TableName, ...] = ()
    schema: str = ""
    gone: tuple[TableName, ...] = ()
    alters: bool = False
    """Whether it may have given the rows that `tables` have other values."""
    shapes: bool = False
    """Whether it gives `tables` their columns, and they are there after it."""
    versions: bool | None = None
    """Whether MariaDB keeps every version of a row of `tables` from here on; None: as before."""
    makes: bool = False
    """Whether `tables` are made by it, without rows."""
    if_missing: bool = False
    """Whether it does nothing where they are there: it stands in the log then too."""


_TOKEN = re.compile(
    r"""
    (?P<space>\s+ | \#[^\n]* | --(?=[\s\x00-\x1f]|$)[^\n]* | /\*(?!M?!).*?(?:\*/|$))
  | (?P<opened>/\*M?!\d* | \*/)                     # executable comments: their content is part of the statement
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<double>"(?:[^"\\]|\\.|"")*")
  | (?P<text>'(?:[^'\\]|\\.|'')*')
  | (?P<word>[\w$@\x80-\U0010ffff]+)
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Token:
    """`name`: what it names if it is an identifier, quoted or not; `word`: upper case, empty for quoted ones."""

    word: str
    name: str = ""


def _tokens(sql: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(sql):
        text = match[0]
        match match.lastgroup:
            case "space" | "opened":
                continue
            case "quoted":
                yield Token("", text[1:-1].replace("``", "`"))
            case "double":  # an identifier under ANSI_QUOTES, else a string: only looked at where a name must stand
                yield Token("", text[1:-1].replace('""', '"'))
            case "text":
                yield Token("'")
            case "word":
                yield Token(text.upper(), text)
            case _:
                yield Token(text)


_ROW_CHANGES = {
    "INSERT",
    "REPLACE",
    "UPDATE",
    "DELETE",
    "LOAD",
    "WITH",
    "CALL",
    "DO",
    "SELECT",
    "MERGE",
    "HANDLER",
    "IMPORT",
}
_HARMLESS = {
    "SAVEPOINT": "nothing is undone by it",
    "RELEASE": "of a savepoint",
    "CREATE": "of anything but a table",
    "ALTER": "of anything but a table",
    "DROP": "of anything but a table or a schema",
    "GRANT": "accounts",
    "REVOKE": "accounts",
    "SET": "passwords, roles",
    "FLUSH": "caches and logs",
    "ANALYZE": "statistics",
    "OPTIMIZE": "same rows, new files",
    "REPAIR": "same rows, new files",
    "INSTALL": "plugins",
    "UNINSTALL": "plugins",
    "RENAME": "of a user",
}
_SYSTEM = {"mysql", "sys", "performance_schema", "information_schema"}


class _Reader:
    """The tokens of a statement, read in order."""

    def __init__(self, sql: str, schema: str, *, any_case: bool) -> None:
        self._tokens = list(_tokens(sql))
        self._at = 0
        self._any_case = any_case
        self._schema = self.named(schema)

    def named(self, name: str) -> str:
        """The name of a schema or table as the server compares it."""
        return folded(name) if self._any_case else name

    def peek(self, ahead: int = 0) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else Token("")

    def take(self, *words: str) -> bool:
        """Steps over these words if they stand here."""
        if any(self.peek(i).word != word for i, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def table(self) -> TableName | None:
        first = self.peek()
        if first.word == "." and self.peek(1).name:  # MariaDB: of the default database
            self._at += 2
            return TableName(self._schema, self.named(self._tokens[self._at - 1].name))
        if not first.name:
            return None
        if self.peek(1).word == "." and self.peek(2).name:
            self._at += 3
            return TableName(self.named(first.name), self.named(self._tokens[self._at - 1].name))
        self._at += 1
        return TableName(self._schema, self.named(first.name))

    def tables(self) -> tuple[TableName, ...]:
        found = []
        while (table := self.table()) is not None:
            found.append(table)
            if not self.take(","):
                break
        return tuple(found)

    def skip_settings(self) -> None:
        """Steps over MariaDB's `SET STATEMENT x=y FOR`: the statement itself comes after."""
        if self.take("SET", "STATEMENT"):
            while self.peek() != Token("") and not self.take("FOR"):
                self._at += 1

    def skip_waiting(self) -> None:
        """Steps over MariaDB's `WAIT n` and `NOWAIT`."""
        while self.peek().word in ("WAIT", "NOWAIT") or self.peek().word.isdigit():
            self._at += 1

    def at(self) -> int:
        """The present place, to come back to."""
        return self._at

    def go_to(self, place: int) -> None:
        self._at = place

    def find(self, *words: str) -> bool:
        """Steps behind the next place where these words stand."""
        for at in range(self._at, len(self._tokens)):
            if all(at + i < len(self._tokens) and self._tokens[at + i].word == word for i, word in enumerate(words)):
                self._at = at + len(words)
                return True
        return False

    def words(self) -> list[str]:
        return [token.word for token in self._tokens[self._at :]]


def classify(sql: str, schema: str, *, any_case: bool = False) -> Statement:
    """What the statement means. `schema`: the default database that it was run in; `any_case`: its names in lower
    case, for a server that does not tell the two apart (lower_case_table_names)."""
    read = _Reader(sql, schema, any_case=any_case)
    read.skip_settings()
    verb = read.peek()
    if not read.words():  # comments alone: what a server puts in place of an event that a replica cannot read
        return Statement(Means.HARMLESS)
    if verb.word in ("BEGIN", "START", "COMMIT", "ROLLBACK", "XA"):
        return _control(read)
    if verb.word in ("TRUNCATE", "DROP", "CREATE", "ALTER", "RENAME") and (found := _table_ddl(read)) is not None:
        return found
    if verb.word in _ROW_CHANGES:
        return Statement(_row_change(read))
    return Statement(Means.HARMLESS if verb.word in _HARMLESS else Means.UNKNOWN)


_PHASES = {
    "START": Means.XA_START,
    "BEGIN": Means.XA_START,
    "COMMIT": Means.XA_COMMIT,
    "ROLLBACK": Means.XA_ROLLBACK,
}


def _control(read: _Reader) -> Statement:
    if read.take("XA"):
        return Statement(_PHASES.get(read.peek().word, Means.HARMLESS))
    if read.take("ROLLBACK"):
        read.take("WORK")
        return Statement(Means.ROLLBACK_TO if read.peek().word == "TO" else Means.ROLLBACK)
    return Statement(Means.COMMIT if read.take("COMMIT") else Means.BEGIN)


def _table_ddl(read: _Reader) -> Statement | None:
    """DDL on tables and schemas; None for that on anything else."""
    if read.take("TRUNCATE"):
        read.take("TABLE")
        table = read.table()
        return Statement(Means.EMPTIES, (table,)) if table else Statement(Means.UNKNOWN)
    if read.take("DROP"):
        return _drop(read)
    if read.take("CREATE"):
        return _create(read)
    if read.take("RENAME"):
        return _rename(read)
    read.take("ALTER")
    read.take("ONLINE")
    read.take("IGNORE")
    if not read.take("TABLE"):
        return None
    read.take("IF", "EXISTS")
    table = read.table()
    if table is None:
        return Statement(Means.UNKNOWN)
    words = read.words()
    if _moves_rows(words):
        return _swap(read, table)
    drops = {("DROP", "PARTITION"), ("TRUNCATE", "PARTITION")} & set(itertools.pairwise(words))
    means = Means.DROPS_PARTITIONS if drops else Means.HARMLESS
    return Statement(means, (table,), alters=True, shapes=True, versions=_versions(words))


def _versions(words: list[str]) -> bool | None:
    """What a definition, or a change of it, says of system versioning."""
    threes = zip(words, words[1:], words[2:], strict=False)
    said = [before for before, *of in threes if of == ["SYSTEM", "VERSIONING"] and before != "WITHOUT"]
    return said[-1] != "DROP" if said else None  # WITHOUT: a single column is left out of it


def _drop(read: _Reader) -> Statement | None:
    if read.take("TEMPORARY"):
        return Statement(Means.HARMLESS)
    if read.take("TABLE") or read.take("TABLES"):
        read.take("IF", "EXISTS")
        tables = read.tables()
        return Statement(Means.EMPTIES, tables) if tables else Statement(Means.UNKNOWN)
    if read.take("DATABASE") or read.take("SCHEMA"):
        read.take("IF", "EXISTS")
        return Statement(Means.DROPS_SCHEMA, schema=read.named(read.peek().name))
    return None


def _create(read: _Reader) -> Statement | None:
    replaces = read.take("OR", "REPLACE")
    if read.take("TEMPORARY"):
        return Statement(Means.HARMLESS)
    if not read.take("TABLE"):
        return None
    if_missing = read.take("IF", "NOT", "EXISTS")
    table = read.table()
    if table is None:
        return Statement(Means.UNKNOWN)
    words = read.words()
    if _has_query(words):  # the row form of CREATE … SELECT has its rows in row events, and no SELECT
        return Statement(Means.REWRITES, (table,))
    means, makes = Means.EMPTIES if replaces else Means.HARMLESS, _OF_OTHERS.isdisjoint(words)
    if ("START", "TRANSACTION") in itertools.pairwise(words):  # of a CREATE … SELECT, logged only where it was done
        if_missing = False
    versions = _versions(words)
    return Statement(
        means,
        (table,),
        shapes=True,
        versions=versions if if_missing else bool(versions),
        makes=makes,
        if_missing=if_missing,
    )


_OF_OTHERS = {"MERGE", "MRG_MYISAM", "FEDERATED", "CONNECT", "SPIDER", "S3", "CSV", "SEQUENCE"}
"""Engines whose tables may show rows of others from the first moment on."""


def _has_query(words: list[str]) -> bool:
    """Whether what follows a CREATE TABLE's name fills the table: SELECT, TABLE t, VALUES (…), VALUES ROW(…)."""
    values = (("VALUES", "("), ("VALUES", "ROW"))  # VALUES LESS THAN and VALUES IN are of partitions
    return "SELECT" in words or "TABLE" in words or any(pair in values for pair in itertools.pairwise(words))


def _rename(read: _Reader) -> Statement | None:
    """RENAME TABLE a TO b, …: pair after pair, as a swap of two tables by a third name needs it."""
    if not (read.take("TABLE") or read.take("TABLES")):
        return None
    read.take("IF", "EXISTS")
    there: dict[TableName, bool] = {}
    while (old := read.table()) is not None:
        read.skip_waiting()
        new = read.table() if read.take("TO") else None
        if new is None:
            return Statement(Means.UNKNOWN)
        there |= {old: False, new: True}
        if not read.take(","):
            break
    return _swapped(there) if there else Statement(Means.UNKNOWN)


def _swapped(there: dict[TableName, bool]) -> Statement:
    """`there`: whether a table has that name in the end."""
    return Statement(Means.SWAPS, tuple(there), gone=tuple(table for table, is_there in there.items() if not is_there))


_RENAMED_PARTS = {"COLUMN", "INDEX", "KEY", "CONSTRAINT"}


def _moves_rows(words: list[str]) -> bool:
    """Whether an ALTER TABLE renames the table, or swaps partitions or files."""
    pairs = set(itertools.pairwise(words))
    if any(first == "RENAME" and second not in _RENAMED_PARTS for first, second in pairs):
        return True
    partition = {(verb, "PARTITION") for verb in ("EXCHANGE", "DISCARD", "IMPORT", "CONVERT")}
    return bool(pairs & (partition | {("DISCARD", "TABLESPACE"), ("IMPORT", "TABLESPACE"), ("CONVERT", "TABLE")}))


def _swap(read: _Reader, table: TableName) -> Statement:
    """What an ALTER TABLE that moves rows does to the tables that it names."""
    there, own = {table: True}, read.at()
    while read.find("RENAME"):
        if read.peek().word in _RENAMED_PARTS:
            continue
        _ = read.take("TO") or read.take("AS") or read.take("=")
        if (new := read.table()) is None:
            return Statement(Means.UNKNOWN)
        there |= {table: False, new: True}
    for words, stays in (
        (("WITH", "TABLE"), True),  # EXCHANGE PARTITION p WITH TABLE u
        (("TO", "TABLE"), True),  # CONVERT PARTITION p TO TABLE u
        (("CONVERT", "TABLE"), False),  # CONVERT TABLE u TO PARTITION p
    ):
        read.go_to(own)
        if read.find(*words):
            if (other := read.table()) is None:
                return Statement(Means.UNKNOWN)
            there[other] = stays
    return _swapped(there)


def _row_change(read: _Reader) -> Means:
    """A write to the server's own schemas is harmless; any other, also to a table that nobody captures, is not.

    In statement form the effects of its triggers and cascades, which may reach captured tables, are not in the log.
    """
    verbs = {"INSERT": ("INTO",), "REPLACE": ("INTO",), "DELETE": ("FROM",), "UPDATE": ()}
    verb = read.peek().word
    if verb not in verbs:
        return Means.CHANGES_ROWS
    read.take(verb)
    while read.peek().word in ("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "QUICK", "IGNORE"):
        read.take(read.peek().word)
    for word in verbs[verb]:
        read.take(word)
    table = read.table()
    single = read.peek().word not in (",", "JOIN")
    return Means.HARMLESS if table and single and table.schema.lower() in _SYSTEM else Means.CHANGES_ROWS
