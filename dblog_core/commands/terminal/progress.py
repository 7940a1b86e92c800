"""Progress of a long command on stderr: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.live import Live
from rich.text import Text

from dblog_core.commands.session import note, stderr

EVERY = 10.0  # seconds between plain lines, unless the kind of news changes


class Progress:
    """Takes as many lines as one likes to give and shows a sensible number of them."""

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._said_at = float("-inf")
        self._kind = ""
        self._last = ""

    def show(self, line: str, *, kind: str = "") -> None:
        """`kind`: what the line is about; a new kind is always shown."""
        if self._live is not None:
            self._live.update(Text(line), refresh=True)
            return
        now = time.monotonic()
        if line != self._last and (kind != self._kind or now - self._said_at >= EVERY):
            note(line)
            self._said_at = now
            self._kind = kind
            self._last = line


@contextmanager
def progress() -> Iterator[Progress]:
    """A progress display for the time of the block."""
    if not stderr.is_terminal:
        yield Progress(None)
        return
    with Live(console=stderr, auto_refresh=False, transient=True) as live:
        yield Progress(live)
