"""Transactions that the server streams before they are committed: each waits in its spool for commit or abort.

Blocks of several transactions take turns in the log, also with whole ordinary ones. Of a subtransaction that is rolled
back after it was streamed, the server tells the id; its messages stay where they are and are passed over in the end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from dblog_core.errors import UnknownLogEvent
from dblog_core.model.events import Transaction
from dblog_core.sources.postgres.logical.message_buffer import Messages
from dblog_core.sources.postgres.logical.row_messages import find_kind
from dblog_core.sources.postgres.logical.spool import Spool
from dblog_core.sources.postgres.position import Lsn

EPOCH = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: where the server's clock values begin."""

_START = struct.Struct(">xIB")
_COMMIT = struct.Struct(">xIBQQq")
_ABORT = struct.Struct(">xII")
_STOP = ord("E")


@dataclass(slots=True)
class Delivery:
    """A committed stream on its way out: its messages, a buffer at a time; the log continues at `end`."""

    spool: Spool
    transaction: Transaction
    end: Lsn
    messages: Messages


@dataclass(slots=True)
class Streams:
    """All streams that are neither committed nor aborted, and the one that is being delivered."""

    delivered: Delivery | None = None
    _spools: dict[int, Spool] = field(default_factory=dict)
    _block: Spool | None = None
    _messages: Messages | None = None

    @property
    def inside(self) -> bool:
        """Whether the next message belongs to a stream."""
        return self._block is not None

    def start(self, message: bytes) -> None:
        """A block of a stream begins."""
        xid, first = _START.unpack(message)
        # Sent from its beginning, perhaps again: what has come before would count twice.
        if first:
            self._drop(xid)
            self._spools[xid] = Spool()
        elif xid not in self._spools:
            raise UnknownLogEvent(f"a streamed transaction, {xid}, continues that never began", fix="report this")
        self._block = self._spools[xid]

    def add(self, arrived: Messages) -> None:
        """Takes what belongs to the block."""
        assert self._block is not None
        # A block ends with a message of its own; what follows belongs to another transaction.
        end = find_kind(arrived.raw, arrived.starts, arrived.ends, arrived.next, arrived.count, _STOP)
        self._block.append(arrived.run(arrived.next, end))
        arrived.next = end
        if not arrived.is_taken:
            arrived.next += 1
            self._block = None

    def abort(self, message: bytes) -> None:
        """A stream, or one of its subtransactions, is rolled back."""
        xid, sub = _ABORT.unpack(message)
        # Of a whole transaction that is rolled back both numbers are the same.
        if xid == sub:
            self._drop(xid)
        elif xid in self._spools:
            self._spools[xid].aborted.add(sub)

    def commit(self, message: bytes) -> Transaction:
        """A stream is committed: from now on it is `delivered`."""
        xid, _, final, end, committed = _COMMIT.unpack(message)
        spool = self._spools.pop(xid, None)
        if spool is None:
            raise UnknownLogEvent(f"a streamed transaction, {xid}, is committed that never began", fix="report this")
        if self._messages is None:
            self._messages = Messages()
        self._messages.count = self._messages.next = 0
        transaction = Transaction(str(xid), str(Lsn(final)), committed + EPOCH, xid)
        self.delivered = Delivery(spool, transaction, Lsn(end), self._messages)
        return transaction

    def finish(self) -> None:
        """All of the delivered stream is taken."""
        if self.delivered is not None:
            self.delivered.spool.close()
            self.delivered = None

    def close(self) -> None:
        self.finish()
        for xid in list(self._spools):
            self._drop(xid)

    def _drop(self, xid: int) -> None:
        spool = self._spools.pop(xid, None)
        if spool is not None:
            spool.close()
