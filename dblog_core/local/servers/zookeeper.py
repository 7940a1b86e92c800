"""ZooKeeper servers from the jars that pyspark brings: a single one, or an ensemble of three."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Mapping
from pathlib import Path

from dblog_core.errors import LocalError
from dblog_core.lake.spark_submit import find_java
from dblog_core.local.servers import ports
from dblog_core.local.servers.daemon import Daemon

_JARS = ("zookeeper", "slf4j-api", "log4j-", "netty-", "metrics-core", "snappy-java", "commons-")
SETTINGS = {
    "tickTime": "500",  # milliseconds; the shortest session that a client may ask for is two ticks
    "initLimit": "20",
    "syncLimit": "10",
    "maxSessionTimeout": "60000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr",
}
"""Of the ensemble in docker/compose.yaml too."""


class ZookeeperServer:
    """One server. `peers` makes it a member of an ensemble: member number -> (quorum port, election port); `settings`:
    more of zoo.cfg; `properties`: of the Java machine."""

    kind = "zookeeper"

    def __init__(
        self,
        directory: Path,
        *,
        detached: bool = False,
        name: str = "zookeeper",
        member: int = 1,
        peers: dict[int, tuple[int, int]] | None = None,
        settings: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._more = dict(settings or {})
        self._properties = {"zookeeper.jmx.log4j.disable": "true", **(properties or {})}
        self.host = ports.HOST
        self._dir = directory.absolute()
        self._member = member
        self._peers = peers or {}
        self._daemon = Daemon(name, self._dir, detached=detached)

    @property
    def directory(self) -> Path:
        """Where its settings and its data lie."""
        return self._dir

    @property
    def port(self) -> int:
        return ports.remember_port(self._dir / "port")

    @property
    def pid(self) -> int | None:
        return self._daemon.pid

    def start(self) -> None:
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Starts it without waiting: a member of an ensemble answers only when a majority runs."""
        (self._dir / "data").mkdir(parents=True, exist_ok=True)
        # The number by which the other members know it.
        (self._dir / "data" / "myid").write_text(f"{self._member}\n")
        (self._dir / "zoo.cfg").write_text(self._settings())
        self._daemon.start(self._command(), ready=lambda: True)

    def wait(self) -> None:
        self._daemon.wait(self.ready)

    def ready(self) -> bool:
        return bool(self.mode())

    def mode(self) -> str:
        """standalone, leader or follower; empty while it does not serve."""
        try:
            with socket.create_connection((self.host, self.port), timeout=2) as connection:
                # A four-letter word of ZooKeeper, which the settings allow.
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""  # not up yet, or down
        return next((line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")), "")

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def _settings(self) -> str:
        lines = [
            *(f"{name}={value}" for name, value in {**SETTINGS, **self._more}.items()),
            f"dataDir={self._dir / 'data'}",
            f"clientPort={self.port}",
            f"clientPortAddress={self.host}",
            *(f"server.{n}={self.host}:{quorum}:{election}" for n, (quorum, election) in self._peers.items()),
        ]
        return "\n".join(lines) + "\n"

    def _command(self) -> list[str]:
        kind = "quorum.QuorumPeerMain" if self._peers else "ZooKeeperServerMain"
        small = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        small += [f"-D{name}={value}" for name, value in self._properties.items()]
        return [
            find_java(),
            *small,
            "-cp",
            _classpath(),
            f"org.apache.zookeeper.server.{kind}",
            str(self._dir / "zoo.cfg"),
        ]


class Ensemble:
    """Three servers, of which two make a majority; for the tests."""

    name = "zookeeper"

    def __init__(self, directory: Path, *, detached: bool = False, size: int = 3) -> None:
        self._dir = directory
        self._detached = detached
        self._numbers = range(1, size + 1)
        self._members: list[ZookeeperServer] = []

    @property
    def members(self) -> list[ZookeeperServer]:
        """The servers, for faults of a single one; their ports are chosen at the first call."""
        if not self._members:
            peers = {n: (self._port(n, "quorum"), self._port(n, "election")) for n in self._numbers}
            self._members = [
                ZookeeperServer(
                    self._dir / str(n), detached=self._detached, name=f"zookeeper {n}", member=n, peers=peers
                )
                for n in self._numbers
            ]
        return self._members

    def start(self) -> None:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait()

    def ready(self) -> bool:
        return any(member.ready() for member in self.members)

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    def address(self) -> str:
        return ",".join(member.address() for member in self.members)

    def _port(self, member: int, use: str) -> int:
        return ports.remember_port(self._dir / str(member) / f"{use}-port")


def _classpath() -> str:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise LocalError("pyspark is not installed", where="zookeeper", fix="make setup")
    # Spark brings ZooKeeper's jars for its own standby masters.
    jars = Path(spec.submodule_search_locations[0]) / "jars"
    return ":".join(str(jar) for jar in sorted(jars.glob("*.jar")) if jar.name.startswith(_JARS))
