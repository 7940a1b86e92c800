"""A way to a server that can be cut: connections hang then, as they do behind a firewall that drops packets.

Or one that is narrow: each connection gets so many bytes a second, as from a server in another data centre.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from dblog_core.local.servers import ports
from tests.waiting import PATIENCE_SECONDS

BURST = 0.1  # seconds: what a connection has not used for longer is lost


class Link:
    """Forwards connections to `port` of this machine until it is cut; `width`: bytes a second of each, 0: no limit."""

    def __init__(self, port: int, *, width: int = 0) -> None:
        self._target = (ports.HOST, port)
        self._width = width
        self._server = socket.create_server((ports.HOST, 0))
        self.port: int = self._server.getsockname()[1]
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, name=f"link to {port}")]
        self._threads[0].start()

    def cut(self) -> None:
        """From now on no byte passes, and nobody is told."""
        self._open.clear()

    def mend(self) -> None:
        """New connections pass again; those that hung are closed."""
        self._drop()
        self._open.set()

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._open.set()
        self._drop()
        for thread in self._threads:
            thread.join(timeout=PATIENCE_SECONDS)

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # closed
            self._start(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        self._keep(client)
        self._open.wait()
        try:
            server = socket.create_connection(self._target, timeout=PATIENCE_SECONDS)
        except OSError:
            self._lose(client)
            return
        server.settimeout(None)
        self._keep(server)
        self._start(self._pump, client, server)
        self._pump(server, client)

    def _pump(self, sock: socket.socket, other: socket.socket) -> None:
        free = time.monotonic()  # when the next byte may pass
        try:
            while data := sock.recv(65_536):
                self._open.wait()
                other.sendall(data)
                if self._width:
                    free = max(free, time.monotonic() - BURST) + len(data) / self._width
                    time.sleep(max(0.0, free - time.monotonic()))
        except OSError:
            pass  # closed by either side, or by us
        finally:
            self._lose(sock)
            self._lose(other)

    def _start(self, target: object, *arguments: socket.socket) -> None:
        thread = threading.Thread(target=target, args=arguments, name="link")  # type: ignore[arg-type]
        with self._lock:
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()

    def _keep(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.add(sock)

    def _lose(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.discard(sock)
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def _drop(self) -> None:
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            self._lose(sock)
