"""The checker's world of a source that is never written: windows are announced, and the log's positions stand in for
watermarks (theory in `dblog_core/algorithm/window.py`).

Here the capture reads the log in steps of its own, since its place counts: when a window opens, and when a chunk is
placed. What workers and captures tell each other lies in the state store, and outlives them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dblog_core.model.watermark import High, Low, Mark
from tests.protocol.capture import TABLE, Capture
from tests.protocol.source import FULL
from tests.protocol.world import World
from tests.protocol.world_state import Entry, Scenario, Worker


@dataclass(frozen=True, slots=True)
class Announced:
    """A window in the state store. `opened`: the answer, a place in the log; `by`, `judged`: the capture's term that
    gave it, and the one that placed or refused the chunk; `end`: of the log, after the SELECT."""

    low: Low
    opened: int | None = None
    by: int = 0
    end: int = 0
    high: High | None = None
    judged: int = 0

    @property
    def mark(self) -> Mark:
        return self.low.mark


@dataclass(slots=True)
class ReadOnlyWorld(World):
    """`term`: the capture's number, one more after each restart; `fresh`: it has read an entry since the last high."""

    windows: tuple[Announced, ...] = ()
    term: int = 0
    fresh: bool = False

    def freeze(self) -> tuple[object, ...]:
        return (World.freeze(self), self.windows, self.term, self.fresh)

    # Workers --------------------------------------------------------------------------------------------------------

    def _tell(self, mark: Low | High) -> None:
        if isinstance(mark, Low):
            self.windows = (*self.windows, Announced(mark))
        elif (window := self._window(mark.mark)) is None:  # it was forgotten: nobody has that window open
            self.windows = (*self.windows, Announced(Low(mark.mark), opened=0, by=-1, high=mark))
        else:
            self._put(replace(window, high=mark))
        self.fresh = False

    def _may_read(self, worker: Worker) -> bool:
        window = self._window(self._mark(worker, worker.ordinal))
        return window is not None and (window.opened is not None or self.rules.select_unopened)

    def _opened_at(self, worker: Worker) -> int:
        window = self._window(self._mark(worker, worker.ordinal))
        if window is None or window.opened is None or self.rules.visible_unawaited:
            return 0
        return window.opened

    def _has_read(self, worker: Worker) -> None:
        if (window := self._window(self._mark(worker, worker.ordinal))) is not None:
            end = self.replayed if self.scenario.standby else len(self.log)
            self._put(replace(window, end=end - self.rules.end_early))

    def _window(self, mark: Mark) -> Announced | None:
        return next((window for window in self.windows if window.mark == mark), None)

    def _put(self, changed: Announced) -> None:
        self.windows = tuple(changed if window.mark == changed.mark else window for window in self.windows)

    # The capture ----------------------------------------------------------------------------------------------------

    def _append(self, entry: Entry) -> None:
        self.log = (*self.log, entry)

    def restart(self) -> None:
        self.capture = self._new_capture(self.staged)
        self.horizon = None
        self.term += 1
        self.fresh = False

    def publish(self) -> None:
        number = self.staged.number
        World.publish(self)
        if self.staged.number > number:
            self.windows = tuple(w for w in self.windows if w.judged != self.term)

    def _capture_steps(self, capture: Capture) -> Iterator[tuple[str, World]]:
        yield from World._capture_steps(self, capture)
        if capture.now.place < len(self.log):
            new = self.copy()
            new._go_on()
            yield f"the capture reads {self._name_entry(self.log[capture.now.place])}", new
        for window in self.windows:
            if window.high is None and (window.opened is None or self._opens_again(window)):
                new = self.copy()
                new._open_window(window)
                yield f"the capture opens window {window.mark.window}", new
            elif self._due(capture, window):
                new = self.copy()
                new._judge(window)
                yield f"the capture judges the chunk of window {window.mark.window}", new

    def _opens_again(self, window: Announced) -> bool:
        return self.rules.open_answered and window.by != self.term

    def _go_on(self) -> None:
        assert self.capture is not None
        self._process(self.capture, self.capture.now.place)
        self.fresh = True
        self._seal()

    def _open_window(self, window: Announced) -> None:
        assert self.capture is not None
        self.capture.low(window.low)
        opened = window.mark.window in self.capture.dumps._windows._windows
        at = window.opened if window.opened is not None else self.capture.now.place
        self.windows = tuple(w for w in self.windows if opened or w.mark != window.mark)
        self._put(replace(window, opened=at, by=self.term))
        self._seal()

    def _due(self, capture: Capture, window: Announced) -> bool:
        """Whether the chunk can be judged: at once where the window is another term's, otherwise when the end is
        passed; and in the order of the attempt's chunks."""
        if window.high is None or window.judged == self.term:
            return False
        if window.by != self.term:
            return True
        mark = window.mark
        before = (w.mark for w in self.windows if w.by == self.term and w.judged != self.term)
        if any((m.task, m.attempt) == (mark.task, mark.attempt) and m.ordinal < mark.ordinal for m in before):
            return False
        if self.rules.wait_for_event and not self.fresh:
            return False
        return capture.now.place >= window.end or self.rules.end_unawaited

    def _judge(self, window: Announced) -> None:
        assert self.capture is not None and window.high is not None
        if self.rules.close_at_end:
            self._forget_after(window.end)
        self.capture.high(window.high)
        self._put(replace(window, judged=self.term))
        if self.rules.forget_unpublished:
            self.windows = tuple(w for w in self.windows if w.mark != window.mark)
        self._seal()

    def _forget_after(self, end: int) -> None:
        """As if windows closed where the log ended after the SELECT."""
        assert self.capture is not None
        memory = self.capture.dumps._windows._memory
        known_scripts = self._scripts(self.log[:end])
        if TABLE in memory:
            memory[TABLE] = deque(e for e in memory[TABLE] if e.xid is not None and e.xid - FULL in known_scripts)

    def _seal(self) -> None:
        assert self.capture is not None
        self.capture.seal(self.capture.now.place)
        self._check(self.capture)
        if not self.scenario.publish:
            self.publish()


def read_only(scenario: Scenario) -> Scenario:
    """The same small world over a source that is never written."""
    return replace(scenario, name=f"read only, {scenario.name}", read_only=True)
