"""TLS, the same for all that connects."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dblog_core import tls
from dblog_core.config.output import OutputConfig
from dblog_core.config.source import SourceConfig
from dblog_core.errors import OutputRefused, SourceRefused
from dblog_core.outputs.mysql import MysqlDialect
from dblog_core.sources.mysql.sql import connection
from tests.waiting import PATIENCE_SECONDS

_OF_CLIENTS = ("check_hostname", "CERT_NONE", "sslmode", "sslrootcert", "ssl_disabled", "auth_plugin_map")
"""What a driver or `ssl` is told of a server that is to be reached by TLS."""


def _packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def _greeting() -> bytes:
    """Of a server of MySQL's protocol 4.1 that knows plugins."""
    capabilities = (0x200 | 0x8000 | 0x80000 | 8).to_bytes(4, "little")
    head = b"\x0a8.0.0\0" + b"\1\0\0\0" + b"saltsalt\0" + capabilities[:2] + b"\x2d\2\0"
    return head + capabilities[2:] + b"\x15" + bytes(10) + b"saltsaltsalt\0" + b"mysql_native_password\0"


@pytest.fixture
def curious() -> Iterator[Callable[[bytes], tuple[int, list[bytes]]]]:
    """A server that asks for the password by another plugin; what it is sent then."""
    listening = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def serve(switch: bytes, seen: list[bytes]) -> None:
        client, _ = listening.accept()
        with client:
            client.sendall(_packet(0, _greeting()))
            seen.append(client.recv(65_536))
            client.sendall(_packet(2, b"\xfe" + switch))
            seen.append(client.recv(65_536))

    def ask(switch: bytes) -> tuple[int, list[bytes]]:
        seen: list[bytes] = []
        threads.append(threading.Thread(target=serve, args=(switch, seen)))
        threads[-1].start()
        return listening.getsockname()[1], seen

    yield ask
    for thread in threads:
        thread.join(timeout=PATIENCE_SECONDS)
    listening.close()


def _to_source(port: int) -> None:
    source = {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"], "port": port}
    connection.connect(SourceConfig.model_validate({**source, "password": "hunter2secret"}))


def _to_output(port: int) -> None:
    output = {"kind": "mysql", "database": "shop", "user": "dblog", "port": port, "password": "hunter2secret"}
    MysqlDialect(OutputConfig.model_validate(output)).connect()


@pytest.mark.parametrize("connect", [_to_source, _to_output])
@pytest.mark.parametrize("switch", [b"mysql_clear_password\0", b"dialog\0\4Password: "])
def test_no_password_goes_as_it_is_to_a_server_that_has_not_proven_who_it_is(
    curious: Callable[[bytes], tuple[int, list[bytes]]], connect: Callable[[int], None], switch: bytes
) -> None:
    port, seen = curious(switch)
    with pytest.raises((SourceRefused, OutputRefused), match="has not proven who it is") as refused:
        connect(port)
    assert "TLS" in refused.value.fix or "tls" in refused.value.fix
    assert len(seen) and b"hunter2secret" not in b"".join(seen)


def test_one_module_alone_says_how_a_server_is_reached_by_tls() -> None:
    """A second one would forget a mode, or the password that goes as it is."""
    root = Path(tls.__file__).parents[1]
    files = [file for package in ("dblog_core", "spark_jobs") for file in (root / package).rglob("*.py")]
    texts = {str(file.relative_to(root)): file.read_text() for file in files}
    makers = {name: [word for word in _OF_CLIENTS if word in text] for name, text in texts.items()}
    assert {name: words for name, words in makers.items() if words} == {"dblog_core/tls.py": list(_OF_CLIENTS)}
    servers = [name for name, text in texts.items() if "create_default_context(ssl.Purpose.CLIENT_AUTH" in text]
    contexts = [name for name, text in texts.items() if "create_default_context" in text or "SSLContext(" in text]
    assert sorted(contexts) == sorted([*servers, "dblog_core/tls.py"]) and servers == [
        "dblog_core/signals/http_limits.py"
    ]


@pytest.mark.parametrize(("mode", "refusing"), [("off", True), ("require", True), ("verify-ca", False)])
def test_a_server_that_has_proven_who_it_is_may_ask_for_the_password(mode: str, refusing: bool) -> None:
    output = OutputConfig.model_validate({"kind": "mysql", "database": "d", "tls": mode})
    assert ("auth_plugin_map" in tls.pymysql_options(output)) == refusing


@pytest.mark.parametrize(
    ("error", "lasts"),
    [
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), True),
        (ssl.SSLError(1, "unsupported protocol"), True),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), False),
        (ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed"), False),
        (ConnectionResetError(), False),
        (None, False),
    ],
)
def test_a_connection_that_broke_may_be_tried_again_and_a_certificate_may_not(error: object, lasts: bool) -> None:
    assert tls.is_lasting(error) == lasts


@pytest.mark.parametrize(
    ("message", "lasts"),
    [
        ("SSL error: certificate verify failed", True),
        ('private key file "k.pem" has group or world access', True),
        ("SSL SYSCALL error: EOF detected", False),
        ("SSL connection has been closed unexpectedly", False),
        ("SSL error: unexpected eof while reading", False),
        ("FATAL: sorry, too many clients already", False),
    ],
)
def test_libpq_tells_the_same_by_its_words(message: str, lasts: bool) -> None:
    assert tls.is_lasting_in_libpq(message) == lasts
