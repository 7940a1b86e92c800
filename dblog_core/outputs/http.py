"""Batches of lines by HTTP: at least once, signed, each with a key by which a receiver knows what it has already.

    POST URL
    Content-Type: application/x-ndjson              one line of `dblog log` a line
    Idempotency-Key: SOURCE/OUTPUT/FIRST-LAST       the same lines come again under the same key
    Dblog-Signature: t=SECONDS,v1=HEX               HMAC-SHA256 of "SECONDS.KEY." and the body, with the secret

2xx: the batch is taken. 408, 409, 425, 429 and 5xx: it comes again. 400, 413 and 422: a line of it is poison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import urllib3

from dblog_core import signatures, tls
from dblog_core.config.output import OutputConfig
from dblog_core.config.secret_settings import without_secrets
from dblog_core.errors import OutputError, OutputRefused, OutputUnavailable, PoisonLine
from dblog_core.interfaces import Json

_LATER = {408, 409, 425, 429}
_POISON = {400, 413, 422}
_SERVER_ERRORS = 500
_MAX_REASON_CHARS = 200  # characters of an answer that are told


class HttpOutput:
    """`name`: SOURCE/OUTPUT; `now`: seconds UTC."""

    exactly_once = False

    def __init__(self, settings: OutputConfig, name: str, *, now: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._name = name
        self._now = now
        self._pool: urllib3.PoolManager | None = None

    def open(self, epoch: int) -> int | None:
        # A pool of an earlier term may have half-open connections.
        self.close()
        settings = self._settings
        files = {"ca_certs": settings.tls_ca, "cert_file": settings.tls_cert, "key_file": settings.tls_key}
        certificates: dict[str, Any] = {name: str(path) for name, path in files.items() if path is not None}
        self._pool = urllib3.PoolManager(
            retries=False,  # the relay's own policy counts
            timeout=settings.timeout,
            **certificates,
        )
        return None

    def write(self, lines: Sequence[Json]) -> None:
        assert self._pool is not None, "open it first"
        body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        key = f"{self._name}/{lines[0]['offset']}-{lines[-1]['offset']}"
        url = self._settings.url
        headers = self._headers(key, body)
        try:
            # No redirects: the signature and the token are for this URL alone.
            answer = self._pool.request("POST", url, body=body, headers=headers, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable_error(error) from error
        self._judge(answer)

    def probe(self, *, held: bool) -> None:
        """Whether something answers; what it would say to a line is known when one comes."""
        self.open(0)
        assert self._pool is not None
        try:
            self._pool.request("OPTIONS", self._settings.url, headers={"User-Agent": "dblog"}, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable_error(error) from error

    def commit(self, offset: int) -> None:
        """What was answered is taken."""

    def close(self) -> None:
        if self._pool is not None:
            self._pool.clear()
            self._pool = None

    def _headers(self, key: str, body: bytes) -> dict[str, str]:
        secret = self._settings.secret.get_secret_value()
        token = self._settings.token.get_secret_value()
        return {
            "Content-Type": "application/x-ndjson",
            "User-Agent": "dblog",
            signatures.BATCH: key,
            **signatures.header(secret, self._now(), key, body),
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }

    def _judge(self, answer: urllib3.BaseHTTPResponse) -> None:
        code = answer.status
        if code // 100 == 2:
            return
        reason = f"HTTP {code} {answer.data[:_MAX_REASON_CHARS].decode(errors='replace')}".strip()
        # The receiver read the batch and does not take its content: it would not take it later either.
        if code in _POISON:
            raise PoisonLine(reason, where=self._where)
        if code in _LATER or code >= _SERVER_ERRORS:
            raise OutputUnavailable(reason, where=self._where, fix="see the receiver's own log")
        raise OutputRefused(reason, where=self._where, fix="correct url, token and secret, on both sides")

    def _unreachable_error(self, error: urllib3.exceptions.HTTPError) -> OutputError:
        reason = " ".join(str(error).split())
        cause = error.args[0] if isinstance(error, urllib3.exceptions.SSLError) else None
        if isinstance(error, urllib3.exceptions.LocationValueError) or tls.is_lasting(cause):
            return OutputRefused(reason, where=self._where, fix="tls_ca must have signed a certificate of the host")
        return OutputUnavailable(reason, where=self._where, fix="check that the receiver can be reached from here")

    @property
    def _where(self) -> str:
        """It goes into logs and the state store, and a long path, or what follows it, may be a secret."""
        return without_secrets(self._settings.url.partition("?")[0])
