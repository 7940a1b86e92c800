"""One merger per lake path: two Spark drivers on a plain file system can otherwise both report success.

A file lock keeps out others on this machine, whatever their configuration says; a lease in the state store
those elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dblog_core.errors import LakeBusy, LakeError, LeaseLost
from dblog_core.interfaces import StateStore
from dblog_core.storage.location import Location

LEASE = "merge"
"""The lease of the process that merges."""

_EVERY = 0.2  # seconds between two tries
_LOOK = 1.0  # seconds of waiting for the lease between two looks whether to go on


@contextmanager
def lake_lock(
    directory: Location, state: StateStore, *, ttl: float, wait: float = 0.0, go_on: Callable[[], bool] = lambda: True
) -> Iterator[Callable[[], None]]:
    """Holds both; yields a check that raises LeaseLost in doubt. Raises LakeBusy after `wait` seconds, or once `go_on`
    says no.

    `directory`: the lake's own one. On an object store there is no file to lock: the lease is all.
    """
    holder = f"{socket.gethostname()}:{os.getpid()}"
    deadline = time.monotonic() + wait
    with _file_lock(directory, holder, deadline, go_on):
        while (lease := state.acquire(LEASE, holder, ttl=ttl, wait=_seconds_left(deadline))) is None:
            if time.monotonic() >= deadline or not go_on():
                other = state.leader(LEASE)
                raise _busy(directory, other.holder if other else "another merge")

        def check() -> None:
            if not lease.valid():
                raise LeaseLost(
                    "the lease on the lake is in doubt",
                    where=str(directory),
                    fix="merge again: it continues where this one stopped",
                )

        try:
            yield check
        finally:
            lease.release()


def _seconds_left(deadline: float) -> float:
    """Seconds to wait for the lease before the next look whether to continue."""
    return min(_LOOK, max(0.0, deadline - time.monotonic()))


@contextmanager
def _file_lock(directory: Location, holder: str, deadline: float, go_on: Callable[[], bool]) -> Iterator[None]:
    path = (directory / "lock").local
    if path is None:
        yield
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise LakeError(
            f"the lake's lock cannot be opened: {error.strerror}",
            where=str(path),
            fix="give [lake] path a directory that this user can write to",
        ) from error
    try:
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline or not go_on():
                raise _busy(directory, os.pread(descriptor, 200, 0).decode(errors="replace") or "another merge")
            time.sleep(_EVERY)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(directory: Location, who: str) -> LakeBusy:
    return LakeBusy(
        f"{who} merges into this lake", where=str(directory), fix="wait for it (--wait SECONDS), or stop it"
    )
