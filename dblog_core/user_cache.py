"""The cache outside the checkout: things fetched once and shared by all checkouts and runs of a user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dblog_core.errors import LocalError


def cache_directory() -> Path:
    """`$DBLOG_CACHE_DIR`; else a system-wide place for root, whose servers run as another user; else the user's own."""
    if chosen := os.environ.get("DBLOG_CACHE_DIR"):
        return Path(chosen).absolute()
    if os.geteuid() == 0:
        return Path("/var/cache/dblog")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dblog"


def cache_entry(name: str, fill: Callable[[Path], None]) -> Path:
    """The directory `name` of the cache; where missing, made by `fill` in a temporary place and renamed when whole.

    `$DBLOG_SHIPPED_DIR` may name a directory of entries that an image brings: nothing is written there. One process
    fills, the others wait for it; what a killed one left half-done is never seen under the name.
    """
    if (directory := os.environ.get("DBLOG_SHIPPED_DIR")) and (shipped := Path(directory).absolute() / name).exists():
        return shipped
    final = cache_directory() / name
    if final.exists():
        return final
    cache_directory().mkdir(parents=True, exist_ok=True)
    with _lock_file(cache_directory() / f".{name}.lock"):
        if final.exists():
            return final
        # Under the lock, so no such directory belongs to a process that is still filling it.
        for leftover in cache_directory().glob(f".{name}.part-*"):
            shutil.rmtree(leftover)
        part = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=cache_directory()))
        try:
            fill(part)
            part.chmod(0o755)  # mkdtemp makes it private; a server may run as another user
            part.rename(final)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return final


def check_digest(path: Path, sha256: str, artifact: str) -> None:
    """Raises LocalError where the file that was fetched as `artifact` has another digest (hex)."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise LocalError(
            f"{artifact} has the digest {digest} in place of {sha256}",
            fix="the repository that this machine uses serves another file under that name: do not use it",
        )


def print_progress(text: str) -> None:
    """A progress line."""
    print(f"dblog: {text}", file=sys.stderr, flush=True)


@contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        # The kernel releases it when the process dies, so a killed one blocks nobody.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
