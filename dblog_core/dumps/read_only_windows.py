"""Windows of a source that is never written: workers announce them in the state store (theory of `window.py`).

    windows/ID          the text of the low watermark: a worker asks for a window
    windows/ID/open     the capture's answer: the place in the log from which it collects (`Source.place`)
    windows/ID/high     the answer that the worker went by, and the text of the high watermark, a line each

An answer is created, never replaced: of a window that one term of a capture has answered, no other term believes that
it has it open. And should the nodes have been removed in between, the answer in the last one tells. The capture removes
the nodes (`openings`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from dblog_core.errors import ServerNotSafe, UnknownLogEvent, VersionConflict
from dblog_core.interfaces import ChunkReader, Clock, StateStore
from dblog_core.model import watermark
from dblog_core.model.watermark import High, Low, Probe
from dblog_core.retry import wait_for
from dblog_core.state import capture_status, lease_holder

ROOT = "windows"
SHORTEST_PAUSE_SECONDS = 0.002  # between two looks for an answer, and at what a reader sees: longer each time
LONGEST_PAUSE_SECONDS = 0.05
_STILL_WANTED_SECONDS = 0.25  # between two looks at whether anybody still wants the window


class NotOpened(Exception):
    """The window is no longer wanted, or the worker was asked to stop, before it was open."""


def announcement(window: str) -> str:
    return f"{ROOT}/{window}"


def answer(window: str) -> str:
    return f"{ROOT}/{window}/open"


def conclusion(window: str) -> str:
    return f"{ROOT}/{window}/high"


@dataclass(frozen=True, slots=True)
class AnnouncedWindows:
    """A WatermarkWriter whose low watermark is a question: `write` returns when the window is open, and the reader sees
    all that lies before it. `is_wanted`: whether to wait on; it may raise what ends the worker.

    One thread may write low watermarks while another writes high ones.
    """

    state: StateStore
    reader: ChunkReader
    clock: Clock
    stop: threading.Event
    is_wanted: Callable[[], bool]
    _answers: dict[str, str] = field(default_factory=dict)

    def write(self, payload: str) -> None:
        """Raises NotOpened, ServerNotSafe, and what the state store, the source and `is_wanted` raise."""
        mark = watermark.parse(payload)
        window = mark.window if isinstance(mark, Probe) else mark.mark.window
        if isinstance(mark, High) or (isinstance(mark, Probe) and mark.high):
            self._put(conclusion(window), f"{self._answers.pop(window)}\n{payload}")
            return
        self._put(announcement(window), payload)

        def has_answer() -> bool:
            if (entry := self.state.get(answer(window))) is not None:
                self._answers[window] = entry.data.decode()
            return entry is not None

        self._await(has_answer, self._check_that_capture_answers)
        self._await(lambda: self.reader.sees(self._answers[window]))

    def _check_that_capture_answers(self) -> None:
        """Raises ServerNotSafe where the capture that leads looks for no announcements: nobody would ever answer."""
        leader = self.state.leader(lease_holder.CAPTURE)
        status = capture_status.read_status(self.state)
        if leader is None or status is None:
            return
        if status.epoch != leader.epoch or status.answers is not False:
            return
        raise ServerNotSafe(
            "this worker has read_only = true, and announces its windows; the capture that leads was started without"
            " it, and answers none",
            where=f"capture {leader.holder}",
            fix="give both the same read_only in [source], and start the capture again",
        )

    def _await(self, condition: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
        """`check` is called now and then, and may raise."""
        checked_at = self.clock.monotonic()

        def look() -> bool:
            nonlocal checked_at
            now = self.clock.monotonic()
            if now - checked_at >= _STILL_WANTED_SECONDS:
                checked_at = now
                check()
                if not self.is_wanted():
                    raise NotOpened("the window is no longer wanted")
            return condition()

        waits = (SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        if not wait_for(look, waits=waits, stop=self.stop, clock=self.clock):
            raise NotOpened("the worker was asked to stop")

    def _put(self, path: str, payload: str) -> None:
        """Ids are never used twice: a node that is there is ours, and its answer was lost."""
        try:
            self.state.create(path, payload.encode())
        except VersionConflict:
            if (entry := self.state.get(path)) is not None and entry.data != payload.encode():
                raise

    def close(self) -> None:
        """The reader belongs to who opened it."""


def parse_announcement(payload: bytes) -> Low | Probe | None:
    """The low watermark of an announcement; None where the node is none, but what is left of one, or is of another
    version of dblog: its worker waits in vain, and no other one does."""
    mark = _parse(payload)
    return mark if isinstance(mark, Low) or (isinstance(mark, Probe) and not mark.high) else None


def parse_conclusion(data: bytes) -> tuple[str, High | Probe] | None:
    """The answer that a worker went by, and the high watermark of its window."""
    place, _, payload = data.partition(b"\n")
    mark = _parse(payload)
    return (place.decode(), mark) if isinstance(mark, High) or (isinstance(mark, Probe) and mark.high) else None


def _parse(payload: bytes) -> Low | High | Probe | None:
    try:
        return watermark.parse(payload.decode()) if payload else None
    except (UnknownLogEvent, UnicodeDecodeError):
        return None
