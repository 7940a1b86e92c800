"""What the demo shows while it runs: where it is in its story, and what each part does at this moment."""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

EVERY = 5.0  # seconds between two lines where there is no terminal


class Board:
    """One line per part that is rewritten as it changes; where there is no terminal, plain lines now and then.

    A context manager; `said` lines stay, above what changes.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._began = time.monotonic()
        self._stage = ""
        self._facts: Mapping[str, str] = {}
        self._shown_at = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Board:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    def stage(self, text: str) -> None:
        """The next step of the story."""
        self._stage = text
        self.say(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"{self._clock()}  {text}", markup=False, soft_wrap=True)

    def show(self, facts: Mapping[str, str]) -> None:
        """What the parts do now, by part."""
        self._facts = facts
        if self._live is not None:
            self._live.update(self._drawn(), refresh=True)
        elif time.monotonic() - self._shown_at >= EVERY:
            self._shown_at = time.monotonic()
            self.say("  " + "; ".join(f"{name}: {text}" for name, text in facts.items()))

    def table(self, title: str, rows: Mapping[str, str]) -> None:
        """The end: a table of two columns."""
        table = Table(title=title, show_header=False, title_justify="left")
        for name, text in rows.items():
            table.add_row(name, Text(text))
        self._console.print(table)

    def plain(self, text: str) -> None:
        """Text without a clock."""
        self._console.print(text, markup=False, soft_wrap=True)

    def _clock(self) -> str:
        seconds = int(self.elapsed)
        return f"{seconds // 60}:{seconds % 60:02}"

    def _drawn(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for name, text in self._facts.items():
            table.add_row(Text(f"  {name}", style="bold"), Text(text))
        return Group(Text(f"{self._clock()}  {self._stage} …", style="bold green"), table)
