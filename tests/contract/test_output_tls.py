"""Receivers by HTTPS: a certificate that is not theirs ends a relay, a handshake that breaks is tried again."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog_core.config.output import OutputConfig
from dblog_core.errors import OutputError, OutputRefused, OutputUnavailable
from dblog_core.outputs.http import HttpOutput
from dblog_core.outputs.schema_registry import Registry
from tests.certificates import Authority, authority
from tests.waiting import PATIENCE_SECONDS

HOST = "127.0.0.1"
LINE = {"offset": 1, "op": "c"}
Send = Callable[[int, str], None]


@pytest.fixture
def our_authority(tmp_path: Path) -> Authority:
    return authority(tmp_path / "ours", "ours")


def to_receiver(port: int, ca: str) -> None:
    settings = {"kind": "http", "url": f"https://{HOST}:{port}/", "secret": "x", "tls_ca": ca}
    output = HttpOutput(OutputConfig.model_validate({**settings, "timeout": PATIENCE_SECONDS}), "shop/out")
    output.open(1)
    try:
        output.write([LINE])
    finally:
        output.close()


def to_registry(port: int, ca: str) -> None:
    settings = {
        "kind": "kafka",
        "servers": "x:1",
        "form": "avro",
        "registry": f"https://{HOST}:{port}",
        "registry_ca": ca,
    }
    registry = Registry(OutputConfig.model_validate({**settings, "timeout": PATIENCE_SECONDS}))
    try:
        registry.register("subject", {"type": "string"})
    finally:
        registry.close()


either = pytest.mark.parametrize("send", [to_receiver, to_registry])


@either
def test_a_certificate_counts_that_the_named_authority_has_signed(
    send: Send, our_authority: Authority, tmp_path: Path
) -> None:
    other = authority(tmp_path / "other", "another")
    with answering(our_authority) as (port, seen):
        send(port, our_authority.file)
        assert len(seen) == 1
        with pytest.raises(OutputRefused, match="CERTIFICATE_VERIFY_FAILED") as refused:
            send(port, other.file)
        assert "must have signed a certificate of the host" in refused.value.fix
        assert len(seen) == 1


@either
def test_a_handshake_that_breaks_is_no_reason_to_end(send: Send, our_authority: Authority) -> None:
    with dying() as port:
        for _ in range(3):
            with pytest.raises(OutputError) as caught:
                send(port, our_authority.file)
            assert isinstance(caught.value, OutputUnavailable), caught.value


@contextlib.contextmanager
def answering(own_authority: Authority) -> Iterator[tuple[int, list[bytes]]]:
    """A server that takes everything, and what it was sent."""
    seen: list[bytes] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.rfile.read(int(self.headers["Content-Length"])))
            body = b'{"id": 1}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Nobody reads it."""

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*own_authority.sign("receiver", HOST))

    class Server(http.server.ThreadingHTTPServer):
        def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
            client, address = super().get_request()
            return context.wrap_socket(client, server_side=True, do_handshake_on_connect=False), address

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that refuses the certificate breaks the handshake."""

    server = Server((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=PATIENCE_SECONDS)


@contextlib.contextmanager
def dying() -> Iterator[int]:
    """A server that closes each connection when its first bytes have come."""
    listening = socket.create_server((HOST, 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listening.accept()
                with client:
                    client.recv(65_536)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(timeout=PATIENCE_SECONDS)
