"""Kafka by TLS and SASL, for signals, notices and the output: who is let in, and what the others are told."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dblog_core.clock import SystemClock
from dblog_core.config.kafka import KafkaConfig
from dblog_core.config.notify import ChannelConfig
from dblog_core.errors import NotToldYet, OutputRefused, SignalsUnavailable
from dblog_core.local.servers.kafka import KafkaServer
from dblog_core.monitoring.preflight import output_problems
from dblog_core.notifications.channels import open_channel
from dblog_core.signals import inbox
from dblog_core.signals.kafka import SignalTopic
from dblog_core.state.memory import MemoryState
from tests.certificates import Authority, authority
from tests.contract.relayed import World
from tests.contract.targets import KafkaOne
from tests.notices import COMPLETED

mechanism = pytest.mark.parametrize("sasl", ["plain", "scram-sha-512"])
WRONG = {"password": "Authentication failed", "tls_ca": "certificate verify failed"}
wrong = pytest.mark.parametrize("wrong", list(WRONG))


@pytest.fixture
def door(kafka: KafkaServer, kafka_authority: Authority) -> dict[str, Any]:
    """The settings of who is let in."""
    assert kafka.door is not None
    account = kafka.door.account
    login = {"user": account.user, "password": account.password}
    return {"servers": kafka.secure_address(), **login, "tls": "verify-full", "tls_ca": kafka_authority.file}


@pytest.fixture
def closed_door(door: dict[str, Any], wrong: str, tmp_path: Path) -> dict[str, Any]:
    """As `door`, with one thing wrong."""
    # So long that a broker that stands still for some seconds says why.
    return door | {"timeout": 12.0, wrong: {"password": "hunter2secret"}.get(wrong) or _others(tmp_path)}


def _others(directory: Path) -> str:
    return authority(directory / "others", "others").file


@pytest.fixture
def topic(kafka: KafkaServer) -> str:
    name = f"t_{secrets.token_hex(4)}"
    admin = AdminClient({"bootstrap.servers": kafka.address()})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result()
    return name


def check_reason(error: Exception, wrong: str, door: dict[str, Any]) -> None:
    assert WRONG[wrong] in str(error), "the reason, not only that time was up"
    assert "hunter2secret" not in str(error) and door["password"] not in str(error)


@mechanism
def test_the_output_is_let_in_and_its_lines_arrive(
    tmp_path: Path, kafka: KafkaServer, door: dict[str, Any], sasl: str
) -> None:
    target = KafkaOne(kafka)
    target.settings |= door | {"sasl": sasl}
    world = World(tmp_path, target)
    assert list(output_problems(world.config(), "out")) == []
    assert world.relay()
    assert target.lines() == world.all()


@wrong
@pytest.mark.in_turn("wrong")
def test_an_output_that_is_not_let_in_ends_with_the_reason(
    tmp_path: Path, kafka: KafkaServer, closed_door: dict[str, Any], wrong: str, door: dict[str, Any]
) -> None:
    target = KafkaOne(kafka)
    target.settings |= closed_door
    world = World(tmp_path, target)
    with pytest.raises(OutputRefused) as caught:
        world.relay()
    check_reason(caught.value, wrong, door)
    (problem,) = output_problems(world.config(), "out")
    assert WRONG[wrong] in problem.what and "hunter2secret" not in problem.what


@mechanism
def test_signals_are_read_and_notices_told(kafka: KafkaServer, topic: str, door: dict[str, Any], sasl: str) -> None:
    config = KafkaConfig(topic=topic, **door, sasl=sasl)
    producer = Producer({"bootstrap.servers": kafka.address()})
    producer.produce(topic, orjson.dumps({"id": "one", "type": "pause-snapshot"}), "shop")
    assert producer.flush(30) == 0
    state = MemoryState()
    channel = open_channel(ChannelConfig(name="bus", to="kafka", kafka=config))
    channel.tell(COMPLETED)
    reader = SignalTopic(config, "shop", state, SystemClock())
    try:
        for _ in range(150):
            reader.read_new_messages()
            if inbox.list_signals(state):
                break
    finally:
        reader.close()
    assert [record.id for record in inbox.list_signals(state)] == ["one"]


@pytest.mark.one_of(2)
@wrong
@pytest.mark.in_turn("wrong")
def test_a_topic_that_is_closed_to_us_is_told_with_the_reason(
    topic: str, closed_door: dict[str, Any], wrong: str, door: dict[str, Any]
) -> None:
    config = KafkaConfig(topic=topic, **closed_door)
    reader = SignalTopic(config, "shop", MemoryState(), SystemClock())
    with pytest.raises(SignalsUnavailable) as read:
        reader.read_new_messages()
    check_reason(read.value, wrong, door)
    with pytest.raises(NotToldYet) as sent:
        open_channel(ChannelConfig(name="bus", to="kafka", kafka=config)).tell(COMPLETED)
    check_reason(sent.value, wrong, door)
