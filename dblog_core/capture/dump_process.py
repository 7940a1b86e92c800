"""Dumps that the system or a signal asked for, in a process of their own beside the capture that leads.

What a dump needs of memory follows the rows that it meets. In the capture's own process it could end the capture, which
would take the dump up again when it is back, and be ended again. So the leader looks for such dumps, and starts a
process that works on them; the process ends when it has found none for a while, and another is started when it dies.

The process gets the configuration through a pipe, so that no secret stands in its arguments or its environment. That
pipe stays open: its end is the word to stop, whichever way the capture ends. What the process logs comes back through
another pipe, and is logged by the capture.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import orjson

from dblog_core import wiring
from dblog_core.clock import SystemClock
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_records, work_loop
from dblog_core.dumps.task_queue import TaskQueue
from dblog_core.errors import DblogError
from dblog_core.interfaces import Clock, StateStore
from dblog_core.lake.spark_submit import config_json

log = logging.getLogger(__name__)

REQUESTED_BY = (dump_records.SYSTEM, dump_records.SIGNAL)
LOOK = 1.0  # seconds between two looks for such dumps
LINGER = 20.0  # seconds after which a process that has found nothing more to do ends
GRACE = 10.0  # seconds that a process has to end once it is told to
LATEST = 30.0  # seconds at most before a process that has died is replaced
FAULT = 3  # the exit code of a process that has told why it ends

OnFault = Callable[[DblogError], None]


# The capture's side ---------------------------------------------------------------------------------------------------


def work(config: Config, state: StateStore, clock: Clock, stop: threading.Event, *, on_fault: OnFault) -> None:
    """Has such dumps worked on until `stop` is set; `on_fault` gets the reason why a process died."""
    finder = TaskQueue(state, None, REQUESTED_BY)
    deaths = 0
    wait = LOOK
    while not clock.wait(stop, wait):
        wait = LOOK
        try:
            if not finder.list_unfinished():
                continue
        except DblogError as error:
            log.warning("looking for dumps that the system or a signal requested: %s", error)
            continue
        code = _run(config, stop)
        if stop.is_set() or code == 0:
            deaths = 0
            continue
        if code != FAULT:
            on_fault(_death_error(code))
        deaths += 1
        wait = min(LOOK * 2**deaths, LATEST)


def _death_error(code: int) -> DblogError:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    fix = ""
    if code == -signal.SIGKILL:
        fix = "if it ran out of memory, lower chunk_bytes or workers in [dump], or give it more: another continues"
    return DblogError(f"the process that works on dumps of the system {how}", fix=fix)


def _run(config: Config, stop: threading.Event) -> int:
    """The exit code of one process, which is asked to end when `stop` is set."""
    with _start_process(config) as process:
        assert process.stdin is not None  # a pipe, as asked for
        assert process.stdout is not None
        reader = threading.Thread(target=_log_again, args=(process.stdout,), name="dumps-log", daemon=True)
        reader.start()
        try:
            while process.poll() is None:
                if stop.wait(0.1):
                    _end(process, process.stdin)
        finally:
            if process.poll() is None:
                process.kill()
        code = process.wait()
        reader.join(timeout=1.0)
    return code


def _start_process(config: Config) -> subprocess.Popen[bytes]:
    """A process that has been given the configuration."""
    # The same modules as here, wherever they were found; not those of the directory that it happens to start in.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    argv = [sys.executable, "-P", "-m", __name__]
    process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    message = {"config": config_json(config), "level": logging.getLogger("dblog_core").getEffectiveLevel()}
    with contextlib.suppress(BrokenPipeError):  # it has died: its exit code tells
        process.stdin.write(orjson.dumps(message) + b"\n")
        process.stdin.flush()
    return process


def _end(process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError):
        pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
        return
    process.kill()
    process.wait()


def _log_again(lines: IO[bytes]) -> None:
    """Logs what the process has logged, by our own handlers: they know what must not be shown."""
    for line in lines:
        try:
            level, name, text = orjson.loads(line)
        except ValueError:  # it was killed in the middle of a line, or something else writes there
            level = logging.WARNING
            name = __name__
            text = line.decode(errors="replace").rstrip()
        logging.getLogger(name).log(level, "%s", text)


# The process's side ---------------------------------------------------------------------------------------------------


class _ToCapture(logging.Handler):
    """One JSON array a record: level, logger, text."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        line = orjson.dumps([record.levelno, record.name, self.format(record)]) + b"\n"
        with contextlib.suppress(OSError, ValueError):  # the capture has gone, and nobody reads now
            self._pipe.write(line)
            self._pipe.flush()


def main() -> int:
    """Works on such dumps until none has been found for a while, or the capture ends."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal, for the capture, which then ends us
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    message = orjson.loads(sys.stdin.buffer.readline() or b"null")
    if message is None:
        return 0
    _log_to_capture(message["level"])
    threading.Thread(target=_until_the_capture_ends, args=(stop,), name="capture", daemon=True).start()
    _be_the_first_to_go()
    try:
        _work(Config.model_validate_json(message["config"]), stop)
    except DblogError as error:
        log.warning("a dump that the system or a signal requested: %s", error)
        return FAULT
    return 0


def _work(config: Config, stop: threading.Event) -> None:
    clock = SystemClock()
    with closing(wiring.open_state(config)) as state:
        finder = TaskQueue(state, None, REQUESTED_BY)
        found_at = clock.monotonic()
        while not stop.is_set() and clock.monotonic() - found_at < LINGER:
            if finder.list_unfinished():
                work_loop.work(config, stop=stop, once=True, requested_by=REQUESTED_BY)
                found_at = clock.monotonic()
            clock.wait(stop, LOOK)


def _log_to_capture(level: int) -> None:
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed is no record
    logging.basicConfig(level=level, handlers=[_ToCapture(pipe)], format="%(message)s")
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # we tell of it in our own words
    logging.getLogger("botocore").setLevel(max(level, logging.INFO))  # DEBUG has session tokens


def _until_the_capture_ends(stop: threading.Event) -> None:
    # Not through `sys.stdin`: its lock, held by a thread that reads, makes Python abort when the process ends first.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    stop.set()
    threading.Event().wait(GRACE)
    os._exit(1)  # a long SELECT is not worth waiting for: the capture has gone, and its successor has a process too


def _be_the_first_to_go() -> None:
    """Where memory runs out, the kernel should end this process, and not the capture."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def _main() -> Any:
    from dblog_core.cli import do_without_pandas

    do_without_pandas()
    return main()


if __name__ == "__main__":
    sys.exit(_main())
