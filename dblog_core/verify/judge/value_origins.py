"""Rows of which the log has left columns out (unchanged TOAST values of PostgreSQL): where each of their values is.

The events of the asked keys, and of the keys that their rows had before, are followed in their order. Of each key that
lives it is known for every column whether its value is in an event, in a row of the lake, or nowhere: such a row is
withheld by a merge, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dblog_core.verify.judge.expected_state import NOWHERE
from dblog_core.verify.judge.hashed_rows import Numbers

Origins = Sequence[int]
"""By column the number of the image that has its value."""


def related_keys(new_keys: Numbers, old_keys: Numbers, keys: Numbers, count: int) -> Numbers:
    """The `keys`, and those from which a row of them came with a value that the log left out. `old_keys`, `new_keys`:
    of each such change of key."""
    related = np.zeros(count, np.bool_)
    related[keys] = True
    while True:
        more = old_keys[related[new_keys]]
        if related[more].all():
            return np.flatnonzero(related)
        related[more] = True


@dataclass(slots=True)
class Walk:
    """The keys that live, and those whose last event was their death, with the row that it ended.

    `lake`: by key the number of the image that is its row in the lake, and that row's offset.
    """

    columns: int
    lake: Mapping[int, tuple[int, int]]
    live: dict[int, Origins] = field(default_factory=dict)
    dead: dict[int, Origins] = field(default_factory=dict)

    def follow(self, events: Iterable[tuple[int, int, int, bool, bool, int, Sequence[bool]]]) -> None:
        """`events`: key, offset, image, whether the row lives and is born, the key before, and by column whether the
        event has its value."""
        for key, offset, image, lives, born, old_key, has_value in events:
            if key in self.lake and self.lake[key][1] >= offset:
                continue  # a merge that is under way has it already
            if not lives:
                ended = self.live.pop(key) if key in self.live else self._of_lake(key)
                self.dead[key] = self._unknown if key in self.dead else ended
                continue
            before = self._row_before(key, offset, born=born, old_key=old_key)
            self.dead.pop(key, None)
            self.live[key] = [image if is_here else origin for is_here, origin in zip(has_value, before, strict=True)]

    def row_of(self, key: int) -> Origins | None:
        """Where its values are; None for a key that does not live, or whose row lacks a value."""
        if key in self.dead:
            return None
        origins = self.live.get(key) or self._of_lake(key)
        return None if NOWHERE in origins else origins

    def _row_before(self, key: int, offset: int, *, born: bool, old_key: int) -> Origins:
        if born and old_key == NOWHERE:
            return self._unknown
        if born:
            if (last_life := self.dead.get(old_key) or self.live.get(old_key)) is not None:
                return last_life
            # A later row of the old key is another one.
            is_later = old_key in self.lake and self.lake[old_key][1] >= offset
            return self._unknown if is_later else self._of_lake(old_key)
        return self._unknown if key in self.dead else self.live.get(key) or self._of_lake(key)

    def _of_lake(self, key: int) -> Origins:
        return (self.lake.get(key, (NOWHERE, 0))[0],) * self.columns

    @property
    def _unknown(self) -> Origins:
        return (NOWHERE,) * self.columns
