"""Found by a Python that has this directory in its path: its wall clock is an hour ahead."""

import time

_right = time.time, time.time_ns
time.time = lambda: _right[0]() + 3600.0
time.time_ns = lambda: _right[1]() + 3_600_000_000_000
