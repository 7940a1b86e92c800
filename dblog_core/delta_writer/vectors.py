"""Deletion vectors: which rows of a data file are dead, either inline in the log or in a file that many of them share.

Sources: PROTOCOL.md, "Deletion Vector Descriptor Schema" and "Deletion Vector File Storage Format"; Z85 is ZeroMQ's
RFC 32.

A dead row was replaced by a newer row of its key, or deleted. A tag of the file's `add` counts the replaced ones that
our commits have marked, and maintenance need not hurry to remove these from the file. Others may have been deleted.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from dblog_core.delta_writer.bitmaps import RowSet
from dblog_core.delta_writer.files import TableFiles
from dblog_core.errors import LakeError
from dblog_core.interfaces import Json

_VERSION = b"\x01"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_UUID_DIGITS = 20
_REPLACED = "dblog.replaced"
_FRAME = 8  # bytes about a vector in its file: its size before it, its CRC-32 behind it


def z85_encode(data: bytes) -> str:
    """The text of bytes; their number is a multiple of four."""
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(_DIGITS[word // 85**place % 85] for word in words for place in (4, 3, 2, 1, 0))


def z85_decode(text: str) -> bytes:
    """The bytes of a text. Raises ValueError for one that is none."""
    if len(text) % 5 or not _VALUES.keys() >= set(text):
        raise ValueError(f"{text!r} is no Z85")
    words = []
    for at in range(0, len(text), 5):
        word = 0
        for digit in text[at : at + 5]:
            word = word * 85 + _VALUES[digit]
        words.append(word)
    try:
        return struct.pack(f">{len(words)}I", *words)
    except struct.error as error:  # beyond 32 bits
        raise ValueError(f"{text!r} is no Z85") from error


def unique_id(vector: Json | None) -> str | None:
    """What tells a file with this vector from the same file with another one; None without a vector."""
    if vector is None:
        return None
    name = f"{vector['storageType']}{vector['pathOrInlineDv']}"
    return name if vector.get("offset") is None else f"{name}@{vector['offset']}"


def count_replaced(add: Json) -> int:
    """How many of the rows that the vector of an `add` marks are known to have been replaced."""
    marked = int((add.get("deletionVector") or {}).get("cardinality", 0))
    tag = (add.get("tags") or {}).get(_REPLACED) or ""
    count = int(tag) if tag.isdecimal() else 0
    # Where another program has taken marks away, or the vector, nobody knows which ones are left.
    return count if count <= marked else 0


def tag_replaced(add: Json, count: int) -> None:
    """Has an `add` say that so many of its dead rows have been replaced."""
    others = {name: text for name, text in (add.get("tags") or {}).items() if name != _REPLACED}
    tags = {**others, _REPLACED: str(count)} if count else others
    add.pop("tags", None)
    if tags:
        add["tags"] = tags


@dataclass(frozen=True, slots=True)
class VectorFile:
    """A file of vectors to write: its name in the table, its bytes, and the descriptor of each vector."""

    name: str
    data: bytes
    descriptors: list[Json]


def vector_file(vectors: Sequence[RowSet], name: uuid.UUID) -> VectorFile:
    """One file with all these vectors; no vector is empty."""
    parts = [_VERSION]
    at = 1
    descriptors = []
    path = z85_encode(name.bytes)
    for rows in vectors:
        data = rows.encode()
        descriptors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": path,
                "offset": at,
                "sizeInBytes": len(data),
                "cardinality": len(rows),
            }
        )
        # Big-endian around the bitmap, which is little-endian itself (PROTOCOL.md).
        parts += [struct.pack(">I", len(data)), data, struct.pack(">I", zlib.crc32(data))]
        at += len(data) + _FRAME
    return VectorFile(_file_name(name), b"".join(parts), descriptors)


def read_vector(files: TableFiles, vector: Json) -> RowSet:
    """The rows of a descriptor. Raises LakeError where they cannot be had as they were written."""
    try:
        data, where = _data(files, vector)
    except (ValueError, KeyError) as error:
        raise _damaged_error(str(files), f"its descriptor {vector} cannot be read: {error}") from error
    rows = RowSet.decode(data, where=where)
    if len(rows) != vector["cardinality"]:
        raise _damaged_error(where, f"it has {len(rows)} rows, and the log says {vector['cardinality']}")
    return rows


def path_of(files: TableFiles, vector: Json) -> str | None:
    """The path of the file that holds a vector, in the table; None if it is part of the log. Raises LakeError."""
    if vector["storageType"] == "i":
        return None
    try:
        return _path(files, vector["storageType"], vector["pathOrInlineDv"])
    except ValueError as error:
        raise _damaged_error(str(files), f"its descriptor {vector} cannot be read: {error}") from error


def _data(files: TableFiles, vector: Json) -> tuple[bytes, str]:
    """The bytes of the bitmap, and where they lay."""
    kind = vector["storageType"]
    text = vector["pathOrInlineDv"]
    size = int(vector["sizeInBytes"])
    # The vector itself stands in the log. Its text may be longer: Z85 encodes four bytes at a time.
    if kind == "i":
        return z85_decode(text)[:size], str(files)
    path = _path(files, kind, text)
    # The offset is that of the size in front of the bitmap.
    framed = files.read_part(path, int(vector.get("offset") or 0), size + _FRAME)
    where = files.url(path)
    if framed is None:
        raise _damaged_error(where, "its file is missing")
    body = framed[4:-4]
    if len(framed) != size + _FRAME or struct.unpack(">I", framed[:4])[0] != size:
        raise _damaged_error(where, f"it has another size than the {size} bytes of the log")
    if struct.unpack(">I", framed[-4:])[0] != zlib.crc32(body):
        raise _damaged_error(where, "its checksum is another one")
    return body, where


def _path(files: TableFiles, kind: str, text: str) -> str:
    """The file's path in the table."""
    # u: a file that is named by its id, below an optional directory; p: an absolute path.
    if kind == "u":
        prefix = text[:-_UUID_DIGITS]
        name = uuid.UUID(bytes=z85_decode(text[-_UUID_DIGITS:]))
        return f"{prefix}/{_file_name(name)}" if prefix else _file_name(name)
    if kind == "p" and (path := files.relative(unquote(text))) is not None:
        return path
    raise _damaged_error(str(files), f"storage type {kind!r}, {text!r}, is none that is read here")


def _file_name(name: uuid.UUID) -> str:
    return f"deletion_vector_{name}.bin"


def _damaged_error(where: str, what: str) -> LakeError:
    return LakeError(
        f"a deletion vector cannot be read: {what}",
        where=where,
        fix="restore the table from a backup, or run `dblog reset` for it",
    )
