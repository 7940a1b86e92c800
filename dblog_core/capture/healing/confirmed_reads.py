"""Answers dump workers whether a table was what was accepted up to where they have read it (`read_confirmations`)."""

from __future__ import annotations

from dblog_core.interfaces import Clock, Source, StateStore
from dblog_core.rows.table_guard import TableGuard
from dblog_core.state import read_confirmations
from dblog_core.state.read_confirmations import Question

_IDLE_SECONDS = 0.1
"""Between two looks while nobody asks."""
_BUSY_SECONDS = 0.01
_FORGOTTEN_SECONDS = 1800.0
"""After which the question of a worker that is gone goes."""


class ConfirmedReads:
    """The questions, as one term of a capture sees them; `guard` is at the place up to which it has read the log."""

    def __init__(self, state: StateStore, source: Source, clock: Clock, guard: TableGuard) -> None:
        self._state = state
        self._source = source
        self._clock = clock
        self._guard = guard
        self._questions: dict[str, tuple[Question | None, float]] = {}
        self._answered: set[str] = set()
        self._looked_at = float("-inf")

    @property
    def pause(self) -> float:
        """Seconds between two looks now."""
        return _BUSY_SECONDS if self._questions else _IDLE_SECONDS

    def look(self, position: str, *, is_inside: bool) -> None:
        """Answers what can be answered where the log is read up to `position`; nothing inside of a transaction
        (`is_inside`). Raises what the state store and the source raise."""
        now = self._clock.monotonic()
        if is_inside or now - self._looked_at < self.pause:
            return
        self._looked_at = now
        names = set(read_confirmations.list_names(self._state))
        self._answered &= names
        for name in self._questions.keys() - names:
            del self._questions[name]
        for name in sorted(names - self._questions.keys()):
            if name not in self._answered:
                self._questions[name] = read_confirmations.read_question(self._state, name), now
        for name, (question, asked_at) in list(self._questions.items()):
            if now - asked_at > _FORGOTTEN_SECONDS:
                read_confirmations.forget(self._state, name)
            elif question is None or not self._is_due(question, position):
                continue
            else:
                read_confirmations.answer(self._state, name, may_pass=self._guard.passes(question.table))
                self._answered.add(name)
            del self._questions[name]

    def _is_due(self, question: Question, position: str) -> bool:
        # One that waits passes, or not, a little later.
        return not self._guard.waits(question.table) and self._source.has_reached(position, question.place)
