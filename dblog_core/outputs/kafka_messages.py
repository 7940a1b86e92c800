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
        """Raises OutputUnavailable or OutputRefused where the registry that it asks does not answer."""

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
        message = envelope(line, source=self._source)
        return None if message is None else orjson.dumps(message)


@dataclass(frozen=True, slots=True)
class _RegisteredSchema:
    """A schema and its id."""

    id: int
    coder: avro.Coder

    def message(self, datum: Json) -> bytes:
        """As readers with a registry expect it: a zero, the id in four bytes, the datum."""
        return struct.pack(">bI", _MAGIC, self.id) + self.coder.encode(datum)


class AvroForm:
    """Our envelope, under the schemas that a registry has as TOPIC-key and TOPIC-value.

    A shape is registered when its first line comes, or its mark `s`, which has no message. Marks of a table have the
    schema that the subject had last.
    """

    def __init__(self, registry: Registry, source: str) -> None:
        self._registry = registry
        self._source = source
        self._rows: dict[str, avro.Rows] = {}
        self._schemas: dict[tuple[str, str], _RegisteredSchema] = {}
        self._newest: dict[str, _RegisteredSchema] = {}

    def value(self, line: Json, topic: str) -> bytes | None:
        shape = line.shape if isinstance(line, Line) else None
        try:
            # Registered here, so that an incompatible shape stops the output before its first row.
            if line["op"] == SCHEMA:
                self._register_shape(shape, topic)
                return None
            if shape is None:
                rows = avro.rows_of(_without_columns(line))
                registered = self._newest_of_subject(line, topic)
            else:
                rows = self._rows_of(shape)
                registered = self._register(f"{topic}-value", shape)
            return registered.message(avro.envelope(line, rows, source=self._source))
        except (ValueError, TypeError, OverflowError) as error:
            raise PoisonLine(f"has no form in Avro: {error}", offset=line["offset"]) from error
        except PoisonLine as error:
            raise PoisonLine(error.message, where=error.where, offset=line["offset"]) from error

    def key(self, line: Json, topic: str) -> bytes:
        assert isinstance(line, Line) and line.shape is not None, "a row that has a key has a shape"
        try:
            datum = self._rows_of(line.shape).read(line["key"])
            return self._register(f"{topic}-key", line.shape).message(datum)
        except (ValueError, TypeError, OverflowError) as error:
            raise PoisonLine(f"its key has no form in Avro: {error}", offset=line["offset"]) from error
        except PoisonLine as error:
            raise PoisonLine(error.message, where=error.where, offset=line["offset"]) from error

    def reach(self) -> None:
        self._registry.reach()

    def close(self) -> None:
        self._registry.close()

    def _register_shape(self, shape: TableSchema | None, topic: str) -> None:
        if shape is not None:
            self._rows_of(shape)
            self._register(f"{topic}-value", shape)
            if shape.key:
                self._register(f"{topic}-key", shape)

    def _rows_of(self, shape: TableSchema) -> avro.Rows:
        if (rows := self._rows.get(shape.fingerprint)) is None:
            rows = self._rows[shape.fingerprint] = avro.rows_of(shape)
        return rows

    def _register(self, subject: str, shape: TableSchema) -> _RegisteredSchema:
        if (registered := self._schemas.get((subject, shape.fingerprint))) is None:
            schema = avro.key_schema(shape) if subject.endswith("-key") else avro.value_schema(shape)
            registered = _RegisteredSchema(self._registry.register(subject, schema), avro.Coder(schema))
            # A registry gives the same id to the same schema, so asking once for each shape is enough.
            self._schemas[subject, shape.fingerprint] = self._newest[subject] = registered
        return registered

    def _newest_of_subject(self, line: Json, topic: str) -> _RegisteredSchema:
        """For a mark, whose envelope has no row: what the subject has, since another schema would part two of rows."""
        subject = f"{topic}-value"
        if (registered := self._newest.get(subject)) is None:
            if (newest := self._registry.read_latest(subject)) is None:
                # A mark before any row: its subject has no schema yet.
                return self._register(subject, _without_columns(line))
            registered = self._newest[subject] = _RegisteredSchema(newest[0], avro.Coder(newest[1]))
        return registered


def _without_columns(line: Json) -> TableSchema:
    """The table without columns: any that come later are added ones."""
    return TableSchema(TableName.parse(line["table"]), (), ())
