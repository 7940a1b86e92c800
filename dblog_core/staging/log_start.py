"""Where the super-changelog begins once old segments were removed, and what has kept others from it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Need:
    """Why segments from `segment` on must stay, in an operator's words."""

    segment: int
    why: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first segment that counts, and its first offset. `sealed_at` (microseconds UTC): when it was sealed.

    `looked_at` (microseconds UTC; None: never) is when retention last looked, and `held` why it then kept segments that
    were old enough to go.
    """

    segment: int = 1
    offset: int = 1
    sealed_at: int | None = None
    looked_at: int | None = None
    held: tuple[Need, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Beginning:
        """Raises KeyError, TypeError or ValueError on anything but a record of this format."""
        fields = dict(data)
        if fields.pop("format") != FORMAT:
            raise ValueError(f"format {data['format']} is newer than {FORMAT}")
        return cls(**{**fields, "held": tuple(Need(**need) for need in data["held"])})
