"""What can go wrong with the local stack."""

from __future__ import annotations

from dblog_core.errors import DblogError


class LocalError(DblogError):
    """A server of the local stack, or what it is made from, that cannot be had, started or stopped."""
