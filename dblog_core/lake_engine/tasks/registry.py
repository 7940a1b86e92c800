"""The lake tasks that a merge can carry out, by kind.

A task is planned first, without changing anything: what it will do is recorded with the merge that it becomes. Then
it is carried out, as often as crashes want it: doing it again, after any part of it, leads to the same lake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dblog_core.errors import LakeError, SegmentReplaced
from dblog_core.lake.task_plans import TaskPlan
from dblog_core.lake.task_requests import TaskRequest
from dblog_core.lake_engine.tasks import accept_schema, adopt, maintain, rebuild, replay, reset
from dblog_core.lake_engine.tasks.context import Done, Tools

_READ_AGAIN = 3


@dataclass(frozen=True, slots=True)
class Kind:
    """`plan` gets the kind's request and returns what is recorded, or refuses with an error; `carry_out` gets that
    plan."""

    carry_out: Callable[[Tools, Any], Done]
    plan: Callable[[Tools, Any], TaskPlan]


KINDS: Mapping[str, Kind] = {
    "replay": Kind(replay.carry_out, replay.plan),
    "rebuild": Kind(rebuild.carry_out, rebuild.plan),
    "reset": Kind(reset.carry_out, reset.plan),
    "accept": Kind(accept_schema.carry_out, accept_schema.plan),
    "adopt": Kind(adopt.carry_out, adopt.plan),
    "maintain": Kind(maintain.carry_out, maintain.plan),
}


def plan(tools: Tools, request: TaskRequest) -> TaskPlan:
    """What the task will do. Raises DblogError where it cannot be done."""
    return _kind(request.kind).plan(tools, request)


def carry_out(tools: Tools, plan: TaskPlan) -> Done:
    """Does it; again where the staging has joined its segments in the meantime. Raises DblogError."""
    for _ in range(_READ_AGAIN):
        try:
            return _kind(plan.kind).carry_out(tools, plan)
        except SegmentReplaced:
            continue
    return _kind(plan.kind).carry_out(tools, plan)


def _kind(name: str) -> Kind:
    if name not in KINDS:
        raise LakeError(
            f"this merge knows no lake task {name}", where=name, fix="let a merge of the newest version carry it out"
        )
    return KINDS[name]
