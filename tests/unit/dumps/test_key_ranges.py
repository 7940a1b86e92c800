"""A table is cut where its rows are: computed where the key counts up evenly, by its index elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dblog_core.dumps import key_ranges
from dblog_core.dumps.dump_records import DumpOptions
from dblog_core.dumps.key_ranges import Range
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key
from tests.fake_source import ORDERS, FakeDatabase, FakeReader

OPTIONS = DumpOptions(chunk_size=10, workers=2)


class Walked(FakeReader):
    """Counts the keys that boundaries make the database walk over; `estimate`: what it thinks that it has."""

    def __init__(self, keys: list[int], *, estimate: int | None = None) -> None:
        database = FakeDatabase()
        database.commit(*(database.put({"id": k, "name": "n", "big": "b"}) for k in keys))
        super().__init__(database)
        self.keys = keys
        self.walked = 0
        self._estimate = estimate

    def boundaries(self, schema: TableSchema, *, after: Key | None, upto: Key | None, every: int) -> Iterator[Key]:
        for key in super().boundaries(schema, after=after, upto=upto, every=every):
            self.walked += every
            yield key

    def explain(self, schema: TableSchema, **more: Any) -> Any:
        plan = super().explain(schema, **more)
        return plan if self._estimate is None else type(plan)(plan.index, self._estimate)

    def shares(self, cut: list[Range]) -> list[int]:
        """How many keys lie in each range; each lies in one."""
        ranges = [
            sum((r.after is None or k > r.after) and (r.key_to is None or k <= r.key_to) for k in self.keys)
            for r in cut
        ]
        assert sum(ranges) == len(self.keys)
        assert [r.after for r in cut[1:]] == [r.key_to for r in cut[:-1]]
        return ranges


def cut(reader: Walked, *, sparing: bool = False) -> list[Range]:
    return key_ranges.cut(reader, ORDERS, (), Range(), OPTIONS, sparing=sparing)


@pytest.mark.parametrize("step", [1, 3])
def test_a_key_that_counts_up_evenly_is_not_walked(step: int) -> None:
    reader = Walked(list(range(-500, -500 + 2_000 * step, step)))
    shares = reader.shares(cut(reader))
    assert len(shares) == 8 and max(shares) - min(shares) <= 2
    assert reader.walked < 1_000


@pytest.mark.parametrize(
    "keys",
    [
        [*range(1_000), *range(10**9, 10**9 + 1_000)],
        [i * i for i in range(2_000)],
        [*range(1_999), 10**12],
    ],
    ids=["two clusters", "ever thinner", "one far away"],
)
def test_a_key_with_gaps_is_cut_by_its_index(keys: list[int]) -> None:
    reader = Walked(keys)
    shares = reader.shares(cut(reader))
    assert len(shares) == 8 and max(shares) < 2 * min(shares)


@pytest.mark.parametrize("estimate", [700, 6_000])
def test_an_estimate_that_is_far_off_costs_balance_at_most(estimate: int) -> None:
    reader = Walked(list(range(2_000)), estimate=estimate)
    shares = reader.shares(cut(reader))
    assert len(shares) >= 3 and max(shares) < 3 * min(shares)


@pytest.mark.parametrize(("estimate", "most"), [(2_000, 1_000), (2_400, 1_200), (1_600, 1_200)])
def test_who_is_sparing_walks_to_the_last_range_and_no_further(estimate: int, most: int) -> None:
    """Two workers, two ranges: half of the keys are read for that, as far as the server knows how many there are."""
    reader = Walked([i * i for i in range(2_000)], estimate=estimate)
    shares = reader.shares(cut(reader, sparing=True))
    assert len(shares) == 2 and max(shares) <= most + 2 * OPTIONS.chunk_size
    assert reader.walked <= estimate * 3 // 4, "with the looks that show the key to be uneven"
