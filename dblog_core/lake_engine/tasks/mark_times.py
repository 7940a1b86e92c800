"""When a table's files are written again for their dead rows: by how many there are, and how long they may be dead."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from dblog_core.config.settings import Config
from dblog_core.lake_engine.tasks.context import Tools
from dblog_core.maintenance import schedule
from dblog_core.maintenance.schedule import TableSize
from dblog_core.model import durations

PURGE = 0.05
"""Share of dead rows above which a table's files are written without them: at once, fewer ones once some of them may
have been dead for longer than `[lake] purge_after`. A file of which a row may have been deleted does not wait."""


@dataclass(frozen=True, slots=True)
class Marks:
    """Since when rows of each table may be marked as deleted, by what the last maintenance has left (`sizes`).

    A row that was not marked then has been so since that time at most. `marked_at`: what it has noted of each table.
    """

    now: float
    longest: float
    last: float
    marked_at: dict[str, float]
    sizes: tuple[TableSize, ...] = ()

    @classmethod
    def of(cls, tools: Tools, config: Config, now: float) -> Marks:
        """By LAKE/_dblog/maintained.json; nobody knows of rows that were marked before there was a first one."""
        last = schedule.read_maintained(tools.lake.location)
        marked_at = {size.table: size.marked_at for size in last.sizes if size.marked_at is not None} if last else {}
        longest = durations.parse(config.lake.purge_after or config.lake.keep)
        seen = last.at if last else now
        purged = {name: max(at, marked_at.get(name, seen)) for name, at in tools.purged.items()}
        return cls(now, longest, seen, marked_at | purged, last.sizes if last else ())

    def sizes_of(self, names: Iterable[str]) -> list[TableSize]:
        """What the last maintenance has noted of these, with a time since which rows of them may be marked."""
        sizes = {size.table: size for size in self.sizes}
        return [replace(sizes[name], marked_at=self.marked_at.get(name, self.last)) for name in names if name in sizes]

    def since(self, size: TableSize) -> float | None:
        """A time before which no row was marked that is so now; None: none is."""
        return None if size.deleted == 0 else self.marked_at.get(size.table, self.last)

    def shares(self, tables: Collection[str]) -> dict[str, float]:
        """The share of dead rows beyond which a file of each table should be written again."""
        old = {name for name in tables if self.now - self.marked_at.get(name, self.last) >= self.longest}
        return {name: 0.0 if name in old else PURGE for name in tables}

    def are_old(self, size: TableSize) -> bool:
        since = self.since(size)
        return since is not None and self.now - since >= self.longest

    def with_mark_time(self, size: TableSize, *, purged: bool) -> TableSize:
        """The table as this maintenance leaves it."""
        since = self.since(size)
        return replace(size, marked_at=self.now if purged and since is not None else since)
