"""Streamed transactions: what the server sends of a large one before its commit waits in a file without a name.

Such a file cannot be opened by anybody else and is gone with the process, whatever ends it. Messages lie in it as they
lay in memory, each behind its length.
"""

from __future__ import annotations

import os
import tempfile

import numpy as np
import numpy.typing as npt

from dblog_core.errors import StagingUnavailable
from dblog_core.rows.jit import INT64S, RAW, int64, kernel
from dblog_core.sources.postgres.logical.message_buffer import PREFIX, Messages


@kernel(int64, RAW, int64, INT64S, INT64S)
def _index(raw: npt.NDArray[np.uint8], size: int, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> int:
    """Finds the messages that lie whole in the first `size` bytes; their number, as far as there is room for places."""
    at = 0
    count = 0
    while count < len(starts) and size - at >= PREFIX:
        length = 0
        for i in range(PREFIX):
            length |= int(raw[at + i]) << (8 * i)
        at += PREFIX
        if length > size - at:
            break
        starts[count] = at
        at += length
        ends[count] = at
        count += 1
    return count


class Spool:
    """What has arrived of one streamed transaction; `aborted`: those of its subtransactions that were rolled back."""

    def __init__(self) -> None:
        self.aborted: set[int] = set()
        self.size = 0
        self._read = 0
        try:
            self._file = tempfile.TemporaryFile(prefix="dblog-", buffering=0)  # noqa: SIM115  # closed by `close`
        except OSError as error:
            raise _unavailable(error) from error

    def append(self, run: memoryview) -> None:
        """Adds messages with their lengths. Raises StagingUnavailable where there is no room."""
        try:
            while run:
                # A write may take a part only, where the disk is nearly full.
                written = os.pwrite(self._file.fileno(), run, self.size)
                self.size += written
                run = run[written:]
        except OSError as error:
            raise _unavailable(error) from error

    @property
    def is_exhausted(self) -> bool:
        """Whether all of it has been read."""
        return self._read == self.size

    def read(self, messages: Messages) -> None:
        """Replaces `messages` by the next ones, as many as there is room for. Raises StagingUnavailable."""
        messages.count = messages.next = 0
        messages.clear()
        while not messages.count:
            try:
                size = os.preadv(self._file.fileno(), [messages.raw.data], self._read)
            except OSError as error:
                raise _unavailable(error) from error
            if size < min(PREFIX, self.size - self._read):
                raise StagingUnavailable(
                    "a streamed transaction's file has become shorter",
                    where=tempfile.gettempdir(),
                )
            messages.count = _index(messages.raw, size, messages.starts, messages.ends)
            if not messages.count:
                # A single value may have a gigabyte, and so its message.
                messages.grow(int.from_bytes(messages.raw[:PREFIX].tobytes(), "little"))
        self._read += messages.end

    def close(self) -> None:
        self._file.close()


def _unavailable(error: OSError) -> StagingUnavailable:
    return StagingUnavailable(
        f"a large transaction cannot wait here for its commit: {error.strerror or error}",
        where=tempfile.gettempdir(),
        fix="make room, or let TMPDIR name a directory with more of it; the capture tries again",
    )
