"""A session of Spark that fails a test as soon as anything is asked of it."""

from __future__ import annotations

from typing import Any
from unittest import mock


class SparkAsked(BaseException):
    """Something was asked of Spark."""


class NoSpark:
    """A session of which nothing may be asked."""

    def __init__(self) -> None:
        self.conf = mock.Mock()

    def newSession(self) -> NoSpark:  # noqa: N802  # Spark's own name
        return self

    def __getattr__(self, name: str) -> Any:
        raise SparkAsked(name)
