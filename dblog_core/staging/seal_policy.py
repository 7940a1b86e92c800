"""When a segment ends by age: soon while sealing costs little, later the more of the time it takes. No clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

_MEMORY = 0.75  # how much of the known cost stays when a new one is measured


@dataclass(frozen=True, slots=True)
class Sealing:
    """Ages in seconds. `share`: of the time, at most, that sealing may take; `cost`: seconds of a seal, lately."""

    min_age: float
    max_age: float
    share: float
    cost: float = 0.0

    @property
    def age(self) -> float:
        """How old the oldest row of a segment gets."""
        return min(self.max_age, max(self.min_age, self.cost / self.share))

    def after(self, seconds: float) -> Sealing:
        """With one more seal, which took that long."""
        return replace(self, cost=_MEMORY * self.cost + (1 - _MEMORY) * seconds if self.cost else seconds)
