"""The SQL of a signal's conditions, as far as typed filters say exactly the same; everything else is refused.

    condition   comparison AND comparison …, with or without parentheses
    comparison  column = | < | <= | > | >= value,  column IN (value, …),  column BETWEEN value AND value
    column      a bare or a quoted name ("…" on PostgreSQL, `…` on MySQL and MariaDB)
    value       a number, text in single quotes, TRUE or FALSE

No text of it reaches a server: names are looked up in the table's shape, values are typed and bound.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dblog_core.errors import RequestError
from dblog_core.model.filters import Literal

Comparison = tuple[str, str, Literal | tuple[Literal, ...]]
"""Column, operator, and its value; of `in` its values."""

MAX_CONDITION_CHARS = 8_000  # characters
_FIX = (
    "what can be said: COLUMN = < <= > >= VALUE, COLUMN IN (VALUE, …), COLUMN BETWEEN VALUE AND VALUE, joined by AND; "
    "a value is a number, 'text', TRUE or FALSE"
)
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?![\w.]))"
    r"|(?P<text>'(?:[^'\\]|'')*')"
    r'|(?P<quoted>"(?:[^"]|"")+"|`(?:[^`]|``)+`)'
    r"|(?P<word>[^\W\d][\w$]*)"
    r"|(?P<mark><=|>=|[=<>(),]))"
)
_COMPARED = ("=", "<", "<=", ">", ">=")


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int = -1

    def word(self) -> str:
        return self.text.upper() if self.kind == "word" else ""


_END = _Token("end", "its end")


def parse(text: str, *, kind: str) -> tuple[Comparison, ...]:
    """The comparisons of a condition, all of which must hold. `kind`: of the source, for how it quotes names.

    Raises RequestError.
    """
    if len(text) > MAX_CONDITION_CHARS:
        raise RequestError(f"a condition of {len(text)} characters", fix=f"give {MAX_CONDITION_CHARS} at most")
    return _Reader(text, kind).all()


class _Reader:
    def __init__(self, text: str, kind: str) -> None:
        self._text = text
        self._kind = kind
        self._tokens = list(self._split())
        self._next = 0

    def all(self) -> tuple[Comparison, ...]:
        comparisons = tuple(self._conjunction(0))
        # A rest that nobody has read would be a part of the condition that is not applied.
        if self._peek() is not _END:
            raise self._refusal()
        return comparisons

    def _split(self) -> Iterator[_Token]:
        at = 0
        text = self._text.rstrip()
        while at < len(text):
            if (match := _TOKEN.match(text, at)) is None:
                raise _unmapped(at)
            assert match.lastgroup is not None
            yield _Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup))
            at = match.end()

    def _conjunction(self, depth: int) -> Iterator[Comparison]:
        yield from self._term(depth)
        while self._peek().word() == "AND":
            self._take()
            yield from self._term(depth)

    def _term(self, depth: int) -> Iterator[Comparison]:
        if self._peek().text == "(" and self._peek().kind == "mark" and depth < 20:
            self._take()
            yield from self._conjunction(depth + 1)
            self._expect(")")
            return
        yield from self._comparison()

    def _comparison(self) -> Iterator[Comparison]:
        column = self._column()
        operator = self._take()
        if operator.kind == "mark" and operator.text in _COMPARED:
            yield column, operator.text, self._value()
        elif operator.word() == "IN":
            yield column, "in", self._values()
        elif operator.word() == "BETWEEN":
            # BETWEEN includes both ends.
            yield column, ">=", self._value()
            if self._take().word() != "AND":
                raise self._refusal()
            yield column, "<=", self._value()
        else:
            raise self._refusal()

    def _values(self) -> tuple[Literal, ...]:
        self._expect("(")
        values = [self._value()]
        while self._peek().text == "," and self._peek().kind == "mark":
            self._take()
            values.append(self._value())
        self._expect(")")
        return tuple(values)

    def _column(self) -> str:
        token = self._take()
        postgres = self._kind == "postgres"
        if token.kind == "word" and token.word() not in ("AND", "OR", "NOT", "IN", "BETWEEN", "TRUE", "FALSE", "NULL"):
            return token.text.lower() if postgres else token.text  # as the server folds a bare name
        # In MySQL's usual mode "…" is text, in another one a name: nobody could tell which was meant.
        if token.kind == "quoted" and token.text[0] == ('"' if postgres else "`"):
            quote = token.text[0]
            return token.text[1:-1].replace(quote * 2, quote)
        raise self._refusal()

    def _value(self) -> Literal:
        token = self._take()
        if token.kind == "number":
            return Literal(token.text.removeprefix("+"), quoted=False)
        if token.kind == "text":
            return Literal(token.text[1:-1].replace("''", "'"), quoted=True)
        if token.word() in ("TRUE", "FALSE"):
            return Literal(token.text.lower(), quoted=False)
        raise self._refusal()

    def _expect(self, mark: str) -> None:
        token = self._take()
        if token.kind != "mark" or token.text != mark:
            raise self._refusal()

    def _peek(self) -> _Token:
        return self._tokens[self._next] if self._next < len(self._tokens) else _END

    def _take(self) -> _Token:
        token = self._peek()
        self._next += 1
        return token

    def _refusal(self) -> RequestError:
        refused = (self._tokens[max(self._next - 1, 0) :][:1] or [_END])[0]
        return _unmapped(len(self._text) if refused is _END else refused.at)


def _unmapped(at: int) -> RequestError:
    """With the place alone: the text holds values."""
    return RequestError(f"the condition cannot be mapped at its character {at + 1}", fix=_FIX)
