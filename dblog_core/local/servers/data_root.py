"""Where the data of a checkout's local servers lies."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from dblog_core.errors import LocalError

CHECKOUT = Path(__file__).resolve().parents[3]
ROOTS_PARENT = Path("/var/tmp/dblog")
"""Below a directory in which every user of the machine makes what they like."""


def data_root(purpose: str) -> Path:
    """A directory for `purpose` (`stack`, `demo`, …), one per checkout; made where missing.

    `$DBLOG_DATA_DIR` chooses its parent. For root it lies where another user can enter, since PostgreSQL is one.
    Raises LocalError where somebody else could change what is in it: configurations there name programs to run.
    """
    is_root = os.geteuid() == 0
    if chosen := os.environ.get("DBLOG_DATA_DIR"):
        parent = Path(chosen).absolute()
    elif is_root:
        parent = _make_ours(ROOTS_PARENT)
    else:
        parent = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "dblog"
    # Two checkouts on one machine must not share servers.
    checkout = parent / hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:10]
    for directory in (checkout, checkout / purpose):
        _make(directory, enterable=is_root)
    return checkout / purpose


def _make_ours(parent: Path) -> Path:
    """The directory, which nobody but us may write to."""
    _make(parent, enterable=True)
    entry = parent.lstat()
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.geteuid() or entry.st_mode & 0o022:
        raise LocalError(
            "another user can write where the local servers and their configurations lie",
            where=str(parent),
            fix="see whose it is; then remove it, or set DBLOG_DATA_DIR to a directory of your own",
        )
    return parent


def _make(directory: Path, *, enterable: bool) -> None:
    """Makes it, unless it is there. `enterable`: other users may enter it whatever our umask is, which `dblog` and the
    jobs set to keep what they write from others."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o755, parents=True)
        if enterable:
            directory.chmod(0o755)
