"""How late changes were when they were staged (the recent past of a capture's lag), and how long what is staged waits.

Both are read from the log of manifests. A segment's lag is the time from the commit of its last transaction to its
sealing. Segments that bring no newer transaction (of an idle source, or with chunks alone) have none.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

from dblog_core.staging import Staging
from dblog_core.staging.manifest import Manifest

KEPT = 900  # points: some fifteen minutes of a busy source, which seals a segment a second
_AT_ONCE = 200  # manifests of one look: each is a file to read
_REMEMBERED = 50  # offsets: of the lake, and of each output


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
        if head < self._seen:  # the staging was replaced
            self._points.clear()
            self._seen = 0
            self._committed = None
        after = max(self._seen, head - _AT_ONCE, self._staging.first_number() - 1)
        for manifest in self._staging.manifests(after=after, upto=head):
            self._add(manifest)
        return list(self._points)

    def _add(self, manifest: Manifest) -> None:
        self._seen = manifest.segment
        committed = manifest.commit_time
        if committed is not None and self._committed is not None and committed > self._committed:
            lag = max(0.0, (manifest.sealed_at - committed) / 1e6)
            self._points.append(Point(manifest.sealed_at, lag, manifest.last_offset - manifest.first_offset + 1))
        if committed is not None:
            self._committed = max(committed, self._committed or 0)


class Waiting:
    """How long the oldest line has been waiting that a lake, or an output, does not have. What stands at an offset
    never changes, so one look at it is enough."""

    def __init__(self) -> None:
        self._since: dict[int, int] = {}

    def seconds(self, staging: Staging, head: Manifest, offset: int, now: float) -> float:
        """Seconds since the first line above `offset` was staged; 0 where there is none. `now`: seconds UTC.

        Raises CorruptSegment, StagingUnavailable.
        """
        if offset >= head.last_offset:
            return 0.0
        if offset not in self._since:
            others = dict(list(self._since.items())[-_REMEMBERED:])
            self._since = {**others, offset: _since(staging, head, offset)}
        return max(0.0, now - self._since[offset] / 1e6)


def _since(staging: Staging, head: Manifest, offset: int) -> int:
    """When the first line above the offset was staged (µs UTC); of segments that were joined since, when it was
    committed: that is known of each line."""
    manifest = staging.manifest(staging.segment_of(offset + 1, head))
    if not manifest.ends:
        return manifest.sealed_at
    times = [mark.commit_time for mark in manifest.marks if mark.offset > offset]
    times += [chunk.commit_time for chunk in manifest.chunks if chunk.first_offset + chunk.rows > offset + 1]
    files = [file for file in manifest.files if file.last_offset > offset]
    if files:
        rows = staging.log_batches(min(files, key=lambda f: f.first_offset), columns=["commit_time"], after=offset)
        times += [batch.column(0)[0].value for batch in itertools.islice(rows, 1)]
    return min([time for time in times if time], default=manifest.sealed_at)
