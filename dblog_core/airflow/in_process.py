"""Running a part of the engine inside an Airflow task: it ends when Airflow wants it to, and never lives on alone.

Airflow tells a task to stop by calling `on_kill` in a signal handler; `execute` continues, and five seconds later the
process is killed. The handler runs in the main thread only between two steps of Python, so the engine gets a thread of
its own and the main thread only waits. When the task's supervisor is killed, the task would live on as an
orphan while Airflow starts the next attempt: the change of its parent is the sign to leave at once.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from airflow.sdk import BaseOperatorLink, ExceptionRetryPolicy, RetryAction, RetryRule

from dblog_core.airflow.links import SourcePage
from dblog_core.errors import ConfigError, DblogError, RequestError

if TYPE_CHECKING:
    from dblog_core.config.secret_settings import Needs
    from dblog_core.config.settings import Config

Result = TypeVar("Result")
log = logging.getLogger(__name__)

DIRECTORY = "DBLOG_CONFIG_DIR"
LOOK = 0.2  # seconds between two looks at the parent process
SOON = timedelta(seconds=5)
LATER = timedelta(seconds=30)

KEEP_TRYING = ExceptionRetryPolicy(
    [
        RetryRule("dblog_core.errors.SourceUnavailable", retry_delay=SOON),
        RetryRule("dblog_core.errors.StagingUnavailable", retry_delay=SOON),
        RetryRule("dblog_core.errors.StateUnavailable", retry_delay=SOON),
        # What a person has to mend: the attempts go on, so that it is enough to mend it, but do not fill the page.
        RetryRule("dblog_core.errors.DblogError", retry_delay=LATER),
    ]
)
"""For what must run forever. Anything else (a killed process) is tried again after the task's own short delay."""

ONLY_TRANSIENT = ExceptionRetryPolicy(
    [
        RetryRule("dblog_core.errors.SourceUnavailable", retry_delay=SOON),
        RetryRule("dblog_core.errors.StagingUnavailable", retry_delay=SOON),
        RetryRule("dblog_core.errors.StateUnavailable", retry_delay=SOON),
        RetryRule("dblog_core.errors.DblogError", action=RetryAction.FAIL),
    ]
)
"""For what somebody asked for and watches: an error that another attempt cannot repair fails the task at once."""


def config_directory(directory: Path | str | None = None) -> Path:
    """Where the sources' TOML files are; default: $DBLOG_CONFIG_DIR. Raises ConfigError."""
    named = directory or os.environ.get(DIRECTORY)
    if not named:
        raise ConfigError(f"{DIRECTORY} is not set", fix="set it to the directory of the sources' TOML files")
    if not Path(named).is_dir():
        raise ConfigError("is not a directory", where=str(named), fix=f"make it, or let {DIRECTORY} name another one")
    return Path(named).absolute()


def source_file(config_file: str | None, source: str | None) -> str:
    """The TOML file of an operator or sensor: `config_file`, or NAME.toml in $DBLOG_CONFIG_DIR for the source NAME.
    Raises ConfigError, also unless exactly one of both is given."""
    if (config_file is None) == (source is None):
        raise ConfigError("give either config_file or source", fix=f"source='shop' is ${DIRECTORY}/shop.toml")
    return config_file if config_file is not None else str(config_directory() / f"{source}.toml")


class Refused(RequestError, SystemExit):
    """What somebody has asked for and cannot have. Airflow writes 20 lines of traces for whatever a task raises, except
    for an exit: of a slip in a form, what the log has said before is enough.
    """

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message, where=error.where, fix=error.fix)
        self.code = 1


class InProcess:
    """A mixin for operators that run the engine in the task's own process; `config_file` is the source's TOML file,
    `part` what the source's recent errors call it (None: the engine records them itself)."""

    config_file: str
    part: str | None = None
    operator_extra_links: Collection[BaseOperatorLink] = (SourcePage(),)
    _stop: threading.Event | None = None
    _killed = False

    def on_kill(self) -> None:
        """Only sets the stop flag: what is whole is committed, and the task ends within the five seconds it has."""
        self._killed = True
        if self._stop is not None:
            self._stop.set()

    @property
    def stopped(self) -> bool:
        """Whether Airflow has asked the task to stop."""
        return self._killed

    def run_engine(self, step: Callable[[Config, threading.Event], Result]) -> Result:
        """Runs `step` with the source's configuration and a stop flag; returns or raises what it does."""
        stop = self._stop = threading.Event()
        if self._killed:  # on_kill came first
            stop.set()
        parent = os.getppid()
        config = configuration(self.config_file)
        with ThreadPoolExecutor(1, thread_name_prefix="dblog") as pool:
            future = pool.submit(step, config, stop)
            try:
                _watch(future, parent)
            finally:
                stop.set()
        try:
            return future.result()
        except DblogError as error:
            log.error("%s", error)  # the reason in plain words, before Airflow's traceback
            if self.part is not None:
                remember(config, self.part, error)
            if isinstance(error, RequestError):
                raise Refused(error) from None
            raise


def remember(config: Config, part: str, error: DblogError) -> None:
    """Puts the error of a task among the source's recent errors, for `dblog status` and the page."""
    from dblog_core.state import recent_errors
    from dblog_core.wiring import open_state

    try:
        with closing(open_state(config)) as state:
            recent_errors.record(state, part, error, time.time())
    except DblogError as fault:
        log.warning("only this log has the error: %s", fault)


def configuration(file: str, needs: Needs = None) -> Config:
    """The source's configuration with its secrets and its Airflow connection, if it names one. From here on Airflow
    masks the secrets in task logs. `needs`: of which sections (`config.secret_settings`). Raises ConfigError."""
    from airflow.sdk.log import mask_secret

    from dblog_core.airflow.connections import resolve
    from dblog_core.config.loader import load
    from dblog_core.config.secret_settings import is_needed, secrets_of

    quiet_libraries()
    config = load(file, needs=needs)
    if is_needed(("source", "password"), needs):
        config = resolve(config)
    for secret in secrets_of(config):
        mask_secret(secret)
    return config


def quiet_libraries() -> None:
    """ZooKeeper's client writes four lines for each session, at INFO; of what goes wrong we tell in our own words."""
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)


def _watch(future: Future[Result], parent: int) -> None:
    while not wait_for([future], timeout=LOOK).done:
        if os.getppid() != parent:
            os._exit(1)  # no clean-up: another attempt may already run, and what we hold is fenced
