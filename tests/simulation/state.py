"""The state store as one process reaches it: `MemoryState` with calls that fail, and leases that run out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dblog_core.errors import StateUnavailable
from dblog_core.interfaces import Entry, Lease, LeaseInfo
from dblog_core.state.memory import MemoryLease, MemoryState
from tests.simulation.clock import SimClock
from tests.simulation.scheduler import Process, Simulation

Result = TypeVar("Result")
_POLL = 0.25  # seconds between two looks of a standby


def away() -> StateUnavailable:
    return StateUnavailable("it does not answer", where="the simulated state store", fix="it is tried again")


class SimLease:
    """A lease that its process keeps alive while it runs; the store ends it `ttl` after the last sign of life.

    The holder's own clock ends it no later than that.
    """

    def __init__(self, simulation: Simulation, memory_lease: MemoryLease, process: Process, ttl: float) -> None:
        self.holder = memory_lease.holder
        self.epoch = memory_lease.epoch
        self._simulation = simulation
        self._held = memory_lease
        self._process = process
        self._ttl = ttl
        self._doubtful_at: float | None = None
        process.on_stop.append(self.silent)

    def silent(self, until: float | None) -> None:
        """No sign of life from now `until` then (None: ever)."""
        if self._doubtful_at is not None:
            return
        now = self._simulation.now
        if until is not None and until - now < self._ttl * 0.9:
            return
        self._doubtful_at = now + self._ttl * 0.9
        self._simulation.at(now + self._ttl, self._end)

    def _end(self) -> None:
        if self._held.valid():
            self._simulation.count("expired")
            self._held.expire()

    def valid(self) -> bool:
        doubtful = self._doubtful_at is not None and self._simulation.now >= self._doubtful_at
        return not doubtful and self._held.valid()

    def release(self) -> None:
        """Where the answer does not come the lease is left to end by itself, as a session does."""
        try:
            self._simulation.step("lease release", away)
        except StateUnavailable:
            self.silent(None)
            raise
        self._held.release()
        if self.silent in self._process.on_stop:
            self._process.on_stop.remove(self.silent)


class SimState(MemoryState):
    """A client; `shared` is the store itself, `announced` what was ever created of windows."""

    def __init__(self, simulation: Simulation, shared: MemoryState, announced: list[tuple[str, bytes]]) -> None:
        super().__init__(clock=SimClock(simulation), shared=shared)
        self._simulation = simulation
        self._announced = announced

    def get(self, path: str) -> Entry | None:
        return self._call(f"get {path}", lambda: MemoryState.get(self, path))

    def get_all(self, paths: Sequence[str]) -> list[Entry | None]:
        if not paths:
            return []
        return self._call(f"get {len(paths)} from {paths[0]}", lambda: MemoryState.get_all(self, paths))

    def create(self, path: str, data: bytes) -> None:
        def create_node() -> None:
            MemoryState.create(self, path, data)
            if path.startswith("windows/"):
                self._announced.append((path, data))

        self._call(f"create {path}", create_node)

    def create_all(self, nodes: Mapping[str, bytes]) -> None:
        if nodes:
            self._call(f"create {len(nodes)} from {min(nodes)}", lambda: MemoryState.create_all(self, nodes))

    def update(self, path: str, data: bytes, version: int) -> int:
        return self._call(f"update {path}", lambda: MemoryState.update(self, path, data, version))

    def delete(self, path: str) -> None:
        self._call(f"delete {path}", lambda: MemoryState.delete(self, path))

    def children(self, path: str) -> list[str]:
        return self._call(f"children {path}", lambda: MemoryState.children(self, path))

    def leader(self, name: str) -> LeaseInfo | None:
        return self._call(f"leader {name}", lambda: MemoryState.leader(self, name))

    def forget_leases(self, names: Sequence[str]) -> None:
        self._call(f"forget {len(names)} leases", lambda: MemoryState.forget_leases(self, names))

    def raise_epoch(self, name: str, epoch: int) -> None:
        self._call(f"raise epoch {name}", lambda: MemoryState.raise_epoch(self, name, epoch))

    def acquire(  # type: ignore[override]
        self, name: str, holder: str, *, ttl: float, wait: float = 0.0, beside: Lease | None = None
    ) -> SimLease | None:
        simulation = self._simulation
        ends = simulation.now + wait
        while True:
            simulation.step(f"acquire {name}", away)
            assert simulation.current is not None
            if (memory_lease := MemoryState.acquire(self, name, holder, ttl=ttl)) is not None:
                simulation.count(f"epochs of {name}" if name == "capture" else "leases of tasks")
                lease = SimLease(simulation, memory_lease, simulation.current.process, ttl)
                try:
                    simulation.after(f"acquire {name}", away)
                except StateUnavailable:
                    lease.silent(None)  # nobody knows of it: it runs out
                    raise
                return lease
            if simulation.now >= ends:
                return None
            simulation.wait(min(_POLL, ends - simulation.now))

    def _call(self, what: str, call: Callable[[], Result]) -> Result:
        self._simulation.step(f"state {what}", away)
        result = call()
        self._simulation.after(f"state {what}", away)
        return result
