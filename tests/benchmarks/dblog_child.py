"""One part of `dblog` in a process of its own, as the command line runs it, told when what was done and what it cost.

    python -m tests.benchmarks.dblog_child capture CONFIG [--until-current]
    python -m tests.benchmarks.dblog_child dump CONFIG TABLE...
    python -m tests.benchmarks.dblog_child verify CONFIG TABLE...

SIGTERM stops a capture. The last line of its output is a JSON object: `points` (seconds, CPU seconds of the process,
rows that are published) and the most memory it had; or `seconds` and `cpu` of a dump, from its request to its last
placed chunk; or `seconds` of a verification, the start of Spark included, and `read`, those until the source had
hashed its last row. What importing costs is in none of them: it is paid once a process. With DBLOG_PROFILE set,
`profile` tells where the CPU time went.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from typing import Any

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.cli import do_without_pandas
from dblog_core.config.loader import load
from dblog_core.config.settings import Config
from dblog_core.dumps import filing
from dblog_core.dumps import work_loop as worker
from dblog_core.dumps.requests import DumpRequest
from dblog_core.state.capture_status import CaptureStatus
from dblog_core.verify import verification as verification
from dblog_core.verify.verification import VerifyRequest
from tests.benchmarks.peak import peak_memory
from tests.benchmarks.profiler import Profiler

PLACES = 12  # of a profile: the rest is small


def capture(config: Config, *, until_current: bool) -> dict[str, Any]:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    points: list[tuple[float, float, int]] = []

    def note(status: CaptureStatus) -> None:
        if not status.leading:
            return  # it waits for the lease of one that was killed
        if not points:
            print("leading", flush=True)
        if not status.error and (not points or status.offset > points[-1][2]):
            points.append((time.monotonic(), time.process_time(), status.offset))

    began = (time.monotonic(), time.process_time(), 0)
    outcome = run_capture(config, stop=stop, until_current=until_current, on_status=note)
    return {"began": began, "points": points, "outcome": outcome.value}


def dump(config: Config, tables: list[str]) -> dict[str, Any]:
    stop = threading.Event()
    began = time.monotonic()
    cpu = time.process_time()
    dump_id = filing.submit(config, DumpRequest(tables=tuple(tables)))
    worker.work(config, stop=stop, once=True, dump_id=dump_id)
    worked = time.monotonic()
    spent = time.process_time()
    status = worker.wait(config, dump_id, stop=stop)
    seconds = time.monotonic() - began
    return {
        "state": status.state,
        "error": status.error,
        "rows": status.rows,
        "seconds": seconds,
        "working": worked - began,
        "cpu": spent - cpu,
    }


def verify(config: Config, tables: list[str]) -> dict[str, Any]:
    hashed: list[float] = []

    def say(line: str) -> None:
        if line.endswith("hashed by the source"):
            hashed.append(time.monotonic())

    began = time.monotonic()
    report = verification.verify(config, VerifyRequest(tuple(tables)), stop=threading.Event(), say=say)
    seconds = time.monotonic() - began
    table_reports = [table.to_json() for table in report.tables if not table.equal]
    rows = sum(table.rows for table in report.tables)
    return {"differs": table_reports[:1], "rows": rows, "seconds": seconds, "read": max(hashed, default=began) - began}


def main() -> None:
    do_without_pandas()  # as `dblog` does
    what, file, *rest = sys.argv[1:]
    config = load(file)
    wiring.open_source(config.source)  # imports the source's modules, with their compiled code
    profiler = Profiler()
    with profiler if "DBLOG_PROFILE" in os.environ else nullcontext():
        if what == "capture":
            table_reports = capture(config, until_current=bool(rest))
        else:
            table_reports = dump(config, rest) if what == "dump" else verify(config, rest)
    if profiler.seconds:
        table_reports["profile"] = profiler.shares(PLACES)
    peak = peak_memory()
    print(json.dumps({**table_reports, "peak": peak, "all_cpu": time.process_time()}), flush=True)


if __name__ == "__main__":
    main()
