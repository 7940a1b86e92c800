"""Which keys are read again, and what is said of them in the end. Pure.

A key is a suspect until a reading finds it equal. It is a difference once `READINGS` readings have found it different
in whichever way, and the last reading is reported. A reading that leaves it undecided counts neither way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dblog_core.verify.judge.comparison import Verdict

READINGS = 2
"""How often a key has to be found different before that is reported."""


class Kind(StrEnum):
    """What is wrong with a key: the lists of a `Verdict`."""

    MISSING = "missing"  # in the source, not in the lake
    EXTRA = "extra"  # in the lake alone
    DIFFERENT = "different"
    TWICE = "twice"  # several rows of the lake have it
    UNDECIDED = "undecided"  # it changed while it was read


@dataclass(slots=True)
class _Suspect:
    key: Any
    kind: Kind = Kind.UNDECIDED
    times_different: int = 0


@dataclass(slots=True)
class Suspects:
    """The keys of one table that no reading has found equal yet."""

    _open: dict[str, _Suspect] = field(default_factory=dict)
    _decided: dict[str, _Suspect] = field(default_factory=dict)

    def record_verdict(self, verdict: Verdict) -> None:
        """A reading of all open keys; the first one is of all keys there are."""
        before = self._open
        # Whatever this reading no longer names is equal, and no suspect.
        self._open = {}
        for kind in Kind:
            for key in getattr(verdict, kind):
                name = repr(key)
                suspect = before.get(name) or _Suspect(key)
                # An undecided reading proves nothing, so it leaves the count of the earlier ones as it is.
                if kind is not Kind.UNDECIDED:
                    suspect.kind = kind
                    suspect.times_different += 1
                (self._decided if suspect.times_different >= READINGS else self._open)[name] = suspect

    def decide_open_differences(self) -> None:
        """Tells what was found once, of all that is open: for readings that were whole twice."""
        for name, suspect in list(self._open.items()):
            if suspect.times_different:
                self._decided[name] = self._open.pop(name)

    @property
    def open_keys(self) -> list[Any]:
        """Keys (JSON) to read again."""
        return [suspect.key for suspect in self._open.values()]

    def keys_of_kind(self, kind: Kind) -> list[Any]:
        """Keys (JSON) that differ in this way for certain; UNDECIDED: those still open."""
        if kind is Kind.UNDECIDED:
            return self.open_keys
        return [suspect.key for suspect in self._decided.values() if suspect.kind is kind]
