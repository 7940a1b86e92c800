"""The tokens of any statement in the log, comments left out, and the names of tables among them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dblog_core.model.schema import TableName, to_lower_case

# `--` begins a comment only before a blank. What stands in /*! … */ the server executes, and in /*M! … */ MariaDB does.
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


def _split(sql: str) -> Iterator[Token]:
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


class StatementTokens:
    """The tokens of a statement, read in order. `schema`: the default database; `any_case`: it gives names folded."""

    def __init__(self, sql: str, schema: str, *, any_case: bool) -> None:
        self._tokens = list(_split(sql))
        self._at = 0
        self._any_case = any_case
        self._schema = self.fold_name(schema)

    def fold_name(self, name: str) -> str:
        """The name of a schema or table as the server compares it."""
        return to_lower_case(name) if self._any_case else name

    end = Token("")
    """Behind the last token."""

    def peek(self, ahead: int = 0) -> Token:
        """The token so many places ahead; an empty one behind the end."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else self.end

    def take(self, *words: str) -> bool:
        """Steps over these words if they stand here."""
        if any(self.peek(i).word != word for i, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def take_table(self) -> TableName | None:
        """Steps over the name of a table; None where no name stands."""
        first = self.peek()
        if first.word == "." and self.peek(1).name:  # MariaDB: of the default database
            self._at += 2
            return TableName(self._schema, self.fold_name(self._tokens[self._at - 1].name))
        if not first.name:
            return None
        if self.peek(1).word == "." and self.peek(2).name:
            self._at += 3
            return TableName(self.fold_name(first.name), self.fold_name(self._tokens[self._at - 1].name))
        self._at += 1
        return TableName(self._schema, self.fold_name(first.name))

    def take_tables(self) -> tuple[TableName, ...]:
        """Steps over the names of tables that commas stand between."""
        tables = []
        while (table := self.take_table()) is not None:
            tables.append(table)
            if not self.take(","):
                break
        return tuple(tables)

    def skip_settings(self) -> None:
        """Steps over MariaDB's `SET STATEMENT x=y FOR`: the statement itself comes after."""
        if self.take("SET", "STATEMENT"):
            while self.peek() != self.end and not self.take("FOR"):
                self._at += 1

    def skip_waiting(self) -> None:
        """Steps over MariaDB's `WAIT n` and `NOWAIT`."""
        while self.peek().word in ("WAIT", "NOWAIT") or self.peek().word.isdigit():
            self._at += 1

    def place(self) -> int:
        """The present place, to come back to."""
        return self._at

    def return_to(self, place: int) -> None:
        """Goes back to a place that `place` has returned."""
        self._at = place

    def find(self, *words: str) -> bool:
        """Steps behind the next place where these words stand."""
        for at in range(self._at, len(self._tokens)):
            if all(at + i < len(self._tokens) and self._tokens[at + i].word == word for i, word in enumerate(words)):
                self._at = at + len(words)
                return True
        return False

    def take_name(self) -> str:
        """Steps over any token; the name that it is, empty if it is none."""
        self._at += 1
        return self.peek(-1).name

    def possible_tables(self) -> set[TableName]:
        """Whatever could name a table from here to the end: each name in the default database, and each pair of names
        with a point between them."""
        tokens = self._tokens[self._at :]
        tables = {TableName(self._schema, self.fold_name(token.name)) for token in tokens if token.name}
        for schema, point, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if schema.name and point.word == "." and name.name:
                tables.add(TableName(self.fold_name(schema.name), self.fold_name(name.name)))
        return tables

    def words(self) -> list[str]:
        """The words and signs from here to the end, names without quotes among them."""
        return [token.word for token in self._tokens[self._at :]]
