"""Signals by HTTP: who has no token gets nothing, and nobody's request can take much."""

from __future__ import annotations

import http.client
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core.clock import SystemClock
from dblog_core.dumps import dump_store
from dblog_core.errors import StateUnavailable
from dblog_core.signals import http_limits, inbox
from dblog_core.signals.http import Endpoint, Signals
from dblog_core.signals.http_limits import Limits
from dblog_core.signals.message import Message
from dblog_core.signals.processor import SignalProcessor
from tests.certificates import authority
from tests.unit.requests_world import World, make
from tests.waiting import PATIENCE_SECONDS, wait_until

TOKEN = "a-token-of-the-test"
Ask = Callable[..., tuple[int, Any]]
DATA = {"data-collections": ["shop.orders"]}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return make(tmp_path, monkeypatch)


@pytest.fixture
def server(world: World) -> Iterator[Endpoint]:
    signals = Signals(world.config, world.state, SystemClock())
    endpoint = Endpoint(signals, "127.0.0.1", 0, tokens={None: TOKEN}, limits=Limits(penalty=0.0))
    yield endpoint
    endpoint.close()


def asking(connect: Callable[[], http.client.HTTPConnection]) -> Ask:
    def ask(method: str, path: str, body: Any = None, *, token: str | None = TOKEN, **headers: str) -> tuple[int, Any]:
        connection = connect()
        token_header = {"Authorization": f"Bearer {token}"} if token is not None else {}
        sent = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
        connection.request(method, path, sent, {**token_header, **headers})
        answer = connection.getresponse()
        try:
            return answer.status, orjson.loads(answer.read())
        finally:
            connection.close()

    return ask


@pytest.fixture
def ask(server: Endpoint) -> Ask:
    return asking(lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS))


def test_a_signal_is_taken_in_and_its_way_is_told(world: World, ask: Ask) -> None:
    status, answer = ask("POST", "/signals", {"id": "one/1", "type": "execute-snapshot", "data": DATA})
    assert (status, answer["id"], answer["state"], answer["dump"]) == (202, "one/1", "waiting", None)
    SignalProcessor(world.config, world.state, SystemClock()).carry_out_waiting()
    status, answer = ask("GET", "/signals/one%2F1")
    assert (status, answer["state"], answer["dump_state"]) == (200, "done", "requested")
    assert [d.id for d in dump_store.list_dumps(world.state)] == [answer["dump"]]


def test_an_answer_says_of_a_signal_what_it_always_said(world: World) -> None:
    inbox.put_signal(world.state, Message("one", "pause-snapshot", "{}"), channel="http", at_us=7)
    answer = Signals(world.config, world.state, SystemClock()).get("one")
    assert orjson.dumps(answer).decode() == (
        '{"id":"one","type":"pause-snapshot","channel":"http","state":"waiting","dump":null,"what":null,"error":null,'
        '"fix":null,"dump_state":null}'
    )


def test_each_caller_has_a_token_of_its_own_and_its_signals_its_name(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    signals = Signals(world.config, world.state, SystemClock())
    tokens = {None: TOKEN, "orders-app": "orders-" + TOKEN, "ops": "ops-" + TOKEN}
    with closing(Endpoint(signals, "127.0.0.1", 0, tokens=tokens, limits=Limits(penalty=0.0))) as server:
        ask = asking(lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS))
        callers = []
        for number, token in enumerate(tokens.values()):
            _, answer = ask("POST", "/signals", {"id": f"s{number}", "type": "pause-snapshot"}, token=token)
            callers.append(answer.get("caller"))
        assert callers == list(tokens)
        assert ask("GET", "/signals/s1", token="ops-" + TOKEN)[1]["caller"] == "orders-app"
        assert ask("POST", "/signals", {"type": "pause-snapshot"}, token="app-" + TOKEN)[0] == 401
    assert [record.caller for record in inbox.list_signals(world.state)] == list(tokens)
    SignalProcessor(world.config, world.state, SystemClock()).carry_out_waiting()
    assert [record.caller for record in inbox.list_signals(world.state)] == list(tokens)
    assert '127.0.0.1 orders-app: "POST /signals HTTP/1.1" 202' in caplog.text
    assert TOKEN not in caplog.text


def test_the_same_signal_again_is_no_second_one(world: World, ask: Ask) -> None:
    signal = {"id": "one", "type": "execute-snapshot", "data": orjson.dumps(DATA).decode()}
    assert [ask("POST", "/signals", signal)[0] for _ in range(2)] == [202, 200]
    assert len(inbox.list_signals(world.state)) == 1


def test_a_signal_without_an_id_gets_one(world: World, ask: Ask) -> None:
    ids = [ask("POST", "/signals", {"type": "pause-snapshot"})[1]["id"] for _ in range(2)]
    assert len(set(ids)) == 2 and {r.id for r in inbox.list_signals(world.state)} == set(ids)


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1], "ä"])
@pytest.mark.parametrize(("method", "path"), [("POST", "/signals"), ("GET", "/signals/one"), ("GET", "/")])
def test_without_the_token_nothing_is_told_or_done(
    world: World, ask: Ask, token: str | None, method: str, path: str
) -> None:
    inbox.put_signal(world.state, Message("one", "pause-snapshot"), channel="test", at_us=1)
    status, answer = ask(method, path, {"id": "two", "type": "pause-snapshot"}, token=token)
    assert status == 401 and "id" not in answer
    assert [r.id for r in inbox.list_signals(world.state)] == ["one"]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"{", "not JSON"),
        (b"[]", "an object"),
        ({"id": "", "type": "x"}, "id is empty"),
        ({"id": "a", "type": "x"}, "no signal"),
        ({"id": "a", "type": "execute-snapshot", "data": {"data-collections": ["a"]}}, "no pattern of tables"),
    ],
)
def test_what_is_no_signal_is_refused_at_once(world: World, ask: Ask, body: Any, what: str) -> None:
    status, answer = ask("POST", "/signals", body)
    assert status == 400 and what in answer["error"] and answer["fix"]
    assert inbox.list_signals(world.state) == []


def test_a_body_that_is_too_large_is_not_read(world: World, server: Endpoint, ask: Ask) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS)
    connection.putrequest("POST", "/signals")
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert ask("POST", "/signals", b"", **{"Content-Length": "-1"})[0] == 411


def test_other_places_are_not_there(ask: Ask) -> None:
    assert [ask(*where)[0] for where in (("GET", "/"), ("GET", "/signals"), ("GET", "/signals/none"))] == [404] * 3
    assert ask("POST", "/", {})[0] == 404


def test_a_state_store_that_is_away_is_told_without_a_word_about_it(
    world: World, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise StateUnavailable("zk1 is away", where="zookeeper://inside")

    monkeypatch.setattr(inbox, "put_signal", away)
    status, answer = ask("POST", "/signals", {"id": "one", "type": "pause-snapshot"})
    assert status == 503 and "inside" not in str(answer)


def test_callers_that_say_nothing_keep_nobody_out(server: Endpoint, ask: Ask) -> None:
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(5)]
    try:
        assert ask("GET", "/signals/none")[0] == 404
    finally:
        for connection in silent:
            connection.close()


@pytest.mark.thorough
@pytest.mark.parametrize("tls", [False, True])
def test_callers_that_drip_bytes_are_cut_off_and_keep_nobody_out(world: World, tmp_path: Path, tls: bool) -> None:
    """More of them than there are places, in headers, in a body, in a handshake; each says something all the time."""
    our_authority = authority(tmp_path / "tls", "ours")
    files = dict(zip(("certificate", "key"), our_authority.sign("server", "127.0.0.1"), strict=True)) if tls else {}
    signals = Signals(world.config, world.state, SystemClock())
    server = Endpoint(signals, "127.0.0.1", 0, tokens={None: TOKEN}, limits=Limits(patience=1.0), **files)
    request = f"POST /signals HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100000\r\n\r\n".encode()
    begin = b"\x16\x03\x01\x40\x00" if tls else b""  # a handshake of 16 KB that goes on and on
    drippers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    done = threading.Event()
    cut = set[int]()

    def drip() -> None:
        for number, connection in enumerate(drippers):
            connection.sendall(begin or (request if number % 2 else request[:20]))
        while not done.wait(0.1):
            for number, connection in enumerate(drippers):
                try:
                    connection.sendall(b" ")
                except OSError:
                    cut.add(number)

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        trusting = ssl.create_default_context(cafile=our_authority.file)
        ask = asking(
            lambda: (
                http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS, context=trusting)
                if tls
                else http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS)
            )
        )
        assert ask("POST", "/signals", {"id": "one", "type": "pause-snapshot"})[0] == 202
        wait_until(lambda: len(cut) == len(drippers), what="the drippers' ends")
        assert [r.id for r in inbox.list_signals(world.state)] == ["one"], "half a request is none"
    finally:
        done.set()
        dripping.join()
        for connection in drippers:
            connection.close()
        server.close()


def test_a_body_that_is_cut_short_is_no_signal(world: World, server: Endpoint) -> None:
    body = orjson.dumps({"id": "one", "type": "pause-snapshot"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as caller:
        head = f"POST /signals HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body) + 9}\r\n\r\n"
        caller.sendall(head.encode() + body)
        caller.shutdown(socket.SHUT_WR)
        assert b" 400 " in caller.makefile("rb").readline()
    assert inbox.list_signals(world.state) == []


def test_over_tls_the_certificate_is_checked_and_a_silent_handshake_holds_nobody_up(
    world: World, tmp_path: Path
) -> None:
    our_authority = authority(tmp_path / "tls", "ours")
    certificate, key = our_authority.sign("server", "127.0.0.1")
    signals = Signals(world.config, world.state, SystemClock())
    server = Endpoint(signals, "127.0.0.1", 0, tokens={None: TOKEN}, certificate=certificate, key=key)
    silent = socket.create_connection(("127.0.0.1", server.port))
    try:
        trusting = ssl.create_default_context(cafile=our_authority.file)
        ask = asking(
            lambda: http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS, context=trusting)
        )
        assert ask("POST", "/signals", {"id": "one", "type": "pause-snapshot"})[0] == 202
        strict = asking(lambda: http.client.HTTPSConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS))
        with pytest.raises(ssl.SSLError):
            strict("GET", "/")
        with pytest.raises((http.client.HTTPException, OSError)):
            asking(lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS))("GET", "/")
    finally:
        silent.close()
        server.close()


def test_silent_strangers_give_way_to_new_callers(world: World) -> None:
    """More of them than there are places, for as long as they like: nobody waits for the end of their time, which lasts
    for longer than a caller here waits for an answer."""
    signals = Signals(world.config, world.state, SystemClock())
    limits = Limits(patience=2 * PATIENCE_SECONDS, penalty=0.0)
    server = Endpoint(signals, "127.0.0.1", 0, tokens={None: TOKEN}, limits=limits)
    ask = asking(lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS))
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3 * http_limits._MAX_CALLERS)]
    try:
        for number in range(5):
            assert ask("POST", "/signals", {"id": str(number), "type": "pause-snapshot"})[0] == 202
            silent.append(socket.create_connection(("127.0.0.1", server.port)))
        wait_until(lambda: _living(silent) <= http_limits._MAX_STRANGERS_PER_ADDRESS, what="the places of one address")
    finally:
        for connection in silent:
            connection.close()
        server.close()


def _living(callers: list[socket.socket]) -> int:
    """How many of them the server has not cut off."""
    return len(callers) - len(select.select(callers, [], [], 0)[0])


def test_strangers_of_one_address_leave_places_to_those_of_others() -> None:
    server = object.__new__(http_limits.Server)
    near, far = socket.socketpair()
    with near, far:
        server._callers = [
            http_limits._Caller("many", near, 0.0) for _ in range(http_limits._MAX_STRANGERS_PER_ADDRESS)
        ]
        server._callers += [http_limits._Caller(f"another {n // 7}", near, 0.0) for n in range(28)]
        server._make_room("one more")
        assert [n for n, caller in enumerate(server._callers) if caller.cut_off.is_set()] == [0], (
            "the oldest of the most"
        )
        server._make_room("another 3")
        assert sum(caller.cut_off.is_set() for caller in server._callers) == 2


def test_a_wrong_token_is_answered_late_and_none_at_once(world: World) -> None:
    signals = Signals(world.config, world.state, SystemClock())
    server = Endpoint(signals, "127.0.0.1", 0, tokens={None: TOKEN}, limits=Limits(penalty=0.5))
    ask = asking(lambda: http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_SECONDS))
    try:
        begun = time.monotonic()
        assert ask("GET", "/", token="wrong")[0] == 401
        assert time.monotonic() - begun >= 0.5
        assert ask("GET", "/", token=None)[0] == 401
    finally:
        server.close()


def test_what_a_caller_says_ends_no_line_of_the_log(server: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dblog_core.signals"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as caller:
            caller.sendall(b"GET /\x1b[2J\x85 HTTP/1.1\r\n\r\n")
            assert b" 401 " in caller.makefile("rb").readline()
        wait_until(lambda: caplog.records, what="the line")
    assert "GET /\\x1b[2J\\x85 HTTP/1.1" in caplog.records[0].getMessage()


def test_a_new_certificate_is_taken_without_a_restart_and_a_bad_one_is_not(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "_CERTIFICATE_LOOK_SECONDS", 0.0)
    first = authority(tmp_path / "first", "first")
    second = authority(tmp_path / "second", "second")
    certificate, key = first.sign("server", "127.0.0.1")
    signals = Signals(world.config, world.state, SystemClock())
    server = Endpoint(signals, "127.0.0.1", 0, tokens={None: TOKEN}, certificate=certificate, key=key)

    def is_trusted(ca: str) -> bool:
        context = ssl.create_default_context(cafile=ca)
        try:
            with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as plain:
                context.wrap_socket(plain, server_hostname="127.0.0.1").close()
        except ssl.SSLCertVerificationError:
            return False
        return True

    try:
        assert is_trusted(first.file)
        Path(certificate).write_text("half of one")
        assert is_trusted(first.file)
        for new, old in zip(second.sign("server", "127.0.0.1"), (certificate, key), strict=True):
            Path(old).write_bytes(Path(new).read_bytes())
        wait_until(lambda: is_trusted(second.file), what="the new certificate")
    finally:
        server.close()


def test_callers_may_have_to_show_a_certificate(world: World, tmp_path: Path) -> None:
    our_authority = authority(tmp_path / "tls", "ours")
    certificate, key = our_authority.sign("server", "127.0.0.1")
    signals = Signals(world.config, world.state, SystemClock())
    clients = our_authority.file
    server = Endpoint(signals, "127.0.0.1", 0, tokens={None: TOKEN}, certificate=certificate, key=key, clients=clients)
    nobody = ssl.create_default_context(cafile=our_authority.file)
    trusting = ssl.create_default_context(cafile=our_authority.file)
    trusting.load_cert_chain(*our_authority.sign("client"))
    try:
        for context in (trusting, nobody):
            connection = http.client.HTTPSConnection(
                "127.0.0.1", server.port, timeout=PATIENCE_SECONDS, context=context
            )
            ask = asking(lambda connection=connection: connection)  # type: ignore[misc]
            if context is trusting:
                assert ask("GET", "/signals/none")[0] == 404
            else:
                with closing(connection), pytest.raises((OSError, http.client.HTTPException)):
                    ask("GET", "/signals/none")
    finally:
        server.close()
