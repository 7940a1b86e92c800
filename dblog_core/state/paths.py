"""What every state store asks of a path and of a node's data, so that all refuse the same."""

from __future__ import annotations

from dblog_core.errors import StateError

MAX_BYTES = 900_000
"""ZooKeeper takes packets of 1 MiB by default; what does not fit must fail here, clearly, with every store."""


def check_path(path: str) -> str:
    """The path itself: names divided by single slashes. Raises StateError on any other shape."""
    if any(part in ("", ".", "..") or "\0" in part for part in path.split("/")):
        raise StateError(f"{path!r} is not a path of the state store", fix="this is a fault in dblog: report it")
    return path


def check_size(path: str, data: bytes) -> bytes:
    """The data itself. Raises StateError if a node cannot hold it."""
    if len(data) > MAX_BYTES:
        raise StateError(
            f"{len(data)} bytes do not fit in one entry ({MAX_BYTES} at most)",
            where=path,
            fix="ask for less at once: fewer keys in one dump request",
        )
    return data
