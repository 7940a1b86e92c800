"""What a user has: the installed `dblog`, a TOML whose secrets are all `${ENV}`, and a restricted account.

A `World` is one source with its database, configuration and directory. It imports nothing of the product. Commands run
as processes outside of the checkout, and none of them may print a password or a traceback. `close` searches all that
was written for the passwords.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance import judge, secret_texts
from tests.acceptance.accounts import Server, sql_of_fixes
from tests.acceptance.secret_texts import Secret, ZookeeperLogin, plain_secret, shown_in
from tests.small_java import SMALL_JAVA
from tests.waiting import wait_until

JVM_SECONDS = 400.0
"""For a command that starts Spark, on a busy machine."""
_ROUNDS = 6  # of `dblog check` and what it asks an administrator to run
_GROUPS = ("config", "lake", "rules", "schema accept")
SOURCE_PASSWORD = "ACCEPTANCE_SOURCE_PASSWORD"
STATE_PASSWORD = "ACCEPTANCE_STATE_PASSWORD"
TOKEN = "ACCEPTANCE_TOKEN"
HASH_KEY = "ACCEPTANCE_HASH_KEY"


@dataclass(slots=True)
class Running:
    """A command in the background; its output goes to files, so that it never waits for a reader."""

    process: subprocess.Popen[bytes]
    arguments: tuple[str, ...]
    out: Path
    err: Path
    judge_output: Callable[[subprocess.CompletedProcess[str]], None]

    def wait(self, *, ok: Sequence[int] = (0,), timeout: float = JVM_SECONDS) -> subprocess.CompletedProcess[str]:
        """Waits for its end. Fails if it has another exit code, or has printed a password or a traceback."""
        code = self.process.wait(timeout=timeout)
        done = subprocess.CompletedProcess(self.arguments, code, self.out.read_text(), self.err.read_text())
        self.judge_output(done)
        assert code in ok, f"dblog {' '.join(self.arguments)}: exit code {code}\n{done.stdout}\n{done.stderr}"
        return done

    def stop(self, *, ok: Sequence[int] = (0,)) -> subprocess.CompletedProcess[str]:
        """As Ctrl-C does it."""
        self.process.send_signal(signal.SIGINT)
        return self.wait(ok=ok)

    def kill(self) -> None:
        """It and all that it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass(slots=True)
class World:
    """One source.

    `site`: where the wheel is installed. `schema`: what stands before the dot of SCHEMA.TABLE. `variables`: the
    environment variables that the configuration names, each with its secret. `ran`: the commands that have run.
    """

    name: str
    site: Path
    server: Server
    directory: Path
    zookeeper: ZookeeperLogin | None
    password: Secret
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    variables: dict[str, Secret] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    _started: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        for part in ("logs", "tmp", "home"):
            (self.directory / part).mkdir(parents=True)
        self.sections = self._usual_sections()

    # What the user has.

    @property
    def kind(self) -> str:
        return self.server.kind

    @property
    def schema(self) -> str:
        return "public" if self.kind == "postgres" else self.name

    @property
    def user(self) -> str:
        """The restricted account; the hyphen makes every statement quote it."""
        return f"dblog-{self.name}"

    @property
    def config_file(self) -> Path:
        return self.directory / f"{self.name}.toml"

    @property
    def lake(self) -> Path:
        return self.directory / "lake"

    @property
    def secrets(self) -> list[Secret]:
        """Every secret of the configuration."""
        return list(self.variables.values())

    def environment(self) -> dict[str, str]:
        """That of the processes: the secrets, the installed package, and a directory for temporary files."""
        temporary = str(self.directory / "tmp")
        java = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Djava.io.tmpdir={temporary}".strip()
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {
            **inherited,
            **{name: secret.text for name, secret in self.variables.items()},
            "PYTHONPATH": str(self.site),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": temporary,
            "SPARK_LOCAL_DIRS": temporary,
            "SPARK_SUBMIT_OPTS": java,
        }

    def table(self, name: str) -> str:
        """SCHEMA.TABLE."""
        return f"{self.schema}.{name}"

    def write_config(self, **sections: dict[str, Any]) -> None:
        """Writes the TOML. `sections` adds to what it had, or changes that; a dot in a name makes a subsection."""
        for name, settings in sections.items():
            self.sections[name] = {**self.sections.get(name, {}), **settings}
        text = "\n".join(_section(name, settings) for name, settings in self.sections.items())
        assert shown_in(text, self.secrets) == []
        self.config_file.touch(mode=0o644)
        self.config_file.write_text(text, encoding="utf-8")

    def new_token(self, variable: str) -> Secret:
        """A secret of letters and digits; `"${variable}"` stands for it in the configuration."""
        self.variables[variable] = plain_secret()
        return self.variables[variable]

    def _usual_sections(self) -> dict[str, dict[str, Any]]:
        self.variables[SOURCE_PASSWORD] = self.password
        source = {
            "name": self.name,
            "kind": self.kind,
            "host": self.server.host,
            "port": self.server.port,
            "user": self.user,
            "password": f"${{{SOURCE_PASSWORD}}}",
            "database": self.name,
            "tables": [f"{self.schema}.*"],
        }
        state: dict[str, Any] = {"url": f"sqlite:///{self.directory / 'state.db'}"}
        if self.zookeeper is not None:
            self.variables[STATE_PASSWORD] = self.zookeeper.password
            state = {
                "url": f"zookeeper://{self.zookeeper.address}{self.state_root}",
                "user": self.zookeeper.user,
                "password": f"${{{STATE_PASSWORD}}}",
                "login": "sasl",
            }
        return {
            "source": source,
            "staging": {"path": str(self.directory / "staging")},
            "state": state,
            "lake": {"path": str(self.lake)},
            "spark": {"driver_memory": "512m", "conf": SMALL_JAVA},
        }

    @property
    def state_root(self) -> str:
        """The node in ZooKeeper below which the state lies."""
        return f"/acceptance-{self.name}"

    # Commands.

    def start(self, *arguments: str) -> Running:
        """Starts a command in the background."""
        stem = self.directory / "logs" / f"{len(self._started):03}-{arguments[0]}"
        out = Path(f"{stem}.out")
        err = Path(f"{stem}.err")
        self.ran.add(command_of(arguments))
        program = [sys.executable, str(self.site / "bin" / "dblog"), "--config", str(self.config_file), *arguments]
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                program,
                cwd=self.directory / "home",
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        self._started.append(Running(process, arguments, out, err, self._judge_output))
        return self._started[-1]

    def dblog(
        self, *arguments: str, ok: Sequence[int] = (0,), timeout: float = JVM_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        return self.start(*arguments).wait(ok=ok, timeout=timeout)

    def json(self, *arguments: str, ok: Sequence[int] = (0,)) -> Any:
        """What a command prints with `--json`."""
        done = self.dblog(*arguments, "--json", ok=ok)
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError as error:
            raise AssertionError(f"no JSON: {done.stdout}\n{done.stderr}") from error

    def status(self) -> Any:
        return self.json("status")

    def table_status(self, name: str) -> Any:
        """The entry of a table in `status --json`; None where there is none."""
        return next((t for t in self.status()["tables"] if t["table"] == self.table(name)), None)

    def until_status(self, condition: Callable[[Any], object], what: str) -> Any:
        """The first `status --json` of which the condition holds."""
        latest: list[Any] = []

        def matching_status() -> Any:
            latest[:] = [self.status()]
            return latest[0] if condition(latest[0]) else None

        return wait_until(matching_status, what, describe=lambda: json.dumps(latest, indent=1)[:4000])

    @contextmanager
    def capture(self, *arguments: str) -> Iterator[Running]:
        """A capture that leads while the block runs; ended by SIGINT, with exit code 0."""
        running = self.start("capture", *arguments)

        def leads(status: Any) -> bool:
            assert running.process.poll() is None, running.err.read_text()
            return status["leader"] is not None and status["offset"] is not None

        self.until_status(leads, "a capture to lead")
        yield running
        running.stop()

    def catch_up(self) -> None:
        """Returns when all that is committed now is staged, by the capture that runs or by one of its own."""
        self.dblog("capture", "--until-current")

    def _judge_output(self, done: subprocess.CompletedProcess[str]) -> None:
        text = done.stdout + done.stderr
        assert "Traceback" not in text, text
        assert shown_in(text, self.secrets) == [], f"dblog {done.args} has printed a secret"

    # The source, and the lake.

    def admin(self, *statements: str) -> None:
        """Runs statements as the administrator."""
        self.server.execute(*statements, database=self.name)

    def query(self, statement: str) -> list[dict[str, Any]]:
        return self.server.query(statement, database=self.name)

    def source_rows(self, table: str) -> list[dict[str, Any]]:
        return self.query(f"SELECT * FROM {table}")

    def lake_rows(self, table: str) -> list[dict[str, Any]]:
        return judge.read_lake(self.lake, self.table(table))

    def assert_equal(self, *tables: str) -> None:
        """Each row and value of these tables is in the lake, and nothing else."""
        for table in tables:
            judge.compare(table, self.source_rows(table), self.lake_rows(table))

    def assert_all_ok(self) -> None:
        states = {t["table"]: (t["state"], t["error"], t["cause"]) for t in self.status()["tables"]}
        assert states and set(states.values()) == {("ok", None, None)}, states

    def follow_check(self) -> list[str]:
        """Does what `dblog check` asks an administrator to do, until it has no error. Returns the statements."""
        statements: list[str] = []
        for _ in range(_ROUNDS):
            answer = self.json("check", ok=(0, 1))
            new_statements = [s for s in sql_of_fixes(answer["problems"]) if s not in statements]
            if answer["ok"] and not new_statements:
                return statements
            assert new_statements, f"check names no further statement: {json.dumps(answer, indent=1)}"
            self.admin(*new_statements)
            statements += new_statements
        raise AssertionError(f"check still has errors after {statements}: {json.dumps(answer, indent=1)}")

    def create(self) -> None:
        """Makes the database, and an account that may log in and nothing else."""
        quote = '"' if self.kind == "postgres" else "`"
        self.server.execute(f"CREATE DATABASE {quote}{self.name}{quote}")
        self.server.create_account(self.user, self.password)
        self.write_config()

    # The end.

    def kill(self) -> None:
        for running in self._started:
            running.kill()

    def assert_no_secret_written(self) -> None:
        """In files, and in nodes of ZooKeeper."""
        assert secret_texts.files_with_secrets(self.directory, self.secrets) == []
        if self.zookeeper is not None:
            nodes = list(self.zookeeper.nodes(self.state_root))
            assert [path for path, data in nodes if shown_in(path.encode() + data, self.secrets)] == []


def command_of(arguments: Sequence[str]) -> str:
    """The command's name; of a group, with that of its member."""
    words = [word for word in arguments if not word.startswith("-")]
    return next((" ".join(words[:2]) for group in _GROUPS if re.match(rf"{group}\b", " ".join(words[:2]))), words[0])


def _section(name: str, settings: dict[str, Any]) -> str:
    lines = "".join(f"{_key(key)} = {_toml(value)}\n" for key, value in settings.items())
    return f"[{name}]\n{lines}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _toml(value: object) -> str:
    """JSON's texts, numbers and lists are TOML's too."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)
