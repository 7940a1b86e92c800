"""The request for all that a MySQL server has beside a set of transactions (COM_BINLOG_DUMP_GTID).

It is made here because mysql-replication knows no tags, and a position with tags is only right by GTID too: after a
failover the files and offsets are another server's.
"""

from __future__ import annotations

import struct
import uuid

from dblog_core.sources.mysql.position import MysqlGtids

_COMMAND = 0x1E
_NON_BLOCKING = 0x01
_THROUGH_GTID = 0x04
_FIRST_EVENT = 4
_TAGGED = 1
"""The format of sets with tags; it stands in the first and the last byte of the count, which is six bytes then."""


def build_packet(gtids: MysqlGtids, *, identity: int, blocking: bool) -> bytes:
    """The packet, with its header."""
    flags = _THROUGH_GTID | (0 if blocking else _NON_BLOCKING)
    listed = encode_gtids(gtids)
    # With GTIDs the server picks the file itself; a name of length 0 leaves it the choice.
    no_file = struct.pack("<I", 0)
    body = struct.pack("<BHI", _COMMAND, flags, identity) + no_file
    body += struct.pack("<QI", _FIRST_EVENT, len(listed)) + listed
    return len(body).to_bytes(3, "little") + b"\0" + body


def encode_gtids(gtids: MysqlGtids) -> bytes:
    """The set as the server reads it: half-open intervals by owner."""
    count = len(gtids.intervals)
    tagged = gtids.has_tags
    # A count of 8 bytes; with tags 6, between two bytes that say so.
    parts = [struct.pack("<Q", (_TAGGED << 56) | (count << 8) | _TAGGED if tagged else count)]
    for owner, intervals in sorted(gtids.intervals.items()):
        server, _, tag = owner.partition(":")
        parts.append(uuid.UUID(server).bytes)
        if tagged:
            parts.append(bytes([len(tag) << 1]) + tag.encode())  # a length of up to 127 in the server's serialization
        parts.append(struct.pack("<Q", len(intervals)))
        parts += [struct.pack("<QQ", first, last + 1) for first, last in intervals]
    return b"".join(parts)
