"""Who sees a committed row, and when: `dblog log --follow` as a consumer runs it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import orjson
import psutil

from dblog_core.local.servers import guard
from dblog_core.local.servers.daemon import wait_until


class Follower:
    """While entered, notes when (monotonic seconds) which key's line came out, and its offset; keys are of `id`."""

    def __init__(self, file: Path, env: Mapping[str, str]) -> None:
        command = [Path(sys.executable).parent / "dblog", "--config", file, "log", "--follow"]
        self._process = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE)
        guard.watch(self._process.pid, psutil.Process(self._process.pid).create_time())
        self._thread = threading.Thread(target=self._read)
        self.seen: dict[int, float] = {}
        self.offsets: dict[int, int] = {}

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        self._thread.join()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def wait(self, committed: Mapping[int, float]) -> None:
        """Until the lines of all these keys are out."""
        wait_until(lambda: committed.keys() <= self.seen.keys(), timeout=60, what="the last line of `log --follow`")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            arrived = time.monotonic()
            answer = orjson.loads(line)
            if answer["op"] == "c":
                self.seen[answer["key"]["id"]], self.offsets[answer["key"]["id"]] = arrived, answer["offset"]


def latencies(committed: Mapping[int, float], seen: Mapping[int, float], *, since: float, until: float) -> list[float]:
    """Milliseconds from a commit's answer to its line, of the commits of that span."""
    span = {key: at for key, at in committed.items() if since <= at < until}
    missing = span.keys() - seen.keys()
    assert span, "nothing was committed"
    assert not missing, f"{len(missing)} of {len(span)} commits never came out"
    return [(seen[key] - at) * 1000 for key, at in span.items()]


def percentile(values: list[float], q: float) -> float:
    return float(np.percentile(values, q))
