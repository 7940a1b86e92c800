"""What the output to Kafka does beside what all do: partitions, sizes, Debezium's envelope."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaException, Producer

from dblog_core.errors import OutputRefused, OutputUnavailable
from dblog_core.interfaces import Output
from dblog_core.outputs.kafka import KafkaOutput
from tests.contract import changelog
from tests.contract.relayed import World, offsets
from tests.contract.targets import KafkaOne

kafka = pytest.mark.parametrize("kind", ["kafka"])
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@kafka
def test_a_key_keeps_to_its_partition_and_marks_come_to_all(world: World, target: KafkaOne) -> None:
    target.settings["partitions"] = 3
    world.relay()
    messages = [(m.partition(), m.key(), m.value() and orjson.loads(m.value())) for m in target.messages()]
    marks = [(line["offset"], partition) for partition, key, line in messages if key is None]
    assert sorted(marks) == [(offset, partition) for offset in (1, 13, 14) for partition in range(3)]
    partitions: dict[bytes, set[int]] = {}
    for partition, key, _ in messages:
        partitions.setdefault(key, set()).add(partition)
    assert all(len(where) == 1 for key, where in partitions.items() if key is not None)
    assert len({partition for partition, key, _ in messages if key is not None}) > 1
    (last,) = [m for m in target.messages() if m.key() == b'{"id":3}' and m.value() is None]
    assert last.topic() == f"{target.settings['topic_prefix']}shop.orders", "a delete is followed by a tombstone"


@kafka
def test_a_message_that_is_too_large_is_a_dead_letter_and_the_others_arrive(world: World, target: KafkaOne) -> None:
    long = changelog.log_rows(changelog.ORDERS, {"offset": 15, "op": "c", "after": {"id": 1, "name": "x" * 5000}})
    changelog.publish(world.staging, 5, 15, 15, (changelog.ORDERS, long))
    changelog.go_on(world.staging, 6, 16)
    target.settings["max_message"] = 2000
    assert world.relay(poison="dead_letter", dead_letter=str(world.letters), batch_rows=1000)
    (note,) = [orjson.loads(text) for text in world.letters.read_bytes().splitlines()]
    assert note["line"]["offset"] == 15 and "large" in note["reason"].lower()
    assert offsets(target.lines()) == [o for o in offsets(world.all()) if o != 15]


@kafka
def test_a_batch_that_the_broker_refuses_is_searched_for_the_one_message(world: World, target: KafkaOne) -> None:
    """The topic takes less than the client does, and answers for all that came together."""
    world.relay()
    target.limit("shop.orders", 1500)
    long = changelog.log_rows(changelog.ORDERS, {"offset": 15, "op": "c", "after": {"id": 1, "name": "x" * 5000}})
    changelog.publish(world.staging, 5, 15, 15, (changelog.ORDERS, long))
    changelog.go_on(world.staging, 6, 16)
    assert world.relay(poison="dead_letter", dead_letter=str(world.letters), batch_rows=1000)
    (note,) = [orjson.loads(text) for text in world.letters.read_bytes().splitlines()]
    assert note["line"]["offset"] == 15
    assert offsets(target.lines()) == [o for o in offsets(world.all()) if o != 15]


@kafka
def test_debeziums_envelope_has_rows_deletes_and_truncates(world: World, target: KafkaOne) -> None:
    target.settings["form"] = "debezium"
    world.relay()
    values = [orjson.loads(m.value()) for m in target.messages() if m.value() is not None]
    lines_by_offset = {value["source"]["offset"]: value for value in values}
    assert {offset: value["op"] for offset, value in lines_by_offset.items()} == {
        **dict.fromkeys((2, 3, 4, 5, 6, 7), "c"), 8: "u", 9: "d", 10: "r", 12: "r", 14: "t",
    }  # fmt: skip
    assert lines_by_offset[8]["after"] == {"id": 2, "name": "x", "big": "__debezium_unavailable_value"}
    assert (lines_by_offset[9]["before"], lines_by_offset[9]["after"]) == ({"id": 3}, None)
    assert lines_by_offset[10]["source"]["snapshot"] == "true" and lines_by_offset[8]["source"]["table"] == "orders"
    assert world.place().delivered == 14


@kafka
def test_a_transaction_that_takes_too_long_is_sent_once_more_and_then_stops_the_output(
    world: World, target: KafkaOne
) -> None:
    """The brokers look for such transactions every ten seconds."""
    lines = world.all()

    def deliver(output: Output) -> None:
        output.open(1)
        output.write(lines[1:2])
        time.sleep(13)
        output.write(lines[2:3])
        output.commit(lines[2]["offset"])

    target.settings["transaction_timeout"] = 1
    output = target.open()
    with pytest.raises(OutputUnavailable, match="sent once more"):
        deliver(output)
    with pytest.raises(OutputRefused, match="transaction_timeout = 1 s") as caught:
        deliver(output)
    assert f"offset {lines[1]['offset']}" in str(caught.value) and "[output." in caught.value.fix
    output.close()
    target.settings["transaction_timeout"] = 60
    output = target.open()
    deliver(output)
    output.close()
    assert offsets(target.lines()) == [line["offset"] for line in lines[1:3]]


class LosesErrors:
    """A producer whose `flush` fails without naming why, as the client's does at times."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def flush(self, timeout: float) -> int:
        try:
            return self._producer.flush(timeout)
        except (KafkaException, SystemError):
            raise SystemError("<method 'flush'> returned NULL without setting an exception") from None


@kafka
def test_an_error_that_the_client_has_lost_is_asked_for(
    world: World, target: KafkaOne, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = world.all()
    make = KafkaOutput._make_producer
    monkeypatch.setattr(KafkaOutput, "_make_producer", lambda output: LosesErrors(make(output)))
    target.settings["transaction_timeout"] = 1
    output = target.open()
    output.open(1)
    output.write(lines[1:2])
    time.sleep(13)
    with pytest.raises(OutputUnavailable, match="took longer than transaction_timeout = 1 s") as caught:
        output.write(lines[2:3])
    assert isinstance(caught.value.__cause__, SystemError)
    output.close()


@kafka
def test_a_timeout_that_the_brokers_do_not_allow_is_named(world: World, target: KafkaOne) -> None:
    target.settings["transaction_timeout"] = 3600
    output = target.open()
    with pytest.raises(OutputRefused, match="3600 s") as caught:
        output.open(1)
    output.close()
    assert "transaction_timeout" in caught.value.fix and "transaction.max.timeout.ms" in caught.value.fix
