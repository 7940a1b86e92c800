"""The fix that a report prints, read as the person does who types it: statements for the server, an entry of the
configuration, a command of `dblog`, or a new start of the capture.

A fix may name several. `read_fix` takes the first of these kinds that it has in full, in that order; a text that has
none leaves the choice to the person.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dblog_core.model.schema import TableName

_STATEMENT = re.compile(r"(?:SET STATEMENT \w+ = \w+ FOR )?(?:ALTER (?:TABLE|ROLE|PUBLICATION)|GRANT) ")
_ENDS = (", or ", ", give ", ";", "\n", " and ")
"""What no statement of a fix holds outside of its quoted names: there the sentence around it goes on."""
_TEMPLATES = ("(its key's columns)", "…")
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_KEYS = re.compile(rf"\[source\.keys\] ({_QUOTED}) = (?=\[)")
_COLUMNS = re.compile(rf"\[source\.columns\.({_QUOTED})\] (\w+) = (?=[\[{{])")
_COMMAND = re.compile(r"dblog (?:dump|schema|verify|reset|rebuild) ")
_REMOVAL = "remove its lake table"
_RESTART = "start the capture again"


@dataclass(frozen=True, slots=True)
class Statements:
    """Typed at the server, one after the other, by somebody who may."""

    sql: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """An entry in [source.keys] (`rule` is None), or below [source.columns."TABLE"]."""

    table: str
    rule: str | None
    value: Any


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `dblog`, as a shell cuts it."""

    words: tuple[str, ...]

    @property
    def table(self) -> str:
        """The one that it is about."""
        return self.words[self.words.index("--table") + 1] if "--table" in self.words[:-1] else self.words[-1]


@dataclass(frozen=True, slots=True)
class Restart:
    """The capture ends and begins again."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The lake's copy of a table that is gone is removed."""


Fix = Statements | Setting | Command | Restart | Removal


def read_fix(text: str, table: str, kind: str) -> Fix | None:
    """What a report prints as the fix of this table; None where it prints nothing that can be typed as it is."""
    if statements := tuple(_find_statements(text, table, kind)):
        return Statements(statements)
    for fix in (*_find_settings(text, table), *_find_commands(text, table)):
        return fix
    if _REMOVAL in text:
        return Removal()
    return Restart() if _RESTART in text else None


def _find_statements(text: str, table: str, kind: str) -> Iterator[str]:
    """The first complete statement, and those that follow it at once."""
    start = _STATEMENT.search(text)
    while start is not None:
        sql = _cut_statement(text[start.start() :], kind)
        text = text[start.start() + len(sql) :]
        start = _STATEMENT.search(text)
        if any(part in sql for part in _TEMPLATES) or not _is_about(sql, table, kind):
            continue
        yield sql
        if start is None or text[: start.start()] != "; ":
            return


def _cut_statement(text: str, kind: str) -> str:
    """Up to the end of the statement, whatever the quoted names in it hold."""
    quote = '"' if kind == "postgres" else "`"
    is_quoted = False
    for place, character in enumerate(text):
        if character == quote:
            is_quoted = not is_quoted  # a doubled quote ends the name and begins it again
        elif not is_quoted and text.startswith(_ENDS, place):
            return text[:place]
    return text


def _is_about(sql: str, table: str, kind: str) -> bool:
    """Whether a statement for a table is for this one, and for no other whose name only begins with its name."""
    names = tuple(f"ALTER TABLE {name} " for name in _spell(table, kind))
    return "ALTER TABLE " not in sql or any(name in f"{sql} " for name in names)


def _spell(table: str, kind: str) -> Iterator[str]:
    """The table as servers quote it: PostgreSQL leaves plain names as they are."""
    name = TableName.parse(table)
    if kind != "postgres":
        yield ".".join(f"`{part.replace('`', '``')}`" for part in (name.schema, name.name))
        return
    schemas, names = ([part, '"' + part.replace('"', '""') + '"'] for part in (name.schema, name.name))
    yield from (f"{schema}.{last}" for schema in schemas for last in names)


def _find_settings(text: str, table: str) -> Iterator[Setting]:
    for entry in _KEYS.finditer(text):
        columns = _read_value(text[entry.end() :])
        if json.loads(entry[1]) == table and columns and "…" not in columns:
            yield Setting(table, None, columns)
    for entry in _COLUMNS.finditer(text):
        value = _read_value(text[entry.end() :])
        if json.loads(entry[1]) == table and value is not None:
            yield Setting(table, entry[2], value)


def _read_value(text: str) -> Any:
    """The TOML value that the text begins with; None if it begins with none."""
    for end in re.finditer(r"[\]}]", text):
        try:
            return tomllib.loads(f"value = {text[: end.end()]}")["value"]
        except tomllib.TOMLDecodeError:
            continue
    return None


def _find_commands(text: str, table: str) -> Iterator[Command]:
    for start in _COMMAND.finditer(text):
        words = _cut_command(text[start.start() :])
        if words is not None and Command(words).table == table:
            yield Command(words)


def _cut_command(text: str) -> tuple[str, ...] | None:
    """The command up to its backtick, or to the end of the line, unless a quoted name holds either."""
    quote = ""
    for place, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "`\n":
            text = text[:place]
            break
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return None
