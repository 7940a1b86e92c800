"""Breadth-first search over every state of a scenario: the first violation found has the shortest trace."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol, Self

from tests.protocol.capture import Rules, Violation
from tests.protocol.read_only import ReadOnlyWorld
from tests.protocol.world import World
from tests.protocol.world_state import Scenario

LIMIT = 2_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: states, steps between them, and a violation with the steps that lead to it."""

    scenario: str
    states: int
    steps: int
    violation: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.violation is None:
            return f"{self.scenario}: {self.states:,} states, {self.steps:,} steps"
        steps = "".join(f"\n  {number:2}. {step}" for number, step in enumerate(self.trace, 1))
        return f"{self.scenario}: {self.violation}{steps}"


class Explorable(Protocol):
    """A state of a small world."""

    def steps(self) -> Iterable[tuple[str, Self]]:
        """What can happen next, each with its label. Raises Violation."""

    def freeze(self) -> Hashable:
        """Equal for equal states alone, also by its hash."""


def search(scenario: Scenario, rules: Rules | None = None, *, most_states: int | None = None) -> Found:
    """Explores all states, or the first `most_states`. Raises MemoryError if the scenario is too large to explore."""
    begin = (ReadOnlyWorld if scenario.read_only else World).begin(scenario, rules or Rules())
    return explore(scenario.name, begin, most_states=most_states)


def explore(name: str, begin: Explorable, *, most_states: int | None = None) -> Found:
    """As `search`, from any first state on."""
    queue: deque[tuple[int, Explorable]] = deque([(0, begin)])
    seen = {hash(begin.freeze())}
    labels = [""]
    label_of = array("l", [0])
    parents = array("l", [-1])
    numbers = {"": 0}
    steps = 0

    def trace(at: int, *last: str) -> tuple[str, ...]:
        path = list(last)
        while at > 0:
            path.insert(0, labels[label_of[at]])
            at = parents[at]
        return tuple(path)

    while queue:
        at, world = queue.popleft()
        try:
            for label, new in world.steps():
                steps += 1
                if (fingerprint := hash(new.freeze())) in seen:
                    continue
                seen.add(fingerprint)
                if label not in numbers:
                    numbers[label] = len(labels)
                    labels.append(label)
                parents.append(at)
                label_of.append(numbers[label])
                queue.append((len(parents) - 1, new))
        except Violation as violation:
            return Found(name, len(seen), steps, str(violation), trace(at))
        if most_states is not None and len(seen) >= most_states:
            break
        if len(seen) > LIMIT:
            raise MemoryError(f"{name} has more than {LIMIT:,} states: make it smaller")
    return Found(name, len(seen), steps)
