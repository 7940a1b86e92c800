"""Which storage a path of the configuration means."""

from __future__ import annotations

import re
from pathlib import Path

from dblog_core.errors import StagingError
from dblog_core.storage import Storage
from dblog_core.storage.local import LocalStorage

_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")


def open_storage(root: str, directory: str = "", *, temporary: str = "tmp") -> Storage:
    """What lies in ROOT/DIRECTORY. `temporary`: where, below it, a file system keeps files that are being written.

    Raises StagingError for a URL of a kind that is not known.
    """
    if found := _URL.match(root):
        raise StagingError(
            f"storage on {found[1]}:// is not supported",
            where=root,
            fix="give a directory that all machines share",
        )
    return LocalStorage(Path(root).expanduser().absolute() / directory, temporary=temporary)
