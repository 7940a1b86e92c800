"""The place of an output in Kafka: the newest message of a compacted topic, in the same transactions as the lines."""

from __future__ import annotations

from typing import Any

import orjson
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

KEY = b"place"
_SPAN_MESSAGES = 64  # messages from the end on that are looked at first; a transaction has two


def encode(offset: int) -> bytes:
    return orjson.dumps({"offset": offset})


def read_newest(settings: dict[str, Any], topic: str, *, timeout_seconds: float) -> int | None:
    """The offset in the newest message that is committed; None: there is none. Raises KafkaException."""
    # `read_committed`: a place of a transaction that was not committed does not count.
    more = {"group.id": topic, "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({**settings, **more, "enable.auto.commit": False})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=timeout_seconds)
        span = _SPAN_MESSAGES
        # The end may hold nothing but aborted transactions and markers, so the look reaches further back each time.
        while low < high and high != OFFSET_INVALID:
            begin = max(low, high - span)
            if (
                offset := _last_committed(consumer, TopicPartition(topic, 0, begin), timeout_seconds)
            ) is not None or begin == low:
                return offset
            span *= 8
        return None
    finally:
        consumer.close()


def _last_committed(consumer: Consumer, begin: TopicPartition, timeout_seconds: float) -> int | None:
    """Of the messages from there to the end."""
    consumer.assign([begin])
    offset = None
    while True:
        message = consumer.poll(timeout_seconds)
        if message is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the place is unknown"))
        if (error := message.error()) is None:
            offset = int(orjson.loads(message.value() or b"")["offset"])
        elif error.code() == KafkaError._PARTITION_EOF:
            return offset
        else:
            raise KafkaException(error)
