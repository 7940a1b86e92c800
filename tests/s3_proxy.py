"""A proxy in front of an object store, with a fault in one request of those that pass it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias

from dblog_core.config.settings import S3Config

_SECONDS = 120.0  # a deadline, for a machine that is busy


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


Fault: TypeAlias = Callable[[Callable[[], Answer]], Answer | None]
"""Called in place of the server, with what sends the request on. None: the connection breaks."""


class S3Proxy:
    """Requests go to the server as they come: what the client has signed stays as it is."""

    def __init__(self, settings: S3Config) -> None:
        self.server = settings.endpoint.removeprefix("http://")
        self._fault: tuple[str, Fault] | None = None
        self._lock = threading.Lock()

    def fail_put(self, key: str, fault: Fault) -> None:
        """The next put of an object whose key ends like this has the fault."""
        self._fault = key, fault

    def take_fault(self, method: str, path: str) -> Fault | None:
        """The fault of a request; it happens once."""
        with self._lock:
            if self._fault is None or method != "PUT" or not path.partition("?")[0].endswith(self._fault[0]):
                return None
            fault, self._fault = self._fault[1], None
            return fault

    @property
    def is_done(self) -> bool:
        """Whether the fault has happened."""
        return self._fault is None

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Its address, for as long as the block lasts."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: S3Proxy

    def log_message(self, *_: object) -> None:
        """Requests are nobody's news."""

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.take_fault(self.command, self.path)
        answer = self._send_on(body) if fault is None else fault(lambda: self._send_on(body))
        if answer is None:
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.headers or (("Content-Length", str(len(answer.body))),):
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815  # the base class calls them that

    def _send_on(self, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self.proxy.server, timeout=_SECONDS)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "expect":  # it was answered here
                    connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        ours = ("transfer-encoding", "connection")
        headers = [(name, value) for name, value in response.getheaders() if name.lower() not in ours]
        if not any(name.lower() == "content-length" for name, _ in headers):
            headers.append(("Content-Length", str(len(data))))
        return Answer(response.status, data, tuple(headers))
