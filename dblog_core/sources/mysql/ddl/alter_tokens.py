"""The tokens of an ALTER TABLE, for a grammar that reads a statement to its last one or not at all."""

from __future__ import annotations

import re

_ANSI_QUOTES_BIT = 1 << 2
"""In a session's sql_mode, as QUERY events have it: a text in double quotes is a name then."""

# A backslash in a text is an escape or a character, by the session's sql_mode: a text with one is no token.
_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<double>"(?:[^"\\])*")
  | (?P<text>'(?:[^'\\]|'')*')
  | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?![\w$]))
  | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
  | (?P<sign>[(),.=<>!])
    """,
    re.VERBOSE,
)

# Words that may begin a clause where a name could stand. As names they have to stand in quotes.
_NO_NAMES = frozenset(
    ["INDEX", "KEY", "UNIQUE", "PRIMARY", "FULLTEXT", "SPATIAL", "FOREIGN", "CONSTRAINT", "CHECK", "PARTITION",
     "COLUMN", "PERIOD", "SYSTEM", "IF", "TO", "NULL", "NOT", "DEFAULT", "FIRST", "AFTER", "AS", "GENERATED"]
)  # fmt: skip


class BeyondGrammar(Exception):
    """The statement holds something that the grammar does not know: it says nothing then."""


class AlterTokens:
    """The tokens of a statement, read in order: kind, text (words in upper case), and the name that it is if it is one.

    What is no token, and any character beyond ASCII, raises BeyondGrammar: a comment could hide a clause (`/*! … */`),
    and what a name beyond ASCII is depends on the session's character set.
    """

    def __init__(self, sql: str, mode: int) -> None:
        self._tokens: list[tuple[str, str, str]] = []
        self.at = at = 0
        while at < len(sql):
            match = _TOKEN.match(sql, at)
            # Nothing is skipped: what was not understood may rename a column.
            if match is None or not match[0].isascii():
                raise BeyondGrammar
            text = match[0]
            at = match.end()
            match match.lastgroup:
                case "quoted":
                    self._tokens.append(("name", "", text[1:-1].replace("``", "`")))
                case "text":
                    self._tokens.append(("text", "", text[1:-1].replace("''", "'")))
                case "double":
                    self._tokens.append(("name" if mode & _ANSI_QUOTES_BIT else "text", "", text[1:-1]))
                case "word":
                    self._tokens.append(("word", text.upper(), text))
                case "number" | "sign" as kind:
                    self._tokens.append((kind, text, text))

    @property
    def is_at_end(self) -> bool:
        return self.at == len(self._tokens)

    def peek(self) -> tuple[str, str]:
        """Kind and text of the next token; two empty texts at the end."""
        return ("", "") if self.is_at_end else self._tokens[self.at][:2]

    def take(self, *texts: str) -> bool:
        """Steps over these words or signs if they stand here."""
        following = self._tokens[self.at : self.at + len(texts)]
        if [text for kind, text, _ in following if kind in ("word", "sign")] != list(texts):
            return False
        self.at += len(texts)
        return True

    def expect(self, *texts: str) -> None:
        """Steps over these words or signs. Raises BeyondGrammar where others stand."""
        if not self.take(*texts):
            raise BeyondGrammar

    def take_one_of(self, *kinds: str) -> str:
        """Steps over a token of one of these kinds; its text. Raises BeyondGrammar where another one stands."""
        kind, text = self.peek()
        if kind not in kinds:
            raise BeyondGrammar
        self.at += 1
        return text

    def take_name(self) -> str:
        """Steps over a name. Raises BeyondGrammar at words that may begin a clause: it is a name in quotes alone."""
        kind, text = self.peek()
        if kind not in ("name", "word") or (kind == "word" and text in _NO_NAMES):
            raise BeyondGrammar
        self.at += 1
        return self._tokens[self.at - 1][2]

    def take_literal(self) -> tuple[str, str]:
        """A number or a text, and which of them it is."""
        kind = self.peek()[0]
        self.take_one_of("number", "text")
        return kind, self._tokens[self.at - 1][2]

    def take_brackets(self) -> list[str]:
        """Steps over what stands in brackets, if anything does; its numbers and texts."""
        depth = 0
        start = self.at
        while not self.is_at_end and (depth or self.peek() == ("sign", "(")):
            depth += {"(": 1, ")": -1}.get(self.peek()[1] if self.peek()[0] == "sign" else "", 0)
            self.at += 1
        if depth:
            raise BeyondGrammar
        return [text for kind, _, text in self._tokens[start : self.at] if kind in ("number", "text")]

    def is_plain_list(self, start: int) -> bool:
        """Whether numbers or texts, with commas between them, are all that stands in the brackets since `start`."""
        within = self._tokens[start + 1 : self.at - 1]
        values = all(kind in ("number", "text") for kind, *_ in within[::2])
        return values and all(token[:2] == ("sign", ",") for token in within[1::2])

    def has_word(self, start: int, word: str) -> bool:
        """Whether the word stands anywhere from the token `start` on."""
        return any(kind == "word" and text == word for kind, text, _ in self._tokens[start:])

    def skip_rest(self) -> None:
        """Steps to the end."""
        self.at = len(self._tokens)

    def skip_part(self) -> None:
        """Steps to the next comma outside of brackets, or the end."""
        while not self.is_at_end and self.peek() != ("sign", ","):
            if self.peek() == ("sign", ")"):
                raise BeyondGrammar
            if self.peek() == ("sign", "("):
                self.take_brackets()
            else:
                self.at += 1
