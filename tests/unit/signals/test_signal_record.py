"""The nodes of signals and channels: what earlier versions wrote is read, and what is written is what they wrote.

The texts are those of version 0.1.0 before its signals had records with types.
"""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from dblog_core.dumps.dump_records import DumpRecord
from dblog_core.errors import RequestError
from dblog_core.notifications.changes import NoticeMessage, refusal_notice
from dblog_core.signals import inbox
from dblog_core.signals.file import FilePosition
from dblog_core.signals.kafka import TopicPosition
from dblog_core.signals.message import Message
from dblog_core.signals.signal_record import SignalRecord, SignalState
from dblog_core.state.memory import MemoryState

REQUEST = (
    '{"tables":["shop.orders"],"options":{"chunk_size":10000,"workers":2,"delay":0.0,"rate":0,"adaptive":false,'
    '"max_retained":0,"in_flight":16},"state":"requested","error":null,"requested_at":"2026-11-25T10:00:00+00:00",'
    '"requested_by":"signal","refused":[],"signal":"one"}'
)
NODES: list[tuple[str, SignalRecord]] = [
    (
        '{"id":"one","type":"execute-snapshot","data":"{}","channel":"http","at":7,"state":"waiting","dump":null,'
        '"what":null,"error":null,"fix":null}',
        SignalRecord("one", "execute-snapshot", "{}", "http", 7),
    ),
    (
        '{"id":"one","type":"pause-snapshot","data":null,"channel":"table","at":7,"state":"done","dump":null,'
        '"what":"pause-snapshot: no dump","error":null,"fix":null}',
        SignalRecord("one", "pause-snapshot", None, "table", 7, SignalState.DONE, what="pause-snapshot: no dump"),
    ),
    (
        '{"id":"one","type":"execute-snapshot","data":"{","channel":"file","at":7,"state":"refused","dump":null,'
        '"what":null,"error":"no","fix":"yes"}',
        SignalRecord("one", "execute-snapshot", "{", "file", 7, SignalState.REFUSED, error="no", fix="yes"),
    ),
    (
        '{"id":"one","type":"execute-snapshot","data":"{}","channel":"http","at":7,"state":"filing","dump":"one-ab",'
        f'"what":null,"error":null,"fix":null,"request":{REQUEST}}}',
        SignalRecord(
            "one",
            "execute-snapshot",
            "{}",
            "http",
            7,
            SignalState.FILING,
            "one-ab",
            request=DumpRecord.from_json(orjson.loads(REQUEST)),
        ),
    ),
]
FILED = (
    '{"id":"one","type":"execute-snapshot","data":"{}","channel":"http","at":7,"state":"done","dump":"one-ab",'
    '"what":"requested","error":null,"fix":null,"request":null}'
)
WAITING, FILING = NODES[0], NODES[3]
NODE = f"signals/{inbox.node_name('one')}"


def _state_with(node: str) -> MemoryState:
    state = MemoryState()
    state.create(NODE, node.encode())
    return state


def _node(state: MemoryState) -> bytes:
    entry = state.get(NODE)
    assert entry is not None
    return entry.data


@pytest.mark.parametrize(("text", "record"), NODES, ids=[record.state.value for _, record in NODES])
def test_a_signal_is_read_and_written_as_it_always_was(text: str, record: SignalRecord) -> None:
    assert inbox.find_signal(_state_with(text), "one") == record
    assert orjson.dumps(record.to_node()) == text.encode()


def test_a_new_signal_is_written_as_it_always_was() -> None:
    state = MemoryState()
    assert inbox.put_signal(state, Message("one", "execute-snapshot", "{}"), channel="http", at_us=7)
    assert _node(state) == WAITING[0].encode()


def test_what_came_as_no_signal_is_written_as_it_always_was() -> None:
    state = MemoryState()
    inbox.put_refusal(state, "one", channel="file", at_us=7, error=RequestError("no", fix="yes"))
    refused = '"type":"","data":null,"channel":"file","at":7,"state":"refused","dump":null,"what":null'
    assert _node(state) == f'{{"id":"one",{refused},"error":"no","fix":"yes"}}'.encode()


def test_the_steps_of_a_dump_are_written_as_they_always_were() -> None:
    state = _state_with(WAITING[0])
    assert inbox.change_signal(state, WAITING[1], FILING[1])
    assert _node(state) == FILING[0].encode()
    filed = SignalRecord("one", "execute-snapshot", "{}", "http", 7, SignalState.DONE, "one-ab", "requested")
    assert inbox.change_signal(state, FILING[1], filed)
    assert _node(state) == FILED.encode()
    assert inbox.find_signal(state, "one") == filed, "`null` in place of its request is no request"


def test_a_signal_that_another_has_changed_stays_as_it_is() -> None:
    state = _state_with(FILING[0])
    assert not inbox.change_signal(state, WAITING[1], NODES[2][1])
    assert _node(state) == FILING[0].encode()
    state.delete(NODE)
    assert not inbox.change_signal(state, WAITING[1], FILING[1])
    assert inbox.list_signals(state) == []


def test_what_a_later_version_says_of_a_signal_stays() -> None:
    state = _state_with(WAITING[0].replace('"fix":null', '"fix":null,"later":1'))
    assert inbox.change_signal(state, WAITING[1], FILING[1])
    assert b'"later":1' in _node(state) and inbox.find_signal(state, "one") == FILING[1]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"at":70,"known":64,"head":"abc"}', FilePosition(70, 64, "abc")),
        ('{"topic":"signals","next":{"0":5,"1":9}}', TopicPosition("signals", {"0": 5, "1": 9})),
    ],
    ids=["file", "kafka"],
)
def test_a_channels_position_is_read_and_written_as_it_always_was(text: str, position: Any) -> None:
    state = MemoryState()
    assert inbox.read_position(state, "channel", type(position)) is None
    state.create("signals-at/channel", text.encode())
    assert inbox.read_position(state, "channel", type(position)) == position
    state.delete("signals-at/channel")
    inbox.put_position(state, "channel", position)
    entry = state.get("signals-at/channel")
    assert entry is not None and entry.data == text.encode()


def test_the_notice_of_a_refusal_is_what_it_always_was() -> None:
    message = NoticeMessage(refusal_notice("one-abc", NODES[2][1]), "shop", "2026-11-25T10:00:00+00:00")
    assert message.encode().decode() == (
        '{"id":"one-abc/refused//0","event":"refused","source":"shop","dump":null,"signal":"one","table":null,'
        '"type":"execute-snapshot","channel":"file","error":"no","fix":"yes","told_at":"2026-11-25T10:00:00+00:00"}'
    )
