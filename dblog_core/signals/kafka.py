"""Signals as messages of a Kafka topic: the key is the source's name, the value {"id", "type", "data"} as JSON.

Next offsets lie in the state store, one for each partition; they move past a message once it is in the inbox, so that a
restart neither misses nor repeats one. Messages for other sources are passed over. One without an id gets one that is
made of its place and its time: what comes again from there is the same signal, and that of a topic made anew is not.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from dblog_core import kafka_client
from dblog_core.config.kafka import KafkaConfig
from dblog_core.errors import RequestError, SignalsUnavailable
from dblog_core.interfaces import Clock, StateStore
from dblog_core.signals import inbox
from dblog_core.signals.file import message_of

log = logging.getLogger(__name__)

CHANNEL = "kafka"
_AT_ONCE = 500  # messages
_PATIENCE = 0.2  # seconds that a look waits for the first of them
_PARTITIONS = 60.0  # seconds between two looks at how many partitions there are


class SignalTopic:
    """The reader of one topic, for one source."""

    def __init__(self, config: KafkaConfig, source: str, state: StateStore, clock: Clock) -> None:
        self._config, self._source, self._state, self._clock = config, source, state, clock
        self._where = f"[signals.kafka] {config.servers}, topic {config.topic}"
        self._consumer: Consumer | None = None
        self._ear = kafka_client.ConnectionErrors()
        self._next: dict[str, int] = {}
        self._assigned_at = float("-inf")
        self._last = 0

    def look(self) -> None:
        """Takes in what has come since. Raises SignalsUnavailable."""
        with self._translated():
            consumer = self._opened()
            messages = consumer.consume(_AT_ONCE, timeout=_PATIENCE)
            before = dict(self._next)
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                self._take(message)
                self._next[str(message.partition())] = int(message.offset() or 0) + 1
        if self._next != before:
            inbox.put_place(self._state, CHANNEL, {"topic": self._config.topic, "next": self._next})

    def close(self) -> None:
        """What was not taken in is read again by whoever comes next."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
        self._ear = kafka_client.ConnectionErrors()

    def _take(self, message: Any) -> None:
        if (message.key() or b"") != self._source.encode():
            return
        self._last = max(self._last + 1, int(self._clock.time() * 1e6))
        value = message.value() or b""
        place = f"{message.topic()}-{message.partition()}-{message.offset()}-{message.timestamp()[1]}"
        try:
            found = message_of(value, default_id=f"kafka-{place}")
        except RequestError as error:
            log.warning("%s, message %s: %s", self._where, place, error)
            name = f"kafka-{place}-{hashlib.sha256(value).hexdigest()[:12]}"
            inbox.refuse(self._state, name, channel=CHANNEL, at=self._last, error=error)
            return
        if not inbox.put(self._state, found, channel=CHANNEL, at=self._last):
            log.info("signal %s was taken in before", found.id)

    def _opened(self) -> Consumer:
        """The consumer, which looks now and then for new partitions. No group: the place is ours to keep."""
        now = self._clock.monotonic()
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    **kafka_client.librdkafka_settings(self._config, f"dblog.{self._source}.signals", self._ear),
                    "group.id": f"dblog.{self._source}.signals",
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",  # where Kafka has removed what comes next: on with the oldest
                }
            )
            place = inbox.place(self._state, CHANNEL)
            self._next = dict(place["next"]) if place and place["topic"] == self._config.topic else {}
            self._assigned_at = float("-inf")
        if now - self._assigned_at >= _PARTITIONS:
            self._assign(self._consumer)
            self._assigned_at = now
        return self._consumer

    def _assign(self, consumer: Consumer) -> None:
        found = consumer.list_topics(self._config.topic, timeout=self._config.timeout).topics[self._config.topic]
        if found.error is not None:
            raise KafkaException(found.error)
        if {one.partition for one in consumer.assignment()} != set(found.partitions):
            at = {number: self._next.get(str(number), OFFSET_BEGINNING) for number in found.partitions}
            consumer.assign([TopicPartition(self._config.topic, number, offset) for number, offset in at.items()])

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """After a fault the next look begins with what is in the state store."""
        try:
            yield
        except KafkaException as error:
            if self._consumer is not None:
                self._consumer.poll(0)  # so that it says what is behind it
            said = self._ear.explain(error.args[0])
            self.close()
            raise SignalsUnavailable(
                f"the topic cannot be read: {said}",
                where=self._where,
                fix="see that the brokers run, that the topic exists, and that user, password and TLS are right",
            ) from error
        except BaseException:
            self.close()
            raise
