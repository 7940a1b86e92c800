"""versitygw, an S3 server whose objects are files: built once by Go, on machines that have Go."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from dblog_core import user_cache
from dblog_core.errors import LocalError
from dblog_core.local.set_up_programs import run_to_end

VERSION = "1.8.0"
_MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"


def can_be_built() -> bool:
    return _find_go() is not None


def program() -> Path:
    """Built first where the cache lacks it. Raises LocalError."""
    return user_cache.cache_entry(f"versitygw-{VERSION}", _build) / "versitygw"


def _build(directory: Path) -> None:
    go = _find_go()
    if go is None:
        raise LocalError("there is no Go to build versitygw with", where="s3", fix="install Go, or use moto's server")
    user_cache.print_progress(f"building versitygw {VERSION}, an S3 server (about three minutes, once)")
    work = directory / "work"
    work.mkdir()
    go_environment = {
        "GOBIN": str(directory),
        "GOPATH": str(work),
        "GOFLAGS": "-modcacherw",
    }  # a cache that can be removed again
    run_to_end([go, "install", _MODULE], where="s3", cwd=work, env={**os.environ, **go_environment})
    # Go's sources and build cache, which nobody needs now.
    shutil.rmtree(work)


def _find_go() -> str | None:
    return shutil.which("go")
