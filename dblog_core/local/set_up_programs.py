"""Programs that set something up and end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dblog_core.errors import LocalError


def run_to_end(command: Sequence[str], *, where: str, cwd: Path, **options: Any) -> str:
    """Runs a set-up program and returns its output. Raises LocalError with what it said."""
    done = subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, **options)
    if done.returncode:
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise LocalError(f"{Path(command[0]).name} failed with exit code {done.returncode}:\n{output}", where=where)
    return str(done.stdout)
