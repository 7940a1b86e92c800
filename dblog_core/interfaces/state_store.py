"""What the engine asks of a state store: versioned nodes, and leases with growing epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """A node of the state store: its bytes, and the version that an update must name."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """Who holds a lease, and its epoch."""

    holder: str
    epoch: int


class Lease(Protocol):
    """A held lease; it keeps itself alive until released or lost."""

    holder: str
    epoch: int

    def valid(self) -> bool:
        """Whether, by this process's own monotonic clock, nobody else can hold it yet. No I/O."""

    def release(self) -> None: ...


class Nodes(Protocol):
    """Versioned nodes."""

    def get(self, path: str) -> Entry | None: ...

    def create(self, path: str, data: bytes) -> None:
        """Makes the node and missing parents. Raises VersionConflict if it exists."""

    def update(self, path: str, data: bytes, version: int) -> int:
        """Replaces the data and returns the new version. Raises VersionConflict unless the node has `version`."""


class StateStore(Nodes, Protocol):
    """A small tree of versioned nodes (paths like `dumps/ID/tasks/0`) and leases with growing epochs.

    Any call may raise StateUnavailable.
    """

    def get_all(self, paths: Sequence[str]) -> list[Entry | None]:
        """What `get` gives for each path, by a few round trips however many they are; not as of one moment."""

    def create_all(self, nodes: Mapping[str, bytes]) -> None:
        """Makes nodes as `create` does, by a few round trips however many they are. Raises VersionConflict where one of
        them exists; then, and after any other error, some may be made and others not."""

    def delete(self, path: str) -> None:
        """Removes the node and all below it; no error if it is missing."""

    def children(self, path: str) -> list[str]:
        """Names of the nodes right below, sorted; empty if there are none."""

    def acquire(
        self, name: str, holder: str, *, ttl: float, wait: float = 0.0, beside: Lease | None = None
    ) -> Lease | None:
        """The lease `name`, with an epoch larger than any before; None if another holds it for `wait` seconds.

        `beside`: a lease that the caller holds: this one may end with that one, where it costs less so.
        """

    def forget_leases(self, names: Sequence[str]) -> None:
        """Removes what is kept of leases that nobody holds, or will ever ask for again: their epochs begin again."""

    def leader(self, name: str) -> LeaseInfo | None:
        """Who holds the lease now."""

    def raise_epoch(self, name: str, epoch: int) -> None:
        """The next holder's epoch will be larger than `epoch`: after the state store was wiped."""

    def close(self) -> None: ...
