"""Which merger may write: each one claims the next number in LAKE/_dblog/mergers, and only the newest claim counts.

The lease says who *should* merge, by clocks and by a state store that may be wiped or another one. The claims lie in
the lake itself and are created, never replaced: whoever was paused finds a newer one when it wakes up, and stops.
"""

from __future__ import annotations

import os
import socket

import orjson

from dblog_core.errors import LeaseLost
from dblog_core.storage.location import Location

_KEEP = 20  # claims that stay, to look into; the newest one is what counts


class Fence:
    """This process's claim on the lake. `epoch` grows from one merger to the next; 0 before `claim`."""

    def __init__(self, directory: Location) -> None:
        """`directory`: the lake's own one."""
        self._directory = directory / "mergers"
        self.epoch = 0

    def claim(self) -> None:
        """Shuts out every merger before. The caller holds the lake's lock."""
        holder = orjson.dumps({"holder": f"{socket.gethostname()}:{os.getpid()}"})
        numbers = self._numbers()
        self.epoch = max(numbers, default=0) + 1
        while not self._file(self.epoch).create(holder):
            self.epoch += 1
        for number in sorted(numbers)[:-_KEEP]:
            self._file(number).remove()

    def check(self) -> None:
        """Raises LeaseLost if another merger has claimed the lake since."""
        if (newest := max(self._numbers(), default=0)) > self.epoch:
            data = self._file(newest).read()
            raise LeaseLost(
                f"{orjson.loads(data)['holder'] if data else 'another merge'} has taken the lake over",
                where=str(self._directory),
                fix="nothing: what this merge had begun is finished by that one",
            )

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self._directory.names())
        return [int(name) for name in names if name.isdigit()]

    def _file(self, number: int) -> Location:
        return self._directory / f"{number:012d}.json"
