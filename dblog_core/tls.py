"""TLS to servers, the same for all that connects."""

from __future__ import annotations

import atexit
import os
import ssl
import tempfile
from contextlib import suppress
from pathlib import Path

_AUTHORITIES = "SSL_CERT_FILE"


def trust_by_default(authority: Path) -> None:
    """Lets delta-rs trust a private authority, which can be told of none: from now on it is among those that this
    process trusts where nothing else is given. A variable that the user has set stays as it is.

    delta-rs reads the variable when it first connects. OpenSSL heeds it too, in place of its own file of authorities:
    where the system has them in a file, both are joined. Its directory of authorities it goes on to heed.
    """
    if os.environ.get(_AUTHORITIES):
        return
    usual = Path(ssl.get_default_verify_paths().openssl_cafile)
    os.environ[_AUTHORITIES] = str(_joined(usual, authority) if usual.is_file() else authority)


def _joined(usual: Path, authority: Path) -> Path:
    number, name = tempfile.mkstemp(prefix="dblog-authorities-", suffix=".pem")
    made, process = Path(name), os.getpid()
    with os.fdopen(number, "wb") as out:
        out.write(usual.read_bytes() + b"\n" + authority.read_bytes())

    def remove() -> None:
        if os.getpid() == process:  # a fork of it goes on to need the file no longer than its parent
            with suppress(OSError):
                made.unlink()

    atexit.register(remove)
    return made
