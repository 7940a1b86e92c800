"""The state store in one SQLite file: many processes of one machine, no server.

A lease is a row that its holder renews; it expires on the machine's boot-time clock, or at once when its
process is dead. Every lease call reads and writes within one write transaction, so two can never hold a name.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dblog_core.errors import StateError, StateUnavailable, VersionConflict
from dblog_core.interfaces import Entry, Lease, LeaseInfo
from dblog_core.state.boot_clock import boot_id, boottime, own_process, process_space, process_start
from dblog_core.state.paths import check_path

_BUSY_SECONDS = 10.0
_POLL_SECONDS = 0.1
_TOGETHER = 500  # nodes of one SELECT: older versions of SQLite take 999 values
_TABLES = """
CREATE TABLE IF NOT EXISTS nodes (path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS epochs (name TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
    name TEXT PRIMARY KEY, holder TEXT NOT NULL, epoch INTEGER NOT NULL, expires REAL NOT NULL,
    boot TEXT NOT NULL, space TEXT NOT NULL, pid INTEGER NOT NULL, started INTEGER NOT NULL
) WITHOUT ROWID;
"""


class SqliteState:
    """The `StateStore` contract in the file `path`, below `prefix`. Threads may share one."""

    def __init__(self, path: str, *, prefix: str) -> None:
        self._path = Path(path).expanduser().absolute()
        self._prefix = f"{check_path(prefix)}/"
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0

    def get(self, path: str) -> Entry | None:
        with self._reading() as connection:
            row = connection.execute("SELECT data, version FROM nodes WHERE path = ?", (self._node(path),)).fetchone()
        return Entry(*row) if row else None

    def get_all(self, paths: Sequence[str]) -> list[Entry | None]:
        nodes = [self._node(path) for path in paths]
        entries: dict[str, Entry] = {}
        for begin in range(0, len(nodes), _TOGETHER):
            batch = nodes[begin : begin + _TOGETHER]
            marks = ", ".join("?" * len(batch))
            with self._reading() as connection:
                rows = connection.execute(f"SELECT path, data, version FROM nodes WHERE path IN ({marks})", batch)
                entries.update({path: Entry(data, version) for path, data, version in rows})
        return [entries.get(node) for node in nodes]

    def create(self, path: str, data: bytes) -> None:
        self.create_all({path: data})

    def create_all(self, nodes: Mapping[str, bytes]) -> None:
        with self._writing() as connection:
            for path, data in nodes.items():
                node = self._node(path)
                try:
                    connection.execute("INSERT INTO nodes VALUES (?, ?, 0)", (node, data))
                except sqlite3.IntegrityError as error:
                    raise VersionConflict("the entry exists already", where=path) from error
                parts = node.split("/")
                parents = [("/".join(parts[:depth]),) for depth in range(1, len(parts))]
                connection.executemany("INSERT OR IGNORE INTO nodes VALUES (?, x'', 0)", parents)

    def update(self, path: str, data: bytes, version: int) -> int:
        with self._writing() as connection:
            changed = connection.execute(
                "UPDATE nodes SET data = ?, version = version + 1 WHERE path = ? AND version = ?",
                (data, self._node(path), version),
            ).rowcount
        if not changed:
            raise VersionConflict(f"the entry was changed by another: it has no longer version {version}", where=path)
        return version + 1

    def delete(self, path: str) -> None:
        node = self._node(path)
        with self._writing() as connection:
            connection.execute("DELETE FROM nodes WHERE path = ? OR (path >= ? AND path < ?)", (node, *_below(node)))

    def children(self, path: str) -> list[str]:
        node = self._node(path)
        with self._reading() as connection:
            rows = connection.execute("SELECT path FROM nodes WHERE path >= ? AND path < ?", _below(node)).fetchall()
        return sorted({name[len(node) + 1 :].partition("/")[0] for (name,) in rows})

    def acquire(
        self, name: str, holder: str, *, ttl: float, wait: float = 0.0, beside: Lease | None = None
    ) -> SqliteLease | None:
        deadline = time.monotonic() + wait
        while True:
            sent_at = boottime()
            epoch = self._take(name, holder, sent_at + ttl)
            if epoch is not None:
                return SqliteLease(self, name, holder, epoch, ttl=ttl, alive=sent_at)
            if (left := deadline - time.monotonic()) <= 0:
                return None
            time.sleep(min(_POLL_SECONDS, left))

    def leader(self, name: str) -> LeaseInfo | None:
        with self._reading() as connection:
            return self._find_holder(connection, name)

    def forget_leases(self, names: Sequence[str]) -> None:
        with self._writing() as connection:
            for table in ("epochs", "leases"):
                rows = [(self._prefix + name,) for name in names]
                connection.executemany(f"DELETE FROM {table} WHERE name = ?", rows)

    def raise_epoch(self, name: str, epoch: int) -> None:
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO epochs VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET epoch = max(epoch, excluded.epoch)",
                (self._prefix + name, epoch),
            )

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def _take(self, name: str, holder: str, expires: float) -> int | None:
        """The new epoch if the lease was free."""
        with self._writing() as connection:
            if self._find_holder(connection, name) is not None:
                return None
            lease = self._prefix + name
            epoch: int = connection.execute(
                "INSERT INTO epochs VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET epoch = epoch + 1 RETURNING epoch",
                (lease,),
            ).fetchone()[0]
            row = (lease, holder, epoch, expires, boot_id(), process_space(), *own_process())
            connection.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            return epoch

    def _find_holder(self, connection: sqlite3.Connection, name: str) -> LeaseInfo | None:
        row = connection.execute(
            "SELECT holder, epoch, expires, boot, space, pid, started FROM leases WHERE name = ?",
            (self._prefix + name,),
        ).fetchone()
        if row is None:
            return None
        holder, epoch, expires, boot, space, pid, started = row
        if boot != boot_id() or boottime() >= expires:
            return None
        dead = space == process_space() and process_start(pid) != started
        return None if dead else LeaseInfo(holder, epoch)

    def renew(self, lease: SqliteLease, expires: float) -> bool:
        """Whether the lease is still its own, and lasts until `expires` now."""
        with self._writing() as connection:
            changed = connection.execute(
                "UPDATE leases SET expires = ? WHERE name = ? AND epoch = ?",
                (expires, self._prefix + lease.name, lease.epoch),
            ).rowcount
            return changed == 1

    def drop(self, lease: SqliteLease) -> None:
        with self._writing() as connection:
            connection.execute(
                "DELETE FROM leases WHERE name = ? AND epoch = ?", (self._prefix + lease.name, lease.epoch)
            )

    def _node(self, path: str) -> str:
        return self._prefix + check_path(path)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _translate_errors(self._path):
            yield self._connect()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, _translate_errors(self._path):
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                if connection.in_transaction:  # a full disk has rolled it back already
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _connect(self) -> sqlite3.Connection:
        """The connection of this process: SQLite's must not cross a fork."""
        if self._connection is None or self._pid != os.getpid():
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._path.exists():
                _create_private(self._path)
            connection = sqlite3.connect(
                self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
                connection.executescript(_TABLES)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
            self._pid = os.getpid()
        return self._connection


def _create_private(path: Path) -> None:
    """An empty database for the user alone; SQLite would ask the umask.

    It is closed before it gets its name: closing any descriptor of the database drops the POSIX locks that other
    connections of this process hold on it. It is in WAL mode by then: where two connections switch a file at once,
    SQLite fails one of them without waiting.
    """
    handle, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)  # mode 0600
    os.close(handle)
    try:
        with contextlib.closing(sqlite3.connect(name, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(name, path)
    finally:
        Path(name).unlink()


class SqliteLease:
    """A held lease; a thread renews it every third of its life."""

    def __init__(self, state: SqliteState, name: str, holder: str, epoch: int, *, ttl: float, alive: float) -> None:
        self.name = name
        self.holder = holder
        self.epoch = epoch
        self._state = state
        self._ttl = ttl
        self._alive = alive  # boot time before the last renewal that succeeded was sent
        self._over = threading.Event()
        self._pid = os.getpid()
        threading.Thread(target=self._keep, name=f"lease {name}", daemon=True).start()

    def valid(self) -> bool:
        return not self._over.is_set() and self._pid == os.getpid() and boottime() < self._alive + self._ttl

    def release(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._state.drop(self)

    def _keep(self) -> None:
        while not self._over.wait(self._ttl / 3):
            sent_at = boottime()
            try:
                if not self._state.renew(self, sent_at + self._ttl):
                    self._over.set()
            except StateError:
                continue  # not renewed: `valid` turns false by itself when the time is over
            self._alive = sent_at


def _below(node: str) -> tuple[str, str]:
    """The bounds of all paths below: `0` is the character after `/`."""
    return f"{node}/", f"{node}0"


@contextlib.contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            raise StateError(
                f"is no SQLite database: {error}", where=str(path), fix="give [state] url another path"
            ) from error
        if (
            isinstance(error, PermissionError | NotADirectoryError | IsADirectoryError)
            or code == sqlite3.SQLITE_READONLY
        ):
            raise StateError(
                f"cannot be used: {error}", where=str(path), fix="give this user rights on the file and its directory"
            ) from error
        raise StateUnavailable(
            f"the state file does not answer: {error}", where=str(path), fix="see that its disk has room"
        ) from error
