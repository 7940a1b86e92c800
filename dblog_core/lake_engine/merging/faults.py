"""Faults of a table's merge or of a lake task, and how a person reads them."""

from __future__ import annotations

import pyarrow as pa

from dblog_core.errors import DblogError
from dblog_core.lake.lake_tasks import Outcome
from dblog_core.lake.task_results import TaskResult

FAULTS = (DblogError, pa.ArrowException)
"""What a table or its files may do to a task, in words for a person."""

_LONGEST = 2000  # characters

DEFECTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What our own code raises where it meets something that it was not written for."""


def outcome_of_fault(merge: int, error: Exception) -> Outcome[TaskResult]:
    if isinstance(error, DblogError):
        return Outcome(merge, None, error.message, error.where, error.fix)
    return Outcome(merge, None, first_lines(error))


def describe_defect(error: Exception) -> str:
    return f"{type(error).__name__}: {first_lines(error)}; this is a defect: report it, with what is logged"


def first_lines(error: Exception) -> str:
    """The error's text, cut to what a person reads."""
    return str(error).strip()[:_LONGEST]
