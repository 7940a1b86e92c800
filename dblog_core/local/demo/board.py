"""What the demo shows while it runs: where it is in its story, and what each part does at this moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

LINE_SECONDS = 10.0  # between two lines where there is no terminal
_TICK_SECONDS = 0.5


class Board:
    """One line per part that is rewritten as it changes; where there is no terminal, one short line now and then.

    A context manager; `said` lines stay, above what changes.
    """

    def __init__(self, console: Console | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console or Console(highlight=False)
        self._clock = clock
        self._began = clock()
        self._due = self._began + LINE_SECONDS
        self._stage = ""
        self._brief = ""
        self._facts: Mapping[str, str] = {}
        self._live: Live | None = None
        self._ended = threading.Event()
        self._ticker = threading.Thread(target=self._tick_on, name="board", daemon=True)

    def __enter__(self) -> Board:
        if self._console.is_terminal:
            # Our own ticker draws: the same clock with and without a terminal.
            self._live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticker.join()
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    def stage(self, text: str) -> None:
        """The next step of the story."""
        self._stage = text
        self._brief = ""
        self.say(text)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(f"{self._time()}  {text}", markup=False, soft_wrap=True)

    def show(self, facts: Mapping[str, str], brief: str) -> None:
        """What the parts do now, by part; and in one line."""
        self._facts = facts
        self._brief = brief

    def tick(self) -> None:
        """Draws again; where there is no terminal, says a line if one is due."""
        if self._live is not None:
            self._live.update(self._render(), refresh=True)
        elif self._clock() >= self._due:
            self._due = self._clock() + LINE_SECONDS
            self.say(f"  {self._brief or self._stage} …")

    def table(self, title: str, rows: Mapping[str, str]) -> None:
        """The end: a table of two columns."""
        table = Table(title=title, show_header=False, title_justify="left")
        for name, text in rows.items():
            table.add_row(name, Text(text))
        self._console.print(table)

    def plain(self, text: str) -> None:
        """Text without a clock."""
        self._console.print(text, markup=False, soft_wrap=True)

    def _tick_on(self) -> None:
        while not self._ended.wait(_TICK_SECONDS):
            self.tick()

    def _time(self) -> str:
        seconds = int(self.elapsed_seconds)
        return f"{seconds // 60}:{seconds % 60:02}"

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2))
        for name, text in self._facts.items():
            table.add_row(Text(f"  {name}", style="bold"), Text(text))
        return Group(Text(f"{self._time()}  {self._stage} …", style="bold green"), table)
