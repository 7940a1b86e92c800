"""What a line is in a message of Kafka: JSON in our form, Debezium's envelope, or Avro with a schema registry."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol

import orjson

from dblog_core.config.output import OutputConfig
from dblog_core.errors import PoisonLine
from dblog_core.interfaces import Json
from dblog_core.model.events import SCHEMA
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.outputs import avro
from dblog_core.outputs.debezium_envelope import envelope
from dblog_core.outputs.schema_registry import Registry
from dblog_core.staging.reader import Line

_MAGIC = 0


class Form(Protocol):
    """Raises PoisonLine for a line that has no such form, and what stands in the way of asking a registry."""

    def value(self, line: Json, topic: str) -> bytes | None:
        """None: the line has no message."""

    def key(self, line: Json, topic: str) -> bytes:
        """Of a line that has a key."""

    def reach(self) -> None:
        """Whether what it asks answers."""

    def close(self) -> None: ...


def form_of(settings: OutputConfig, source: str) -> Form:
    if settings.form == "avro":
        return AvroForm(Registry(settings), source)
    return JsonForm() if settings.form == "json" else DebeziumForm(source)


class JsonForm:
    """The line of `dblog log`."""

    def value(self, line: Json, topic: str) -> bytes | None:
        return orjson.dumps(line)

    def key(self, line: Json, topic: str) -> bytes:
        return orjson.dumps(line["key"])

    def reach(self) -> None:
        """It asks nobody."""

    def close(self) -> None:
        """Nothing is open."""


class DebeziumForm(JsonForm):
    """Debezium's envelope without schemas."""

    def __init__(self, source: str) -> None:
        self._source = source

    def value(self, line: Json, topic: str) -> bytes | None:
        found = envelope(line, source=self._source)
        return None if found is None else orjson.dumps(found)


@dataclass(frozen=True, slots=True)
class _Registered:
    """A schema and its id."""

    id: int
    coder: avro.Coder

    def message(self, datum: Json) -> bytes:
        """As readers with a registry expect it: a zero, the id in four bytes, the datum."""
        return struct.pack(">bI", _MAGIC, self.id) + self.coder.encoded(datum)


class AvroForm:
    """Our envelope, under the schemas that a registry has as TOPIC-key and TOPIC-value.

    A shape is registered when its first line comes, or its mark `s`, which has no message. Marks of a table have the
    schema that the subject had last.
    """

    def __init__(self, registry: Registry, source: str) -> None:
        self._registry, self._source = registry, source
        self._rows: dict[str, avro.Rows] = {}
        self._schemas: dict[tuple[str, str], _Registered] = {}
        self._newest: dict[str, _Registered] = {}

    def value(self, line: Json, topic: str) -> bytes | None:
        shape = line.shape if isinstance(line, Line) else None
        try:
            if line["op"] == SCHEMA:
                self._register(shape, topic)
                return None
            if shape is None:
                rows, registered = avro.rows_of(_nothing(line)), self._last(line, topic)
            else:
                rows, registered = self._rows_of(shape), self._of(f"{topic}-value", shape)
            return registered.message(avro.envelope(line, rows, source=self._source))
        except (ValueError, TypeError, OverflowError) as error:
            raise PoisonLine(f"has no form in Avro: {error}", offset=line["offset"]) from error
        except PoisonLine as error:
            raise PoisonLine(error.message, where=error.where, offset=line["offset"]) from error

    def key(self, line: Json, topic: str) -> bytes:
        assert isinstance(line, Line) and line.shape is not None, "a row that has a key has a shape"
        try:
            datum = self._rows_of(line.shape).read(line["key"])
            return self._of(f"{topic}-key", line.shape).message(datum)
        except (ValueError, TypeError, OverflowError) as error:
            raise PoisonLine(f"its key has no form in Avro: {error}", offset=line["offset"]) from error
        except PoisonLine as error:
            raise PoisonLine(error.message, where=error.where, offset=line["offset"]) from error

    def reach(self) -> None:
        self._registry.reach()

    def close(self) -> None:
        self._registry.close()

    def _register(self, shape: TableSchema | None, topic: str) -> None:
        if shape is not None:
            self._rows_of(shape)
            self._of(f"{topic}-value", shape)
            if shape.key:
                self._of(f"{topic}-key", shape)

    def _rows_of(self, shape: TableSchema) -> avro.Rows:
        if (found := self._rows.get(shape.fingerprint)) is None:
            found = self._rows[shape.fingerprint] = avro.rows_of(shape)
        return found

    def _of(self, subject: str, shape: TableSchema) -> _Registered:
        if (found := self._schemas.get((subject, shape.fingerprint))) is None:
            made = avro.key_schema(shape) if subject.endswith("-key") else avro.value_schema(shape)
            found = _Registered(self._registry.register(subject, made), avro.Coder(made))
            self._schemas[subject, shape.fingerprint] = self._newest[subject] = found
        return found

    def _last(self, line: Json, topic: str) -> _Registered:
        """For a mark, whose envelope has no row: what the subject has, since another schema would part two of rows."""
        subject = f"{topic}-value"
        if (found := self._newest.get(subject)) is None:
            if (known := self._registry.latest(subject)) is None:
                return self._of(subject, _nothing(line))
            found = self._newest[subject] = _Registered(known[0], avro.Coder(known[1]))
        return found


def _nothing(line: Json) -> TableSchema:
    """The table without columns: any that come later are added ones."""
    return TableSchema(TableName.parse(line["table"]), (), ())
