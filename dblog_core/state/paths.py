"""What every state store asks of a path, and what ZooKeeper asks of a node's data."""

from __future__ import annotations

import zlib

from dblog_core.errors import StateError

MAX_BYTES = 900_000
"""ZooKeeper takes packets of 1 MiB by default; what does not fit must fail here, clearly."""
_LARGE_BYTES = 100_000
"""From here on data is compressed: names of thousands of tables are much alike."""
_PACKED = b"\0z"  # no JSON, and no stream of zlib's, begins like that


def check_path(path: str) -> str:
    """The path itself: names divided by single slashes. Raises StateError on any other shape."""
    if any(part in ("", ".", "..") or "\0" in part for part in path.split("/")):
        raise StateError(f"{path!r} is not a path of the state store", fix="this is a fault in dblog: report it")
    return path


def pack(path: str, data: bytes) -> bytes:
    """What a node of ZooKeeper holds of the data. Raises StateError if it cannot hold it."""
    packed = data if len(data) < _LARGE_BYTES else _PACKED + zlib.compress(data, 1)
    if len(packed) > MAX_BYTES:
        raise StateError(
            f"{len(packed)} bytes do not fit in one entry ({MAX_BYTES} at most)",
            where=path,
            fix="ask for less at once: fewer keys in one dump request",
        )
    return packed


def unpack(packed: bytes) -> bytes:
    """The data of a node."""
    return zlib.decompress(packed[len(_PACKED) :]) if packed.startswith(_PACKED) else packed
