"""The place of an output in Kafka: the newest message of a compacted topic, in the same transactions as the lines."""

from __future__ import annotations

from typing import Any

import orjson
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

KEY = b"place"
_SPAN = 64  # messages from the end on that are looked at first; a transaction has two


def encoded(offset: int) -> bytes:
    return orjson.dumps({"offset": offset})


def read(settings: dict[str, Any], topic: str, *, timeout: float) -> int | None:
    """The offset in the newest message that is committed; None: there is none. Raises KafkaException."""
    more = {"group.id": topic, "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({**settings, **more, "enable.auto.commit": False})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=timeout)
        span = _SPAN
        while low < high and high != OFFSET_INVALID:
            begin = max(low, high - span)
            if (found := _last(consumer, TopicPartition(topic, 0, begin), timeout)) is not None or begin == low:
                return found
            span *= 8
        return None
    finally:
        consumer.close()


def _last(consumer: Consumer, begin: TopicPartition, timeout: float) -> int | None:
    """Of the messages from there to the end."""
    consumer.assign([begin])
    found = None
    while True:
        message = consumer.poll(timeout)
        if message is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the place is not told"))
        if (error := message.error()) is None:
            found = int(orjson.loads(message.value() or b"")["offset"])
        elif error.code() == KafkaError._PARTITION_EOF:
            return found
        else:
            raise KafkaException(error)
