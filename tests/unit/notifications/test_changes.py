"""The notices of a dump as receivers get them, byte for byte."""

from __future__ import annotations

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.dumps.dump_records import DumpOptions, DumpState, TaskRecord, TaskStatus
from dblog_core.dumps.status import DumpStatus
from dblog_core.notifications.changes import NoticeMessage, SentNotices, notices_since

DUMP = '"source":"shop","dump":"d1","signal":"one"'
NOTICES = [
    f'{{"id":"d1/requested//0","event":"requested",{DUMP},"table":null,"tables":["shop.a"],"requested_by":"signal",'
    '"requested_at":"2026-11-01","told_at":"now"}',
    f'{{"id":"d1/started//0","event":"started",{DUMP},"table":null,"told_at":"now"}}',
    f'{{"id":"d1/chunk/shop.a/3.1","event":"chunk",{DUMP},"table":"shop.a","task":3,"chunk":1,"rows":10,'
    '"told_at":"now"}',
    f'{{"id":"d1/table/shop.a/0","event":"table",{DUMP},"table":"shop.a","rows":10,"told_at":"now"}}',
    f'{{"id":"d1/failed//0","event":"failed",{DUMP},"table":null,"rows":10,"chunks":1,"evicted":2,"error":"broke",'
    '"told_at":"now"}',
]


def _texts(state: DumpState, sent: SentNotices | None = None, *, error: str | None = None) -> list[str]:
    progress = TaskProgress("shop.a", attempt=1, ordinal=1, rows=10, evicted=2, done=True)
    task = TaskStatus(3, TaskRecord("shop.a"), progress)
    status = DumpStatus("d1", state, ("shop.a",), DumpOptions(), error, "2026-11-01", "signal", (task,), signal="one")
    return [NoticeMessage(notice, "shop", "now").encode().decode() for notice, _ in notices_since(status, sent)]


def test_each_notice_says_what_it_always_said() -> None:
    assert _texts(DumpState.FAILED, error="broke") == NOTICES


def test_a_pause_and_its_end_say_what_they_always_said() -> None:
    told = {"requested": True, "started": True, "chunks": {"3": 1}, "tables": ("shop.a",)}
    assert _texts(DumpState.PAUSED, SentNotices(**told, paused=1, resumed=1)) == [
        f'{{"id":"d1/paused//2","event":"paused",{DUMP},"table":null,"told_at":"now"}}'
    ]
    assert _texts(DumpState.RUNNING, SentNotices(**told, paused=2, resumed=1)) == [
        f'{{"id":"d1/resumed//2","event":"resumed",{DUMP},"table":null,"told_at":"now"}}'
    ]
