"""Faults of a table's merge or of a lake task, and how a person reads them."""

from __future__ import annotations

import re

import pyarrow as pa
from deltalake.exceptions import DeltaError

from dblog_core.errors import DblogError
from dblog_core.lake.lake_tasks import Outcome
from dblog_core.lake.task_results import TaskResult

FAULTS = (DblogError, pa.ArrowException, DeltaError)
"""What a table or its files may do to a task, in words for a person."""

DEFECTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What our own code raises where it meets something that it was not written for."""


_CALL = re.compile(r"^An error occurred while calling [\w.]+\.\s*: ")
"""What Python's bridge to Java puts before Java's own words."""


def outcome_of_fault(merge: int, error: Exception) -> Outcome[TaskResult]:
    if isinstance(error, DblogError):
        return Outcome(merge, None, error.message, error.where, error.fix)
    return Outcome(merge, None, first_lines(error))


def describe_defect(error: Exception) -> str:
    return f"{type(error).__name__}: {first_lines(error)}; this is a defect: report it, with what is logged"


def first_lines(error: Exception) -> str:
    """What Spark says, without its stack."""
    text = _CALL.sub("", str(error))
    if "[USER_RAISED_EXCEPTION] " in text:  # our own words, from within a query
        return text.split("[USER_RAISED_EXCEPTION] ")[1].split(" SQLSTATE: ")[0].strip()[:2000]
    return text.split("\tat ")[0].split("JVM stacktrace")[0].strip()[:2000]
