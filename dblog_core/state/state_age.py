"""Whether the state store is the one that a manifest was published beside, or a later one of it.

The age grows with each term of a capture, and about once a second while it leads. A smaller one, or none, shows a store
that was lost, or put back from an older copy: dumps that were requested meanwhile are gone.
"""

from __future__ import annotations

from dblog_core.interfaces import StateStore
from dblog_core.state import capture_status
from dblog_core.state.compare_and_set import put_news

_TERMS = "capture/terms"
_NODES = (_TERMS, capture_status.NODE)
"""They are never removed, so their versions only grow."""


def advance(state: StateStore, epoch: int) -> None:
    """A term begins, of the lease with this epoch. Raises StateError."""
    put_news(state, _TERMS, epoch)


def read_age(state: StateStore) -> int:
    """The present age; 0: no term has begun with this store. Raises StateError."""
    return sum(entry.version + 1 for entry in state.get_all(_NODES) if entry is not None)


def has_gone_back(state: StateStore, age: int) -> bool:
    """Whether the store is younger than it was at that age. Raises StateError."""
    return read_age(state) < age
