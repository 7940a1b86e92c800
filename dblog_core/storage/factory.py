"""Which storage a path of the configuration means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from dblog_core.errors import StagingError
from dblog_core.installed_packages import require
from dblog_core.storage import Storage
from dblog_core.storage.local import LocalStorage

if TYPE_CHECKING:
    from dblog_core.config.settings import S3Config

_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)/?(.*)$", re.DOTALL)


def open_storage(root: str, directory: str = "", *, temporary: str = "tmp", s3: S3Config | None = None) -> Storage:
    """What lies in ROOT/DIRECTORY; ROOT is a directory, or s3://BUCKET/PREFIX with the settings `s3`.

    `temporary`: where, below it, a file system keeps files that are being written.
    Raises StagingError for a URL of a kind that is not known.
    """
    match = _URL.match(root)
    if match is None:
        return LocalStorage(Path(root).expanduser().absolute() / directory, temporary=temporary)
    if match[1] != "s3" or s3 is None:
        raise StagingError(
            f"storage on {match[1]}:// is not supported",
            where=root,
            fix="give a directory that all machines share, or s3://BUCKET/PREFIX",
        )
    require("s3")
    from dblog_core.storage.s3 import S3Storage

    return S3Storage(match[2], f"{match[3].strip('/')}/{directory}", settings=s3)
