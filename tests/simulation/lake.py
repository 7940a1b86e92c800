"""A lake in memory: what the merge makes of segments, event by event, in plain Python that shares no code with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_from_json
from dblog_core.staging import Staging
from dblog_core.staging.manifest import LogMark, Manifest

Row = dict[str, Any]


class _Unknown:
    """A value that nobody knows yet."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()


@dataclass(slots=True)
class Table:
    """`rows`: key -> (offset of its last event, row); `deleted_rows`: what deletes took away, for changes of key."""

    schema: TableSchema
    rows: dict[Key, tuple[int, Row]] = field(default_factory=dict)
    deleted_rows: dict[Key, Row] = field(default_factory=dict)

    def whole_rows(self) -> dict[Key, Row]:
        """Rows of which all is known: what the lake shows, in the newest shape."""
        names = [c.name for c in self.schema.columns]
        return {
            key: {name: row.get(name) for name in names}
            for key, (_, row) in self.rows.items()
            if UNKNOWN not in row.values()
        }

    def withheld_keys(self) -> list[Key]:
        return sorted(key for key, (_, row) in self.rows.items() if UNKNOWN in row.values())


@dataclass(slots=True)
class SimLake:
    """All tables, up to `segment`; a merge is seen whole or not at all."""

    tables: dict[str, Table] = field(default_factory=dict)
    segment: int = 0
    offset: int = 0

    def merge(self, staging: Staging) -> bool:
        """Takes all that is sealed and whole; whether there was anything."""
        manifests: list[Manifest] = []
        whole = 0
        for manifest in staging.manifests(self.segment):
            manifests.append(manifest)
            whole = len(manifests) if manifest.partial == 0 else whole
        if not whole:
            return False
        tables = {name: Table(t.schema, dict(t.rows), dict(t.deleted_rows)) for name, t in self.tables.items()}
        for manifest in manifests[:whole]:
            _Merge(staging, tables).segment(manifest)
        last = manifests[whole - 1]
        self.tables = tables
        self.segment = last.segment
        self.offset = last.last_offset
        return True


class _Merge:
    def __init__(self, staging: Staging, tables: dict[str, Table]) -> None:
        self._staging = staging
        self._tables = tables

    def segment(self, manifest: Manifest) -> None:
        events = sorted([*self._log(manifest), *self._chunks(manifest), *self._marks(manifest)], key=lambda e: e[0])
        for offset, op, table, event in events:
            self._apply(offset, op, table, event)

    def _table(self, name: str, fingerprint: str) -> Table:
        schema = self._staging.schema(fingerprint)
        return self._tables.setdefault(name, Table(schema))

    def _rows(self, path: str) -> list[Row]:
        return list(self._staging.read_chunk(path).to_pylist())

    def _log(self, manifest: Manifest) -> Iterator[tuple[int, str, str, Any]]:
        for file in manifest.files:
            self._table(file.table, file.schema)
            for batch in self._staging.log_batches(file):
                for row in batch.to_pylist():
                    yield row["offset"], row["op"], file.table, row

    def _chunks(self, manifest: Manifest) -> Iterator[tuple[int, str, str, Any]]:
        for chunk in manifest.chunks:
            self._table(chunk.table, chunk.schema)
            for number, row in enumerate(self._rows(chunk.path)):
                if number not in chunk.evicted:
                    event = {"after": row, "unchanged": None, "moved_from": None}
                    yield chunk.first_offset + number, "r", chunk.table, event

    def _marks(self, manifest: Manifest) -> Iterator[tuple[int, str, str, Any]]:
        for mark in manifest.marks:
            yield mark.offset, mark.op, mark.table, mark

    def _apply(self, offset: int, op: str, name: str, event: Any) -> None:
        if op == "s":
            self._table(name, event.schema).schema = self._staging.schema(event.schema)
            return
        if (table := self._tables.get(name)) is None:
            return  # a mark of a table that has no rows yet
        if op == "t":
            table.rows.clear()
        elif op == "f":
            self._ghosts(table, event)
        elif op == "d":
            key = tuple(event["before"][n] for n in table.schema.key)
            _, row = table.rows.pop(key, (0, self._nothing(table)))
            table.deleted_rows[key] = row
        else:
            self._put(table, offset, op, event)

    def _nothing(self, table: Table) -> Row:
        return dict.fromkeys((c.name for c in table.schema.columns), UNKNOWN)

    def _put(self, table: Table, offset: int, op: str, event: Row) -> None:
        after = event["after"]
        left_out = set(event["unchanged"] or ())
        source = event["before"] if left_out & set(table.schema.key) else after
        key = tuple(source[n] if n in left_out else after[n] for n in table.schema.key)
        old = table.rows.get(key, (0, self._nothing(table)))[1]
        if op == "c":
            old = (
                self._nothing(table)
                if event["moved_from"] is None
                else table.deleted_rows[_key(table, event["moved_from"])]
            )
        row = {name: old.get(name) if name in left_out else value for name, value in after.items()}
        table.rows[key] = (offset, row)

    def _ghosts(self, table: Table, mark: LogMark) -> None:
        """Rows whose last event is not after `since`, and whose key no chunk of the dump has."""
        assert mark.since is not None and mark.since_segment is not None
        seen: set[Key] = set()
        for manifest in self._staging.manifests(mark.since_segment - 1):
            for chunk in manifest.chunks:
                if chunk.dump == mark.dump and chunk.table == mark.table:
                    seen |= {_key(table, row) for row in self._rows(chunk.path)}
            if any(m.offset == mark.offset for m in manifest.marks):
                break
        low = None if mark.key_from is None else key_from_json(mark.key_from, table.schema)
        high = None if mark.key_to is None else key_from_json(mark.key_to, table.schema)
        for key, (offset, _) in list(table.rows.items()):
            inside = (low is None or key >= low) and (high is None or key <= high)
            if inside and offset <= mark.since and key not in seen:
                del table.rows[key]


def _key(table: Table, row: Row) -> Key:
    return tuple(row[name] for name in table.schema.key)
