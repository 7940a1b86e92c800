"""What a server of HTTP does for its safety: limits for callers, of which it knows nothing at first; its certificate.

Python's own server has none of this, and no protection against the rest of what the Internet sends: where others than
a few known callers reach it, put a proxy before it.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 10.0  # for a caller to say what it wants, all of it, and to take the answer
_MAX_CALLERS = 32  # at the same time: as many strangers, and as many who have shown the token
_MAX_STRANGERS_PER_ADDRESS = 8  # strangers of one address
_PENALTY_SECONDS = 1.0  # after which a wrong token is answered
_CERTIFICATE_LOOK_SECONDS = 10.0  # between two looks at the files of the certificate


@dataclass(frozen=True, slots=True)
class Limits:
    """`patience`: seconds that a caller has for its request; `penalty`: seconds until a wrong token is answered."""

    patience: float = _PATIENCE_SECONDS
    penalty: float = _PENALTY_SECONDS


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection, until its answer: at first a stranger's."""

    address: str
    socket: socket.socket
    deadline: float
    has_token: bool = False
    cut_off: threading.Event = field(default_factory=threading.Event)


class Server(ThreadingHTTPServer):
    """Threads in a limited number, each for `patience` seconds: a caller that drips bytes is cut off like a silent one.

    Strangers cannot keep out who has the token: where their places are taken, the one who has been silent for the
    longest gives way to a new one, and who has shown the token has a place of another kind. A handshake is a caller's
    own affair, and holds nobody else up.
    """

    daemon_threads = True
    request_queue_size = 2 * _MAX_CALLERS

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        certificate: Certificate | None,
        limits: Limits,
    ) -> None:
        self._tls = certificate
        self.limits = limits
        self._lock = threading.Lock()
        self._callers = list[_Caller]()
        self._local = threading.local()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def admit_caller(self) -> bool:
        """Who calls in this thread has shown the token; False where there is no place for one more."""
        with self._lock:
            if sum(caller.has_token for caller in self._callers) >= _MAX_CALLERS:
                return False
            self._local.caller.has_token = True
            return True

    def delay_caller(self) -> None:
        """Who calls in this thread has shown a wrong token, and waits for its answer, unless it has to give way."""
        self._local.caller.cut_off.wait(self.limits.penalty)

    def process_request(self, request: Any, client_address: Any) -> None:
        caller = _Caller(client_address[0], request, time.monotonic() + self.limits.patience)
        with self._lock:
            self._make_room(caller.address)
            self._callers.append(caller)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._lock:
            caller = self._local.caller = next(caller for caller in self._callers if caller.socket is request)
        try:
            request.settimeout(self.limits.patience)
            if self._tls is not None:
                request = self._tls.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    caller.socket = request
                # In the caller's thread: a slow handshake in `accept` would hold up everybody.
                request.do_handshake()
            super().process_request_thread(request, client_address)
        except OSError as error:  # no handshake, or gone in the middle of it
            log.info("%s: %s", client_address[0], error)
            self.shutdown_request(request)
        finally:
            with self._lock:
                self._callers.remove(caller)

    def service_actions(self) -> None:
        """Called every now and then: cuts off who is late. Its thread meets the end of what it reads."""
        now = time.monotonic()
        with self._lock:
            for caller in self._callers:
                if now >= caller.deadline:
                    _cut_off(caller)
        if self._tls is not None:
            self._tls.reload_if_changed(now)

    def _make_room(self, address: str) -> None:
        """For one more stranger, of that address."""
        strangers = [caller for caller in self._callers if not caller.has_token and not caller.cut_off.is_set()]
        if (
            len(of_address := [caller for caller in strangers if caller.address == address])
            >= _MAX_STRANGERS_PER_ADDRESS
        ):
            # The oldest of this address: it has had its time to show a token.
            _cut_off(of_address[0])
        elif len(strangers) >= _MAX_CALLERS:
            ((most, _),) = Counter(caller.address for caller in strangers).most_common(1)
            _cut_off(next(caller for caller in strangers if caller.address == most))

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("%s: the connection broke: %s", client_address[0], sys.exception())


def _cut_off(caller: _Caller) -> None:
    caller.cut_off.set()
    with suppress(OSError):  # gone by itself
        socket.socket.shutdown(caller.socket, socket.SHUT_RDWR)  # TLS would take leave of the caller first


class Certificate:
    """A server's certificate, and a new one in its place once the files have changed. Raises OSError where one is no
    good."""

    def __init__(self, certificate: str, key: str, clients: str) -> None:
        self._files = (certificate, key)
        self._clients = clients
        self._looked_at_seconds = time.monotonic()
        self._loaded_stamps = self._stamps()
        self.context = self._load_context()

    def reload_if_changed(self, now: float) -> None:
        """Takes a new certificate for connections from now on; one that is no good, or half written, waits."""
        if now - self._looked_at_seconds < _CERTIFICATE_LOOK_SECONDS:
            return
        self._looked_at_seconds = now
        try:
            if (stamps := self._stamps()) != self._loaded_stamps:
                # The stamps last: a half-written pair raises here, and has to be looked at again.
                self.context = self._load_context()
                self._loaded_stamps = stamps
                log.info("the certificate has changed")
        except OSError as error:
            log.warning("the new certificate cannot be used, and the previous one stays in use: %s", error)

    def _load_context(self) -> ssl.SSLContext:
        """A context of its own: one that has taken half of a new pair cannot be used again."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*self._files)
        if self._clients:
            context.load_verify_locations(self._clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _stamps(self) -> list[tuple[int, int]]:
        return [(stat.st_mtime_ns, stat.st_ino) for stat in map(os.stat, self._files)]
