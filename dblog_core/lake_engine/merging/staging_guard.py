"""The staging that a merger reads: found to be continued by the lake when it begins, and again while it runs."""

from __future__ import annotations

from collections.abc import Callable

from dblog_core.errors import LakeError
from dblog_core.lake import continuity
from dblog_core.lake.continuity import UnfinishedMerge
from dblog_core.lake.lake_status import LakeStatus
from dblog_core.lake.merge_plan import Span
from dblog_core.lake_engine.merging.merge_records import Intent
from dblog_core.staging import Staging

_AGAIN_SECONDS = 30.0  # between two looks while a merger runs


class StagingGuard:
    """`now`: seconds. `identity`: the staging's, as the last look found it."""

    def __init__(self, staging: Staging, now: Callable[[], float]) -> None:
        self._staging = staging
        self._now = now
        self._judged_at = float("-inf")
        self.identity: str | None = None

    def check(self, status: LakeStatus, begun: Intent | None) -> None:
        """Raises LakeError where the lake does not continue the staging. `begun`: the merge that is not finished."""
        unfinished = None if begun is None else UnfinishedMerge(begun.number, begun.span, begun.staging)
        verdict = continuity.judge(self._staging, status, unfinished)
        verdict.check()
        self.identity = verdict.identity
        self._judged_at = self._now()

    def is_continued(self, status: LakeStatus, begun: Intent | None) -> bool:
        """Whether `check` passes."""
        try:
            self.check(status, begun)
        except LakeError:
            return False
        return True

    def check_span(self, span: Span, status: LakeStatus) -> None:
        """As `check`, before a merge of the span that comes next: somebody may have replaced the staging since. One
        that was put back from a copy has sealed the same log in other segments, which begin at other offsets."""
        if span.first_offset != status.offset + 1 or self._now() - self._judged_at >= _AGAIN_SECONDS:
            self.check(status, None)
