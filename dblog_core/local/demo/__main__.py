"""The demo (`make demo`): a live database ends as correct Delta tables, while one watches.

    python -m dblog_core.local.demo            the whole story; DEMO_SOURCE=mysql (default), mariadb, postgres
    python -m dblog_core.local.demo --quick    a tenth of the rows, one dump, one merge, and the comparison
    python -m dblog_core.local.demo --look     the servers of the last demo again on the same data, to look around

The exit code is 1 if one row or column of source and lake differs.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from dblog_core.errors import DblogError
from dblog_core.local.demo.board import Board
from dblog_core.local.demo.parts import KINDS, QUICK, WHOLE, Edition, Parts
from dblog_core.local.demo.story import Story
from dblog_core.local.servers import data_root


def main(arguments: list[str]) -> int:
    kind = os.environ.get("DEMO_SOURCE") or "mysql"
    if kind not in KINDS or arguments not in ([], ["--quick"], ["--look"]):
        print(
            f"usage: DEMO_SOURCE={'|'.join(KINDS)} python -m dblog_core.local.demo [--quick|--look]",
            file=sys.stderr,
        )
        return 2
    # As a Ctrl-C: `finally` then stops every server.
    signal.signal(signal.SIGTERM, _interrupt)
    root = data_root.data_root(f"demo-{kind}")
    with (root.parent / f"demo-{kind}.lock").open("w") as lock:
        try:
            # Two demos of one kind would share their data directory and their ports.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"dblog: another demo of {kind} runs in this checkout", file=sys.stderr)
            return 1
        if "--look" in arguments:
            return _look(kind, root)
        return _play(kind, root, QUICK if "--quick" in arguments else WHOLE)


def _play(kind: str, root: Path, edition: Edition) -> int:
    _empty(root)
    parts = Parts(kind, root, edition)
    board = Board()
    try:
        with board:
            story = Story(parts, board)
            verdict = story.play()
            parts.stop(orderly=True)
        story.tell(verdict)
        return 0 if verdict.equal else 1
    except KeyboardInterrupt:
        board.plain("dblog: interrupted; stopping everything")
        return 130
    except DblogError as error:
        board.plain(f"dblog: {error}")
        board.plain(f"  what the servers wrote is below {root}")
        return 1
    finally:
        _ignore_signals()
        parts.stop(orderly=False)


def _look(kind: str, root: Path) -> int:
    parts = Parts(kind, root)
    board = Board()
    if not parts.config_file.exists():
        board.plain(f"dblog: there was no demo of {kind} yet: DEMO_SOURCE={kind} make demo")
        return 1
    try:
        parts.start_servers()
        board.plain("\n".join(["", *parts.addresses(), "", "Ctrl-C stops it all."]))
        threading.Event().wait()
    except KeyboardInterrupt:
        board.plain("dblog: stopping")
    except DblogError as error:
        board.plain(f"dblog: {error}")
        return 1
    finally:
        _ignore_signals()
        parts.stop(orderly=True)
    return 0


def _empty(root: Path) -> None:
    """Each demo begins with new servers: what the last one left, finished or not, cannot disturb it."""
    for entry in root.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _ignore_signals() -> None:
    """One more Ctrl-C must not leave anything behind, nor `make`, which hands on a SIGTERM that we have had already."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
