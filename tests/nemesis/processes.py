"""The system under test as users run it: `dblog` processes that can be killed with all their children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from dblog_core.config.settings import Config
from tests.waiting import PATIENCE_SECONDS


def write_config(config: Config, directory: Path) -> tuple[Path, dict[str, str]]:
    """The configuration as a file, and the environment that holds its password."""
    data = config.model_dump(mode="json", exclude_defaults=True)
    data["source"]["password"] = "${NEMESIS_PASSWORD}"
    if config.source.kind != "postgres":
        del data["source"]["slot"], data["source"]["publication"]
    file = directory / "source.toml"
    file.write_text("".join(_section(name, values) for name, values in data.items() if values))
    return file, {**os.environ, "NEMESIS_PASSWORD": config.source.password.get_secret_value()}


def _section(name: str, values: dict[str, object]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in values.items()) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_toml(str(key))} = {_toml(v)}" for key, v in value.items()) + " }"
    return (
        repr(value)
        if isinstance(value, int | float)
        else '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
    )


class Dblog:
    """Runs `dblog` commands with one configuration; what they print goes to files in `directory`."""

    def __init__(self, config: Config, directory: Path) -> None:
        self._directory = directory
        self._file, self._env = write_config(config, directory)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[bytes]:
        """A command in the background, in a session of its own, with more variables of the environment."""
        log = (self._directory / f"{arguments[0]}-{len(self._started)}.log").open("wb")
        process = subprocess.Popen(
            [Path(sys.executable).parent / "dblog", "--config", self._file, *arguments],
            env={**self._env, **variables},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._started.append(process)
        return process

    def run(self, *arguments: str, timeout: float = PATIENCE_SECONDS) -> None:
        """A command to its end. Raises AssertionError with what it printed unless it exits with 0."""
        process = self.start(*arguments)
        number = len(self._started) - 1
        code = process.wait(timeout)
        printed = (self._directory / f"{arguments[0]}-{number}.log").read_text()
        assert code == 0, f"dblog {' '.join(arguments)} exited with {code}:\n{printed[-4000:]}"

    def output(self) -> str:
        """What all commands have printed: shown when a run fails."""
        files = sorted(self._directory.glob("*.log"))
        return "\n".join(f"--- {f.name}\n{f.read_text()[-1500:]}" for f in files)

    def close(self) -> None:
        for process in self._started:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """`kill -9` of the process and all below it."""
    try:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            os.kill(member.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended by itself meanwhile
    process.wait(timeout=PATIENCE_SECONDS)
