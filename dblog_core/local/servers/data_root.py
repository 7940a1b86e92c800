"""Where the data of a checkout's local servers lies."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]


def data_root(purpose: str) -> Path:
    """A directory for `purpose` (`stack`, `demo`, …), one per checkout; made where missing.

    `$DBLOG_DATA_DIR` chooses its parent. For root it lies where another user can enter, since PostgreSQL is one.
    """
    if chosen := os.environ.get("DBLOG_DATA_DIR"):
        parent = Path(chosen).absolute()
    elif os.geteuid() == 0:
        parent = Path("/var/tmp/dblog")
    else:
        parent = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "dblog"
    # Two checkouts on one machine must not share servers.
    checkout = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:10]
    root = parent / checkout / purpose
    root.mkdir(parents=True, exist_ok=True)
    return root
