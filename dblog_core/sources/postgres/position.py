"""LSNs: places in PostgreSQL's write-ahead log. A resume position is the LSN right after the last whole transaction.

A START_REPLICATION from there sends every transaction whose *commit record* begins at or after it, in commit order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dblog_core.errors import LogPositionLost

# Bytes; a segment's first page has the longer header.
_PAGE = 8192
_HEADERS = (24, 40)
_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


class Lsn(int):
    """A byte position in the write-ahead log; prints as the server does (`16/B374D848`)."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """The LSN of the server's text form. Raises LogPositionLost for text that is none."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise LogPositionLost(
                f"{text!r} is not a PostgreSQL log position",
                fix="the staging belongs to another kind of source: begin with an empty one and a full dump",
            )
        return cls((int(match[1], 16) << 32) | int(match[2], 16))

    def end_of_record(self) -> Lsn:
        """Where the last record ends that lies before this insert position. Right after a page's header no record of
        that page is there yet: the last one ended where the page before did, and nobody reads further."""
        return Lsn(self - self % _PAGE) if self % _PAGE in _HEADERS else self

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"Lsn({self})"


@dataclass(frozen=True, slots=True)
class Point:
    """A position: an LSN, and the timeline that it is of; None where that was not known. Prints as `16/B374D848@2`."""

    lsn: Lsn
    timeline: int | None = None

    @classmethod
    def parse(cls, text: str) -> Point:
        """Reads its own text, and a plain LSN. Raises LogPositionLost."""
        lsn, at, timeline = text.partition("@")
        has_timeline = at and timeline.isdecimal()
        return cls(Lsn.parse(lsn), int(timeline)) if has_timeline else cls(Lsn.parse(text))

    def __str__(self) -> str:
        return str(self.lsn) if self.timeline is None else f"{self.lsn}@{self.timeline}"
