"""The state store on ZooKeeper: versioned nodes as they are there; a lease is a lock in a session of its own.

Calls never wait much longer than `_PATIENCE` seconds, whatever the connection does. A write whose answer was lost is
settled by reading again: its version tells whether it was carried out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError

from dblog_core.errors import StateError, StateUnavailable, VersionConflict
from dblog_core.interfaces import Entry, LeaseInfo
from dblog_core.retry import retrying
from dblog_core.state import zookeeper_lease
from dblog_core.state.paths import checked, fitting
from dblog_core.state.zookeeper_lease import LeasePaths, ZookeeperLease
from dblog_core.state.zookeeper_session import OPEN, Access, Request, Session

_SESSION_SECONDS = 10.0
_PATIENCE = 10.0

T = TypeVar("T")


class ZookeeperState:
    """The `StateStore` contract on `hosts`: HOST:PORT,…[/CHROOT], below CHROOT/PREFIX. Threads may share one."""

    def __init__(self, hosts: str, *, prefix: str, access: Access = OPEN) -> None:
        self._access = access
        self._servers, _, chroot = hosts.partition("/")
        chroot = chroot.strip("/")
        self._root = "".join(f"/{checked(part)}" for part in (chroot, prefix) if part)
        self._lock = threading.Lock()
        self._session: Session | None = None

    def get(self, path: str) -> Entry | None:
        node = self._node(path)
        try:
            data, stat = self._read(lambda client: client.get_async(node))
        except NoNodeError:
            return None
        return Entry(data, stat.version)

    def create(self, path: str, data: bytes) -> None:
        node, doubtful = self._node(path), False

        def attempt() -> None:
            nonlocal doubtful
            try:
                self._ask(lambda client: client.create_async(node, fitting(path, data), makepath=True))
            except NodeExistsError as error:
                if not (doubtful and self.get(path) == Entry(data, 0)):
                    raise VersionConflict("the entry exists already", where=path) from error
            except StateUnavailable:
                doubtful = True
                raise

        retrying(give_up_after=_PATIENCE)(attempt)

    def update(self, path: str, data: bytes, version: int) -> int:
        node, doubtful = self._node(path), False

        def attempt() -> int:
            nonlocal doubtful
            try:
                stat = self._ask(lambda client: client.set_async(node, fitting(path, data), version))
            except (BadVersionError, NoNodeError) as error:
                if not (doubtful and self.get(path) == Entry(data, version + 1)):
                    raise VersionConflict(
                        f"the entry was changed by another: it has no longer version {version}", where=path
                    ) from error
                return version + 1
            except StateUnavailable:
                doubtful = True
                raise
            return int(stat.version)

        return retrying(give_up_after=_PATIENCE)(attempt)

    def delete(self, path: str) -> None:
        node = self._node(path)
        while True:
            for child in self.children(path):
                self.delete(f"{path}/{child}")
            try:
                self._read(lambda client: client.delete_async(node))
            except NoNodeError:
                return
            except NotEmptyError:
                continue  # somebody has made a node below since
            return

    def children(self, path: str) -> list[str]:
        node = self._node(path)
        try:
            return sorted(self._read(lambda client: client.get_children_async(node)))
        except NoNodeError:
            return []

    def acquire(self, name: str, holder: str, *, ttl: float, wait: float = 0.0) -> ZookeeperLease | None:
        session = Session(self._servers, seconds=ttl, access=self._access).start()
        lease: ZookeeperLease | None = None
        try:
            lease = zookeeper_lease.take_lock(session, self._lease(name), holder, wait=wait)
        except KazooException as error:
            raise self._refused(error) from error
        finally:
            if lease is None:
                session.close()
        return lease

    def leader(self, name: str) -> LeaseInfo | None:
        held: LeaseInfo | None = retrying(give_up_after=_PATIENCE)(
            self._guarded, lambda session: zookeeper_lease.lock_holder(session, self._lease(name))
        )
        return held

    def raise_epoch(self, name: str, epoch: int) -> None:
        retrying(give_up_after=_PATIENCE)(
            self._guarded, lambda session: zookeeper_lease.raise_epoch(session, self._lease(name), epoch)
        )

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _node(self, path: str) -> str:
        return f"{self._root}/nodes/{checked(path)}"

    def _lease(self, name: str) -> LeasePaths:
        return LeasePaths(f"{self._root}/leases/{checked(name)}", f"{self._root}/epochs/{checked(name)}")

    def _read(self, request: Request) -> Any:
        """The answer to a question that may be asked twice."""
        return retrying(give_up_after=_PATIENCE)(self._ask, request)

    def _ask(self, request: Request) -> Any:
        return self._guarded(lambda session: session.ask(request))

    def _guarded(self, step: Callable[[Session], T]) -> T:
        """Does the step in the session, and ends that if an answer is lost: what is queued in it must not come late."""
        session = self._open()
        try:
            return step(session)
        except StateUnavailable:
            self._discard(session)
            raise
        except (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError):
            raise
        except KazooException as error:
            raise self._refused(error) from error

    def _open(self) -> Session:
        with self._lock:
            if self._session is None or not self._session.usable:
                self._session = Session(self._servers, seconds=_SESSION_SECONDS, access=self._access).start()
            return self._session

    def _discard(self, session: Session) -> None:
        with self._lock:
            if self._session is session:
                self._session = None
        session.close()

    def _refused(self, error: KazooException) -> StateError:
        return StateError(
            f"ZooKeeper refuses: {type(error).__name__} {error}",
            where=f"{self._servers}{self._root}",
            fix="give [state] user all rights on that path"
            if self._access.user
            else "give this client all rights on that path, or set [state] user and password",
        )
