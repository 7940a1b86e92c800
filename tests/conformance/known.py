"""Findings of this suite that are not mended yet, each with its reason: what they make is no failure of a run.

Take an entry out to see the finding; an entry goes with the commit that mends it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """A pattern of what the verdict says, on those kinds of servers; and why it is so."""

    says: str
    on: tuple[str, ...]
    why: str

    def means(self, fault: str) -> bool:
        """Whether a fault is this one."""
        return re.search(self.says, fault, re.DOTALL) is not None


KNOWN: tuple[Known, ...] = ()


def known(kind: str) -> list[Known]:
    """Those of a kind of server."""
    return [entry for entry in KNOWN if kind in entry.on]
