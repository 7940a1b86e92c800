"""Notices as messages of a Kafka topic: the key is the dump's id, the value the notice as JSON, its id a header.

A notice counts as sent once all replicas in sync have it. One that may have arrived, and whose answer was lost, comes
again.
"""

from __future__ import annotations

from confluent_kafka import KafkaException, Producer

from dblog_core import kafka_client
from dblog_core.config.kafka import KafkaConfig
from dblog_core.errors import NotToldYet
from dblog_core.notifications.changes import NoticeMessage


class KafkaChannel:
    """`name`: of the channel, in errors."""

    def __init__(self, config: KafkaConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._producer: Producer | None = None
        self._connection_errors = kafka_client.ConnectionErrors()

    def tell(self, message: NoticeMessage) -> None:
        notice = message.notice
        failed: list[str] = []
        try:
            producer = self._open_producer()
            producer.produce(
                self._config.topic,
                message.encode(),
                (notice.dump or notice.id).encode(),
                headers={"id": notice.id},
                on_delivery=lambda error, _: failed.append(error.str()) if error is not None else None,
            )
            left = producer.flush(self._config.timeout)
        except (KafkaException, BufferError) as error:
            failed.append(str(error))
            left = 0
        if left or failed:
            fault = failed[0] if failed else "no answer in time"
            reason = "; ".join(filter(None, (fault, self._connection_errors.last_error)))
            self._give_up()
            raise NotToldYet(
                f"the receiver does not answer: {reason}",
                where=f"[[notify]] {self._name}, kafka {self._config.servers}, topic {self._config.topic}",
            )

    def _open_producer(self) -> Producer:
        if self._producer is None:
            settings = kafka_client.librdkafka_settings(self._config, f"dblog.{self._name}", self._connection_errors)
            # Idempotent: the client's own retries keep the order and repeat nothing.
            settings |= {"enable.idempotence": True, "message.timeout.ms": int(self._config.timeout * 1000)}
            self._producer = Producer(settings)
        return self._producer

    def _give_up(self) -> None:
        """Nothing of it may come later, after the next notice."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None
        self._connection_errors = kafka_client.ConnectionErrors()
