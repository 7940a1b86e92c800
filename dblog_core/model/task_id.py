"""Names one task of a dump; as text, `DUMP/NUMBER`: in watermarks, manifests and logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """`number` counts the tasks of the dump from 0 on; tasks are ordered by dump, then by number."""

    dump: str
    number: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """The task that the text names. Raises ValueError where it names none."""
        dump, _, number = text.partition("/")
        if not dump or not number.isascii() or not number.isdecimal():
            raise ValueError(f"{text!r} names no task of a dump")
        return cls(dump, int(number))

    def __str__(self) -> str:
        return f"{self.dump}/{self.number}"
