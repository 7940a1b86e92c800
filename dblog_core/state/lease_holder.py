"""The lease of the capture, who holds leases, and how one is given back."""

from __future__ import annotations

import logging
import os
import socket
import uuid

from dblog_core.errors import StateError
from dblog_core.interfaces import Lease

log = logging.getLogger(__name__)

CAPTURE = "capture"
"""The lease of the process that captures the source: one at a time."""


def holder_name() -> str:
    """Who we are, in leases: host, process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def random_id() -> str:
    """An id that nobody else makes."""
    return uuid.uuid4().hex


def give_back(lease: Lease) -> None:
    """Releases a lease now, or, where the state store cannot be reached, lets it expire."""
    try:
        lease.release()
    except StateError as error:
        log.warning("a lease is not given back, and expires: %s", error)
