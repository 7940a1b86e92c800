"""A super-changelog that is published, compacted, read, fenced and cut off at random, beside a twin that is not joined.

One seed draws what happens next: a segment, one more step of a compactor (which may end at any call of the storage), a
line for a reader, a look from a drawn place, a loss of power, a capture that wakes up late. All must see what the twin
shows. The storage may lie to a compactor: a file that it has made was there already, or it does not answer and makes
the file later.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pyarrow as pa

from dblog_core.errors import SegmentTaken, StagingUnavailable
from dblog_core.lake import merge_plan
from dblog_core.staging import Staging, compaction, compaction_blocks, segment
from dblog_core.staging.compaction import Compactor
from dblog_core.staging.manifest import LogMark, Manifest
from dblog_core.staging.reader import Follower, Line, lines
from tests.simulation.storage import Disk, MemoryStorage
from tests.unit.lying_storage import Late, Lying, land
from tests.unit.staged import MICROSECONDS, chunk, creates, log_rows, table

TABLES = (
    table("shop.a"),
    table("shop.b"),
    table("shop.b", id=pa.int64(), name=pa.string(), big=pa.string(), new=pa.int64()),
)
GRACE = 10.0


class Killed(BaseException):
    """The process is gone."""


class Fragile(Lying):
    """Dies at a call that was drawn."""

    def __init__(self, disk: Disk, dice: random.Random, late: Late) -> None:
        super().__init__(disk, dice, late)
        self._left = dice.choice((3, 30, 100, 1000, 1000))

    def _before(self, what: str, relative: str) -> None:
        super()._before(what, relative)
        self._count()

    def _after(self, what: str, relative: str) -> None:
        super()._after(what, relative)
        self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Killed


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    monotonic = time


class World:
    """`same` compares; any difference is an AssertionError, or an error of ours that must not be."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = Disk()
        self.twin = Staging("/simulated", source="shop", storage=MemoryStorage(Disk()))
        self.staging = self.open()
        self.clock: Any = Clock()
        self.number = 0
        self.offset = 0
        self.sealed = list[Manifest]()
        self.expected: list[Line] = []
        self.compactor: Iterator[None] | None = None
        self.reader = Follower(self.open())
        self.read = list[Line]()
        self.reading: Iterator[Line] = iter(())
        self.late: Late = []
        self.joined = self.removed = self.landed = 0

    def open(self) -> Staging:
        return Staging("/simulated", source="shop", storage=MemoryStorage(self.disk))

    def doings(self) -> tuple[Callable[[], None], ...]:
        return (self.publish, self.publish, self.compact, self.compact, self.compact, self.follow, self.follow,
                self.look, self.span, self.wait, self.wake, self.cut_power, self.land)  # fmt: skip

    def run(self, steps: int) -> None:
        doings = self.doings()
        with limits(self.dice):
            for _ in range(steps):
                self.dice.choice(doings)()
            self.judge()

    def publish(self) -> None:
        self.number += 1
        first = self.offset + 1
        batches = []
        marks = []
        chunks = []
        schemas = dict(self.sealed[-1].schemas) if self.sealed else {}
        for schema in self.dice.sample(TABLES, self.dice.choice((0, 1, 1, 2, 3))):
            if schemas.get(str(schema.table)) != schema.fingerprint:
                schemas[str(schema.table)] = schema.fingerprint
                at = self._take(1)
                marks.append(LogMark(at, "s", str(schema.table), "p", MICROSECONDS, schema=schema.fingerprint))
            count = self.dice.choice((1, 2, 5))
            batches.append((schema, creates(schema, self._take(count), count)))
            if self.dice.random() < 0.3:
                update = {"offset": self._take(1), "op": "u", "unchanged": ["big"], "after": {"id": 1, "name": "x"}}
                batches.append((schema, log_rows(schema, update)))
        if self.dice.random() < 0.3:
            at = self._take(2)
            chunks = [chunk(s, TABLES[0], at, {"id": 1}, {"id": 2}) for s in (self.staging, self.twin)]
        partial = self.dice.choice((0, 0, 0, 1))
        for index, staging in enumerate((self.staging, self.twin)):
            writer = staging.open_segment(self.number, 1)
            for schema, batch in batches:
                staging.put_schema(schema)
                writer.add(schema, batch)
            files = writer.write()
            new_manifest = Manifest("shop", self.number, 1, first, self.offset, f"pos{self.number}", partial, "log", 1,
                            int(self.clock.now * 1e6), files, tuple(chunks[index : index + 1]), tuple(marks),
                            schemas=dict(schemas))  # fmt: skip
            staging.publish(new_manifest)
        self.sealed.append(new_manifest)
        self.expected = list(lines(self.twin))

    def _take(self, count: int) -> int:
        self.offset += count
        return self.offset - count + 1

    def compact(self) -> None:
        """One more step of a compactor, which may die in it; then another begins."""
        if self.compactor is None:
            storage: Any = Fragile(self.disk, self.dice, self.late)
            staging = Staging("/simulated", source="shop", storage=storage)
            self.compactor = self._run(Compactor(staging, self.clock, grace=GRACE))
        before = len(self.disk.files)
        try:
            next(self.compactor)
        except (StopIteration, Killed):
            self.compactor = None
        self.joined += len(self.disk.folders.get("compacted", ())) > 0
        self.removed += len(self.disk.files) < before

    def _run(self, compactor: Compactor) -> Iterator[None]:
        while True:
            try:
                yield from compactor.steps()
            except StagingUnavailable:
                compactor.again()
            yield

    def land(self) -> None:
        """A file that was asked for some time ago is made now, if its name is free."""
        self.landed += land(self.disk, self.dice, self.late)

    def follow(self) -> None:
        """A slow reader goes on: between two lines anything may happen."""
        for _ in range(self.dice.choice((1, 3, 20))):
            line = next(self.reading, None)
            if line is None:
                assert self.read == self.expected[: len(self.read)]
                self.reading = self.reader.lines()
                return
            self.read.append(line)
        assert self.read == self.expected[: len(self.read)]

    def look(self) -> None:
        """A new reader, from any offset."""
        place = self.dice.randint(0, self.offset + 1)
        assert list(lines(self.open(), from_offset=place)) == [x for x in self.expected if x["offset"] >= place]

    def span(self) -> None:
        """What a merge takes: rows, chunks, marks and schemas of segments from any to any."""
        if self.sealed:
            self.compare_span(self.dice.randrange(self.number))

    def lowest(self) -> int:
        """The segment up to which nothing is there any more."""
        return 0

    def compare_span(self, low: int) -> None:
        """Segments after `low`, up to any."""
        high = self.dice.randint(low + 1, self.number)
        staging = self.open()
        manifests = list(staging.manifests(low, high))
        expected_manifests = self.sealed[low:high]
        assert [m.first for m in manifests] == [low + 1, *(m.segment + 1 for m in manifests[:-1])]
        assert manifests[-1].segment == high and manifests[0].first_offset == expected_manifests[0].first_offset
        assert (
            manifests[-1].last_offset == expected_manifests[-1].last_offset
            and manifests[-1].schemas == expected_manifests[-1].schemas
        )
        assert self._offsets(staging, manifests) == self._offsets(self.twin, expected_manifests)
        assert [m for x in manifests for m in x.marks] == [m for x in expected_manifests for m in x.marks]
        assert [c for x in manifests for c in x.chunks] == [c for x in expected_manifests for c in x.chunks]

        self._works(staging, manifests, expected_manifests)

    def _works(self, staging: Staging, manifests: list[Manifest], expected_manifests: list[Manifest]) -> None:
        """The same with tables that are merged up to different places."""
        behind = {str(schema.table): self.dice.randint(self.lowest(), self.number) for schema in TABLES}
        works = merge_plan.plan_works(manifests, behind.__getitem__)
        expected_works = merge_plan.plan_works(expected_manifests, behind.__getitem__)
        assert expected_works.keys() <= works.keys()
        for name, work in works.items():
            rows = self._rows_of(staging, work)
            if name in expected_works:
                assert (work.schema, work.chunks) == (expected_works[name].schema, expected_works[name].chunks)
                assert rows == self._rows_of(self.twin, expected_works[name])
            else:  # a file reaches over the cut, and none of its rows lies there
                assert not rows and not work.chunks

    def _rows_of(self, staging: Staging, work: merge_plan.Work) -> list[int]:
        return sorted(o for f in work.files for o in staging.rows(f).column("offset").to_pylist())

    def _offsets(self, staging: Staging, manifests: list[Manifest]) -> list[int]:
        batches = [b for m in manifests for f in m.files for b in staging.log_batches(f)]
        return sorted(offset for batch in batches for offset in batch.column("offset").to_pylist())

    def wait(self) -> None:
        self.clock.now += self.dice.choice((3, 20))

    def wake(self) -> None:
        """A capture that has slept: whatever became of its segment, the number is taken."""
        if not self.sealed:
            return
        old = self.dice.choice(self.sealed)
        late = Manifest("shop", old.segment, 2, old.first_offset, old.last_offset, "late", 0, "late", 1, 1)
        try:
            self.open().publish(late)
        except SegmentTaken:
            return
        raise AssertionError(f"segment {old.segment} was published twice")

    def cut_power(self) -> None:
        """Names that are not durable are lost, or not; and so are all processes."""
        if self.dice.random() < 0.3:
            self.disk.power_cut(lambda: self.dice.random() < 0.7)
            self.compactor = None
            self.staging = self.open()
            self.reading = iter(())
            self.reader = self._again()

    def _again(self) -> Follower:
        return Follower(self.open(), from_offset=self.read[-1]["offset"] + 1 if self.read else 0)

    def judge(self) -> None:
        assert list(lines(self.open())) == self.expected
        fresh = self.open()
        assert fresh.head_number() == self.number and fresh.first_number() == min(1, self.number)
        head = fresh.head()
        assert (head.segment, head.first) == (self.number, self.number) if head else not self.number
        self.reading = self.reader.lines()
        self.read += self.reading
        assert self.read == self.expected


@contextlib.contextmanager
def limits(dice: random.Random) -> Iterator[None]:
    """Blocks of two or three, and a drawn size from which rows lie in files, or files stay as they are."""
    with (
        mock.patch.object(compaction_blocks, "FAN", dice.choice((2, 2, 3))),
        mock.patch.object(segment, "INLINE_BYTES", dice.choice((0, 2000, 1 << 17))),
        mock.patch.object(compaction, "_LARGE", dice.choice((1, 2500, 4 << 20))),
    ):
        yield
