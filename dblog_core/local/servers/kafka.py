"""A Kafka broker from Maven's jars: one node that is broker and controller, on loopback alone. For the tests."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from dblog_core.lake.spark_submit import find_java
from dblog_core.local.packages import spark_jars
from dblog_core.local.packages.kafka_jars import JARS
from dblog_core.local.servers import ports
from dblog_core.local.servers.daemon import Daemon
from dblog_core.local.servers.server import Account
from dblog_core.local.set_up_programs import run_to_end

CLUSTER = "4L6g3nShT-eMCtK--X86sw"  # any 16 bytes: there is one node
_SINGLE = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    **{f"{topic}.replication.factor": "1" for topic in _SINGLE},
    **{f"{topic}.num.partitions": "1" for topic in _SINGLE},
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
"""Of the broker in docker/compose.yaml too."""


@dataclass(frozen=True, slots=True)
class Door:
    """Who is let in over TLS: PEM files of the broker's certificate and key, and one user, by PLAIN and SCRAM."""

    certificate: Path
    key: Path
    account: Account


class KafkaServer:
    """One broker; its topics lie in `directory`. `door`: a second listener, beside the one that lets everybody in."""

    kind = "kafka"

    def __init__(self, directory: Path, *, detached: bool = False, door: Door | None = None) -> None:
        self.name = "kafka"
        self.door = door
        self._dir = directory.absolute()
        self._daemon = Daemon(self.name, self._dir, detached=detached)

    @property
    def port(self) -> int:
        return ports.remember_port(self._dir / "port")

    @property
    def pid(self) -> int | None:
        return self._daemon.pid

    def start(self) -> None:
        self._dir.mkdir(parents=True, exist_ok=True)
        settings = self._dir / "server.properties"
        # Before the content: it holds the password of the user.
        settings.touch(mode=0o600)
        settings.write_text(self._settings())
        # A broker without a cluster's id in its directory refuses to start.
        if not (self._dir / "data" / "meta.properties").exists():
            tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER, "-c", str(settings)]
            # The users of SCRAM are part of the formatted metadata.
            run_to_end([*_java(), *tool, *self._users()], where=self.name, cwd=self._dir)
        self._daemon.start([*_java(), "kafka.Kafka", str(settings)], ready=self.ready, timeout=120)

    def ready(self) -> bool:
        try:
            with socket.create_connection((ports.HOST, self.port), timeout=2):
                return True
        except OSError:
            return False  # not up yet, or down

    def stop(self) -> None:
        self._daemon.stop()

    def kill(self) -> None:
        self._daemon.kill()

    def address(self) -> str:
        return f"{ports.HOST}:{self.port}"

    def secure_address(self) -> str:
        """Of the listener behind the door."""
        return f"{ports.HOST}:{ports.remember_port(self._dir / 'secure-port')}"

    def _users(self) -> list[str]:
        if self.door is None:
            return []
        account = self.door.account
        return ["--add-scram", f"SCRAM-SHA-512=[name={account.user},password={account.password}]"]

    def _secure_listener_settings(self) -> list[str]:
        if self.door is None:
            return []
        account = self.door.account
        login = "org.apache.kafka.common.security"
        chain = self._dir / "broker.pem"
        chain.touch(mode=0o600)
        # Kafka wants key and certificate in one PEM file.
        chain.write_bytes(self.door.key.read_bytes() + self.door.certificate.read_bytes())
        plain = f'{login}.plain.PlainLoginModule required user_{account.user}="{account.password}";'
        protocols = ("CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", "SASL_SSL:SASL_SSL")
        return [
            f"listener.security.protocol.map={','.join(protocols)}",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={chain}",
            "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512",
            f"listener.name.sasl_ssl.plain.sasl.jaas.config={plain}",
            f"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={login}.scram.ScramLoginModule required;",
        ]

    def _settings(self) -> str:
        controller = f"{ports.HOST}:{ports.remember_port(self._dir / 'controller-port')}"
        listeners = f"PLAINTEXT://{self.address()},CONTROLLER://{controller}"
        if self.door is not None:
            listeners += f",SASL_SSL://{self.secure_address()}"
        lines = [
            *(f"{name}={value}" for name, value in SETTINGS.items()),
            f"controller.quorum.bootstrap.servers={controller}",
            f"listeners={listeners}",
            f"advertised.listeners={listeners}",
            f"log.dirs={self._dir / 'data'}",
            *self._secure_listener_settings(),
        ]
        return "\n".join(lines) + "\n"


def _java() -> list[str]:
    # The tests run several Java programs beside each other on a small machine.
    small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [find_java(), *small, "-cp", ":".join(str(jar) for jar in spark_jars.fetch_jars(JARS, "Kafka"))]
