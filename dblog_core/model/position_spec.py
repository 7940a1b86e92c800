"""Places in a source's log as people write them: where a first capture begins, and up to where one continues."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from enum import Enum

LATEST = "latest"
INITIAL = "initial"
"""A first capture begins at the log's present end; `initial`: and dumps all tables."""
EARLIEST = "earliest"
WITHOUT_ZONE = "is a time without its zone: end it with Z, or with an offset such as +01:00"


class Form(Enum):
    """How a place is named."""

    EARLIEST = "the oldest log that the server still has"
    TIME = "a time of commits"
    FILE = "a binlog file and an offset in it"
    GTIDS = "the transactions before it"
    LSN = "an LSN"


@dataclass(frozen=True, slots=True)
class Place:
    """`text`: as it was written; `time`: microseconds since 1970 UTC, of a TIME."""

    form: Form
    text: str
    time: int = 0

    def __str__(self) -> str:
        return self.text

    @property
    def file(self) -> tuple[str, int]:
        """File and offset, of a FILE."""
        name, _, offset = self.text.rpartition(":")
        return name, int(offset)


_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_PART = rf"\s*{_UUID}(\s*:\s*[a-z_][a-z0-9_]{{0,31}})?(\s*:\s*\d+(-\d+)?(\s*:\s*[a-z_][a-z0-9_]{{0,31}})?)+\s*"
_FILE = (re.compile(r"[^\s:,/]+\.\d+:\d{1,18}"), Form.FILE)
_MYSQL = (re.compile(rf"{_PART}(,{_PART})*"), Form.GTIDS)
_MARIADB = (re.compile(r"\s*\d+-\d+-\d+\s*(,\s*\d+-\d+-\d+\s*)*"), Form.GTIDS)
_LSN = (re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}"), Form.LSN)
_FORMS = {"mysql": (_FILE, _MYSQL), "mariadb": (_FILE, _MARIADB), "postgres": (_LSN,)}
KINDS = frozenset(_FORMS)
_EXAMPLES = {
    "mysql": "binlog.000012:4567, or a GTID set such as 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77",
    "mariadb": "binlog.000012:4567, or a GTID position such as 0-1-77",
    "postgres": "an LSN such as 0/16B3748",
}
_TIME = re.compile(r"\d{4}-\d\d-\d\d([Tt ].*)?")


def parse(text: str, kind: str) -> Place:
    """The place that `text` means in the log of a source of this kind. Raises ValueError, without the text."""
    if text == EARLIEST:
        return Place(Form.EARLIEST, text)
    for pattern, form in _FORMS[kind]:
        if pattern.fullmatch(text):
            return Place(form, text)
    if _TIME.fullmatch(text):
        return Place(Form.TIME, text, _moment(text))
    raise ValueError(f"is no place in the log of {kind}: {forms(kind)}")


def forms(kind: str) -> str:
    """What may be written, in words."""
    return f"{_EXAMPLES[kind]}, or a time with its zone, such as 2026-11-20T10:00:00Z"


def _moment(text: str) -> int:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is no time in ISO 8601, such as 2026-11-20T10:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError(WITHOUT_ZONE)
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def in_words(micros: int) -> str:
    """A time as it may be written."""
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)
    return moment.isoformat().replace("+00:00", "Z")
