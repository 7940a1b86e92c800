"""Commands of `dblog` on one configuration of a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core.config.loader import load
from dblog_core.config.settings import Config
from dblog_core.monitoring.status import read_source_status
from tests.fix_servers import Database
from tests.small_java import SMALL_JAVA
from tests.waiting import PATIENCE_SECONDS, wait_until

DEADLINE = PATIENCE_SECONDS


class Commands:
    """Runs `dblog` on one configuration."""

    def __init__(self, file: Path, password: str, *, patience: float = DEADLINE) -> None:
        self.file = file
        self._password = password
        self._patience = patience
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dblog_core.cli", "--config", str(self.file), *arguments]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self._started.append(subprocess.Popen(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **pipes))
        return self._started[-1]

    def end(self, process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
        """Waits for it; whatever it said, it was neither a traceback nor the password."""
        stdout, stderr = process.communicate(timeout=self._patience)
        assert "Traceback" not in stdout + stderr
        assert self._password not in stdout + stderr
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.end(self.start(*arguments))

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def until(self, condition: Callable[[Any], bool]) -> Any:
        """The status once it is so: what `dblog status --json` prints, without a process for each look."""
        config = load(self.file)

        def look() -> Any:
            answer = json.loads(orjson.dumps(read_source_status(config).to_json()))
            return answer if condition(answer) else None

        return wait_until(
            look, "the status is so", timeout=self._patience, describe=lambda: read_source_status(config).to_json()
        )

    def kill(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()  # not for the end of its output: what it has started may hold that for longer
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


@pytest.fixture
def tables(database: Database) -> Database:
    """An integer key, a text key, and a table without a key."""
    database.execute(
        "CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, note VARCHAR(50))",
        "CREATE TABLE b (code VARCHAR(50) NOT NULL PRIMARY KEY, amount DECIMAL(10,2))",
        "CREATE TABLE plain (x INTEGER)",
        "INSERT INTO a VALUES " + ", ".join(f"({n}, 'note {n}')" for n in range(1, 501)),
        "INSERT INTO b VALUES ('x', 1.10), ('y', 2.20)",
    )
    if database.kind == "postgres":
        database.execute("ALTER TABLE plain REPLICA IDENTITY FULL")
    return database


def write(config: Config, file: Path, **changes: str) -> None:
    """The configuration as TOML; `changes` replace values of the source."""
    source = {
        **config.source.model_dump(mode="json", include={"name", "kind", "host", "port", "user", "database", "tables"}),
        "password": config.source.password.get_secret_value(),
        **changes,
    }
    sections = {"source": source, "staging": {"path": config.staging.path}, "state": {"url": config.state.url}}
    sections |= {"lake": {"path": config.lake.path}, "spark.conf": SMALL_JAVA}
    lines = [
        f"[{name}]\n" + "".join(f"{json.dumps(k)} = {json.dumps(v)}\n" for k, v in keys.items())
        for name, keys in sections.items()
    ]
    file.touch(mode=0o600)
    file.write_text("\n".join(lines))


@pytest.fixture
def config(tables: Database, tmp_path: Path, zookeeper_url: str) -> Config:
    return tables.config(tmp_path, state={"url": zookeeper_url})


@pytest.fixture
def dblog(config: Config, tmp_path: Path) -> Iterator[Commands]:
    write(config, tmp_path / "source.toml")
    commands = Commands(tmp_path / "source.toml", config.source.password.get_secret_value())
    yield commands
    commands.kill()


@pytest.fixture
def customers(tables: Database) -> Database:
    """Two tables that one pattern matches, with skewed keys, text that differs in case, dates and money."""
    for name in ("cust_a", "cust_b"):
        tables.execute(
            f"CREATE TABLE {name} (id INTEGER NOT NULL PRIMARY KEY, city VARCHAR(20), born DATE, paid DECIMAL(10,2))",
            f"INSERT INTO {name} VALUES "
            + ", ".join(
                f"({n if n < 900 else n * n}, '{('Oslo', 'Rome', '42')[n % 3]}', '20{n % 30:02}-01-15', {n}.50)"
                for n in range(1, 1001)
            ),
            f"ANALYZE {name}" if tables.kind == "postgres" else f"ANALYZE TABLE {name}",
        )
    return tables
