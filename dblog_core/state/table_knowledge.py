"""How much of what the state store knows of tables stands behind a manifest: a store that was lost, or put back from an
older copy, is recognised by the versions of its nodes.

    stopped, owed     tables of which rows were passed over, or that still lack a dump
    tables, shown     which tables the log was read of, and how
    capture/status    written about once a second while a capture leads: the age of the store as a whole

A manifest keeps the versions that were there before it was published. Nodes are never removed, so their versions only
grow: a smaller one, or none, shows that the store has forgotten something, and nobody can say about which table.
"""

from __future__ import annotations

from collections.abc import Mapping

from dblog_core.interfaces import StateStore
from dblog_core.state import capture_status, owed_dumps, settings_in_force, stopped_tables

Versions = Mapping[str, int]
"""By node."""

_RECORDED = (stopped_tables.NODE, owed_dumps.NODE)
_ALL = (*_RECORDED, settings_in_force.NODE, settings_in_force.SHOWN_NODE, capture_status.NODE)


def read_versions(state: StateStore) -> dict[str, int]:
    """The nodes that there are. Raises StateError."""
    entries = state.get_all(_ALL)
    return {node: entry.version for node, entry in zip(_ALL, entries, strict=True) if entry is not None}


def find_forgotten(state: StateStore, versions: Versions) -> list[str]:
    """The nodes that are gone, or older than these versions. Raises StateError."""
    now = read_versions(state)
    return [node for node, version in versions.items() if now.get(node, -1) < version]


def has_news(state: StateStore, versions: Versions) -> bool:
    """Whether somebody has recorded something of a table since these versions. Raises StateError."""
    now = read_versions(state)
    return any(now.get(node) != versions.get(node) for node in _RECORDED)
