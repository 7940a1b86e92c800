"""Two captures on an ensemble of ZooKeepers, each with ways of its own to the servers."""

from __future__ import annotations

import subprocess
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.interfaces import LeaseInfo
from dblog_core.local.servers.zookeeper import Ensemble
from dblog_core.staging.manifest import Manifest
from dblog_core.state.lease_holder import CAPTURE
from tests.nemesis.links import Link
from tests.nemesis.processes import Dblog, kill
from tests.waiting import PATIENCE_SECONDS, wait_until

TTL = 8.0  # a leader that stands still for some seconds, on a machine that is busy, leads on


Found = TypeVar("Found")


@dataclass(slots=True)
class Node:
    """One machine: a capture with ways of its own to the database and to each ZooKeeper."""

    config: Config
    dblog: Dblog
    database: Link
    zookeepers: list[Link]
    process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, **variables: str) -> None:
        self.process = self.dblog.start("capture", **variables)

    def stop(self) -> None:
        """As its supervisor does, for a planned restart."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(PATIENCE_SECONDS) == 0

    def kill(self) -> None:
        assert self.process is not None
        kill(self.process)

    def close(self) -> None:
        self.dblog.close()
        for link in (self.database, *self.zookeepers):
            link.close()


@dataclass(slots=True)
class World:
    """Two nodes and an ensemble, looked at from outside; `gaps`: seconds from the last segment of one epoch to the
    first of the next, by the fault between them."""

    config: Config
    ensemble: Ensemble
    nodes: list[Node]
    gaps: dict[str, float] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def leader(self) -> LeaseInfo | None:
        with closing(wiring.open_state(self.config)) as state:
            return state.leader(CAPTURE)

    def leading(self) -> Node:
        """The node that leads, once one does."""

        def look() -> Node | None:
            lease = self.leader()
            leading_nodes = [n for n in self.nodes if lease is not None and lease.holder.endswith(f":{n.pid}")]
            return leading_nodes[0] if leading_nodes else None

        return wait_until(look, "a capture leads")

    def both_wait(self) -> bool:
        """Whether one capture leads and the other stands in the queue behind it."""
        client = KazooClient(self.ensemble.address(), timeout=TTL)
        try:
            client.start(timeout=PATIENCE_SECONDS)
            queue = f"/takeover/{self.config.source.name}/leases/{CAPTURE}"
            holders = {client.get(f"{queue}/{name}")[0].decode() for name in client.get_children(queue)}
        except NoNodeError:
            return False  # somebody has just left
        finally:
            client.stop()
            client.close()
        return {holder.rpartition(":")[2] for holder in holders} == {str(node.pid) for node in self.nodes}

    def both_run(self) -> bool:
        """As `both_wait`; one that has ended, which it may do late after the fault before, is started again."""
        for node in self.nodes:
            if node.process is None or node.process.poll() is not None:
                node.start()
        return self.both_wait()

    def other(self, node: Node) -> Node:
        return next(n for n in self.nodes if n is not node)

    def head(self) -> Manifest:
        head_manifest = wiring.open_staging(self.config).head()
        assert head_manifest is not None
        return head_manifest

    def goes_on(self, *, after: int | None = None, epoch: int = 0) -> Manifest:
        """A head with rows beyond offset `after` (None: the present one), in `epoch` or a later one."""
        beyond = self.head().last_offset if after is None else after

        def look() -> Manifest | None:
            head = self.head()
            return head if head.last_offset > beyond and head.epoch >= epoch else None

        return wait_until(look, "the log goes on")
