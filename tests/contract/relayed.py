"""What the suites of outputs share: a super-changelog that relays send to a target, and the faults that they meet."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.interfaces import Json, Output
from dblog_core.outputs import positions
from dblog_core.outputs.relay import run_relay
from dblog_core.staging.reader import lines
from tests.contract import changelog
from tests.contract.targets import Target

EXACT = ["memory", "jsonl", "parquet", "postgres", "mysql", "example", "kafka"]
KINDS = [*EXACT, "http"]
PICKY = [kind for kind in KINDS if kind not in ("jsonl", "parquet", "example", "kafka")]
"""Those that can refuse a line."""

every = pytest.mark.parametrize("kind", KINDS)
memory = pytest.mark.parametrize("kind", ["memory"])
exact = pytest.mark.parametrize("kind", EXACT)
picky = pytest.mark.parametrize("kind", PICKY)


class World:
    """A staged super-changelog, a state store, and relays that send to a target."""

    def __init__(self, directory: Path, target: Target) -> None:
        self.directory = directory
        self.target = target
        self.staging = changelog.stage(directory / "staging")
        self.letters = directory / "dead" / "letters.jsonl"

    def config(self, **more: Any) -> Config:
        output = {**self.target.settings, "start": "earliest", "batch_rows": 2, "longest_wait": 0.05, **more}
        return Config.model_validate(
            {
                "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
                "staging": {"path": str(self.directory / "staging")},
                "state": {"url": f"sqlite:///{self.directory / 'state.db'}"},
                "lake": {"path": str(self.directory / "lake")},
                "output": {"out": output},
            }
        )

    def relay(self, output: Output | None = None, *, restart: bool = False, **more: Any) -> bool:
        """All that is sealed now; in a process of its own, as far as the target can tell."""
        return run_relay(
            self.config(**more),
            "out",
            stop=threading.Event(),
            once=True,
            restart=restart,
            output=output or self.target.open(),
        )

    def all(self) -> list[Json]:
        return [orjson.loads(orjson.dumps(line)) for line in lines(self.staging)]

    def state(self) -> Any:
        return closing(wiring.open_state(self.config()))

    def place(self) -> positions.Place:
        with self.state() as state:
            place_read = positions.read_place(state, "out")
        assert place_read is not None
        return place_read[0]


class Death(BaseException):
    """The process is no more."""


class Faulty:
    """An output that meets a fault at one of its calls, right before it or right after it."""

    def __init__(self, output: Output, fault: Callable[[str, int, bool], None]) -> None:
        self._output = output
        self._fault = fault
        self._calls = itertools.count()
        self.exactly_once = output.exactly_once

    def open(self, epoch: int) -> int | None:
        return self._call("open", epoch)  # type: ignore[no-any-return]

    def write(self, lines: Sequence[Json]) -> None:
        self._call("write", lines)

    def commit(self, offset: int) -> None:
        self._call("commit", offset)

    def close(self) -> None:
        self._output.close()

    def _call(self, name: str, argument: Any) -> Any:
        number = next(self._calls)
        self._fault(name, number, False)
        result = getattr(self._output, name)(argument)
        self._fault(name, number, True)
        return result


def offsets(lines: Sequence[Json]) -> list[int]:
    return [line["offset"] for line in lines]


def once_each(lines: Sequence[Json]) -> list[Json]:
    """Lines without those that came again."""
    seen: dict[int, Json] = {}
    for line in lines:
        assert seen.setdefault(line["offset"], line) == line, "what comes again is the same"
    return list(seen.values())
