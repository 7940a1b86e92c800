"""Which merger may write: each one claims the next number in LAKE/_dblog/mergers, and only the newest claim counts.

The lease says who *should* merge, by clocks and by a state store that may be wiped or another one. The claims lie in
the lake itself and are created, never replaced: a merger that was paused finds a newer claim when it wakes up, and
stops.
"""

from __future__ import annotations

import os
import socket

import orjson

from dblog_core.errors import LakeError, LeaseLost
from dblog_core.storage.location import Location

_KEEP = 20  # claims that stay, to look into; the newest one is what counts


class Fence:
    """This process's claim on the lake. `epoch` grows from one merger to the next; 0 before `claim`."""

    def __init__(self, directory: Location, source: str) -> None:
        """`directory`: the lake's own one; `source`: what is merged into it."""
        self._directory = directory / "mergers"
        self._source = source
        self.epoch = 0

    def claim(self, staging: str | None = None) -> None:
        """Shuts out every merger before. The caller holds the lake's lock. `staging`: the identity of what is merged,
        for people. Raises LakeError where the lake is another source's: its numbers and offsets would be taken for
        ours."""
        holder = orjson.dumps(
            {"holder": f"{socket.gethostname()}:{os.getpid()}", "source": self._source, "staging": staging}
        )
        numbers = self._numbers()
        self._refuse_another_source(max(numbers, default=0))
        self.epoch = max(numbers, default=0) + 1
        while not self._claim_file(self.epoch).create(holder):
            self.epoch += 1
        for number in sorted(numbers)[:-_KEEP]:
            self._claim_file(number).remove()

    def _refuse_another_source(self, newest: int) -> None:
        data = self._claim_file(newest).read() if newest else None
        lake_source = orjson.loads(data).get("source", self._source) if data else self._source
        if lake_source != self._source:
            raise LakeError(
                f"the lake is that of source {lake_source}, and {self._source} cannot be merged into it",
                where=str(self._directory),
                fix=f"give [lake] path of {self._source} a directory of its own",
            )

    def check(self) -> None:
        """Raises LeaseLost if another merger has claimed the lake since."""
        if (newest := max(self._numbers(), default=0)) > self.epoch:
            data = self._claim_file(newest).read()
            raise LeaseLost(
                f"{orjson.loads(data)['holder'] if data else 'another merge'} has taken the lake over",
                where=str(self._directory),
            )

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self._directory.names())
        return [int(name) for name in names if name.isdigit()]

    def _claim_file(self, number: int) -> Location:
        return self._directory / f"{number:012d}.json"
