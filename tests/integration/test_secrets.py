"""No secret leaves those who need it: real commands on real servers, with a marked secret in every setting that is one.

What Airflow keeps (its database, logs, serialized DAGs, XCom) is looked at by `tests/airflow/test_live.py`, what
executors get by `tests/unit/config/test_secret_settings.py`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from dblog_core.config.loader import load
from dblog_core.monitoring.status import read_source_status
from tests.fix_servers import Database
from tests.marked import MARK, Marked, mark_config, read_nodes
from tests.nemesis.processes import kill
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.in_turn]

OF_A_JOB = [("state", "password"), ("s3", "secret_key")]
"""What the environment of a merge's job may hold: it reads state and storage."""


class Watch:
    """The arguments and environments of all processes below this one, looked at all the time."""

    def __init__(self) -> None:
        self.arguments: set[str] = set()
        self.environments: set[str] = set()
        self.looks = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread.is_alive(), "it has not looked all the time"
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            family: list[psutil.Process] = []
            with suppress(psutil.Error):  # one that ended meanwhile
                family = psutil.Process().children(recursive=True)
            for process in family:
                with suppress(psutil.Error):
                    self.arguments.add("\n".join(process.cmdline()))
                    self.environments.add("\n".join(process.environ().values()))
            self.looks += 1


class Commands:
    """`dblog --debug` on one configuration; what all of them have printed."""

    def __init__(self, file: Path, directory: Path) -> None:
        self._file = file
        self._directory = directory
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dblog_core.cli", "--config", str(self._file), "--debug", *arguments]
        with (self._directory / f"{len(self._started)}-{arguments[0]}.log").open("wb") as log:
            self._started.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self._started[-1]

    def run(self, *arguments: str) -> int:
        return self.start(*arguments).wait(timeout=PATIENCE_SECONDS)

    def printed_text(self) -> str:
        return "\n".join(log.read_text() for log in sorted(self._directory.iterdir()))

    def close(self) -> None:
        for process in self._started:
            kill(process)


@pytest.fixture
def marked_config(database: Database, tmp_path: Path, zookeeper_url: str) -> Marked:
    database.execute("CREATE TABLE a (id INTEGER NOT NULL PRIMARY KEY, note VARCHAR(50))")
    database.execute("INSERT INTO a VALUES (1, 'one'), (2, 'two')")
    source = database.config(tmp_path).source
    keys = ("name", "kind", "host", "port", "user", "database", "tables")
    return mark_config(
        tmp_path,
        source={
            **source.model_dump(mode="json", include=set(keys)),
            "password": source.password.get_secret_value(),
            "columns": {f"{database.schema}.a": {"hash": ["note"]}},
        },
        staging={"path": str(tmp_path / "written" / "staging")},
        state={"url": zookeeper_url, "ttl": 4},
        lake={"path": str(tmp_path / "written" / "lake")},
    )


@pytest.fixture
def dblog(marked_config: Marked, tmp_path: Path) -> Iterator[Commands]:
    logs = tmp_path / "logs"
    logs.mkdir()
    commands = Commands(marked_config.write(tmp_path / "source.toml"), logs)
    yield commands
    commands.close()


@pytest.mark.one_of(4)
def test_no_secret_leaves_those_who_need_it(
    marked_config: Marked, dblog: Commands, tmp_path: Path, zookeeper_url: str
) -> None:
    config = load(tmp_path / "source.toml")
    with Watch() as watch:
        capture = dblog.start("capture")
        check = dblog.start("check")
        wait_until(
            lambda: read_source_status(config).to_json()["leader"], "a capture leads", describe=dblog.printed_text
        )
        assert dblog.run("dump", "--all", "--wait") == 0, dblog.printed_text()
        relays = [dblog.start("relay", name, "--once") for name in ("post", "own", "db")]
        assert dblog.run("merge") == 0, dblog.printed_text()
        assert [relay.wait(timeout=PATIENCE_SECONDS) for relay in relays] == [1, 1, 1], "nobody answers them"
        assert check.wait(timeout=PATIENCE_SECONDS) == 0, dblog.printed_text()
        assert dblog.run("status") == 0
        capture.terminate()
        assert capture.wait(timeout=PATIENCE_SECONDS) == 0
    wrong = {**marked_config.data, "source": {**marked_config.data["source"], "password": f"{MARK} is another's"}}
    Marked(wrong).write(tmp_path / "source.toml")
    assert dblog.run("check") == 1
    printed = dblog.printed_text()
    assert any("SparkSubmit" in arguments for arguments in watch.arguments) and watch.looks > 10
    assert "DEBUG kazoo" in printed, "all levels are looked at"
    assert marked_config.shown_in(printed) == [] and MARK not in printed
    assert marked_config.shown_in("\n".join(watch.arguments)) == []
    assert marked_config.shown_in("\n".join(watch.environments)) == OF_A_JOB
    written = [path for path in (tmp_path / "written").rglob("*") if path.is_file()]
    assert len(written) > 10 and [path for path in written if marked_config.shown_in(path.read_bytes())] == []
    state = marked_config.data["state"]
    nodes = list(read_nodes(zookeeper_url, login=f"{state['user']}:{state['password']}"))
    assert len(nodes) > 10 and [path for path, data in nodes if marked_config.shown_in(path.encode() + data)] == []
