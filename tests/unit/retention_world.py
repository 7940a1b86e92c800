"""The world of compaction in which retention runs too, may die, and a loss of power may bring back what it removed.

Needs come and go: a stopped table, a dump, an output, each at a segment that was not removed yet. Whoever has one, and
the slow reader of the world, must see what the twin shows, from there on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dblog_core.errors import CorruptSegment
from dblog_core.staging import Staging
from dblog_core.staging.log_start import Beginning, Need
from dblog_core.staging.reader import Line, lines
from dblog_core.staging.retention import Retention
from tests.simulation.storage import Disk
from tests.unit.compaction_world import Fragile, Killed, World

AGES = (0.0, 0.0, 5.0, 40.0)  # seconds


class Undecided(Disk):
    """A disk on which a removal is certain only if no power is lost."""

    def __init__(self) -> None:
        super().__init__()
        self._removed: dict[str, bytes] = {}

    def remove(self, path: str) -> None:
        self._removed[path] = self.files[path]
        super().remove(path)

    def sync(self) -> None:
        """All that was removed is gone for good."""
        self._removed = {}

    def power_cut(self, lose: Callable[[], bool]) -> int:
        lost = super().power_cut(lose)
        for path, data in self._removed.items():
            if path not in self.files and lose():
                self.put(path, data, durable=True)
        self.sync()
        return lost


class RetentionWorld(World):
    def __init__(self, seed: int, *, disk: Disk | None = None) -> None:
        super().__init__(seed)
        self.disk = disk or Undecided()
        self.staging = self.open()
        self.reader = self._again()
        self.needs: list[Need] = []
        self.begun = Beginning()
        self.moved = 0
        self.died = 0
        self.held = 0
        self.durable = self.begun

    def doings(self) -> tuple[Callable[[], None], ...]:
        return (*super().doings(), self.publish, self.wait, self.need, self.retain, self.retain)

    def need(self) -> None:
        """Another need, or one less."""
        if self.needs and self.dice.random() < 0.7:
            self.needs.pop(self.dice.randrange(len(self.needs)))
        elif self.number:
            self.needs.append(Need(self.dice.randint(self.begun.segment, self.number), "somebody stands there"))

    def all_needs(self) -> list[Need]:
        place = self.read[-1]["offset"] if self.read else self.begun.offset - 1
        standing = next((m.segment for m in self.sealed if m.last_offset >= place), self.number + 1)
        return [*self.needs, Need(standing, "a reader stands there")]

    def retain(self) -> None:
        """One run, by a process that may die in it."""
        storage: Any = Fragile(self.disk, self.dice, self.late)
        staging = Staging("/simulated", source="shop", storage=storage)
        keep = self.dice.choice(AGES)
        needs = self.all_needs()
        try:
            Retention(staging, keep=keep, now=self.clock.now, over=lambda dump: True).run(needs)
        except Killed:
            self.died += 1
        self._check_begun(self.open().beginning(), needs, self.clock.now - keep)

    def _check_begun(self, now: Beginning, needs: list[Need], before: float) -> None:
        """It goes on only, and over nothing that is needed, young, the newest, or within a transaction."""
        assert now.segment >= self.begun.segment
        if now.segment > self.begun.segment:
            segments_gone = self.sealed[self.begun.segment - 1 : now.segment - 1]
            assert all(need.segment >= now.segment for need in needs)
            assert all(m.sealed_at < before * 1e6 for m in segments_gone) and now.segment <= self.number
            assert segments_gone[-1].partial == 0 and now.offset == self.sealed[now.segment - 1].first_offset
            self.moved += 1
        self.held += bool(now.held)
        self.begun = now
        if "beginning.json" not in self.disk.unsettled:
            self.durable = now

    def cut_power(self) -> None:
        """What others have seen and nobody has made durable may be undone: nothing was removed on its strength."""
        super().cut_power()
        now = self.open().beginning()
        assert now in (self.begun, self.durable)
        self.begun = now

    def kept_lines(self) -> list[Line]:
        return [line for line in self.expected if line["offset"] >= self.begun.offset]

    def look(self) -> None:
        """A new reader, from any offset: before the beginning it is told so."""
        place = self.dice.randint(2, self.offset + 2)
        if place >= self.begun.offset:
            assert list(lines(self.open(), from_offset=place)) == [x for x in self.expected if x["offset"] >= place]
            return
        with pytest.raises(CorruptSegment, match="removed by retention"):
            list(lines(self.open(), from_offset=place))

    def span(self) -> None:
        if self.begun.segment <= self.number:
            self.compare_span(self.dice.randint(self.begun.segment - 1, self.number - 1))

    def lowest(self) -> int:
        return self.begun.segment - 1

    def judge(self) -> None:
        assert list(lines(self.open())) == self.kept_lines()
        fresh = self.open()
        assert fresh.head_number() == self.number
        assert fresh.first_number() == (self.begun.segment if self.number else 0)
        head = fresh.head()
        assert (head.segment, head.first) == (self.number, self.number) if head else not self.number
        self.reading = self.reader.lines()
        self.read += self.reading
        assert self.read == self.expected


def worlds(seeds: range, steps: int) -> list[RetentionWorld]:
    new_worlds = [RetentionWorld(seed) for seed in seeds]
    for world in new_worlds:
        world.run(steps)
    return new_worlds
