"""A lake task's turn in a merge: planned, then carried out; its own faults are its outcome."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from dblog_core.errors import LakeError, LeaseLost
from dblog_core.lake import lake_tasks
from dblog_core.lake.lake_status import TableStatus
from dblog_core.lake.lake_tasks import LakeTask, Outcome
from dblog_core.lake.task_plans import TaskPlan
from dblog_core.lake.task_results import TaskResult
from dblog_core.lake_engine.merging.faults import DEFECTS, FAULTS, describe_defect, outcome_of_fault
from dblog_core.lake_engine.tasks import registry
from dblog_core.lake_engine.tasks.context import Tools
from dblog_core.maintenance.maintain_result import MaintainResult

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """Raises LeaseLost, and what stops all tables."""

    tools: Tools

    def plan(self, task: LakeTask) -> TaskPlan | None:
        """What a task will do; None where it cannot be done, which is its outcome then."""
        try:
            return registry.plan(self.tools, task.request)
        except LeaseLost:
            raise
        except FAULTS as error:
            lake_tasks.record_outcome(self.tools.lake.location, task.id, outcome_of_fault(0, error))
            return None
        except DEFECTS as error:
            _log.exception("the lake task %s cannot be planned", task.kind)
            lake_tasks.record_outcome(self.tools.lake.location, task.id, Outcome(0, None, describe_defect(error)))
            return None

    def carry_out(self, plan: TaskPlan) -> tuple[Mapping[str, TableStatus], Outcome[TaskResult]]:
        """The tables that it has changed, and its outcome."""
        number = self.tools.number
        try:
            done = registry.carry_out(self.tools, plan)
        except LeaseLost:
            raise
        except FAULTS as error:
            return {}, outcome_of_fault(number, error)
        except DEFECTS as error:  # otherwise no merge would ever get past a task that was begun
            _log.exception("the lake task %s has failed", plan.kind)
            return {}, Outcome(number, None, describe_defect(error))
        return done.tables, Outcome(number, done.result)


def find_fault(outcome: Outcome[TaskResult]) -> LakeError | None:
    """Why the task, or a part of a maintenance, has failed; None: all is done."""
    if outcome.error is not None:
        return LakeError(outcome.error, where=outcome.where, fix=outcome.fix)
    return outcome.result.fault() if isinstance(outcome.result, MaintainResult) else None
