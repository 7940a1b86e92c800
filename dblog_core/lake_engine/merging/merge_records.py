"""The merge's own small files in LAKE/_dblog (`dblog_core.lake.lake_status` says which): durable, whole at any
moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import orjson

from dblog_core.errors import LakeError
from dblog_core.lake.lake_status import (
    LakeStatus,
    TableStatus,
    outcome_path,
    read_later_outcomes,
    read_table,
    read_whole_status,
)
from dblog_core.lake.merge_plan import Span
from dblog_core.lake.task_plans import AdoptPlan, TaskPlan, read_plan
from dblog_core.storage.location import Location

KEEP = 1000
"""Records of finished merges that stay, to look into."""
DROP_EVERY = 100
"""Merges between two looks for older records: their names alone are many bytes."""
WHOLE_BYTES = 32 << 10
"""An outcome of up to so many bytes is written whole, and again to status.json."""
_CHANGES = 20
"""A larger one says what has changed, and status.json is so many merges old: readers take these from their files."""
_MOST_CHANGES = 60
_STATUS_BYTES = 16 << 10
"""Where status.json is large it is older, up to _MOST_CHANGES merges, so that a merge costs so many bytes of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A segment, and its last offset."""

    segment: int
    offset: int


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
    `epoch`: the merger that began it (`fence`). `ends`: tables whose shares end before the span does, for the cut of an
    earlier merge. `arrived`: tables that were late in earlier merges, as they are since their shares are in; None: the
    lake has no such table. `staging`: the identity of the staging that the span is of (None: it has none).
    """

    number: int
    span: Span
    behind: Mapping[str, int]
    task: TaskIntent | None = None
    epoch: int = 0
    ends: Mapping[str, Place] = field(default_factory=dict)
    arrived: Mapping[str, TableStatus | None] = field(default_factory=dict)
    staging: str | None = None

    @property
    def is_adoption(self) -> bool:
        """Whether it takes the lake over to another staging."""
        return self.task is not None and isinstance(self.task.plan, AdoptPlan)

    def span_of(self, table: str) -> Span:
        """The span with the end of this table's share."""
        if (end := self.ends.get(table)) is None:
            return self.span
        return replace(self.span, last=end.segment, offset=end.offset)

    def to_json(self) -> dict[str, Any]:
        task = None if self.task is None else self.task.to_json()
        fields = {"merge": self.number, "span": self.span.to_json(), "behind": dict(self.behind), "task": task}
        # What is new is left out where there is none: older versions know no such field.
        ends = {"ends": {name: asdict(end) for name, end in self.ends.items()}} if self.ends else {}
        arrived = {"arrived": {n: None if t is None else asdict(t) for n, t in self.arrived.items()}}
        staging = {} if self.staging is None else {"staging": self.staging}
        return {**fields, "epoch": self.epoch, **ends, **(arrived if self.arrived else {}), **staging}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Intent:
        """One without `task` is of a time before lake tasks, one without `epoch` before claims."""
        task = data.get("task")
        return cls(
            data["merge"],
            Span(**data["span"]),
            data["behind"],
            None if task is None else TaskIntent.from_json(task),
            data.get("epoch", 0),
            {name: Place(**end) for name, end in data.get("ends", {}).items()},
            {name: None if t is None else read_table(t) for name, t in data.get("arrived", {}).items()},
            data.get("staging"),
        )


class Records:
    """LAKE/_dblog."""

    def __init__(self, directory: Location) -> None:
        self.directory = directory
        self._last: LakeStatus | None = None
        self._changes = 0
        """Outcomes since status.json was written."""
        self._most_changes = _CHANGES

    def newest(self) -> Intent | None:
        """The newest merge that was begun. Raises LakeError if its record is damaged."""
        numbers = self._numbers()
        return self.intent(max(numbers)) if numbers else None

    def intent(self, number: int) -> Intent | None:
        """The record of a merge; None if it was not begun. Raises LakeError if it is damaged."""
        path = self._merge(number)
        try:
            return None if (data := path.read()) is None else Intent.from_json(orjson.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"the record of a merge cannot be read: {error}", where=str(path), fix="restore it from a backup"
            ) from error

    def begin(self, intent: Intent) -> bool:
        """Records a merge before it applies anything. False if another process has recorded one of that number."""
        return self._merge(intent.number).create(orjson.dumps(intent.to_json()))

    def finish(self, status: LakeStatus) -> LakeStatus:
        """Records the outcome of a merge, and drops records that are old. Returns the newest outcome that stands:
        another process may have finished the merge first.

        An outcome is created once. Of many tables it says what has changed since the last one, and status.json, which
        has all of them, is written after some of these.
        """
        changes = self._changes_of(status)
        if not outcome_path(self.directory, status.merge).create(changes or orjson.dumps(status)):
            changes = None
            before = self._last if self._is_next(status) else read_whole_status(self.directory)
            status = read_later_outcomes(self.directory, before) or status
        self._last = status
        self._changes += 1
        if changes is None or self._changes > self._most_changes:
            (self.directory / "status.json").replace(orjson.dumps(status))
            self._changes = 0
        if status.merge % DROP_EVERY == 0:
            self._drop(sorted(self._numbers())[:-KEEP])
        return status

    def _changes_of(self, status: LakeStatus) -> bytes | None:
        """The outcome as what has changed; None where it is written whole."""
        if self._last is None or not self._is_next(status):
            return None
        whole_bytes = len(orjson.dumps(status))
        self._most_changes = min(_MOST_CHANGES, max(_CHANGES, whole_bytes // _STATUS_BYTES))
        if whole_bytes <= WHOLE_BYTES:
            return None
        changes = orjson.dumps(status.changes_since(self._last))
        return changes if 2 * len(changes) < whole_bytes else None

    def _is_next(self, status: LakeStatus) -> bool:
        return self._last is not None and self._last.merge == status.merge - 1

    def drop_before(self, number: int) -> None:
        """Drops records of merges before `number`, except for the newest of all and those that status.json is not yet
        as far as."""
        whole = read_whole_status(self.directory)
        end = min(number, whole.merge if whole else 0)
        self._drop([old for old in sorted(self._numbers())[:-1] if old < end])

    def _drop(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            # The outcome first: by its record it is found again after a crash in between.
            outcome_path(self.directory, number).remove()
            self._merge(number).remove()

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
