"""A session of Spark that fails a test as soon as it is to start."""

from __future__ import annotations

from typing import NoReturn

from spark_jobs.session import LateSession


class SparkAsked(BaseException):
    """Something was asked of Spark."""


class NoSpark(LateSession):
    """A session of which nothing may be asked."""

    def __init__(self) -> None:
        super().__init__(_refuse, {})


def _refuse() -> NoReturn:
    raise SparkAsked
