"""A lease on ZooKeeper: the first of the ephemeral, sequential nodes below a path, and an epoch node that it raised."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, RolledBackError, RuntimeInconsistency

from dblog_core.errors import StateError, StateUnavailable
from dblog_core.interfaces import LeaseInfo
from dblog_core.state.boot_clock import boottime
from dblog_core.state.zookeeper_session import ANSWER_SECONDS, Session

_SAFE_PART = 0.8  # of the session timeout: a server tells the ensemble's leader of our life up to a tick late
_RECHECK_SECONDS = 5.0

_EpochNode: TypeAlias = tuple[int, str, int | None]
"""The epoch, the lock node of who raised it, and the epoch node's version (None: there is no node yet)."""


@dataclass(frozen=True, slots=True)
class LeasePaths:
    """Where the contenders of a lease stand, and its epoch."""

    locks: str
    epoch: str


class ZookeeperLease:
    """A held lease. A thread writes its lock node four times in a session timeout: each answer proves the
    session.

    A read would not: a server that is cut off from the others answers it for a while, and they may have ended the
    session by then. A write is agreed upon by most of them, and refused where the session has ended.
    """

    def __init__(self, session: Session, node: str, holder: str, epoch: int, *, alive: float) -> None:
        self.holder = holder
        self.epoch = epoch
        self._session = session
        self._session_id = session.id
        self._node = node
        self._alive = alive  # boot time before the last question that was answered was sent
        self._over = threading.Event()
        self._pid = os.getpid()
        session.on_lost(self._over.set)
        threading.Thread(target=self._keep, name=f"lease {node}", daemon=True).start()

    def valid(self) -> bool:
        if self._over.is_set() or self._pid != os.getpid():
            return False
        return boottime() < self._alive + self._session.seconds * _SAFE_PART

    def release(self) -> None:
        self._over.set()
        self._session.close()

    @property
    def session(self) -> Session:
        return self._session

    @property
    def over(self) -> bool:
        """Whether it was released, or is known to be lost."""
        return self._over.is_set()

    def drop(self, node: str) -> None:
        """Removes a lock node of the same session. Raises StateUnavailable; the session ends then, and all with it."""
        try:
            self._session.ask(lambda client: client.delete_async(node))
        except NoNodeError:
            return
        except BaseException:
            self.release()
            raise

    def _keep(self) -> None:
        beat = self._session.seconds / 4
        pause = beat
        while not self._over.wait(pause):
            sent_at = boottime()
            pause = beat / 4
            try:
                _prove(self._session, self._node, self.holder, timeout=beat)
            except StateUnavailable:
                continue  # not renewed: `valid` turns false by itself when the time is over
            except NoNodeError:
                self._over.set()
                continue
            if self._session.id != self._session_id:
                self._over.set()
            else:
                self._alive = sent_at
                pause = beat
        self._session.close()


class LeaseBeside:
    """A held lease in the session of another, with which it ends."""

    def __init__(self, main_lease: ZookeeperLease, node: str, holder: str, epoch: int) -> None:
        self.holder = holder
        self.epoch = epoch
        self._main_lease = main_lease
        self._node = node
        self._over = False

    def valid(self) -> bool:
        return not self._over and self._main_lease.valid()

    def release(self) -> None:
        if not self._over:
            self._over = True
            if not self._main_lease.over:  # also where it is in doubt: its session may come back, with this node
                self._main_lease.drop(self._node)


def take_beside(main_lease: ZookeeperLease, paths: LeasePaths, holder: str, *, wait: float) -> LeaseBeside | None:
    """As `take_lock`, in the session of a lease that is held. Where that fails, the session ends: its nodes must not
    outlive what nobody knows of."""
    try:
        node_and_epoch = _queue(main_lease.session, paths, holder, wait=wait)
        if node_and_epoch is None:
            return None
    except BaseException:
        main_lease.release()
        raise
    node, epoch = node_and_epoch
    return LeaseBeside(main_lease, node, holder, epoch)


def take_lock(session: Session, paths: LeasePaths, holder: str, *, wait: float) -> ZookeeperLease | None:
    """Queues for the lease; None if it does not come within `wait` seconds. The session then is the lease's own."""
    node_and_epoch = _queue(session, paths, holder, wait=wait)
    if node_and_epoch is None:
        return None
    node, epoch = node_and_epoch
    sent_at = boottime()
    try:
        _prove(session, node, holder)
    except NoNodeError as error:
        raise _lost_in_queue(paths) from error
    return ZookeeperLease(session, node, holder, epoch, alive=sent_at)


def _queue(session: Session, paths: LeasePaths, holder: str, *, wait: float) -> tuple[str, int] | None:
    """The lock node that has come to be the first, and the epoch; None if it has not within `wait` seconds."""
    deadline = time.monotonic() + wait
    before_us = _find_contenders(session, paths) if wait <= 0 else []
    if before_us:
        return None
    node, contenders, epoch = _stand_in_line(session, paths, holder, anew=before_us is None)
    name = node.rpartition("/")[2]
    while (ahead := _ahead(contenders, paths, name)) is not None:
        if not _await_end(session, f"{paths.locks}/{ahead}", deadline):
            session.ask(lambda client: client.delete_async(node))
            return None
        contenders = _contenders(session, paths)
    return node, _next_epoch(session, paths, name, epoch)


def _stand_in_line(
    session: Session, paths: LeasePaths, holder: str, *, anew: bool
) -> tuple[str, list[str], _EpochNode]:
    """Our new lock node; the contenders, it among them, and the epoch as they were once it stood there.

    All is asked for at once: a server carries the commands of a session out in their order. `anew`: nobody has asked
    for the lease before.
    """

    def every_step(client: Any) -> list[Any]:
        first = [client.create_async(paths.locks, b"")] if anew else []
        node = client.create_async(f"{paths.locks}/lock-", holder.encode(), ephemeral=True, sequence=True)
        return [*first, node, client.get_children_async(paths.locks), client.get_async(paths.epoch)]

    while True:
        standing, line, epoch = session.begin(every_step)[-3:]
        try:
            node: str = _await(session, standing)
        except NoNodeError:  # the first lease of all, or what is kept of it was forgotten in this moment
            session.ask(lambda client: client.ensure_path_async(paths.locks))
            continue
        return node, _in_line(_await(session, line)), _read_epoch(session, paths, epoch)


def _await(session: Session, answer: Any) -> Any:
    return session.ask(lambda _: answer)


def _prove(session: Session, node: str, holder: str, *, timeout: float = ANSWER_SECONDS) -> None:
    """Returns if the session has its lock node now. Raises NoNodeError where it has not, and StateUnavailable."""
    session.ask(lambda client: client.set_async(node, holder.encode()), timeout=timeout)


def lock_holder(session: Session, paths: LeasePaths) -> LeaseInfo | None:
    """Who holds the lease: the first contender, once it has raised the epoch."""
    try:
        contenders = _contenders(session, paths)
        if not contenders:
            return None
        data, _ = session.ask(lambda client: client.get_async(f"{paths.locks}/{contenders[0]}"))
        epoch, lock, _ = _read_epoch(session, paths)
    except NoNodeError:
        return None  # it has just gone
    return LeaseInfo(data.decode(), epoch) if lock == contenders[0] else None


def raise_epoch(session: Session, paths: LeasePaths, least: int) -> None:
    """Sets the epoch to `least` where it is lower."""
    while True:
        epoch, lock, version = _read_epoch(session, paths)
        if epoch >= least or _write_epoch(session, paths, least, lock, version):
            return


def _try_raise_epoch(session: Session, paths: LeasePaths, epoch: int, lock: str, version: int | None) -> bool:
    """Whether the epoch node still had `version`. One write of two steps: it is done while our lock node is there, or
    not at all. Otherwise a candidate that lost its session in the queue would name itself beside the next one, and
    nobody could then tell that the next one holds the lease. Raises StateUnavailable.
    """
    data = orjson.dumps({"epoch": epoch, "lock": lock})

    def both_steps(client: Any) -> Any:
        steps = client.transaction()
        steps.check(f"{paths.locks}/{lock}", 0)  # nobody but its holder writes it, once it has the lease
        if version is None:
            steps.create(paths.epoch, data)
        else:
            steps.set_data(paths.epoch, data, version)
        return steps.commit_async()

    answers = session.ask(both_steps)
    if isinstance(answers[0], NoNodeError | BadVersionError):
        raise _lost_in_queue(paths)
    if version is None and isinstance(answers[1], NoNodeError):  # the first epoch of all
        session.ask(lambda client: client.ensure_path_async(paths.epoch.rpartition("/")[0]))
        return False
    for answer in answers:
        if isinstance(answer, NodeExistsError | BadVersionError | NoNodeError):
            return False
        if isinstance(answer, Exception) and not isinstance(answer, RolledBackError | RuntimeInconsistency):
            raise answer
    return not any(isinstance(answer, Exception) for answer in answers)


def _next_epoch(session: Session, paths: LeasePaths, lock: str, epoch_node: _EpochNode) -> int:
    """The epoch that we have raised. What `epoch_node` says may be old: it is raised from the version that it had."""
    while True:
        epoch, _, version = epoch_node
        if _try_raise_epoch(session, paths, epoch + 1, lock, version):
            return epoch + 1
        epoch_node = _read_epoch(session, paths)


def _read_epoch(session: Session, paths: LeasePaths, answer: Any = None) -> _EpochNode:
    """`answer`: to the question for the node, where that is on its way."""
    try:
        data, stat = session.ask(lambda client: answer or client.get_async(paths.epoch))
    except NoNodeError:
        return 0, "", None
    try:
        content: dict[str, Any] = orjson.loads(data)
        return int(content["epoch"]), str(content["lock"]), stat.version
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            "the epoch node holds something else",
            where=paths.epoch,
            fix="remove that node; epochs continue from staging",
        ) from error


def _write_epoch(session: Session, paths: LeasePaths, epoch: int, lock: str, version: int | None) -> bool:
    """Whether the node still had `version`."""
    data = orjson.dumps({"epoch": epoch, "lock": lock})
    try:
        if version is None:
            session.ask(lambda client: client.create_async(paths.epoch, data, makepath=True))
        else:
            session.ask(lambda client: client.set_async(paths.epoch, data, version))
    except (NodeExistsError, BadVersionError, NoNodeError):
        return False
    return True


def _contenders(session: Session, paths: LeasePaths) -> list[str]:
    """Lock nodes, in the order in which they came."""
    return _in_line(session.ask(lambda client: client.get_children_async(paths.locks)))


def _find_contenders(session: Session, paths: LeasePaths) -> list[str] | None:
    """Lock nodes, in the order in which they came; None where nobody has asked for the lease yet."""
    try:
        return _contenders(session, paths)
    except NoNodeError:
        return None


def _in_line(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: name[-10:])


def _ahead(names: Sequence[str], paths: LeasePaths, name: str) -> str | None:
    """The contender right before ours; None if ours is the first."""
    if name not in names:
        raise _lost_in_queue(paths)
    place = names.index(name)
    return names[place - 1] if place else None


def _await_end(session: Session, node: str, deadline: float) -> bool:
    """Waits until the node has changed, or for a while; False once the deadline is over."""
    changed = threading.Event()
    if session.ask(lambda client: client.exists_async(node, watch=lambda _: changed.set())) is None:
        return True
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    changed.wait(min(left, _RECHECK_SECONDS))
    return True


def _lost_in_queue(paths: LeasePaths) -> StateUnavailable:
    return StateUnavailable("the session ended while it waited for the lease", where=paths.locks)
