"""The real clock behind `interfaces.Clock`, and threads behind `interfaces.Spawn`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class SystemClock:
    """This machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds)


def spawn_thread(name: str, function: Callable[[], None]) -> threading.Thread:
    """A daemon thread: it must not keep its process alive."""
    # What such a thread does is durable before it tells anybody, so it may end at any point.
    thread = threading.Thread(target=function, name=name, daemon=True)
    thread.start()
    return thread
