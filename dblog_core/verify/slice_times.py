"""When each slice of the full state was last compared whole, and which slice a run takes next.

Node `compared_slices`: {"of": N, "slices": {"I": {"compared", "tried", "run"}}}. `compared` is when the last whole and
equal comparison of slice I began, `tried` when the last run began that took it (both µs UTC, 0: never), `run` that run.
Another N begins again, as the cuts of the tables do.

A run takes the slice that waited longest. A slice whose last run did not end well keeps its age, and gets every second
run at most: a table that cannot be repaired does not keep the other slices from being compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import orjson

from dblog_core.interfaces import Json, Lease, StateStore
from dblog_core.state import compare_and_set
from dblog_core.state.lease_holder import give_back, holder_name
from dblog_core.verify.slices import Slice

_NODE = "compared_slices"


@dataclass(frozen=True, slots=True)
class SliceTime:
    """Microseconds UTC; 0: never. `run`: the run that took the slice last."""

    compared: int = 0
    tried: int = 0
    run: str = ""

    @property
    def has_failed(self) -> bool:
        """Whether the last run that took it has not compared it whole (yet)."""
        return self.tried > self.compared


@dataclass(frozen=True, slots=True)
class SliceTimes:
    """The times of slices 1 to `of`."""

    of: int
    slices: Mapping[int, SliceTime] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["of"], {int(number): SliceTime(**time) for number, time in data["slices"].items()})

    def to_json(self) -> Json:
        return {"of": self.of, "slices": {str(number): asdict(time) for number, time in self.slices.items()}}

    def time_of(self, number: int) -> SliceTime:
        return self.slices.get(number, SliceTime())

    def with_time(self, number: int, time: SliceTime) -> SliceTimes:
        """The same with the times of one slice replaced."""
        return replace(self, slices={**self.slices, number: time})

    @property
    def oldest(self) -> int | None:
        """When the slice that waited longest was compared, in microseconds UTC; None: some slice never was."""
        times = [self.time_of(number).compared for number in range(1, self.of + 1)]
        return min(times) or None

    @property
    def compared_count(self) -> int:
        """How many slices were compared at least once."""
        return sum(self.time_of(number).compared > 0 for number in range(1, self.of + 1))

    def in_order(self, run: str) -> list[int]:
        """All slices, the one first that a run takes: its own again, or the one that waited longest."""
        numbers = range(1, self.of + 1)
        waiting = sorted(
            (n for n in numbers if not self.time_of(n).has_failed), key=lambda n: (self.time_of(n).compared, n)
        )
        failed = sorted((n for n in numbers if self.time_of(n).has_failed), key=lambda n: (self.time_of(n).tried, n))
        order = [*failed, *waiting] if self._is_turn_of_failed(waiting, failed) else [*waiting, *failed]
        # An attempt that is repeated, and a run that is cleared, finish what they began.
        own = [n for n in numbers if run and self.time_of(n).run == run]
        return [*own, *(n for n in order if n not in own)]

    def _is_turn_of_failed(self, waiting: list[int], failed: list[int]) -> bool:
        """Never twice in a row, and only where it has waited longer than all others."""
        if not (waiting and failed):
            return True
        newest = max((*waiting, *failed), key=lambda n: self.time_of(n).tried)
        return newest in waiting and self.time_of(failed[0]).compared <= self.time_of(waiting[0]).compared


def read_times(state: StateStore) -> SliceTimes | None:
    """None: no slice was taken or compared yet."""
    entry = state.get(_NODE)
    return None if entry is None else SliceTimes.from_json(orjson.loads(entry.data))


def record_compared(state: StateStore, slice_: Slice, *, began_us: int) -> None:
    """Every table's share of the slice was compared, and nothing differs in the end. `began_us`: when that began."""

    def mark_compared(times: SliceTimes) -> SliceTimes:
        before = times.time_of(slice_.number)
        return times.with_time(slice_.number, replace(before, compared=max(before.compared, began_us)))

    _change(state, slice_.of, mark_compared)


@contextmanager
def take_slice(
    state: StateStore,
    of: int,
    *,
    run: str,
    number: int | None,
    ttl: float,
    now: Callable[[], float] = time.time,
) -> Iterator[int | None]:
    """The slice of a run: `number` if it is given, otherwise the one that waited longest and that no other run has;
    None where other runs have them all. No other run takes it in the block."""
    times = read_times(state)
    if times is None or times.of != of:
        times = SliceTimes(of)
    lease: Lease | None = None
    taken = number
    for candidate in times.in_order(run) if number is None else [number]:
        lease = state.acquire(f"{_NODE}/{candidate}", holder_name(), ttl=ttl)
        if lease is not None:
            taken = candidate
            break
    try:
        if taken is not None:
            _record_taken(state, Slice(taken, of), run, int(now() * 1e6))
        yield taken
    finally:
        if lease is not None:
            give_back(lease)


def _record_taken(state: StateStore, slice_: Slice, run: str, now_us: int) -> None:
    def mark_tried(times: SliceTimes) -> SliceTimes:
        before = times.time_of(slice_.number)
        return times.with_time(slice_.number, replace(before, tried=now_us, run=run))

    _change(state, slice_.of, mark_tried)


def _change(state: StateStore, of: int, change_times: Callable[[SliceTimes], SliceTimes]) -> None:
    def change_node(data: Json | None) -> Json:
        times = SliceTimes.from_json(data) if data is not None and data["of"] == of else SliceTimes(of)
        return change_times(times).to_json()

    compare_and_set.change(state, _NODE, change_node)
