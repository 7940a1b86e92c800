"""A proxy before an object store whose answers to a PUT may be wrong: none comes, another one comes, or it is carried
out later than anybody waits for.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from urllib.parse import urlsplit

_TAKEN = b"<?xml version='1.0'?><Error><Code>PreconditionFailed</Code><Message>it is there</Message></Error>"
_OF_THE_WAY = {"connection", "expect", "transfer-encoding", "content-length"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the client has sent it."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(slots=True)
class LyingProxy:
    """`late`: puts that the store has not carried out yet; `dice` say which one lands first. It lies once about an
    object, in turn."""

    endpoint: str
    dice: random.Random
    url: str = ""
    late: list[Request] = field(default_factory=list)
    lies: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("denied", "lost", "late"), 0))
    _fates: dict[str, str] = field(default_factory=dict)
    _next_fates: Iterator[str] = field(default_factory=lambda: cycle(("late", "denied", "lost", "true")))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fate(self, request: Request) -> str:
        """How the request is answered: denied, lost, late, or as the store does."""
        if request.method != "PUT":
            return "true"
        with self._lock:
            if request.path not in self._fates:
                fate = self._fates[request.path] = next(self._next_fates)
                if fate == "late":
                    self.late.append(request)
                if fate != "true":
                    self.lies[fate] += 1
                return fate
            # It lies once: what is tried again is answered as it is, but for a put that is late, which stays so.
            return "waits" if self._fates[request.path] == "late" and self._is_late(request) else "true"

    def _is_late(self, request: Request) -> bool:
        return any(late.path == request.path for late in self.late)

    def land(self) -> int:
        """Carries out one of the late puts; the store's status, 0 if there is none."""
        with self._lock:
            if not self.late:
                return 0
            request = self.late.pop(self.dice.randrange(len(self.late)))
        return self.forward(request)[0]

    def forward(self, request: Request) -> tuple[int, list[tuple[str, str]], bytes]:
        """The store's answer: status, headers, body."""
        place = urlsplit(self.endpoint)
        assert place.hostname is not None
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
        try:
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers:
                if name.lower() not in _OF_THE_WAY:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


@contextmanager
def lying_proxy(endpoint: str, seed: int) -> Iterator[LyingProxy]:
    """A proxy before the store at `endpoint`, which is not one of TLS, while entered."""
    proxy = LyingProxy(endpoint, random.Random(seed))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request(self.command, self.path, tuple(self.headers.items()), body)
            fate = proxy.fate(request)
            if fate in ("late", "waits"):
                self.close_connection = True
                return
            status, headers, content = proxy.forward(request)
            if fate == "lost":
                self.close_connection = True
                return
            if fate == "denied":
                status, headers, content = 412, [("Content-Type", "application/xml")], _TAKEN
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in _OF_THE_WAY:
                    self.send_header(name, value)
            length = {name.lower(): value for name, value in headers}.get("content-length")
            self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            return None

    for method in ("GET", "PUT", "HEAD", "DELETE", "POST"):
        setattr(Handler, f"do_{method}", Handler._take)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
