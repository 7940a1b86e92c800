"""How late changes were when they were staged: the recent past of a capture's lag, read from the log of manifests.

A segment's lag is the time from the commit of its last transaction to its sealing. Segments that bring no newer
transaction (of an idle source, or with chunks alone) have none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest

KEPT = 900  # points: some fifteen minutes of a busy source, which seals a segment a second
_AT_ONCE = 200  # manifests of one look: each is a file to read


@dataclass(frozen=True, slots=True)
class Point:
    """`at`: µs UTC of the sealing; `lag`: seconds; `rows`: of log and chunks in the segment."""

    at: int
    lag: float
    rows: int


class LagHistory:
    """The newest points of one source; each look reads only what was sealed since the last one."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._points: deque[Point] = deque(maxlen=KEPT)
        self._seen = 0
        self._committed: int | None = None

    def look(self) -> list[Point]:
        """The points, the oldest first. Raises CorruptSegment, StagingUnavailable."""
        head = self._staging.head_number()
        after = max(self._seen, head - _AT_ONCE, self._staging.first_number() - 1)
        for manifest in self._staging.manifests(after=after, upto=head):
            self._add(manifest)
        return list(self._points)

    def _add(self, manifest: Manifest) -> None:
        self._seen, committed = manifest.segment, manifest.commit_time
        if committed is not None and self._committed is not None and committed > self._committed:
            lag = max(0.0, (manifest.sealed_at - committed) / 1e6)
            self._points.append(Point(manifest.sealed_at, lag, manifest.last_offset - manifest.first_offset + 1))
        if committed is not None:
            self._committed = max(committed, self._committed or 0)
