"""Dumps of the system's that have failed, until the capture has taken up that it owes their tables a dump.

Node `failed/ID`, made by any process before the end of dump ID is recorded, and removed once a manifest carries what is
owed (`owed_dumps`). Why it has failed stands with the dump.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from dblog_core.errors import VersionConflict
from dblog_core.interfaces import StateStore

_NODE = "failed"


def add(state: StateStore, dump: str) -> None:
    """The dump is about to fail. Raises StateError."""
    with contextlib.suppress(VersionConflict):  # an earlier try has filed it
        state.create(f"{_NODE}/{dump}", b"")


def read(state: StateStore) -> list[str]:
    """The dumps that are not taken up yet. Raises StateError."""
    return state.children(_NODE)


def forget(state: StateStore, dumps: Iterable[str]) -> None:
    """These are taken up. Raises StateError."""
    for dump in dumps:
        state.delete(f"{_NODE}/{dump}")
