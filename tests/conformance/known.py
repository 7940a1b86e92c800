"""Findings of this suite that are not mended yet, each with its reason: what they make is no failure of a run.

Take an entry out to see the finding; an entry goes with the commit that mends it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A pattern of what the verdict says, or of forms' names (`form`: they are left out, since they end more than their
    own tables); on which kinds of servers, and why it is so."""

    says: str
    on: tuple[str, ...]
    why: str
    form: bool = False

    def means(self, text: str) -> bool:
        """Whether a fault, or a form, is this one."""
        return re.search(self.says, text, re.DOTALL) is not None


KNOWN: tuple[Known, ...] = (
    Known(
        r"partitions: ALTER TABLE `[^`]*/|\.[^ ]*/[^ ]* differs, and nobody says so: the source has no such table",
        ("mariadb",),
        "MariaDB 10.11.19 loses a partitioned table with a slash in its name at its first ALTER TABLE … PARTITION: the "
        "statement fails with error 1049, the table is gone, and the binlog has no event of it. Names of the form "
        "`made partitions into tables` are simple for that reason",
    ),
)


def list_known(kind: str) -> list[Known]:
    """What the verdict may say on a kind of server."""
    return [entry for entry in KNOWN if kind in entry.on and not entry.form]


def is_left_out(form: str, kind: str) -> bool:
    """Whether a form cannot run on a kind of server yet."""
    return any(entry.means(form) for entry in KNOWN if kind in entry.on and entry.form)
