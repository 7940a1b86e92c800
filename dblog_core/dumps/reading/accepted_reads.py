"""Nothing that a worker has read is written before it is proven to be of what somebody has accepted, where columns of
the source are hidden.

    PostgreSQL      -> the catalogue, asked after the SELECT: what is now as it was when it was accepted has been so in
                       between
    MySQL, MariaDB  -> the log alone tells: the capture, once it has read it up to a place after the SELECT
"""

from __future__ import annotations

from dblog_core.dumps.read_only_windows import LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS, NotOpened
from dblog_core.dumps.task_lease import Hold
from dblog_core.interfaces import ChunkReader
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.retry import wait_for
from dblog_core.rows import column_rule_faults
from dblog_core.rows.acceptance import digest_columns
from dblog_core.rows.table_guard import is_still_as_accepted
from dblog_core.state import read_confirmations
from dblog_core.state.read_confirmations import Question

_STILL_WANTED_SECONDS = 0.25
"""Between two looks at whether anybody still wants the chunk."""


class ShapeChanged(Exception):
    """The table was altered between the look at its shape and the SELECT, or is not proven to be what was accepted:
    another attempt finds out."""


class AcceptedReads:
    """Of one table, in one attempt."""

    def __init__(self, hold: Hold, reader: ChunkReader, table: TableName) -> None:
        self._hold = hold
        self._worker = hold.worker
        self._reader = reader
        self._table = table

    def require(self, schema: TableSchema) -> None:
        """After the SELECT, by what is known at once. Raises ShapeChanged where that speaks against it, and what the
        source raises."""
        accepted = self._hold.accepted
        if accepted is None:
            return
        rules = self._worker.config.source.columns
        hides = bool(column_rule_faults.hidden_columns(rules.get(str(self._table))))
        if accepted.is_by_catalogue:
            origin = self._reader.origin(self._table)
            proven = origin is not None and is_still_as_accepted(accepted, origin, hides=hides)
        else:
            proven = not (hides and accepted.shape) or accepted.shape == digest_columns(schema)
        if not proven or accepted.why_held is not None:
            raise self._error()

    def confirm(self, window: str) -> None:
        """Waits for the capture's word, where the log alone tells; `window`: an id that is never used again.

        Raises ShapeChanged where the capture speaks against it, NotOpened where nobody wants the chunk any longer, and
        what the source, the state store and the lease raise.
        """
        accepted = self._hold.accepted
        if accepted is None or accepted.is_by_catalogue:
            return
        state, clock = self._worker.state, self._worker.clock
        # After the SELECT: all that it has seen lies before.
        read_confirmations.ask(state, window, Question(str(self._table), self._worker.source.current_position()))
        looked_at = clock.monotonic()

        def look() -> bool | None:
            nonlocal looked_at
            now = clock.monotonic()
            if now - looked_at >= _STILL_WANTED_SECONDS:
                looked_at = now
                if not self._hold.goes_on():
                    raise NotOpened("the chunk is no longer wanted")
            return read_confirmations.read_answer(state, window)

        waits = (SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        try:
            may_pass = wait_for(
                look, until=lambda answer: answer is not None, waits=waits, stop=self._worker.stop, clock=clock
            )
        finally:
            read_confirmations.forget(state, window)
        if may_pass is None:
            raise NotOpened("the worker was asked to stop")
        if not may_pass:
            raise self._error()

    def _error(self) -> ShapeChanged:
        return ShapeChanged(f"{self._table} is not proven to be what was accepted for its column rules")
