"""The shapes of tables that staged rows refer to: a file for each, by its fingerprint, written once."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from dblog_core.errors import CorruptSegment
from dblog_core.model.schema import TableSchema
from dblog_core.staging.sealed_json import seal, unseal
from dblog_core.storage import Storage


class TableVersions:
    """The table versions of one staging directory; what was read or written once is remembered."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._schemas: dict[str, TableSchema] = {}

    def put(self, schemas: Iterable[TableSchema]) -> None:
        """Stores the table versions, durable when it returns; the same again is no error."""
        new = {schema.fingerprint: schema for schema in schemas if schema.fingerprint not in self._schemas}
        if new:
            files = {_path(fingerprint): seal(orjson.dumps(schema.to_json())) for fingerprint, schema in new.items()}
            self._storage.create_missing(files)
            self._schemas.update(new)

    def read(self, fingerprint: str) -> TableSchema:
        """The stored table version. Raises CorruptSegment if it is missing or altered."""
        if (remembered := self._schemas.get(fingerprint)) is not None:
            return remembered
        where = self._storage.url(_path(fingerprint))
        if (data := self._storage.read(_path(fingerprint))) is None:
            raise CorruptSegment("the table version is missing", where=where, fix="restore the file from a backup")
        try:
            schema = TableSchema.from_json(orjson.loads(unseal(data, where)))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptSegment(
                f"is no table version: {error}", where=where, fix="restore the file from a backup"
            ) from error
        if schema.fingerprint != fingerprint:
            raise CorruptSegment(
                f"holds the table version {schema.fingerprint}", where=where, fix="restore the file from a backup"
            )
        self._schemas[fingerprint] = schema
        return schema

    def has(self, fingerprint: str) -> bool:
        """Whether the table version is stored."""
        return fingerprint in self._schemas or self._storage.exists(_path(fingerprint))


def _path(fingerprint: str) -> str:
    return f"schemas/{fingerprint}.json"
