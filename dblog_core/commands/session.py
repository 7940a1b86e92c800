"""One run of the command line: its global options, where its words go, and how it is asked to stop."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from dblog_core import early_signals
from dblog_core.config.loader import load
from dblog_core.config.secret_settings import Needs, is_needed, secrets_of
from dblog_core.config.settings import Config
from dblog_core.errors import ConfigError
from dblog_core.installed_packages import install_line

FAILED = 1
WRONG_USE = 2
"""Exit codes: what was asked for did not come about; it could not even be asked for like that."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON.")]

stderr = Console(stderr=True, highlight=False)
"""Progress and messages. Results go to stdout, by `Session.result` alone."""


@dataclass(slots=True)
class Session:
    """The global options; the configuration is read when a command asks for it."""

    file: Path | None = None
    json: bool = False
    debug: bool = False
    secrets: tuple[str, ...] = ()

    def config(self, needs: Needs = None) -> Config:
        """`needs`: of which sections the command needs the secrets (`config.secret_settings`). Raises ConfigError."""
        if self.file is None:
            raise ConfigError("no configuration is given", fix="dblog --config FILE …, or set DBLOG_CONFIG")
        config = load(self.file, needs=needs)
        if config.source.airflow_connection is not None and is_needed(("source", "password"), needs):
            config = _with_airflow(config)
        self.secrets = secrets_of(config)
        return config

    def result(self, data: Any, text: str) -> None:
        """The command's answer: `data` with --json, else `text`."""
        sys.stdout.write(orjson.dumps(data).decode() + "\n" if self.json else text + "\n" if text else "")
        sys.stdout.flush()

    def redact(self, text: str) -> str:
        """The text without the configuration's secrets, whatever a driver may have put into it."""
        for secret in sorted(self.secrets, key=len, reverse=True):  # one may begin with another
            text = text.replace(secret, "*****") if len(secret) > 3 else text
        return text


def session_of(context: typer.Context, json: bool = False) -> Session:
    """The session of a command, and --json as given before or after it."""
    session: Session = context.obj
    session.json = session.json or json
    return session


def note(text: str) -> None:
    """A message to the person at the terminal."""
    stderr.print(text, markup=False, soft_wrap=True)


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, also those that came before the command; a second signal ends the process
    the hard way."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def tell(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in before:
        signal.signal(number, tell)
    for arrived in early_signals.have_arrived():
        tell(arrived, None)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def set_up_logging(session: Session) -> None:
    """The engine's log goes to stderr: warnings, or all of it; the configuration's secrets never do."""
    debug = session.debug
    handler = _ToConsole(session)
    whole = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(whole if debug else "%(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if debug else logging.WARNING)
    logging.getLogger("kazoo").setLevel(logging.DEBUG if debug else logging.CRITICAL)  # we tell of it in our own words
    logging.getLogger("botocore").setLevel(logging.INFO if debug else logging.WARNING)  # DEBUG has session tokens


class _ToConsole(logging.Handler):
    """Through the one console, so that a progress display and log lines do not write over each other."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def emit(self, record: logging.LogRecord) -> None:
        note(self._session.redact(self.format(record)))


def _with_airflow(config: Config) -> Config:
    """The one place of the command line that needs Airflow, and only where the configuration asks for it."""
    try:
        from dblog_core.airflow.connections import resolve
    except ImportError as error:
        raise ConfigError(
            "airflow_connection needs Airflow, which is not installed here",
            where="[source] airflow_connection",
            fix=f"{install_line('airflow')}, or give host, user and password",
        ) from error
    return resolve(config)
