"""The super-changelog in pieces that an output takes at once: pure, and it knows where a transaction ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dblog_core.interfaces import Json
from dblog_core.model.events import FINISHED, REFRESH, SCHEMA


@dataclass(frozen=True, slots=True)
class Part:
    """Lines that go together. `ends`: no transaction continues after them."""

    lines: tuple[Json, ...]
    ends: bool


def split_parts(lines: Iterable[Json], rows: int, *, until: int | None = None) -> Iterator[Part]:
    """All of the lines, which end between transactions, in parts of `rows` lines or a few more.

    A part that has its lines continues to the end of its transaction, unless that takes as many lines again. `until`: a
    part ends after that offset, as one did before.
    """
    part: list[Json] = []
    open_transaction: str | None = None
    for line in lines:
        ended = _ends_transaction(line, open_transaction)
        if len(part) >= (rows if ended else 2 * rows) or (part and until and _lies_between(until, part[-1], line)):
            yield Part(tuple(part), ended)
            part = []
        part.append(line)
        open_transaction = _open_after(line, open_transaction)
    # The caller's lines end between transactions, so the last part does too.
    if part:
        yield Part(tuple(part), True)


def split_singly(part: Part) -> Iterator[Part]:
    """Each line alone."""
    last = len(part.lines) - 1
    return (Part((line,), part.ends and number == last) for number, line in enumerate(part.lines))


def _ends_transaction(line: Json, transaction: str | None) -> bool:
    """Whether the line lies outside the transaction. A new shape has none, and may lie inside one."""
    # Rows and ends of dumps are placed between transactions only.
    if transaction is None or line["op"] in (REFRESH, FINISHED):
        return True
    ended: bool = line["op"] != SCHEMA and line["transaction"] != transaction
    return ended


def _lies_between(until: int, last: Json, line: Json) -> bool:
    before = int(last["offset"])
    after = int(line["offset"])
    return before <= until < after


def _open_after(line: Json, transaction: str | None) -> str | None:
    if line["op"] in (REFRESH, FINISHED):
        return None
    return transaction if line["op"] == SCHEMA else line["transaction"]
