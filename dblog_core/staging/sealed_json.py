"""JSON objects with a checksum over all before it as their last member, so that a cut or flipped bit shows."""

from __future__ import annotations

import hashlib
import re

from dblog_core.errors import CorruptSegment

_SEAL = re.compile(rb',"checksum":"([0-9a-f]{32})"\}\n')
_SEAL_SIZE = len(b',"checksum":""}\n') + 32


def seal(body: bytes) -> bytes:
    """The JSON object as one line, with its checksum."""
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    return body[:-1] + f',"checksum":"{digest}"}}\n'.encode()


def unseal(data: bytes, where: str) -> bytes:
    """The JSON object of such a line. Raises CorruptSegment unless it is whole."""
    body = data[:-_SEAL_SIZE] + b"}"
    checksum = _SEAL.fullmatch(data[-_SEAL_SIZE:])
    if checksum is None or hashlib.blake2b(body, digest_size=16).hexdigest().encode() != checksum[1]:
        raise CorruptSegment("was cut short or altered", where=where, fix="restore the file from a backup")
    return body
