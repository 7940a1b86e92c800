"""The ids of XA transactions, as statements and events of the log have them."""

from __future__ import annotations

import re
import struct

_STATEMENT = re.compile(r"XA\s+\w+\s+X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)", re.IGNORECASE)


def format_xid(gtrid: bytes, bqual: bytes, format_id: int) -> str:
    """An xid as `X'gtrid',X'bqual',format`, as the log's statements have it."""
    # The event has 32 bits of the format's number where the statement has all.
    return f"X'{gtrid.hex()}',X'{bqual.hex()}',{format_id & 0xFFFFFFFF}"


def parse_statement(sql: str) -> str:
    """The xid of a logged XA statement. Raises ValueError."""
    match = _STATEMENT.search(sql)
    if match is None:
        raise ValueError("an XA statement has no xid in a form that is known here")
    return format_xid(bytes.fromhex(match[1]), bytes.fromhex(match[2]), int(match[3]))


def parse_prepare_event(body: bytes) -> tuple[bool, str]:
    """Whether an XA_PREPARE event commits at once (ONE PHASE), and its xid. Raises ValueError."""
    one_phase, format_id, gtrid_size, bqual_size = struct.unpack_from("<?III", body)
    data = body[13 : 13 + gtrid_size + bqual_size]
    if len(data) != gtrid_size + bqual_size:
        raise ValueError("an XA_PREPARE event is cut short")
    return one_phase, format_xid(data[:gtrid_size], data[gtrid_size:], format_id)
