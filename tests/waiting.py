"""The one way in which tests wait: for a condition, with a deadline that fits a busy machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

PATIENCE_SECONDS = 240.0
"""Only a failure waits for so long. A test of seconds takes a minute where five other processes are at work."""

_SHORTEST_SECONDS = 0.05
_LONGEST_SECONDS = 0.5
"""Between two looks: longer ones the longer it takes, since a look may cost a request or a process."""


def wait_until(
    look: Callable[[], Result],
    what: str,
    *,
    timeout: float = PATIENCE_SECONDS,
    describe: Callable[[], object] | None = None,
) -> Result:
    """The first true result of `look`. Raises AssertionError with the last one, or with what `describe` returns."""
    began = time.monotonic()
    pause = threading.Event()
    while not (result := look()):
        waited = time.monotonic() - began
        if waited > timeout:
            seen = result if describe is None else describe()
            raise AssertionError(f"{what}: not within {timeout:g} s; last seen: {seen}")
        pause.wait(min(max(waited / 10, _SHORTEST_SECONDS), _LONGEST_SECONDS))
    return result
