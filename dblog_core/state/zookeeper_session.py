"""One session with ZooKeeper: every question has a deadline, every driver error becomes one of `errors`."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    OperationTimeoutError,
    SASLException,
    SessionClosedRequireSaslError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.security import make_acl, make_digest_acl

from dblog_core import tls
from dblog_core.errors import StateError, StateUnavailable

ANSWER_SECONDS = 10.0
_LOST = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError, KazooTimeoutError)
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}

# Reconnecting is part of life here, and our own errors say what matters; an application may still set a handler.
logging.getLogger("kazoo").addHandler(logging.NullHandler())

Request = Callable[[KazooClient], Any]
"""Sends one command: gives kazoo's asynchronous result."""


@dataclass(frozen=True, slots=True)
class Access:
    """How servers are reached, and as which user. With a `user` our nodes are that user's alone.

    `login`: digest, whose user is anybody who knows the password, or sasl, whose users the servers know (DIGEST-MD5).
    `tls`: verify-full, verify-ca, require or off; the files are PEM.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    login: str = "digest"
    tls: str = "off"
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def fix(self) -> str:
        """What to look at when no server answers: kazoo reports no refused handshake."""
        fix = "start ZooKeeper, or correct [state] url"
        if self.tls == "off":
            return fix
        return f"{fix}; see that its port speaks TLS (or set tls off), and that tls_ca has signed its certificate"

    def options(self) -> dict[str, Any]:
        """What a KazooClient is made with."""
        options: dict[str, Any] = {}
        if self.user and self.login == "sasl":
            login = {"mechanism": "DIGEST-MD5", "username": self.user, "password": self.password}
            options.update(sasl_options=login, default_acl=[make_acl("sasl", self.user, all=True)])
        elif self.user:
            options["auth_data"] = [("digest", f"{self.user}:{self.password}")]
            options["default_acl"] = [make_digest_acl(self.user, self.password, all=True)]
        if self.tls != "off":
            options["use_ssl"] = True  # all else about it is ours to do
        return options


OPEN = Access()
"""In the clear, and open to everybody."""


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo tells no types
    """Connects by TLS as all that we connect to, and closes a socket that is refused: kazoo leaves it to the garbage
    collector."""

    def __init__(self, access: Access) -> None:
        super().__init__()
        self._access = access

    def create_connection(self, **options: Any) -> socket.socket:
        if not options["use_ssl"]:
            plain: socket.socket = super().create_connection(**options)
            return plain
        context = tls.client_context(self._access)
        plain = socket.create_connection(options["address"], options["timeout"])
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return context.wrap_socket(plain, server_hostname=options["hostname"])
        except BaseException:
            plain.close()
            raise


class Session:
    """A connected KazooClient of this process. `servers`: HOST:PORT,…; `seconds`: the session timeout to ask for."""

    def __init__(self, servers: str, *, seconds: float, access: Access = OPEN) -> None:
        self._servers = servers
        self._access = access
        self._asked_seconds = seconds
        self._seconds = seconds
        self._closing = threading.Lock()
        self._closed = False
        self._pid = os.getpid()
        self._client: KazooClient | None = None
        self._login_refused = threading.Event()

    def start(self) -> Session:
        """Connects. Raises StateUnavailable if no server answers."""
        try:
            client = KazooClient(
                self._servers,
                timeout=self._asked_seconds,
                connection_retry=_RECONNECT,
                handler=_Handler(self._access),
                **self._access.options(),
            )
        except (KazooException, ValueError) as error:
            raise StateError(f"cannot be used: {error}", where=self._servers, fix="correct [state] url") from error
        self._note_timeout(client)
        self._client = client
        live = client.start_async()
        deadline = time.monotonic() + ANSWER_SECONDS
        # kazoo itself would wait to the end for a login that is refused: its state says so only for a moment.
        while not self._login_refused.is_set() and time.monotonic() < deadline:
            if live.wait(0.05):
                break
        if not client.connected:
            self.close()
            raise self._login_refusal() if self._login_refused.is_set() else self._silent()
        return self

    @property
    def id(self) -> int | None:
        """The server's number for this session: another one means that the first was lost."""
        identity = self._live_client.client_id
        return int(identity[0]) if identity else None

    @property
    def seconds(self) -> float:
        """The timeout that the server granted: it can be less than asked for."""
        return self._seconds

    @property
    def usable(self) -> bool:
        """Whether it can be asked: not closed, and not another process's by a fork."""
        return not self._closed and self._pid == os.getpid()

    def on_lost(self, call: Callable[[], None]) -> None:
        """Calls when the server has ended the session; a connection that only broke is no such thing."""
        self._live_client.add_listener(lambda state: call() if state == KazooState.LOST else None)

    def ask(self, request: Request, *, timeout: float = ANSWER_SECONDS) -> Any:
        """The answer. Raises StateUnavailable if it did not come (the command may still have been carried out).

        Answers about nodes (NoNodeError, BadVersionError and such) pass through, for the caller to read.
        """
        try:
            return request(self._live_client).get(timeout=timeout)
        except AuthFailedError as error:
            raise self._login_refusal() from error
        except _LOST as error:
            raise StateUnavailable(
                f"ZooKeeper does not answer ({type(error).__name__})",
                where=self._servers,
                fix="see that a majority of its servers runs",
            ) from error

    def begin(self, requests: Callable[[KazooClient], list[Any]]) -> list[Any]:
        """What `requests` asks for, without waiting: `ask` waits for each answer."""
        return requests(self._live_client)

    def close(self) -> None:
        """Ends the session: its ephemeral nodes go at once, or after its timeout if no server is reached."""
        with self._closing:
            if self._closed or self._client is None:
                return
            self._closed = True
            if self._pid == os.getpid():
                self._client.stop()
                self._client.close()

    def _silent(self) -> StateUnavailable:
        return StateUnavailable("no ZooKeeper server answers", where=self._servers, fix=self._access.fix)

    def _login_refusal(self) -> StateUnavailable:
        return StateUnavailable(
            f"ZooKeeper refuses the login of {self._access.user}, or went away while it came",
            where=self._servers,
            fix="see that the servers know [state] user by that password, and that they run",
        )

    @property
    def _live_client(self) -> KazooClient:
        assert self._client is not None, "the session was started"
        return self._client

    def _note_timeout(self, client: KazooClient) -> None:
        # kazoo only logs what the server granted; it hands on two thirds of it as the read timeout. Some refused logins
        # end its thread by an error that it does not know.
        connect = client._connection._connect

        def noting(*arguments: Any) -> Any:
            try:
                read_timeout, connect_timeout = connect(*arguments)
            except (AuthFailedError, SASLException, SessionClosedRequireSaslError) as error:
                self._login_refused.set()
                raise AuthFailedError(type(error).__name__) from error
            self._seconds = min(self._asked_seconds, read_timeout * 1.5 / 1000)
            return read_timeout, connect_timeout

        client._connection._connect = noting
