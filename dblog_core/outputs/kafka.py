"""Topics in Kafka: exactly once for readers of committed messages, by one transactional producer a relay.

    PREFIX + SCHEMA.TABLE                       lines of a table; the message's key is the row's key
    PREFIX + _dblog.SOURCE.OUTPUT.place         the place, compacted, written in the same transactions

A delivery is a Kafka transaction. `init_transactions` ends the transaction of the relay before, and fences it: whatever
it still sends is refused. Only then the place is read. What has no key (TRUNCATE, new shapes, ends of dumps) goes to
every partition of its topic, so that each reader meets it between the rows that it stands between.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from dblog_core import kafka_client
from dblog_core.config.output import OutputConfig
from dblog_core.errors import OutputError, OutputRefused, OutputTaken, OutputUnavailable, PoisonLine
from dblog_core.interfaces import Json
from dblog_core.model.events import DELETE, FINISHED, SCHEMA, TRUNCATE
from dblog_core.outputs import kafka_position
from dblog_core.outputs.kafka_messages import Form, form_of

_LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}")
_MARKS = (SCHEMA, FINISHED, TRUNCATE)
_LISTEN_SECONDS = 1.0  # between two looks at what stands in the way
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
# What a producer learns whose transaction the brokers have given up; also by who has fenced it.
_GIVEN_UP = {*_FENCED, KafkaError.INVALID_TXN_STATE, KafkaError.INVALID_PRODUCER_ID_MAPPING, KafkaError._STATE}
_POISON = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD, KafkaError.RECORD_LIST_TOO_LARGE}
_REFUSED = {
    *(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    *(KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION),
    *(KafkaError.TOPIC_EXCEPTION, KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.POLICY_VIOLATION),
    *(KafkaError._INVALID_ARG, KafkaError._SSL),
}


class KafkaOutput:
    """`source`, `name`: whose transactions they are."""

    exactly_once = True

    def __init__(self, settings: OutputConfig, source: str, name: str) -> None:
        self._settings = settings
        self._source = source
        self._name = name
        self._id = f"dblog.{source}.{name}"
        # A topic of its own, compacted, so that reading the newest place costs the same at any age.
        self._place_topic = f"{settings.topic_prefix}_dblog.{source}.{name}.place"
        self._where = f"kafka {settings.servers}"
        self._producer: Producer | None = None
        self._form: Form | None = None
        self._partitions: dict[str, int] = {}
        self._in_transaction = False
        self._began_at = 0.0  # the open transaction
        self._first_offset = 0  # its first line
        self._given_up_offset: int | None = None  # of a transaction that took too long, and is sent once more
        self._failed_deliveries: list[tuple[int, KafkaError]] = []
        self._connection_errors = kafka_client.ConnectionErrors()

    def open(self, epoch: int) -> int | None:
        """Kafka counts epochs of its own by the transactional id: the newest producer is the one."""
        self.close()
        with self._translate_errors():
            self._form = form_of(self._settings, self._source)
            self._producer = self._make_producer()
            self._make_topic(self._place_topic, partitions=1, settings={"cleanup.policy": "compact"})
            return kafka_position.read_newest(self._client(), self._place_topic, timeout_seconds=self._timeout)

    def probe(self, *, held: bool) -> None:
        """A relay at work shows that its transactions are let in; a look at that would end them."""
        self.close()
        name = f"{self._settings.topic_prefix}_dblog.{self._source}.check"
        new_topic = NewTopic(name, self._settings.partitions, self._settings.replication)
        with self._translate_errors():
            admin = AdminClient(self._client())
            try:
                admin.create_topics([new_topic], request_timeout=self._timeout, validate_only=True)[name].result()
            except KafkaException:
                admin.poll(0)  # so that it says what is behind it
                raise
            if not held:
                self._make_producer()
        self._form = form_of(self._settings, self._source)
        self._form.reach()

    def write(self, lines: Sequence[Json]) -> None:
        producer = self._open_producer()
        with self._translate_errors():
            if not self._in_transaction:
                producer.begin_transaction()
                # Set after the call: a transaction that could not begin must not be committed.
                self._in_transaction = True
                self._began_at = time.monotonic()
                self._first_offset = lines[0]["offset"]
            for line in lines:
                self._send(producer, line)
            # `flush` returns how many messages nobody has acknowledged by then.
            if producer.flush(self._timeout):
                raise self._unavailable_error(f"no answer within {self._timeout:g} s")
        self._raise_failed_delivery()

    def commit(self, offset: int) -> None:
        producer = self._open_producer()
        with self._translate_errors():
            self._produce(producer, offset, self._place_topic, kafka_position.KEY, kafka_position.encode(offset), 0)
            producer.commit_transaction(self._timeout)
        self._in_transaction = False
        self._given_up_offset = None
        self._raise_failed_delivery()

    def close(self) -> None:
        if self._producer is not None:
            # What is queued belongs to a transaction that will be aborted: nothing waits for it.
            self._producer.purge()
            self._producer = None
        if self._form is not None:
            self._form.close()
            self._form = None
        self._in_transaction = False
        self._failed_deliveries = []
        self._partitions = {}
        self._connection_errors = kafka_client.ConnectionErrors()

    def _make_producer(self) -> Producer:
        producer = Producer(
            {
                **self._client(),
                "transactional.id": self._id,
                "transaction.timeout.ms": round(self._settings.transaction_timeout * 1000),
                "partitioner": "murmur2_random",  # as Java's producers place a key
                "message.max.bytes": self._settings.max_message,
                "linger.ms": 5,
            }
        )
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                producer.init_transactions(min(_LISTEN_SECONDS, self._timeout))
                return producer
            except KafkaException as error:
                producer.poll(0)  # so that it says what is behind it
                if not error.args[0].retriable() or self._connection_errors.refused or time.monotonic() >= deadline:
                    raise

    def _send(self, producer: Producer, line: Json) -> None:
        assert self._form is not None, "open it first"
        topic = self._topic(line["table"])
        if (data := self._form.value(line, topic)) is None:
            return
        if line["op"] in _MARKS:
            # Every reader of the topic has to meet it, whichever partition it reads.
            for partition in range(self._partitions[topic]):
                self._produce(producer, line["offset"], topic, None, data, partition)
        elif line["key"] is None:
            # A table without a key has all its lines in one partition, which keeps their order.
            self._produce(producer, line["offset"], topic, None, data, 0)
        else:
            key = self._form.key(line, topic)
            self._produce(producer, line["offset"], topic, key, data)
            # Compaction removes a key only by a message without a value.
            if line["op"] == DELETE and self._settings.tombstones:
                self._produce(producer, line["offset"], topic, key, None)

    def _produce(
        self,
        producer: Producer,
        offset: int,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
    ) -> None:
        def record_failure(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                self._failed_deliveries.append((offset, error))

        arguments: dict[str, Any] = {} if partition is None else {"partition": partition}
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=record_failure, **arguments)
                producer.poll(0)
                return
            except BufferError:  # the client's queue is full
                producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].code() in _POISON:
                    raise PoisonLine(error.args[0].str(), where=self._where, offset=offset) from error
                raise

    def _raise_failed_delivery(self) -> None:
        """Raises what deliveries have met; a batch may fail as a whole, by one message of it."""
        if not self._failed_deliveries:
            return
        offset, error = self._failed_deliveries[0]
        if error.code() in _POISON:
            # With more than one line among the failures nobody can say which one is at fault.
            poison_offset = offset if {o for o, _ in self._failed_deliveries} == {offset} else None
            raise PoisonLine(error.str(), where=self._where, offset=poison_offset)
        raise self._error(error)

    def _topic(self, table: str) -> str:
        name = self._settings.topics.get(table) or f"{self._settings.topic_prefix}{table}"
        if name not in self._partitions:
            if not _LEGAL.fullmatch(name):
                raise OutputRefused(
                    f"{name!r} is no name of a topic",
                    where=f"{self._where}, {table}",
                    fix="name one for the table in [output.NAME.topics]",
                )
            self._partitions[name] = self._make_topic(name, partitions=self._settings.partitions, settings={})
        return name

    def _make_topic(self, name: str, *, partitions: int, settings: dict[str, str]) -> int:
        """The number of its partitions; it is made where it is missing."""
        admin = AdminClient(self._client())
        topic = admin.list_topics(timeout=self._timeout).topics.get(name)
        if topic is not None and topic.error is None:
            return len(topic.partitions)
        new_topic = NewTopic(name, partitions, self._settings.replication, config=settings)
        try:
            admin.create_topics([new_topic], request_timeout=self._timeout)[name].result()
        except KafkaException as error:
            # Another relay has made it between our look and this.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return len(admin.list_topics(name, timeout=self._timeout).topics[name].partitions)
        return partitions

    def _client(self) -> dict[str, Any]:
        return kafka_client.librdkafka_settings(self._settings, self._id, self._connection_errors)

    @property
    def _timeout(self) -> float:
        return self._settings.timeout

    def _open_producer(self) -> Producer:
        assert self._producer is not None, "open it first"
        return self._producer

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except KafkaException as error:
            raise self._error(error.args[0]) from error
        except SystemError as error:
            # The client fails so by an error that is fatal to it, such as a fence while messages were on the way.
            # That error is the cause, or is not named.
            cause = error.__cause__
            fatal = cause.args[0] if isinstance(cause, KafkaException) else self._ask_for_fatal_error()
            if fatal is None:
                raise
            raise self._error(fatal) from error

    def _ask_for_fatal_error(self) -> KafkaError | None:
        """Why the client can no longer end a transaction; None where it can."""
        if self._producer is None:
            return None
        try:
            self._producer.abort_transaction(self._timeout)
        except KafkaException as error:
            lasting: KafkaError = error.args[0]
            return lasting
        return None

    def _error(self, error: KafkaError) -> OutputError:
        reason = self._connection_errors.explain(error)
        seconds = self._settings.transaction_timeout
        if self._in_transaction and error.code() in _GIVEN_UP and time.monotonic() - self._began_at >= seconds:
            return self._late_error()
        if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            what = f"the brokers allow no transaction of {seconds:g} s: {reason}"
            fix = (
                f"lower transaction_timeout in [output.{self._name}], or raise the brokers' transaction.max.timeout.ms"
            )
            return OutputRefused(what, where=self._where, fix=fix)
        if error.code() in _FENCED:
            return OutputTaken(f"{reason}; this relay stands by", where=self._where)
        if error.code() in _REFUSED or self._connection_errors.refused:
            return OutputRefused(reason, where=self._where, fix="correct servers, user, password, TLS and grants")
        return self._unavailable_error(reason)

    def _late_error(self) -> OutputError:
        """Once it is sent again: the brokers may have been away meanwhile."""
        offset = self._first_offset
        what = (
            f"the transaction from offset {offset} on took longer than transaction_timeout ="
            f" {self._settings.transaction_timeout:g} s, and the brokers gave it up"
        )
        if self._given_up_offset != offset:
            self._given_up_offset = offset
            return OutputUnavailable(f"{what}; it is sent once more", where=self._where)
        return OutputRefused(
            f"{what}, twice",
            where=self._where,
            fix=f"raise transaction_timeout in [output.{self._name}], and where it is less, the brokers'"
            " transaction.max.timeout.ms",
        )

    def _unavailable_error(self, reason: str) -> OutputUnavailable:
        return OutputUnavailable(reason, where=self._where, fix="check that the brokers can be reached from here")
