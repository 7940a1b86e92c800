"""A log that hands on a batch once a SELECT sees the transactions in it.

PostgreSQL logs a commit before any SELECT sees it, and decodes it at once. Between the two it may wait for a
synchronous standby, for as long as that is away. Where columns are hidden, the catalogue proves what the rows of a
batch are of (`table_guard`), and the catalogue of before an ALTER proves nothing of the rows that were logged with it.
"""

from __future__ import annotations

import time

from dblog_core.algorithm.visibility import Snapshot
from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceUnavailable
from dblog_core.interfaces import LogStream
from dblog_core.model.events import LogBatch
from dblog_core.sources.postgres.logical.catalogue_lookups import Lookups

LONGEST_WAIT_SECONDS = 10.0
"""After which an error tells what the capture waits for; it begins again then."""
_PAUSE_SECONDS = 0.005
"""Between two looks at what a SELECT sees."""


class SeenLog:
    """`log`, of which a batch waits for its transactions to be seen. Nothing is read meanwhile."""

    def __init__(self, config: SourceConfig, log: LogStream, lookups: Lookups) -> None:
        self._config = config
        self._log = log
        self._lookups = lookups
        self._waiting: LogBatch | None = None
        self._waits_since = 0.0

    def read(self, timeout: float, *, linger: float = 0.0) -> LogBatch | None:
        """As `LogStream`. Raises SourceUnavailable where a transaction is not seen for too long."""
        deadline = time.monotonic() + timeout
        if self._waiting is None:
            self._waiting = self._log.read(timeout, linger=linger)
            self._waits_since = time.monotonic()
        while self._waiting is not None and not self._is_seen(self._waiting):
            now = time.monotonic()
            if now - self._waits_since >= LONGEST_WAIT_SECONDS:
                raise self._unseen_error(self._waiting)
            if now >= deadline:
                return None
            time.sleep(_PAUSE_SECONDS)
        batch = self._waiting
        self._waiting = None
        return batch

    def acknowledge(self, position: str) -> None:
        self._log.acknowledge(position)

    def close(self) -> None:
        self._log.close()

    def _is_seen(self, batch: LogBatch) -> bool:
        if not batch.transactions:
            return True
        snapshot = Snapshot.parse(self._lookups.snapshot())
        return all(transaction.xid is not None and snapshot.sees(transaction.xid) for transaction in batch.transactions)

    def _unseen_error(self, batch: LogBatch) -> SourceUnavailable:
        return SourceUnavailable(
            "the log has a transaction that no SELECT sees yet, and columns of this source are hidden: its rows wait",
            where=f"source {self._config.name}, before LSN {batch.transactions[-1].position}",
            fix="see that the server's synchronous standbys are there (synchronous_standby_names, pg_stat_replication)",
        )
