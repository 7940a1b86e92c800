"""The servers are fetched before any package of .venv is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_servers_are_fetched_by_python_alone() -> None:
    alone = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); import psutil"]
    assert subprocess.run(alone, capture_output=True, check=False).returncode == 1  # no package is in reach
    alone[-1] = alone[-1].replace(
        "import psutil", "from dblog_core.local.packages import fetch; sys.exit(fetch.main('all'))"
    )
    done = subprocess.run(alone, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
