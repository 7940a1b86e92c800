"""Signals from a topic of a real Kafka, and notices to one."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from dblog_core.clock import SystemClock
from dblog_core.config.kafka import KafkaConfig
from dblog_core.config.notify import ChannelConfig
from dblog_core.errors import NotToldYet, SignalsUnavailable
from dblog_core.local.servers import ports
from dblog_core.local.servers.kafka import KafkaServer
from dblog_core.notifications.channels import open_channel
from dblog_core.signals import inbox
from dblog_core.signals import kafka as signals_kafka
from dblog_core.signals.kafka import SignalTopic
from dblog_core.signals.signal_record import SignalRecord
from dblog_core.state.memory import MemoryState
from tests.notices import COMPLETED

LOOKS = 50  # each waits a fifth of a second for messages
Send = Callable[..., None]
DUMP = {"type": "execute-snapshot", "data": {"data-collections": ["shop.a"]}}


@pytest.fixture
def topic(kafka: KafkaServer) -> KafkaConfig:
    """A topic of two partitions."""
    name = f"t_{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": kafka.address()})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    return KafkaConfig(servers=kafka.address(), topic=name)


@pytest.fixture
def send(topic: KafkaConfig) -> Send:
    def give(value: Any, key: str | None = "shop", *, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": topic.servers})
        data = value if isinstance(value, bytes) else orjson.dumps(value)
        producer.produce(topic.topic, data, key, partition=partition)
        assert producer.flush(30) == 0

    return give


def taken_signals(state: MemoryState) -> list[SignalRecord]:
    return inbox.list_signals(state)


def look(topic: KafkaConfig, state: MemoryState, count: int) -> list[SignalRecord]:
    """What is in the inbox once a fresh reader has had the time for `count` signals, and for more."""
    reader = SignalTopic(topic, "shop", state, SystemClock())
    try:
        for _ in range(LOOKS):
            reader.read_new_messages()
            if len(taken_signals(state)) >= count:
                break
        reader.read_new_messages()
    finally:
        reader.close()
    return taken_signals(state)


def test_messages_under_the_sources_name_are_signals_each_once_over_restarts(topic: KafkaConfig, send: Send) -> None:
    state = MemoryState()
    send({"id": "one"} | DUMP)
    send({"id": "other"} | DUMP, "another_source")
    send({"id": "nobody"} | DUMP, None)
    send({"id": "one"} | DUMP)
    send(b"{half a li", partition=1)
    send(DUMP, partition=1)
    signal_records = look(topic, state, 3)
    ids_and_states = [(record.id, record.state) for record in signal_records]
    named = [id_and_state for id_and_state in ids_and_states if id_and_state[0] != "one"]
    assert ("one", "waiting") in ids_and_states and len(ids_and_states) == 3
    assert [s for _, s in named] == ["refused", "waiting"] and all(
        n.startswith(f"kafka-{topic.topic}-1-") for n, _ in named
    )
    assert signal_records[0].channel == "kafka" and {r.error is None for r in signal_records} == {True, False}
    send({"id": "two"} | DUMP)
    assert [record.id for record in look(topic, state, 4)][-1] == "two"
    assert len(look(topic, state, 5)) == 4, "nothing is repeated"


def test_a_crash_between_a_message_and_its_place_repeats_nothing(topic: KafkaConfig, send: Send) -> None:
    state = MemoryState()
    send({"id": "one"} | DUMP)
    send(DUMP)
    before = look(topic, state, 2)
    state.delete("signals-at/kafka")
    send({"id": "three"} | DUMP)
    after = look(topic, state, 3)
    assert after[:2] == before and after[2].id == "three" and len(after) == 3


def test_the_place_moves_only_past_what_is_in_the_inbox(
    topic: KafkaConfig, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = MemoryState()
    send({"id": "one"} | DUMP)
    send({"id": "two"} | DUMP)
    real = inbox.put_signal
    tried = list[str]()

    def put(state: Any, message: Any, **more: Any) -> bool:
        tried.append(message.id)
        if tried == ["one", "two"]:
            raise SignalsUnavailable("the store is away")
        return real(state, message, **more)

    monkeypatch.setattr(inbox, "put_signal", put)
    reader = SignalTopic(topic, "shop", state, SystemClock())
    faults = 0
    for _ in range(LOOKS):
        try:
            reader.read_new_messages()
        except SignalsUnavailable:
            faults += 1
        if len(taken_signals(state)) == 2:
            break
    reader.close()
    assert faults == 1 and [record.id for record in taken_signals(state)] == ["one", "two"]


def test_a_new_partition_is_read_too(topic: KafkaConfig, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals_kafka, "_PARTITION_LOOK_SECONDS", 0.0)
    state = MemoryState()
    reader = SignalTopic(topic, "shop", state, SystemClock())
    reader.read_new_messages()
    admin = AdminClient({"bootstrap.servers": topic.servers})
    admin.create_partitions([NewPartitions(topic.topic, 3)])[topic.topic].result()
    send({"id": "third"} | DUMP, partition=2)
    for _ in range(LOOKS):
        if taken_signals(state):
            break
        reader.read_new_messages()
    reader.close()
    assert [record.id for record in taken_signals(state)] == ["third"]


def test_a_topic_or_a_broker_that_is_away_is_told_and_tried_again(topic: KafkaConfig, send: Send) -> None:
    nothing = topic.model_copy(update={"topic": "nothing-here"})
    with pytest.raises(SignalsUnavailable, match="cannot be read") as error_info:
        look(nothing, MemoryState(), 1)
    assert "nothing-here" in error_info.value.where and "exists" in error_info.value.fix
    away = topic.model_copy(update={"servers": f"127.0.0.1:{ports.find_free_port()}", "timeout": 1.0})
    with pytest.raises(SignalsUnavailable, match="cannot be read"):
        look(away, MemoryState(), 1)


def test_a_notice_is_a_message_with_its_id(topic: KafkaConfig) -> None:
    channel = open_channel(ChannelConfig(name="bus", to="kafka", kafka=topic))
    channel.tell(COMPLETED)
    consumer = Consumer({"bootstrap.servers": topic.servers, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic.topic, number, 0) for number in (0, 1)])
    message_read = next(message for _ in range(LOOKS) if (message := consumer.poll(1.0)) is not None)
    consumer.close()
    assert (message_read.key(), message_read.headers()) == (b"d1", [("id", b"d1/completed//0")])
    assert orjson.loads(message_read.value() or b"") == COMPLETED.to_json()


def test_a_notice_that_no_broker_takes_is_told_later(topic: KafkaConfig) -> None:
    away = topic.model_copy(update={"servers": f"127.0.0.1:{ports.find_free_port()}", "timeout": 1.0})
    channel = open_channel(ChannelConfig(name="bus", to="kafka", kafka=away))
    with pytest.raises(NotToldYet, match="does not answer"):
        channel.tell(COMPLETED)
