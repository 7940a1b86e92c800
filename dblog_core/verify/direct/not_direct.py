"""Why a task is Spark's."""

from __future__ import annotations


class NotDirect(Exception):
    """A table, a type or a size that only Spark compares exactly; the reason."""


class TooManyStaged(NotDirect):
    """The staged rows of all keys take too much memory; those of some keys may not."""
