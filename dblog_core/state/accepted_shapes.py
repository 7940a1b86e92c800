"""What was accepted of the captured tables, in the table records: 64 entries by the checksum of a table's name, so that
one that changes has few others written again. The first is there, if empty, wherever columns are hidden.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import orjson

from dblog_core.interfaces import Nodes
from dblog_core.rows.acceptance import Acceptance, Acceptances

NODES = tuple(f"accepted/{place:02}" for place in range(64))
_NONE = b""
"""Of the first entry, where no column is hidden any longer."""


def read(records: Nodes) -> Acceptances | None:
    """All acceptances, by table; None where nothing has been accepted, or no column is hidden."""
    if _data(records, NODES[0]) == _NONE:
        return None
    acceptances: Acceptances = {}
    for node in NODES:
        acceptances |= _load(_data(records, node))
    return acceptances


def find(records: Nodes, table: str) -> Acceptance | None:
    """That of one table. `records` may have `node_of` the table alone."""
    return _load(_data(records, node_of(table))).get(table)


def save(records: Nodes, acceptances: Mapping[str, Acceptance] | None) -> None:
    """Remembers these acceptances, and no others; None: no column is hidden."""
    groups: dict[str, dict[str, list[str]]] = {} if acceptances is None else {NODES[0]: {}}
    for table, acceptance in sorted((acceptances or {}).items()):
        groups.setdefault(node_of(table), {})[table] = acceptance.to_json()
    for node in NODES:
        data = zlib.compress(orjson.dumps(groups[node])) if node in groups else _NONE
        entry = records.get(node)
        if entry is None and node in groups:
            records.create(node, data)
        elif entry is not None and entry.data != data:
            records.update(node, data, entry.version)


def node_of(table: str) -> str:
    """The entry that has a table."""
    return NODES[zlib.crc32(table.encode()) % len(NODES)]


def _data(records: Nodes, node: str) -> bytes:
    entry = records.get(node)
    return _NONE if entry is None else entry.data


def _load(data: bytes) -> Acceptances:
    tables = orjson.loads(zlib.decompress(data)) if data else {}
    return {table: Acceptance.from_json(values) for table, values in tables.items()}
