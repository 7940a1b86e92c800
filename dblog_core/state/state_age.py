"""Whether the state store is the one that a manifest was published beside, or a later one of it.

A capture writes its status about once a second, and never removes it, so the version of that node only grows. A smaller
one, or none, shows a store that was lost, or put back from an older copy: dumps that were requested meanwhile are gone.
"""

from __future__ import annotations

from dblog_core.interfaces import StateStore
from dblog_core.state import capture_status


def read_version(state: StateStore) -> int:
    """The present age; 0: it has none. Raises StateError."""
    entry = state.get(capture_status.NODE)
    return 0 if entry is None else entry.version + 1


def has_gone_back(state: StateStore, version: int) -> bool:
    """Whether the store is older than it was at that version. Raises StateError."""
    return read_version(state) < version
