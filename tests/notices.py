"""Notices for tests of what carries them."""

from __future__ import annotations

from dblog_core.notifications.changes import EndDetails, Notice, NoticeMessage

COMPLETED = NoticeMessage(
    Notice("d1/completed//0", "completed", "d1", None, details=EndDetails(rows=7, chunks=1, evicted=0, error=None)),
    source="shop",
    told_at="2026-11-01T00:00:00+00:00",
)
