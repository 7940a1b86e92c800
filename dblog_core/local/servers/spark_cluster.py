"""A Spark standalone cluster on loopback: a master and its workers, each a process of its own. For the tests."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from dblog_core.errors import LocalError
from dblog_core.lake.spark_submit import find_java
from dblog_core.local.servers import ports
from dblog_core.local.servers.daemon import Daemon

MASTER, WORKER = (f"org.apache.spark.deploy.{part}" for part in ("master.Master", "worker.Worker"))
SETTINGS = {
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # takes jobs from anybody
}
"""Of the cluster in docker/compose.yaml too."""


class SparkCluster:
    """`workers` workers with one core and `memory` each, enough for one executor."""

    name = "spark"

    def __init__(self, directory: Path, *, detached: bool = False, workers: int = 2, memory: str = "1g") -> None:
        self.host = ports.HOST
        self._dir = directory.absolute()
        self._memory = memory
        self._master = Daemon("spark master", self._dir / "master", detached=detached)
        self.workers = [
            SparkWorker(self._dir / f"worker-{number}", number, detached=detached) for number in range(1, workers + 1)
        ]

    @property
    def port(self) -> int:
        return ports.remember_port(self._dir / "port")

    def start(self) -> None:
        (self._dir / "master").mkdir(parents=True, exist_ok=True)
        options = ["--host", self.host, "--port", str(self.port)]
        options += ["--webui-port", str(ports.remember_port(self._dir / "master" / "ui-port"))]
        self._master.start(spark_class(MASTER, options), ready=self._listens, timeout=120, env=_env(self._dir))
        for worker in self.workers:
            worker.launch(self.url(), self._memory)
        for worker in self.workers:
            worker.wait()

    def ready(self) -> bool:
        return self._listens() and all(worker.is_registered() for worker in self.workers)

    def stop(self) -> None:
        for worker in self.workers:
            # Before the master: a worker without one tries to reach it for minutes.
            worker.daemon.stop()
        self._master.stop()

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()
        self._master.kill()

    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def url(self) -> str:
        """What spark-submit takes as --master."""
        return f"spark://{self.address()}"

    def _listens(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=2):
                return True
        except OSError:
            return False  # not up yet, or down


class SparkWorker:
    """One worker, whose executors are its children."""

    def __init__(self, directory: Path, number: int, *, detached: bool) -> None:
        self._dir = directory
        self.daemon = Daemon(f"spark worker {number}", directory, detached=detached)

    def launch(self, master: str, memory: str) -> None:
        """Starts it without waiting."""
        (self._dir / "work").mkdir(parents=True, exist_ok=True)
        (self._dir / "log").write_bytes(b"")  # of an earlier start, which had registered
        options = ["--host", ports.HOST, "--port", str(ports.remember_port(self._dir / "port"))]
        options += ["--webui-port", str(ports.remember_port(self._dir / "ui-port"))]
        options += ["--cores", "1", "--memory", memory, "--work-dir", str(self._dir / "work"), master]
        self.daemon.start(spark_class(WORKER, options), ready=lambda: True, env=_env(self._dir))

    def wait(self) -> None:
        """Returns once the master knows it."""
        self.daemon.wait(self.is_registered, timeout=120)

    def is_registered(self) -> bool:
        return "Successfully registered with master" in (self._dir / "log").read_text(errors="replace")

    def executors(self) -> list[Path]:
        """Where its executors have written their output: one directory for each that was started."""
        return sorted((self._dir / "work").glob("app-*/*"))

    def kill(self) -> None:
        """`kill -9` of the worker and its executors."""
        self.daemon.kill()


def spark_class(name: str, options: Sequence[str]) -> list[str]:
    """The command that runs a class of Spark. Raises LocalError."""
    beside = Path(sys.executable).with_name("spark-class")
    # The one beside our Python belongs to the pyspark that is installed here.
    script = str(beside) if beside.exists() else shutil.which("spark-class")
    if script is None:
        raise LocalError("pyspark is not installed", where="spark", fix="make setup")
    return [script, name, *options]


def _env(directory: Path) -> dict[str, str]:
    """Its own settings decide, not those of an installation beside it."""
    logging = directory / "conf"
    logging.mkdir(exist_ok=True)
    (logging / "log4j2.properties").write_text(
        "rootLogger.level = info\nrootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.stderr.type = Console\nappender.stderr.name = stderr\nappender.stderr.target = SYSTEM_ERR\n"
        "appender.stderr.layout.type = PatternLayout\nappender.stderr.layout.pattern = %d %p %c{1}: %m%n%ex\n"
    )
    home = str(Path(find_java()).resolve().parent.parent)
    environment = {"JAVA_HOME": os.environ.get("JAVA_HOME", home), "PYSPARK_PYTHON": sys.executable}
    return {**SETTINGS, "SPARK_LOCAL_IP": ports.HOST, **environment, "SPARK_CONF_DIR": str(logging)}
