"""Faults of Spark: which of them say that another commit came between, and how a person reads the others."""

from __future__ import annotations

import re

import pyarrow as pa
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from dblog_core.errors import DblogError, LakeError
from dblog_core.lake.lake_tasks import Outcome
from dblog_core.lake.task_results import TaskResult

OVERTAKEN = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""How Delta says that somebody else's commit came between a statement's look at the table and its own commit."""


FAULTS = (DblogError, pa.ArrowException, DeltaError, PySparkException, Py4JJavaError)
"""What a table, its files or Spark may do to a task, in words for a person."""

DEFECTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What our own code raises where it meets something that it was not written for."""


_CALL = re.compile(r"^An error occurred while calling [\w.]+\.\s*: ")
"""What Python's bridge to Java puts before Java's own words."""


def spark_gone_error(where: str) -> LakeError:
    return LakeError("Spark went away", where=where, fix="merge again: it continues where this one stopped")


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
