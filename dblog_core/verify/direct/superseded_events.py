"""Which events no answer needs, since a later one of the same key has superseded them.

Every task looks at a key at two places of the log at most: where the source's SELECT certainly was, `settled`, and the
end of its window. So of all events up to `settled` the last one of a key is enough, however often the key has changed.
Two events need those before them. A row of which the log left columns out has their values from earlier events, of its
own key or of the key that it had before. And a row that came from another key has the values of the life that the
delete of that key has ended.
"""

from __future__ import annotations

import numpy as np

from dblog_core.verify.direct.exact_cast import Flags
from dblog_core.verify.direct.hashed_events import Events
from dblog_core.verify.direct.key_numbers import number_keys

_NONE = -1


def find_superseded(events: Events, settled: int) -> Flags:
    """Of events in the order of their offsets those up to the place `settled` that no answer needs."""
    early = int(np.searchsorted(events.offsets, settled, side="right"))
    (keys, old_keys), count = number_keys([events.keys, events.old_keys.cast(events.keys.schema)])
    early_keys = keys[:early]
    numbers = np.arange(early)
    last = np.full(count, _NONE, np.int64)
    last[early_keys] = numbers  # of several for one key the last one stays
    counts = last[early_keys] == numbers
    before_last = np.full(count, _NONE, np.int64)
    before_last[early_keys[~counts]] = numbers[~counts]
    ended = before_last[early_keys[counts & ~events.lives[:early]]]
    counts[ended[ended != _NONE]] = True
    is_followed = np.zeros(count, np.bool_)
    is_followed[early_keys[~events.whole[:early]]] = True
    is_followed[old_keys] = True
    superseded = np.zeros(len(events), np.bool_)
    superseded[:early] = ~(counts | is_followed[early_keys])
    return superseded
