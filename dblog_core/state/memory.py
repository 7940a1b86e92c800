"""A state store within one process: the twin of the real ones in tests. Threads share it; its clock can be drawn."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dblog_core.clock import SystemClock
from dblog_core.errors import VersionConflict
from dblog_core.interfaces import Clock, Entry, Lease, LeaseInfo
from dblog_core.state.paths import check_path, pack

_POLL_SECONDS = 0.02


@dataclass(slots=True)
class _Nodes:
    """What several `MemoryState`s of one test share, as processes share a server."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    entries: dict[str, Entry] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    leases: dict[str, MemoryLease] = field(default_factory=dict)


class MemoryLease:
    """A lease that lasts until it is released, or `expire` plays the death of its holder."""

    def __init__(self, nodes: _Nodes, name: str, holder: str, epoch: int) -> None:
        self.holder = holder
        self.epoch = epoch
        self._nodes = nodes
        self._name = name

    def valid(self) -> bool:
        with self._nodes.lock:
            return self._nodes.leases.get(self._name) is self

    def release(self) -> None:
        with self._nodes.lock:
            if self._nodes.leases.get(self._name) is self:
                del self._nodes.leases[self._name]

    expire = release


class MemoryState:
    """The `StateStore` contract in dictionaries. `shared` makes it another client of the same nodes."""

    def __init__(self, *, clock: Clock | None = None, shared: MemoryState | None = None) -> None:
        self._clock = clock or SystemClock()
        self._nodes: _Nodes = shared._nodes if shared else _Nodes()

    def get(self, path: str) -> Entry | None:
        with self._nodes.lock:
            return self._nodes.entries.get(check_path(path))

    def get_all(self, paths: Sequence[str]) -> list[Entry | None]:
        with self._nodes.lock:
            return [self._nodes.entries.get(check_path(path)) for path in paths]

    def create(self, path: str, data: bytes) -> None:
        with self._nodes.lock:
            if check_path(path) in self._nodes.entries:
                raise VersionConflict("the entry exists already", where=path)
            parts = path.split("/")
            for depth in range(1, len(parts)):
                self._nodes.entries.setdefault("/".join(parts[:depth]), Entry(b"", 0))
            pack(path, data)  # it refuses what ZooKeeper would
            self._nodes.entries[path] = Entry(data, 0)

    def create_all(self, nodes: Mapping[str, bytes]) -> None:
        for path, data in nodes.items():
            MemoryState.create(self, path, data)

    def update(self, path: str, data: bytes, version: int) -> int:
        with self._nodes.lock:
            entry = self._nodes.entries.get(check_path(path))
            if entry is None or entry.version != version:
                what = "it is gone" if entry is None else f"it has version {entry.version}, not {version}"
                raise VersionConflict(f"the entry was changed by another: {what}", where=path)
            pack(path, data)
            self._nodes.entries[path] = Entry(data, version + 1)
            return version + 1

    def delete(self, path: str) -> None:
        with self._nodes.lock:
            check_path(path)
            for name in [n for n in self._nodes.entries if n == path or n.startswith(f"{path}/")]:
                del self._nodes.entries[name]

    def children(self, path: str) -> list[str]:
        with self._nodes.lock:
            below = f"{check_path(path)}/"
            return sorted({n[len(below) :].partition("/")[0] for n in self._nodes.entries if n.startswith(below)})

    def acquire(
        self, name: str, holder: str, *, ttl: float, wait: float = 0.0, beside: Lease | None = None
    ) -> MemoryLease | None:
        deadline = self._clock.monotonic() + wait
        while True:
            with self._nodes.lock:
                if name not in self._nodes.leases:
                    epoch = self._nodes.epochs.get(name, 0) + 1
                    self._nodes.epochs[name] = epoch
                    lease = self._nodes.leases[name] = MemoryLease(self._nodes, name, holder, epoch)
                    return lease
            if (left := deadline - self._clock.monotonic()) <= 0:
                return None
            self._clock.sleep(min(_POLL_SECONDS, left))

    def leader(self, name: str) -> LeaseInfo | None:
        with self._nodes.lock:
            lease = self._nodes.leases.get(name)
            return LeaseInfo(lease.holder, lease.epoch) if lease else None

    def forget_leases(self, names: Sequence[str]) -> None:
        with self._nodes.lock:
            for name in names:
                self._nodes.epochs.pop(name, None)

    def raise_epoch(self, name: str, epoch: int) -> None:
        with self._nodes.lock:
            self._nodes.epochs[name] = max(epoch, self._nodes.epochs.get(name, 0))

    def close(self) -> None:
        """Nothing is open; leases are left as a process that ends leaves them: held until released or expired."""
