"""Our requests to others' addresses, signed: a receiver knows that a request is ours, whole, and not an old one.

    Dblog-Signature: t=SECONDS,v1=HEX       HMAC-SHA256 of "SECONDS.KEY." and the body, with the secret

KEY is the request's own: `Idempotency-Key` of a batch of lines, `X-Dblog-Id` of a notice.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

HEADER = "Dblog-Signature"
BATCH = "Idempotency-Key"
NOTICE = "X-Dblog-Id"
"""Headers of keys."""


def header(secret: str, now: float, key: str, body: bytes) -> dict[str, str]:
    """What a request carries; `now`: seconds UTC."""
    seconds = str(int(now))
    return {HEADER: f"t={seconds},v1={signature(secret, seconds, key, body)}"}


def signature(secret: str, seconds: str, key: str, body: bytes) -> str:
    """What a receiver computes too, and compares in constant time."""
    return hmac.new(secret.encode(), f"{seconds}.{key}.".encode() + body, hashlib.sha256).hexdigest()


def verified(secret: str, headers: Any, body: bytes, *, now: float, tolerance: float = 300.0) -> bool:
    """Whether a request is ours and not an old one: for receivers in Python. `headers`: a mapping of them."""
    fields = dict(part.partition("=")[::2] for part in headers.get(HEADER, "").split(","))
    seconds = fields.get("t", "")
    key = headers.get(BATCH) or headers.get(NOTICE) or ""
    expected = signature(secret, seconds, key, body)
    fresh = seconds.isdigit() and abs(now - int(seconds)) <= tolerance
    # In constant time: how long it takes must not tell how much of a forged signature is right.
    return fresh and hmac.compare_digest(expected, fields.get("v1", ""))
