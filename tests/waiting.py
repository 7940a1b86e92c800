"""The one way in which tests wait: for a condition, with a deadline that fits a busy machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

PATIENCE_SECONDS = 180.0
"""Only a failure waits for so long. A test of seconds takes a minute where five other processes are at work."""

_POLL_SECONDS = 0.05


def wait_until(
    look: Callable[[], Result],
    what: str,
    *,
    timeout: float = PATIENCE_SECONDS,
    describe: Callable[[], object] | None = None,
) -> Result:
    """The first true result of `look`. Raises AssertionError with the last one, or with what `describe` returns."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not (result := look()):
        if time.monotonic() > deadline:
            seen = result if describe is None else describe()
            raise AssertionError(f"{what}: not within {timeout:g} s; last seen: {seen}")
        pause.wait(_POLL_SECONDS)
    return result
