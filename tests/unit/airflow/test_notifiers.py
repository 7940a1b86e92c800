"""Notices: everything that happens to a dump is told, in order, at least once, and again under the same id."""

from __future__ import annotations

import hashlib
import hmac
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.algorithm.task_progress import TaskProgress
from dblog_core.clock import SystemClock
from dblog_core.config.notify import ChannelConfig
from dblog_core.dumps import control, filing
from dblog_core.dumps.dump_records import OVER, DumpOptions, DumpState, TaskRecord, TaskStatus
from dblog_core.dumps.requests import DumpRequest
from dblog_core.dumps.status import DumpStatus
from dblog_core.errors import NotToldYet
from dblog_core.interfaces import Json
from dblog_core.notifications import channels
from dblog_core.notifications.changes import NoticeMessage, SentNotices, notices_since
from dblog_core.notifications.delivery import FirstLook, NoticeFollower
from dblog_core.notifications.webhook import Webhook
from dblog_core.signals import inbox
from dblog_core.signals.message import Message
from dblog_core.signals.signal_record import SignalState
from dblog_core.signatures import verified
from tests.certificates import authority
from tests.notices import COMPLETED
from tests.unit.requests_world import World, make

STOP = threading.Event()


def task(number: int, table: str, ordinal: int = 0, *, done: bool = False, error: str | None = None) -> TaskStatus:
    progress = TaskProgress(table, attempt=int(ordinal > 0 or done), ordinal=ordinal, rows=10 * ordinal, done=done)
    return TaskStatus(number, TaskRecord(table), progress, error)


def dump(state: str, *tasks: TaskStatus) -> DumpStatus:
    return DumpStatus(
        "d1", DumpState(state), ("shop.a", "shop.b"), DumpOptions(), None, "2026-11-01", "signal", tasks, signal="one"
    )


def told_ids(status: DumpStatus, place: SentNotices | None = None) -> tuple[list[str], SentNotices | None]:
    notices = list(notices_since(status, place))
    return [notice.id for notice, _ in notices], notices[-1][1] if notices else place


# What is new ----------------------------------------------------------------------------------------------------------


def test_a_dump_that_nobody_has_looked_at_is_told_whole_and_in_order() -> None:
    ids, place = told_ids(dump("done", task(0, "shop.a", 2, done=True), task(1, "shop.b", 1, done=True)))
    assert ids == [
        "d1/requested//0", "d1/started//0", "d1/chunk/shop.a/0.1", "d1/chunk/shop.a/0.2", "d1/chunk/shop.b/1.1",
        "d1/table/shop.a/0", "d1/table/shop.b/0", "d1/completed//0",
    ]  # fmt: skip
    assert told_ids(dump("done", task(0, "shop.a", 2, done=True)), place)[0] == []


def test_each_look_tells_what_is_new() -> None:
    ids, place = told_ids(dump("requested", task(0, "shop.a")))
    assert ids == ["d1/requested//0"]
    ids, place = told_ids(dump("running", task(0, "shop.a", 1)), place)
    assert ids == ["d1/started//0", "d1/chunk/shop.a/0.1"]
    for number in (1, 2):
        ids, place = told_ids(dump("paused", task(0, "shop.a", 1)), place)
        assert ids == [f"d1/paused//{number}"]
        ids, place = told_ids(dump("running", task(0, "shop.a", 1)), place)
        assert ids == [f"d1/resumed//{number}"]
    ids, place = told_ids(dump("running", task(0, "shop.a", 2, done=True), task(1, "shop.a")), place)
    assert ids == ["d1/chunk/shop.a/0.2"], "the table's other range is not done"
    assert told_ids(dump("cancelled", task(0, "shop.a", 2, done=True), task(1, "shop.a")), place)[0] == [
        "d1/aborted//0"
    ]


def test_a_table_with_a_fault_is_never_told_as_done() -> None:
    ids, _ = told_ids(dump("failed", task(0, "shop.a", 1, done=True), task(1, "shop.b", error="gone")))
    assert ids[-2:] == ["d1/table/shop.a/0", "d1/failed//0"] and not any("table/shop.b" in i for i in ids)


@st.composite
def _lives(draw: st.DrawFn) -> list[DumpStatus]:
    """A dump as it was from moment to moment."""
    ordinals = [0, 0]
    done = [False, False]
    life = [dump("requested", task(0, "shop.a"), task(1, "shop.b"))]
    for _ in range(draw(st.integers(0, 12))):
        which = draw(st.integers(0, 1))
        ordinals[which] += 0 if done[which] else draw(st.integers(0, 3))
        done[which] = done[which] or (draw(st.booleans()) and ordinals[which] > 0)
        tasks = [task(n, t, ordinals[n], done=done[n]) for n, t in enumerate(("shop.a", "shop.b"))]
        life.append(dump(draw(st.sampled_from(["running", "running", "paused"])), *tasks))
    return [*life, replace(life[-1], state=draw(st.sampled_from(sorted(OVER))))]


@given(_lives(), st.data())
def test_whenever_it_is_looked_at_and_wherever_it_dies_all_is_told_and_repeats_have_the_same_id(
    life: list[DumpStatus], data: st.DataObject
) -> None:
    whole = set(told_ids(life[-1])[0])
    seen = list[str]()
    place = None
    looked = [*[status for status in life[:-1] if data.draw(st.booleans())], life[-1]]
    for status in looked:
        for _ in range(data.draw(st.integers(0, 2))):  # it dies after some were sent, before the place was written
            notices = list(notices_since(status, place))
            seen += [notice.id for notice, _ in notices[: data.draw(st.integers(0, len(notices)))]]
        ids, place = told_ids(status, place)
        seen += ids
    assert whole <= set(seen)
    assert {i for i in seen if "/paused/" not in i and "/resumed/" not in i} == whole
    assert seen[-1] == told_ids(life[-1])[0][-1]


def test_what_a_channel_has_got_is_stored_in_the_form_that_was_always_read() -> None:
    stored = {
        "requested": True, "started": True, "paused": 2, "resumed": 1, "chunks": {"0": 3}, "tables": ["shop.a"],
        "over": False,
    }  # fmt: skip
    assert orjson.dumps(SentNotices.from_json(stored).to_json()) == orjson.dumps(stored)
    assert SentNotices.from_json({"requested": True}) == SentNotices(requested=True), "an older channel wrote fewer"
    assert SentNotices.from_json({"started": True, "later": 1}) == SentNotices(started=True), "a later one writes more"


def test_the_first_look_of_a_channel_is_read_and_written_as_it_always_was() -> None:
    stored = {"began": "2026-11-01T00:00:00+00:00", "open": ["d1", "d2"], "signals": ["one-abc"]}
    first = FirstLook.from_json(stored)
    assert orjson.dumps(first.to_json()) == orjson.dumps(stored)
    asked = [("d1", "2026-10-01"), ("d0", "2026-10-01"), ("d3", "2026-11-02")]
    assert [first.comes_after(dump_id, requested_at) for dump_id, requested_at in asked] == [False, True, False]


# The follower ---------------------------------------------------------------------------------------------------------


class Receiver:
    """A channel in memory that may refuse."""

    def __init__(self) -> None:
        self.told: list[Json] = []
        self.refuses = 0

    def tell(self, message: NoticeMessage) -> None:
        if self.refuses:
            self.refuses -= 1
            raise NotToldYet("busy")
        self.told.append(message.to_json())

    @property
    def events(self) -> list[str]:
        return [notice["event"] for notice in self.told]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return make(tmp_path, monkeypatch)


def follower(world: World, receiver: Receiver, **more: Any) -> NoticeFollower:
    return NoticeFollower(channels.Receiver("ops", receiver, **more), "shop", world.state, SystemClock())


def request(world: World) -> str:
    return filing.submit(world.config, DumpRequest(("shop.orders",)), state=world.state)


def test_the_past_is_nobodys_news_and_what_goes_on_is_told(world: World) -> None:
    past = request(world)
    open_ = request(world)
    control.cancel(world.state, past)
    receiver = Receiver()
    follower(world, receiver).tell_news(STOP)
    assert [n["dump"] for n in receiver.told] == [open_]
    control.cancel(world.state, open_)
    follower(world, receiver).tell_news(STOP)  # a leader after a crash
    assert receiver.events == ["requested", "aborted"]


def test_what_a_receiver_does_not_take_is_told_later_and_nothing_is_lost(world: World) -> None:
    receiver = Receiver()
    first_follower = follower(world, receiver)
    first_follower.tell_news(STOP)
    dump_id = request(world)
    control.pause(world.state, dump_id)
    receiver.refuses = 2
    for _ in range(2):
        with pytest.raises(NotToldYet):
            first_follower.tell_news(STOP)
    control.cancel(world.state, dump_id)
    first_follower.tell_news(STOP)
    follower(world, receiver).tell_news(STOP)
    assert receiver.events == ["requested", "aborted"]
    assert {"source": "shop", "dump": dump_id, "rows": 0}.items() <= receiver.told[-1].items()


def test_only_the_events_that_are_asked_for_are_told(world: World) -> None:
    receiver = Receiver()
    first_follower = follower(world, receiver, events=("aborted",))
    first_follower.tell_news(STOP)
    control.cancel(world.state, request(world))
    first_follower.tell_news(STOP)
    assert receiver.events == ["aborted"]


def test_a_refused_signal_is_told_once_with_its_id(world: World) -> None:
    receiver = Receiver()
    first_follower = follower(world, receiver)
    first_follower.tell_news(STOP)
    inbox.put_signal(world.state, Message("bad", "execute-snapshot", "{"), channel="test", at_us=1)
    first_follower.tell_news(STOP)
    record = inbox.find_signal(world.state, "bad")
    refused = replace(record, state=SignalState.REFUSED, error="no", fix="yes")
    assert inbox.change_signal(world.state, record, refused)
    for each in (first_follower, first_follower, follower(world, receiver)):
        each.tell_news(STOP)
    assert [(n["event"], n["signal"], n["error"]) for n in receiver.told] == [("refused", "bad", "no")]


# The webhook ----------------------------------------------------------------------------------------------------------


class Hook:
    """A receiver on this machine; `answers`: what it says next, and 204 from then on."""

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[int] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = hook.answers.pop(0) if hook.answers else 204
                if status < 300:
                    hook.got.append((dict(self.headers), body))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"http://127.0.0.1:{hook.port}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """It is quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def hook() -> Iterator[Hook]:
    new_hook = Hook()
    yield new_hook
    new_hook.close()


def webhook(port: int, **more: Any) -> ChannelConfig:
    url = f"http://127.0.0.1:{port}/hook"
    return ChannelConfig.model_validate({"name": "ops", "to": "webhook", "url": url, "secret": "shh", **more})


def test_a_webhook_gets_the_notice_signed(hook: Hook) -> None:
    Webhook(webhook(hook.port), now=lambda: 1000.0).tell(COMPLETED)
    ((headers, body),) = hook.got
    assert orjson.loads(body) == COMPLETED.to_json() and headers["X-Dblog-Id"] == "d1/completed//0"
    expected = hmac.new(b"shh", b"1000.d1/completed//0." + body, hashlib.sha256).hexdigest()
    assert headers["Dblog-Signature"] == f"t=1000,v1={expected}"
    assert verified("shh", headers, body, now=1200.0)
    assert not verified("shh", headers, body, now=1400.0), "who keeps one cannot send it again later"
    assert not verified("shh", {**headers, "X-Dblog-Id": "d2/completed//0"}, body, now=1200.0)


def test_over_tls_the_receiver_must_be_one_that_tls_ca_has_signed(tmp_path: Path) -> None:
    own_authority = authority(tmp_path / "ours", "ours")
    others = authority(tmp_path / "others", "others")
    hook = Hook(own_authority.sign("receiver", "127.0.0.1"))
    try:
        hook_settings = {"url": f"https://127.0.0.1:{hook.port}/hook", "timeout": 20}
        for files in ({"tls_ca": others.file}, {}):
            with pytest.raises(NotToldYet, match="CERTIFICATE_VERIFY_FAILED") as refused:
                Webhook(webhook(hook.port, **hook_settings, **files)).tell(COMPLETED)
            assert "shh" not in str(refused.value)
        assert hook.got == []
        Webhook(webhook(hook.port, **hook_settings, tls_ca=own_authority.file)).tell(COMPLETED)
        assert [orjson.loads(body) for _, body in hook.got] == [COMPLETED.to_json()]
    finally:
        hook.close()


@pytest.mark.parametrize("status", [302, 400, 429, 500])
def test_an_answer_other_than_2xx_is_not_taken_for_one(hook: Hook, status: int) -> None:
    hook.answers = [status]
    with pytest.raises(NotToldYet, match=str(status)) as refused:
        Webhook(webhook(hook.port)).tell(COMPLETED)
    assert hook.got == [] and "shh" not in str(refused.value)


def test_a_receiver_that_fails_for_a_while_gets_everything_over_a_restart(world: World, hook: Hook) -> None:
    def restart_follower() -> NoticeFollower:
        return NoticeFollower(channels.receiver(webhook(hook.port)), "shop", world.state, SystemClock())

    restart_follower().tell_news(STOP)
    control.cancel(world.state, request(world))
    hook.answers = [500, 503, 204, 500]
    for _ in range(3):
        with pytest.raises(NotToldYet):
            restart_follower().tell_news(STOP)
    restart_follower().tell_news(STOP)
    restart_follower().tell_news(STOP)
    assert [orjson.loads(body)["event"] for _, body in hook.got] == ["requested", "aborted"]


def test_a_receiver_that_is_not_there_is_told_of_later() -> None:
    with pytest.raises(NotToldYet, match="does not answer"):
        Webhook(webhook(1, timeout=2)).tell(COMPLETED)
