"""State stores of tests: which kinds there are, and the seconds of their leases."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from dblog_core.interfaces import StateStore

TTL = 3.0


LONG = 30.0  # so long that nothing in a test waits for its end


REAL = ["sqlite", "zookeeper"]


Open = Callable[..., StateStore]


Holder = Callable[[float], subprocess.Popen[str]]


every = pytest.mark.parametrize("kind", ["memory", *REAL])


real = pytest.mark.parametrize("kind", REAL)
