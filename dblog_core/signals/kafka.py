"""Signals as messages of a Kafka topic: the key is the source's name, the value {"id", "type", "data"} as JSON.

Next offsets lie in the state store, one for each partition; they move past a message once it is in the inbox, so that a
restart neither misses nor repeats one. Messages for other sources are passed over. One without an id gets one that is
made of its place and its time: what comes again from there is the same signal, and that of a topic made again is not.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from dblog_core import kafka_client
from dblog_core.config.kafka import KafkaConfig
from dblog_core.errors import RequestError, SignalsUnavailable
from dblog_core.interfaces import Clock, Json, StateStore
from dblog_core.signals import inbox
from dblog_core.signals.file import parse_message

log = logging.getLogger(__name__)

CHANNEL = "kafka"
_MESSAGES_AT_ONCE = 500  # messages
_POLL_SECONDS = 0.2  # that a look waits for the first of them
_PARTITION_LOOK_SECONDS = 60.0  # between two looks at how many partitions there are


@dataclass(frozen=True, slots=True)
class TopicPosition:
    """The next offset of each partition of a topic, by the partition's number."""

    topic: str
    next_offsets: Mapping[str, int]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(data["topic"], data["next"])

    def to_json(self) -> Json:
        return {"topic": self.topic, "next": dict(self.next_offsets)}


class SignalTopic:
    """The reader of one topic, for one source."""

    def __init__(self, config: KafkaConfig, source: str, state: StateStore, clock: Clock) -> None:
        self._config = config
        self._source = source
        self._state = state
        self._clock = clock
        self._where = f"[signals.kafka] {config.servers}, topic {config.topic}"
        self._consumer: Consumer | None = None
        self._connection_errors = kafka_client.ConnectionErrors()
        self._next_offsets: dict[str, int] = {}
        self._assigned_at = float("-inf")
        self._last_at_us = 0

    def read_new_messages(self) -> None:
        """Takes in what has come since. Raises SignalsUnavailable."""
        with self._translate_errors():
            consumer = self._open_consumer()
            messages = consumer.consume(_MESSAGES_AT_ONCE, timeout=_POLL_SECONDS)
            before = dict(self._next_offsets)
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                self._put_signal(message)
                # After the inbox has it.
                self._next_offsets[str(message.partition())] = int(message.offset() or 0) + 1
        if self._next_offsets != before:
            position = TopicPosition(self._config.topic, dict(self._next_offsets))
            inbox.put_position(self._state, CHANNEL, position)

    def close(self) -> None:
        """What was not taken in is read again by the next process."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._connection_errors = kafka_client.ConnectionErrors()

    def _put_signal(self, message: Any) -> None:
        # One topic may serve many sources, as with Debezium's signal topic.
        if (message.key() or b"") != self._source.encode():
            return
        self._last_at_us = max(self._last_at_us + 1, int(self._clock.time() * 1e6))
        value = message.value() or b""
        place = f"{message.topic()}-{message.partition()}-{message.offset()}-{message.timestamp()[1]}"
        try:
            signal = parse_message(value, default_id=f"kafka-{place}")
        except RequestError as error:
            log.warning("%s, message %s: %s", self._where, place, error)
            name = f"kafka-{place}-{hashlib.sha256(value).hexdigest()[:12]}"
            inbox.put_refusal(self._state, name, channel=CHANNEL, at_us=self._last_at_us, error=error)
            return
        if not inbox.put_signal(self._state, signal, channel=CHANNEL, at_us=self._last_at_us):
            log.info("signal %s was taken in before", signal.id)

    def _open_consumer(self) -> Consumer:
        """The consumer, which looks now and then for new partitions. No group: the place is ours to keep."""
        now = self._clock.monotonic()
        if self._consumer is None:
            client_id = f"dblog.{self._source}.signals"
            self._consumer = Consumer(
                {
                    **kafka_client.librdkafka_settings(self._config, client_id, self._connection_errors),
                    "group.id": client_id,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",  # where Kafka has removed what comes next: on with the oldest
                }
            )
            position = inbox.read_position(self._state, CHANNEL, TopicPosition)
            is_of_topic = position is not None and position.topic == self._config.topic
            self._next_offsets = dict(position.next_offsets) if position is not None and is_of_topic else {}
            self._assigned_at = float("-inf")
        if now - self._assigned_at >= _PARTITION_LOOK_SECONDS:
            self._assign(self._consumer)
            self._assigned_at = now
        return self._consumer

    def _assign(self, consumer: Consumer) -> None:
        topic = consumer.list_topics(self._config.topic, timeout=self._config.timeout).topics[self._config.topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        if {partition.partition for partition in consumer.assignment()} != set(topic.partitions):
            begins = {number: self._next_offsets.get(str(number), OFFSET_BEGINNING) for number in topic.partitions}
            consumer.assign([TopicPartition(self._config.topic, number, offset) for number, offset in begins.items()])

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """After a fault the next look begins with what is in the state store."""
        try:
            yield
        except KafkaException as error:
            if self._consumer is not None:
                self._consumer.poll(0)  # so that it says what is behind it
            reason = self._connection_errors.explain(error.args[0])
            self.close()
            raise SignalsUnavailable(
                f"the topic cannot be read: {reason}",
                where=self._where,
                fix="see that the brokers run, that the topic exists, and that user, password and TLS are right",
            ) from error
        except BaseException:
            self.close()
            raise
