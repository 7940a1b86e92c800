"""Forms of statements, read from text (`mysql.sql`, `postgres.sql`), and the cases that are made of them by a seed.

A form begins with a line `== NAME`, and may go on with lines of its own:

    = only KIND KIND        the kinds of servers that have it
    = plain                 its names are simple, since its text goes by them
    = named T TEXT          what the name of table <t> ends with
    = stops T: PATTERN      table <t> has to be told of, in such words, the fix included
    = may stop T: PATTERN   or may be
    = chosen STATEMENT      of the table before: what the person chooses where the report prints no complete fix
    = rules JSON            or an entry below [source.columns."TABLE"] whose settings and columns the report names

Then come statements, one a line; a line that begins with blanks goes on with the one before. In front of a statement
may stand, in any order:

    ?        it is left out half of the time
    !        the server may refuse it
    2|       it runs in the case's second session (and so on)
    [mysql]  only on that kind of server; [generated]: only on servers that log generated columns
    {gbk}    the client sends its text in that codec of Python

In it `<t>`, `<u>`, `<v>`, `<w>` are tables of the case (`<tt>`: the first in the other case), `<c>` to `<f>` columns,
`<p1>` and so on partitions, `<o1>` other objects, `<x1>` other databases (PostgreSQL: schemas), `<db>` the usual one,
`<user>` the user of the capture, `<xid1>` XA transactions; names are quoted. `<int>`, `<text>` and other `values` are
values, another one at each place.
What stands behind ` <<< ` is a file that the statement reads, whose name stands at `<file>`.
"""

from __future__ import annotations

import json
import random
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Make = Callable[[random.Random], str]

_LINE = re.compile(r"(?P<flags>(?:\?|!|\d\||\[\w+\]|\{[\w-]+\}|\s)*)(?P<sql>.*)", re.DOTALL)
_FLAG = re.compile(r"\?|!|(\d)\||\[(\w+)\]|\{([\w-]+)\}")
_HOLE = re.compile(r"<(\w+)>")
_WORD = re.compile(r"([a-z]+)(\d*)")
_FILE = " <<< "

WORST = (
    "it's",
    'say "hi"',
    "back`tick",
    "dot.ted",
    "sp ace",
    "per%cent",
    "%s",
    "日本 é",
    "UPPER",
    "Mixed",
    "a-b",
    "q?mark",
    "st*ar",
    "semi;colon",
    "back\\slash",
    "$dollar",
    "#hash",
    "--dash",
    "/*open",
    "{brace}",
    "sla/sh",
    "co:lon",
    "a=b",
    "[br]",
    "(par)",
    "com,ma",
    "tab\tbed",
    "new\nline",
    "__history",
    "trailing.",
)
"""Parts of names that some quoting, some path or some pattern may not stand."""
COLUMNS = (
    "select",
    "key",
    "op",
    "offset",
    "before",
    "after",
    "position",
    "table",
    "_dblog",
    "value",
    "Offset",
    "a b",
    "a.b",
    "a`b",
    'a"b',
    "a'b",
    "a,b",
    "a;b",
    "{}",
    "()",
    "a\tb",
    "a\nb",
    "a=b",
    "%d",
    "é",
    "日本",
    "row_hash",
    "unchanged",
    "commit_time",
    "moved_from",
)
"""Names of columns: those of our own files and lines, and what no quoting may lose."""


@dataclass(frozen=True, slots=True)
class Stop:
    """That a table of a case has to be told of (`always`), or may be: by name, with a fix that works."""

    table: str
    says: str
    chosen: tuple[str, ...] = ()
    rules: Mapping[str, Any] | None = None
    always: bool = True

    def means(self, text: str) -> bool:
        """Whether a report says what is expected."""
        return re.search(self.says, text, re.DOTALL) is not None

    def find_named_rules(self, text: str) -> dict[str, Any]:
        """Those of its rules whose setting and column the text names."""
        rules = dict[str, Any]()
        for rule, columns in (self.rules or {}).items():
            named = [c for c in columns if rule in text and re.search(rf"\b{re.escape(c)}\b", text)]
            if named:
                rules[rule] = {c: columns[c] for c in named} if isinstance(columns, dict) else named
        return rules


@dataclass(frozen=True, slots=True)
class Form:
    """A piece of SQL with holes."""

    name: str
    text: str
    only: tuple[str, ...] = ()
    stops: tuple[Stop, ...] = ()
    plain: bool = False
    named: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """A statement. `file`: what it reads."""

    sql: str
    session: int = 1
    may_fail: bool = False
    codec: str | None = None
    file: str | None = None


@dataclass(slots=True)
class Case:
    """A form with its holes filled. `tables`: names by letter. `early`: so many steps run before the capture begins."""

    number: int
    form: Form
    steps: list[Step]
    tables: dict[str, str]
    stops: list[Stop] = field(default_factory=list)
    early: int = 0

    @property
    def script(self) -> str:
        """Its statements, for a person who runs them again."""
        return "\n".join(f"  {step.session}| {step.sql}" for step in self.steps)


class Maker:
    """Makes cases on one server. `values`: how to make what fills a hole, by its name."""

    def __init__(
        self, kind: str, database: str, draw: random.Random, values: Mapping[str, Make], *, logs_generated: bool = True
    ) -> None:
        self.kind = kind
        self._only = {kind, "generated"} if logs_generated else {kind}
        self._database = database
        self._draw = draw
        self._values = values
        self._longest = 63 if kind == "postgres" else 64
        self._names: dict[str, str] = {}
        self._number = 0

    def case(self, form: Form) -> Case:
        """The form, filled anew."""
        self._number += 1
        self._names = {}
        self._plain = form.plain
        self._named = dict(form.named)
        steps = [step for line in _statements(form.text) if (step := self._step(line)) is not None]
        tables = {letter: name for letter, name in self._names.items() if letter in "tuvw"}
        stops = [self._stop(stop) for stop in form.stops]
        early = self._draw.randint(0, len(steps)) if self._draw.random() < 0.3 else 0
        if stops:  # a first capture refuses to begin with what it cannot capture
            early = 0
        return Case(self._number, form, steps, tables, stops, early)

    def quote(self, name: str) -> str:
        """A name in SQL."""
        return quote_name(self.kind, name)

    def _step(self, line: str) -> Step | None:
        match = _LINE.fullmatch(line)
        assert match is not None
        session = 1
        may_fail = False
        codec = None
        for flag in _FLAG.finditer(match["flags"]):
            if flag[0] == "?" and self._draw.random() < 0.5:
                return None
            if flag[2] and flag[2] not in self._only:
                return None
            session = int(flag[1] or session)
            codec = flag[3] or codec
            may_fail = may_fail or flag[0] == "!"
        sql, _, file = match["sql"].partition(_FILE)
        text = file.replace("\\t", "\t").replace("\\n", "\n").replace("\\r", "\r") if file else None
        return Step(self.fill(sql), session, may_fail, codec, text)

    def _stop(self, stop: Stop) -> Stop:
        chosen = tuple(self.fill(text) for text in stop.chosen)
        return Stop(self._names[stop.table], stop.says, chosen, stop.rules, stop.always)

    def fill(self, text: str) -> str:
        """The text with names and values in its holes."""
        return _HOLE.sub(self._fill_hole, text)

    def _fill_hole(self, hole: re.Match[str]) -> str:
        if (make := self._values.get(hole[1])) is not None:
            return make(self._draw)
        match = _WORD.fullmatch(hole[1])
        assert match is not None, hole[0]
        if match[1] == "file":
            return "'file'"
        if match[1] == "xid":
            return f"'{self._database}_{self._number}_{match[2]}'"
        return self.quote(self._name(match[1], match[2]))

    def _name(self, letter: str, number: str) -> str:
        match letter:
            case "db":
                return self._database
            case "user":
                return f"dblog_{self._database}"
            case "x":
                return f"{'s' if self.kind == 'postgres' else self._database}_{self._number}_{number}"
            case "o":
                return f"o{self._number}_{number}_{self._database[-4:]}"  # some are the whole server's
            case "c" | "d" | "e" | "f":
                return self._column(letter + number)
            case "p":
                return f"c{self._number}part{number}"
            case "t" | "u" | "v" | "w":
                return self._table(letter)
            case "tt":
                return self._table("t").swapcase()
        raise AssertionError(f"nothing fills <{letter}{number}>")

    def _table(self, letter: str) -> str:
        if letter not in self._names:
            name = f"c{self._number}{letter}{self._named.get(letter, '')}"
            if not self._plain and letter not in self._named and self._draw.random() < 0.35:
                name += " " * self._draw.randrange(2) + self._draw.choice(WORST)
                if self._draw.random() < 0.2:
                    name = (name + "_" + "é" * 70)[: self._longest] if self.kind != "postgres" else name.ljust(50, "x")
            self._names[letter] = name
        return self._names[letter]

    def _column(self, letter: str) -> str:
        key = f"column {letter}"
        if key not in self._names:
            free = [name for name in COLUMNS if name not in self._names.values()]
            self._names[key] = letter if self._plain else self._draw.choice(free)
        return self._names[key]


def quote_name(kind: str, name: str) -> str:
    """A name in SQL of that kind of server."""
    if kind == "postgres":
        return '"' + name.replace('"', '""') + '"'
    return "`" + name.replace("`", "``") + "`"


def _statements(text: str) -> Iterator[str]:
    statement = ""
    for line in text.strip("\n").splitlines():
        if line[:1].isspace():
            statement += "\n" + line.strip()
            continue
        if statement:
            yield statement
        statement = line.strip()
    if statement:
        yield statement


def woven(
    cases: Sequence[Case],
    draw: random.Random,
    *,
    together: int = 6,
    ready: Callable[[Case, Step], bool] = lambda _case, _step: True,
) -> Iterator[tuple[Case, Step]]:
    """The steps of all cases after their early ones, so many cases at a time, each in its own order.

    A case whose next step is not `ready` waits for the others; where none is ready, any goes on.
    """
    waiting = [(case, deque(case.steps[case.early :])) for case in cases]
    waiting = [(case, steps) for case, steps in waiting if steps]
    draw.shuffle(waiting)
    open_: list[tuple[Case, deque[Step]]] = []
    while waiting or open_:
        while waiting and len(open_) < together:
            open_.append(waiting.pop())
        case, steps = draw.choice([(case, steps) for case, steps in open_ if ready(case, steps[0])] or open_)
        yield case, steps.popleft()
        for _ in range(draw.choice((0, 0, 1, 4))):
            if steps and ready(case, steps[0]):
                yield case, steps.popleft()
        if not steps:
            open_.remove((case, steps))


def read_forms(file: Path, kind: str) -> list[Form]:
    """The forms of a file that a kind of server has."""
    _, *parts = re.split(r"^== ", file.read_text(), flags=re.MULTILINE)
    return [form for form in map(_form, parts) if not form.only or kind in form.only]


def _form(text: str) -> Form:
    name, _, rest = text.partition("\n")
    form = Form(name, "")
    while rest.startswith("= "):
        line, _, rest = rest.partition("\n")
        form = _with(form, line[2:])
    return replace(form, text=rest)


def _with(form: Form, line: str) -> Form:
    word, _, rest = line.partition(" ")
    if line == "plain":
        return replace(form, plain=True)
    if word == "named":
        letter, _, text = rest.partition(" ")
        return replace(form, named=(*form.named, (letter, text)))
    if word == "only":
        return replace(form, only=tuple(rest.split()))
    if word in ("stops", "may"):
        table, _, says = rest.removeprefix("stop ").partition(": ")
        return replace(form, stops=(*form.stops, Stop(table, says, always=word == "stops")))
    *others, last = form.stops
    if word == "chosen":
        last = replace(last, chosen=(*last.chosen, rest))
    else:
        assert word == "rules", line
        last = replace(last, rules=json.loads(rest))
    return replace(form, stops=(*others, last))
