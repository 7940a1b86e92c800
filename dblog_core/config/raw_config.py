"""The configuration as it stands in the file, before anything in it is checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class RawConfig:
    """Read access to a raw configuration that may hold anything anywhere."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def section(self, *names: str) -> Mapping[str, Any]:
        """A section, or a table in one; an empty one where there is none."""
        value: Any = self._data
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, Mapping) else {}

    def entries(self, *names: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """The tables of an array of tables, each with its number."""
        array = self.section(*names[:-1]).get(names[-1])
        for number, entry in enumerate(array if isinstance(array, list) else ()):
            if isinstance(entry, Mapping):
                yield number, entry

    def text(self, section: str, key: str) -> str | None:
        """A setting that is text; None where it is anything else."""
        value = self.section(section).get(key)
        return value if isinstance(value, str) else None

    def texts(self, value: Any) -> list[str]:
        """The texts of a list; of anything else, none."""
        return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []
