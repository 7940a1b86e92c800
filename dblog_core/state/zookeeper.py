"""The state store on ZooKeeper: versioned nodes as they are there; a lease is a lock in a session of its own.

Calls never wait much longer than `_PATIENCE` seconds, whatever the connection does. A write whose answer was lost is
settled by reading again: its version tells whether it was carried out.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError, NotEmptyError

from dblog_core.errors import StateError, StateUnavailable, VersionConflict
from dblog_core.interfaces import Entry, Lease, LeaseInfo
from dblog_core.retry import retrying
from dblog_core.state import zookeeper_lease
from dblog_core.state.paths import check_path, pack, unpack
from dblog_core.state.zookeeper_lease import LeasePaths, ZookeeperLease
from dblog_core.state.zookeeper_session import OPEN, Access, Request, Session

_SESSION_SECONDS = 10.0
_PATIENCE = 10.0
_TOGETHER = 200  # questions that are sent before their answers are awaited

T = TypeVar("T")


class ZookeeperState:
    """The `StateStore` contract on `hosts`: HOST:PORT,…[/CHROOT], below CHROOT/PREFIX. Threads may share one."""

    def __init__(self, hosts: str, *, prefix: str, access: Access = OPEN) -> None:
        self._access = access
        self._servers, _, chroot = hosts.partition("/")
        chroot = chroot.strip("/")
        self._root = "".join(f"/{check_path(part)}" for part in (chroot, prefix) if part)
        self._lock = threading.Lock()
        self._session: Session | None = None

    def get(self, path: str) -> Entry | None:
        node = self._node(path)
        try:
            data, stat = self._read(lambda client: client.get_async(node))
        except NoNodeError:
            return None
        return Entry(unpack(data), stat.version)

    def get_all(self, paths: Sequence[str]) -> list[Entry | None]:
        nodes = [self._node(path) for path in paths]
        entries: list[Entry | None] = []
        for begin in range(0, len(nodes), _TOGETHER):
            batch = nodes[begin : begin + _TOGETHER]
            entries += retrying(give_up_after=_PATIENCE)(self._guard, partial(_read_together, nodes=batch))
        return entries

    def create(self, path: str, data: bytes) -> None:
        node = self._node(path)
        doubtful = False

        def attempt() -> None:
            nonlocal doubtful
            try:
                self._ask(lambda client: client.create_async(node, pack(path, data), makepath=True))
            except NodeExistsError as error:
                if not (doubtful and self.get(path) == Entry(data, 0)):
                    raise VersionConflict("the entry exists already", where=path) from error
            except StateUnavailable:
                doubtful = True
                raise

        retrying(give_up_after=_PATIENCE)(attempt)

    def create_all(self, nodes: Mapping[str, bytes]) -> None:
        items = [(self._node(path), pack(path, data)) for path, data in nodes.items()]
        above: dict[int, dict[str, bytes]] = {}
        for node, _ in items:
            parts = node.split("/")
            for depth in range(2, len(parts)):
                above.setdefault(depth, {})["/".join(parts[:depth])] = b""
        for depth in sorted(above):  # what lies above first, whoever has made it
            if len(above[depth]) > 1:
                self._create_together(list(above[depth].items()), once=False)
            elif len(above.get(depth + 1, ())) != 1:  # the last that all have: we may have no right above it
                self._ensure(next(iter(above[depth])))
        self._create_together(items, once=True)

    def _ensure(self, node: str) -> None:
        self._read(lambda client: client.ensure_path_async(node))

    def _create_together(self, items: Sequence[tuple[str, bytes]], *, once: bool) -> None:
        """Makes nodes below others that are there. `once`: raises VersionConflict where one exists already."""
        for begin in range(0, len(items), _TOGETHER):
            batch = items[begin : begin + _TOGETHER]
            doubtful = False

            def attempt(batch: Sequence[tuple[str, bytes]] = batch) -> None:
                nonlocal doubtful
                try:
                    existing = self._guard(partial(_create_together, items=batch))
                except StateUnavailable:
                    doubtful = True
                    raise
                for node, data in existing if once else ():
                    if not (doubtful and self._data(node) == data):
                        raise VersionConflict("the entry exists already", where=node)

            retrying(give_up_after=_PATIENCE)(attempt)

    def update(self, path: str, data: bytes, version: int) -> int:
        node = self._node(path)
        doubtful = False

        def attempt() -> int:
            nonlocal doubtful
            try:
                stat = self._ask(lambda client: client.set_async(node, pack(path, data), version))
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

    def acquire(
        self, name: str, holder: str, *, ttl: float, wait: float = 0.0, beside: Lease | None = None
    ) -> Lease | None:
        if isinstance(beside, ZookeeperLease) and beside.valid():  # a session of its own costs many round trips
            try:
                return zookeeper_lease.take_beside(beside, self._lease(name), holder, wait=wait)
            except KazooException as error:
                raise self._refusal(error) from error
        session = Session(self._servers, seconds=ttl, access=self._access).start()
        lease: ZookeeperLease | None = None
        try:
            lease = zookeeper_lease.take_lock(session, self._lease(name), holder, wait=wait)
        except KazooException as error:
            raise self._refusal(error) from error
        finally:
            if lease is None:
                session.close()
        return lease

    def leader(self, name: str) -> LeaseInfo | None:
        holder: LeaseInfo | None = retrying(give_up_after=_PATIENCE)(
            self._guard, lambda session: zookeeper_lease.lock_holder(session, self._lease(name))
        )
        return holder

    def forget_leases(self, names: Sequence[str]) -> None:
        for name in names:
            for node in (self._lease(name).locks, self._lease(name).epoch):
                self._remove(node)

    def _remove(self, node: str) -> None:
        with contextlib.suppress(NoNodeError, NotEmptyError):
            self._read(lambda client: client.delete_async(node))

    def _data(self, node: str) -> bytes:
        return bytes(self._read(lambda client: client.get_async(node))[0])

    def raise_epoch(self, name: str, epoch: int) -> None:
        retrying(give_up_after=_PATIENCE)(
            self._guard, lambda session: zookeeper_lease.raise_epoch(session, self._lease(name), epoch)
        )

    def close(self) -> None:
        with self._lock:
            session = self._session
            self._session = None
        if session is not None:
            session.close()

    def _node(self, path: str) -> str:
        return f"{self._root}/nodes/{check_path(path)}"

    def _lease(self, name: str) -> LeasePaths:
        return LeasePaths(f"{self._root}/leases/{check_path(name)}", f"{self._root}/epochs/{check_path(name)}")

    def _read(self, request: Request) -> Any:
        """The answer to a question that may be asked twice."""
        return retrying(give_up_after=_PATIENCE)(self._ask, request)

    def _ask(self, request: Request) -> Any:
        return self._guard(lambda session: session.ask(request))

    def _guard(self, step: Callable[[Session], T]) -> T:
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
            raise self._refusal(error) from error

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

    def _refusal(self, error: KazooException) -> StateError:
        return StateError(
            f"ZooKeeper refuses: {type(error).__name__} {error}",
            where=f"{self._servers}{self._root}",
            fix="give [state] user all rights on that path"
            if self._access.user
            else "give this client all rights on that path, or set [state] user and password",
        )


def _read_together(session: Session, nodes: Sequence[str]) -> list[Entry | None]:
    """The entries of nodes: all are asked for before the first answer is awaited."""

    def entry(answer: Any) -> Entry | None:
        try:
            data, stat = session.ask(lambda _: answer)
        except NoNodeError:
            return None
        return Entry(unpack(data), stat.version)

    return [entry(answer) for answer in session.begin(lambda client: [client.get_async(node) for node in nodes])]


def _create_together(session: Session, items: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Makes nodes, all of which are asked for before the first answer is awaited; those that exist already."""
    answers = session.begin(lambda client: [client.create_async(node, data) for node, data in items])

    def was_there(answer: Any) -> bool:
        try:
            session.ask(lambda _: answer)
        except NodeExistsError:
            return True
        return False

    return [item for answer, item in zip(answers, items, strict=True) if was_there(answer)]
