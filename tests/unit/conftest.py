"""What unit tests have of the capture that would need a process, which cannot see their fakes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _fakes_are_seen_by_dumps_of_the_system(system_dumps_in_this_process: None) -> None:
    return None


@pytest.fixture(autouse=True)
def _what_is_the_process_own_is_what_it_was() -> Iterator[None]:
    """Commands and jobs set the umask and signal handlers for their process, and here that is the process of the tests
    that follow."""
    umask = os.umask(0o022)
    os.umask(umask)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    os.umask(umask)
    for number, handler in handlers.items():
        signal.signal(number, handler)
