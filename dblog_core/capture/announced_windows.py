"""The capture's side of windows that are announced in the state store: opens them, answers, and places their chunks.

All of it happens between two transactions, at the place in the log that is read: see the theory of `window.py`. A node
goes when the manifest is published that knows what became of its window, so that a restart finds those of which nothing
is published, and has their chunks read again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from dblog_core.capture.sequencer import Sequencer
from dblog_core.dumps import dump_records, dump_store, read_only_windows
from dblog_core.errors import VersionConflict
from dblog_core.interfaces import Clock, Source, StateStore
from dblog_core.model.watermark import High, Low, Probe

log = logging.getLogger(__name__)

IDLE = 0.1  # seconds between two looks while there is no window
BUSY = 0.01  # the same while there is one
FORGOTTEN = 1800.0  # seconds after which the node of a window goes that came to nothing


@dataclass(slots=True)
class _Window:
    """A node that we know. `mark`, `place`: as we have opened it and answered (None: we have not); `high`: what its
    worker has written last.
    """

    seen_at: float
    mark: Low | Probe | None = None
    place: str = ""
    high: High | Probe | None = None


class Openings:
    """The announced windows, as one term of a capture sees them."""

    def __init__(self, state: StateStore, source: Source, clock: Clock) -> None:
        self._state = state
        self._source = source
        self._clock = clock
        self._windows: dict[str, _Window] = {}
        self._judged: set[str] = set()
        self._looked_at = float("-inf")
        self._has_looked = False

    @property
    def pause(self) -> float:
        """Seconds between two looks now."""
        return BUSY if self._windows else IDLE

    def look(self, sequencer: Sequencer) -> None:
        """Answers new announcements, and places what has come to its end; where it is time, and no transaction is open.

        Raises what the sequencer and the state store raise.
        """
        now = self._clock.monotonic()
        # Inside a transaction there is no place at which a window could open or end.
        if sequencer.partial or now - self._looked_at < self.pause:
            return
        self._looked_at = now
        names = [name for name in self._state.children(read_only_windows.ROOT) if name not in self._judged]
        if not self._has_looked:
            self._has_looked = True
            names = [name for name in names if not self._is_left_over(name)]
        for name in names:
            if name not in self._windows:
                self._windows[name] = window = _Window(now)
                self._open(name, window, sequencer)
        for name in self._windows.keys() - set(names):
            del self._windows[name]
        self._ask(sequencer)
        self._judge(sequencer)
        self._forget(now)

    def forget_judged(self) -> None:
        """All that was judged is in a manifest: its nodes may go."""
        for name in sorted(self._judged):
            self._state.delete(read_only_windows.announcement(name))
        self._judged.clear()

    def _is_left_over(self, name: str) -> bool:
        """Whether the window is of a dump that is over: its worker has died. If it counted, the task would look like
        one of which this staging lacks chunks, and the dump would be done again (`reopen_dump`)."""
        entry = self._state.get(read_only_windows.announcement(name))
        mark = read_only_windows.parse_announcement(entry.data) if entry is not None else None
        status = dump_store.find_dump(self._state, mark.mark.task.dump) if isinstance(mark, Low) else None
        if status is None or status.state not in dump_records.OVER:
            return False
        self._judged.add(name)
        return True

    def _open(self, name: str, window: _Window, sequencer: Sequencer) -> None:
        """Opens the window and says so, unless it does not count, or another term has answered."""
        entry = self._state.get(read_only_windows.announcement(name))
        mark = read_only_windows.parse_announcement(entry.data) if entry is not None else None
        if mark is None:
            return
        if not sequencer.open_window(mark, at=self._now()):  # its worker hears that by the progress of its task
            self._judged.add(name)
            del self._windows[name]
            return
        place = self._source.place(sequencer.position)
        try:
            self._state.create(read_only_windows.answer(name), place.encode())
        except VersionConflict:
            log.info("window %s was opened by another term of a capture: it is void", name)
            sequencer.dumps.give_up_window(name)
        else:
            window.mark = mark
            window.place = place

    def _ask(self, sequencer: Sequencer) -> None:
        """Reads what workers have written; a worker that used another term's answer has no window in this term."""
        for name, window in self._windows.items():
            if window.high is not None or (entry := self._state.get(read_only_windows.conclusion(name))) is None:
                continue
            if (conclusion := read_only_windows.parse_conclusion(entry.data)) is None:
                continue
            place, window.high = conclusion
            if window.mark is not None and not _went_by(window.place, place):
                sequencer.dumps.give_up_window(name)
                window.mark = None

    def _judge(self, sequencer: Sequencer) -> None:
        """Every window whose end is passed, the chunks of an attempt in their order."""
        for name, window in sorted(self._windows.items(), key=lambda item: _order(item[1])):
            if window.high is None or not self._due(window, sequencer.position):
                continue
            sequencer.close_window(window.high, at=self._now())
            self._judged.add(name)
            del self._windows[name]

    def _due(self, window: _Window, position: str) -> bool:
        assert window.high is not None
        if window.mark is None:
            return True  # it is void, and its worker waits to hear that
        if _follows(window.mark, self._windows.values()):
            return False
        return window.high.end is not None and self._source.has_passed(position, window.high.end)

    def _forget(self, now: float) -> None:
        """Windows whose worker is gone. The sequencer has long given them up."""
        for name in [name for name, window in self._windows.items() if now - window.seen_at > FORGOTTEN]:
            self._judged.add(name)
            del self._windows[name]

    def _now(self) -> int:
        return int(self._clock.time() * 1e6)


def _went_by(our_place: str, place: str) -> bool:
    """Whether a worker's answer was ours. The same place is the same answer, whichever term gave it: what comes after
    it is collected.
    """
    return our_place == place


def _order(window: _Window) -> tuple[str, int, int]:
    mark = window.high.mark if isinstance(window.high, High) else None
    return ("", 0, 0) if mark is None else (str(mark.task), mark.attempt, mark.ordinal)


def _follows(mark: Low | Probe, others: Iterable[_Window]) -> bool:
    """Whether a chunk of the same attempt comes before it that is not judged yet: workers write their ends in order,
    and one may be written between our looks at the two.
    """
    if isinstance(mark, Probe):
        return False
    before = [other.mark.mark for other in others if isinstance(other.mark, Low)]
    attempt = (mark.mark.task, mark.mark.attempt)
    return any((m.task, m.attempt) == attempt and m.ordinal < mark.mark.ordinal for m in before)
