"""The retry policy of connections: errors that call themselves transient are tried again, ever more slowly.

Other errors pass. `wait_for` waits for what others do: it looks again, ever more slowly, and tries no error again.
Loops that begin again after somebody else was faster (`compare_and_set`, a dump's request while its tables are altered)
wait for nobody, and count their attempts themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import tenacity

from dblog_core.clock import SystemClock
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock

_STOP_POLL_SECONDS = 0.2
Seen = TypeVar("Seen")


def retrying(
    *,
    give_up_after: float | None = None,
    first_wait: float = 0.1,
    longest_wait: float = 5.0,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
    on_retry: Callable[[DblogError, float], None] | None = None,
    but_not: tuple[type[DblogError], ...] = (),
) -> tenacity.Retrying:
    """A policy to call a step with: `retrying(…)(step, argument)`, or as a decorator.

    Waits double from `first_wait` to `longest_wait` seconds. After `give_up_after` seconds (None: never), or once
    `stop` is set, the last error is raised as it is. `on_retry` hears of every failure with the wait that follows.
    Errors of the classes `but_not` pass at once, though they may call themselves transient.
    """
    clock = clock or SystemClock()
    limit = _Limit(clock, give_up_after, stop)
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(lambda error: is_transient(error) and not isinstance(error, but_not)),
        wait=tenacity.wait_exponential(multiplier=first_wait, max=longest_wait),
        stop=limit.is_reached,
        before=limit.begin,
        before_sleep=None if on_retry is None else _report_retry(on_retry),
        sleep=lambda seconds: _sleep(clock, seconds, stop),
        # The error itself and not tenacity's `RetryError`: callers know it by its class.
        reraise=True,
    )


def wait_for(
    look: Callable[[], Seen],
    *,
    until: Callable[[Seen], bool] = bool,
    waits: tuple[float, float],
    give_up_after: float | None = None,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
) -> Seen:
    """Looks at once and then again and again, until what was seen is enough, and returns that.

    Waits double from the first to the second of `waits`, in seconds. `give_up_after` seconds after the call (None:
    never), or once `stop` is set, the last that was seen is returned, which is not enough. What `look` raises ends the
    wait.
    """
    clock = clock or SystemClock()
    began = clock.monotonic()
    pause, longest = waits
    while not until(seen := look()):
        if give_up_after is not None and clock.monotonic() - began >= give_up_after:
            break
        if stop is None:
            clock.sleep(pause)
        elif clock.wait(stop, pause):
            break
        pause = min(2 * pause, longest)
    return seen


def is_transient(error: BaseException) -> bool:
    """Whether the same step may succeed when tried again."""
    return isinstance(error, DblogError) and error.transient


class _Limit:
    """When to give up, by our clock: tenacity's own counts on the machine's."""

    def __init__(self, clock: Clock, give_up_after: float | None, stop: threading.Event | None) -> None:
        self._clock = clock
        self._give_up_after = give_up_after
        self._stop = stop
        self._began = 0.0

    def begin(self, state: tenacity.RetryCallState) -> None:
        # A policy may be called again: each call has its own time.
        if state.attempt_number == 1:
            self._began = self._clock.monotonic()

    def is_reached(self, state: tenacity.RetryCallState) -> bool:
        if self._stop is not None and self._stop.is_set():
            return True
        return self._give_up_after is not None and self._clock.monotonic() - self._began >= self._give_up_after


def _report_retry(on_retry: Callable[[DblogError, float], None]) -> Callable[[tenacity.RetryCallState], None]:
    def hear(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        # Others are not tried again, so there is no wait to report.
        if isinstance(error, DblogError):
            on_retry(error, state.upcoming_sleep)

    return hear


def _sleep(clock: Clock, seconds: float, stop: threading.Event | None) -> None:
    """Sleeps in short steps, so that a stop is not waited for."""
    end = clock.monotonic() + seconds
    while (left := end - clock.monotonic()) > 0 and not (stop is not None and stop.is_set()):
        clock.sleep(left if stop is None else min(left, _STOP_POLL_SECONDS))
