"""Signals by HTTP: `POST /signals` files one, `GET /signals/ID` tells what has become of it. For who has a token.

It only puts signals into the inbox: the capture carries them out, so this process may die at any time. What no
catalogue is needed for is checked at once, by the same words as later.
"""

from __future__ import annotations

import hmac
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

import orjson

from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.errors import DblogError, RequestError
from dblog_core.interfaces import Clock, Json, StateStore
from dblog_core.signals import inbox, message
from dblog_core.signals.file import parse_message
from dblog_core.signals.http_limits import Certificate, Limits, Server
from dblog_core.signals.message import MAX_DATA_BYTES
from dblog_core.signals.signal_record import SignalRecord

log = logging.getLogger(__name__)

CHANNEL = "http"
_MAX_BODY_BYTES = 2 * MAX_DATA_BYTES  # bytes: data, and its quotes
_POLL_SECONDS = 0.1  # within which it notices that it is to end
_HIDDEN = ("data", "at")


class Answer(Exception):
    """The end of a request, where it is not what it should be."""

    def __init__(self, status: HTTPStatus, error: str, fix: str = "") -> None:
        super().__init__(error)
        self.status = status
        self.body = {"error": error, "fix": fix}


class Signals:
    """What the endpoint does, without HTTP. Our state stores serve many threads."""

    def __init__(self, config: Config, state: StateStore, clock: Clock) -> None:
        self._config = config
        self._state = state
        self._clock = clock
        self._last_at_us = 0
        self._lock = threading.Lock()

    def post(self, body: bytes, *, caller: str | None = None) -> tuple[HTTPStatus, Json]:
        """Takes a signal in; one without an id gets one. Raises Answer."""
        try:
            signal = parse_message(_with_id(body))
            # Checked here too, so that the caller hears at once what the capture would refuse later.
            message.translate(signal, kind=self._config.source.kind)
        except RequestError as error:
            raise Answer(HTTPStatus.BAD_REQUEST, error.reason, error.fix) from error
        new = inbox.put_signal(self._state, signal, channel=CHANNEL, at_us=self._next_at_us(), caller=caller)
        return HTTPStatus.ACCEPTED if new else HTTPStatus.OK, self._describe(self._find(signal.id))

    def get(self, signal_id: str) -> Json:
        """A signal, and the state of its dump. Raises Answer."""
        return self._describe(self._find(signal_id))

    def _find(self, signal_id: str) -> SignalRecord:
        try:
            return inbox.find_signal(self._state, signal_id)
        except RequestError as error:
            raise Answer(HTTPStatus.NOT_FOUND, error.reason, "give the id that was posted") from error

    def _describe(self, record: SignalRecord) -> Json:
        dump = dump_store.find_dump(self._state, record.dump) if record.dump else None
        shown = {name: value for name, value in record.to_json().items() if name not in _HIDDEN}
        return {**shown, "dump_state": dump.state if dump else None}

    def _next_at_us(self) -> int:
        with self._lock:
            self._last_at_us = max(self._last_at_us + 1, int(self._clock.time() * 1e6))
            return self._last_at_us


def _with_id(body: bytes) -> bytes:
    """Who sends no id cannot send the same signal again."""
    try:
        signal = orjson.loads(body)
    except ValueError:
        return body
    return orjson.dumps({"id": str(uuid.uuid4()), **signal}) if isinstance(signal, dict) else body


class _Handler(BaseHTTPRequestHandler):
    """One connection: one request."""

    server: _SignalServer
    _caller: str | None = None
    server_version = "dblog"
    sys_version = ""

    def do_POST(self) -> None:
        self._answer(self._post)

    def do_GET(self) -> None:
        self._answer(self._get)

    def _post(self) -> tuple[HTTPStatus, Json]:
        if self.path != "/signals":
            raise Answer(HTTPStatus.NOT_FOUND, "there is no such place", "POST /signals")
        return self.server.signals.post(self._body(), caller=self._caller)

    def _get(self) -> tuple[HTTPStatus, Json]:
        room, _, name = self.path.removeprefix("/").partition("/")
        if room != "signals" or not name:
            raise Answer(HTTPStatus.NOT_FOUND, "there is no such place", "GET /signals/ID")
        return HTTPStatus.OK, self.server.signals.get(unquote(name))

    def _answer(self, do: Callable[[], tuple[HTTPStatus, Json]]) -> None:
        try:
            self._check_token()
            status, body = do()
        except Answer as answer:
            status = answer.status
            body = answer.body
        except DblogError as error:
            log.warning("%s", error)
            what = "the state store does not answer" if error.transient else "an error that the server's log tells"
            status = HTTPStatus.SERVICE_UNAVAILABLE
            body = {"error": what, "fix": "try again"}
        self._send(status, body)

    def _check_token(self) -> None:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        # All of them, each in constant time: the time of an answer must not tell how much of a token is right.
        right = [name for name, its in self.server.tokens if hmac.compare_digest(token.strip().encode(), its)]
        if scheme.lower() != "bearer" or not right:
            if token:
                self.server.delay_caller()
            raise Answer(HTTPStatus.UNAUTHORIZED, "no token, or a wrong one", "send Authorization: Bearer TOKEN")
        if not self.server.admit_caller():
            raise Answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are being served", "try again")
        self._caller = right[0]

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Answer(HTTPStatus.LENGTH_REQUIRED, "no Content-Length", "send one")
        if int(length) > _MAX_BODY_BYTES:
            raise Answer(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {_MAX_BODY_BYTES} bytes", "ask for less at once"
            )
        if len(body := self.rfile.read(int(length))) < int(length):
            raise Answer(HTTPStatus.BAD_REQUEST, "the body ends before its Content-Length", "send all of it")
        return body

    def _send(self, status: HTTPStatus, body: Json) -> None:
        data = orjson.dumps(body) + b"\n"
        # One request a connection: what a caller sends after its body is never read as another request.
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class calls it that
        # A caller writes into our log here: control characters would forge lines.
        text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in format % args)
        log.info("%s: %s", " ".join(filter(None, (self.client_address[0], self._caller))), text)


class _SignalServer(Server):
    def __init__(
        self,
        address: tuple[str, int],
        signals: Signals,
        tokens: Mapping[str | None, str],
        tls: Certificate | None,
        limits: Limits,
    ) -> None:
        self.signals = signals
        self.tokens = [(caller, token.encode()) for caller, token in tokens.items()]
        super().__init__(address, _Handler, tls, limits)


class Endpoint:
    """A server of signals, from its making to `close`."""

    def __init__(
        self,
        signals: Signals,
        host: str,
        port: int,
        *,
        tokens: Mapping[str | None, str],
        certificate: str = "",
        key: str = "",
        clients: str = "",
        limits: Limits | None = None,
    ) -> None:
        """`tokens`: each another one, by the name of its caller; None for the one without a name. `clients`: the
        authority of certificates that callers must have.

        Raises OSError where the address, the certificate or the key is no good.
        """
        tls = Certificate(certificate, key, clients) if certificate else None
        self._server = _SignalServer((host, port), signals, tokens, tls, limits or Limits())
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="signals-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
