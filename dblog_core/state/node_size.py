"""Nodes of many tables with a text each: ZooKeeper takes a million bytes at most, and thousands of tables may have one
fault in common."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from dblog_core.interfaces import Json

LARGEST_BYTES = 900_000
_LENGTHS = (500, 150, 50, 0)


def shorten_texts(entries: Mapping[str, Json], *fields: str) -> dict[str, Json]:
    """The entries of a node, by table, with these texts as long as all of them find room, and at most as they are."""
    shortened = dict(entries)
    for longest in _LENGTHS:
        if len(orjson.dumps(shortened)) <= LARGEST_BYTES:
            break
        shortened = {table: _shorten(entry, fields, longest) for table, entry in entries.items()}
    return shortened


def _shorten(entry: Json, fields: tuple[str, ...], longest: int) -> Json:
    return {name: value[:longest] if name in fields else value for name, value in entry.items()}
