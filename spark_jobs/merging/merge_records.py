"""The merge's own small files in LAKE/_dblog (`dblog_core.lake.lake_status` says which): durable, whole at any
moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import LakeStatus, outcome_path
from dblog_core.lake.merge_plan import Span
from dblog_core.lake.task_plans import TaskPlan, read_plan
from dblog_core.storage.location import Location

KEEP = 1000
"""Records of finished merges that stay, to look into."""


@dataclass(frozen=True, slots=True)
class TaskIntent:
    """A lake task as it was planned."""

    id: str
    plan: TaskPlan

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "kind": self.plan.kind, "arguments": self.plan.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TaskIntent:
        return cls(data["id"], read_plan(data["kind"], data["arguments"]))


@dataclass(frozen=True, slots=True)
class Intent:
    """What merge `number` applies: the span, and for tables that are behind the others the segment they begin after.

    With a `task` it is that lake task alone, and the span is empty.
    `epoch`: the merger that began it (`fence`).
    """

    number: int
    span: Span
    behind: Mapping[str, int]
    task: TaskIntent | None = None
    epoch: int = 0

    def to_json(self) -> dict[str, Any]:
        fields = {"merge": self.number, "span": asdict(self.span), "behind": dict(self.behind)}
        task = None if self.task is None else self.task.to_json()
        return {**fields, "task": task, "epoch": self.epoch}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Intent:
        """One without `task` is of a time before lake tasks, one without `epoch` before claims."""
        task = data.get("task")
        intent = None if task is None else TaskIntent.from_json(task)
        return cls(data["merge"], Span(**data["span"]), data["behind"], intent, data.get("epoch", 0))


class Records:
    """LAKE/_dblog."""

    def __init__(self, directory: Location) -> None:
        self.directory = directory

    def newest(self) -> Intent | None:
        """The newest merge that was begun. Raises LakeError if its record is damaged."""
        numbers = self._numbers()
        if not numbers:
            return None
        path = self._merge(max(numbers))
        try:
            return Intent.from_json(orjson.loads(path.read() or b""))
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"the record of a merge cannot be read: {error}", where=str(path), fix="restore it from a backup"
            ) from error

    def begin(self, intent: Intent) -> bool:
        """Records a merge before it applies anything. False if another process has recorded one of that number."""
        return self._merge(intent.number).create(orjson.dumps(intent.to_json()))

    def finish(self, status: LakeStatus) -> LakeStatus:
        """Records the outcome of a merge, and drops records that are old. Returns the outcome that stands: another
        process may have finished the merge first.

        An outcome is created once. status.json repeats the newest one (`read_status`).
        """
        outcome = outcome_path(self.directory, status.merge)
        if not outcome.create(orjson.dumps(status.to_json())):
            status = LakeStatus.from_json(self.read(f"merges/{outcome.path.rsplit('/', 1)[-1]}"))
        self.write("status.json", status.to_json())
        for number in sorted(self._numbers())[:-KEEP]:
            outcome_path(self.directory, number).remove()
            self._merge(number).remove()
        return status

    def drop_before(self, number: int) -> None:
        """Drops records of merges before `number`, except for the newest of all."""
        for old in sorted(self._numbers())[:-1]:
            if old < number:
                self._merge(old).remove()
                outcome_path(self.directory, old).remove()

    def read(self, name: str) -> Any:
        """A JSON file; None if it is missing."""
        path = self.directory / name
        if (data := path.read()) is None:
            return None
        try:
            return orjson.loads(data)
        except ValueError as error:
            raise LakeError(f"is damaged: {error}", where=str(path), fix="restore it from a backup") from error

    def write(self, name: str, data: Any) -> None:
        """Replaces a JSON file."""
        (self.directory / name).replace(orjson.dumps(data))

    def _numbers(self) -> list[int]:
        names = (name.removesuffix(".json") for name in (self.directory / "merges").names())
        return [int(name) for name in names if name.isdigit()]

    def _merge(self, number: int) -> Location:
        return self.directory / "merges" / f"{number:012d}.json"
