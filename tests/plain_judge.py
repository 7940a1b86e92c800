"""The comparison in plain Python over a lake that is the replayed super-changelog: what the judge is to answer.

It is slow, and knows no Delta table: for tests of all that happens on the source's side, without a Spark session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dblog_core.config.settings import Config
from dblog_core.model.schema import TableSchema
from dblog_core.model.values import Key, key_from_json, key_to_json, keys_of
from dblog_core.rows.row_hashes import HASH
from dblog_core.staging import Staging
from dblog_core.verify.judge.comparison import Comparison, Sum, Verdict
from dblog_core.verify.pinned_version import Pin
from dblog_core.wiring import open_staging
from tests.plain_hashes import row_hash

Row = dict[str, Any]
State = dict[Key, Row]


@dataclass(frozen=True, slots=True)
class Event:
    """A row as it is after `offset` (None: gone); no key: the whole table is. `log`: the source's own change."""

    offset: float
    key: Key | None
    row: Row | None
    log: bool
    unchanged: frozenset[str] = frozenset()


@dataclass
class PlainLake:
    """Takes the place of `Judge`. `damage`: events that nobody staged: what somebody did to the lake."""

    config: Config
    damage: dict[str, list[Event]] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)
    blind: bool = False
    """A mistake: it takes every event up to the high watermark for seen."""

    def open(self, staging: Staging, *_: Any, **__: Any) -> PlainLake:
        self._staging = staging
        return self

    def __enter__(self) -> PlainLake:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def pin(self, *_: Any) -> Pin:
        """There is always a lake: the log from its beginning on."""
        return Pin(0, 0, 0, 0)

    def do(self, table: str, key: Key, row: Row | None) -> None:
        """Damages a row after all that is staged now."""
        head = open_staging(self.config).head()
        assert head is not None
        self.damage.setdefault(table, []).append(Event(head.last_offset + 0.5, key, row, log=False))

    def begin_reading(self, *_: Any) -> None:
        """Nothing: the log is replayed for each comparison."""

    def compare(self, comparison: Comparison) -> Verdict:
        self.comparisons.append(comparison)
        schema = comparison.schema
        source = self._source(comparison, of_hashes=True)
        then, now, passed = self._replay(schema, comparison.upto if self.blind else comparison.since, comparison.upto)
        if comparison.within:
            now = {key: row for key, row in now.items() if _inside(key, comparison, schema)}
        keys_by_kind: dict[str, list[Any]] = {}
        for key in source.keys() if comparison.for_chosen_keys else source.keys() | now.keys():
            kind = _kind(source.get(key), then.get(key), now.get(key), passed.get(key), schema)
            if kind is not None:
                keys_by_kind.setdefault(kind, []).append(key_to_json(key))
        rows = sum(value is not None for value in source.values())
        return Verdict(rows, len(now), **{kind: tuple(keys) for kind, keys in keys_by_kind.items()})

    def find_differing_columns(self, comparison: Comparison) -> list[tuple[Any, tuple[str, ...]]]:
        self.comparisons.append(comparison)
        source = self._source(comparison, of_hashes=False)
        _, now, passed = self._replay(comparison.schema, comparison.since, comparison.upto)
        both = [key for key in source if key in now and key not in passed]
        return [(key_to_json(key), _columns(source[key], now[key])) for key in both]

    def sum_hashes(self, *_: Any) -> tuple[Sum, ...]:
        """None: no version of a table has ever been written."""
        return ()

    def _source(self, comparison: Comparison, *, of_hashes: bool) -> dict[Key, Any]:
        rows: dict[Key, Any] = {}
        for batch in (batch for spooled in comparison.rows for batch in spooled.read().to_batches()):
            values = batch.column(HASH).to_pylist() if of_hashes else batch.to_pylist()
            rows.update(zip(keys_of(batch, comparison.schema), values, strict=True))
        return rows

    def _replay(self, schema: TableSchema, since: int, upto: int) -> tuple[State, State, dict[Key, list[Row | None]]]:
        """The table at `since` and at `upto`, and the states that the log has led each key through in between."""
        now: State = {}
        then: State = {}
        passed: dict[Key, list[Row | None]] = {}
        before = True
        for event in sorted(self._events(schema), key=lambda e: e.offset):
            if before and event.offset > since:
                then = dict(now)
                before = False
            if event.offset > upto:
                break
            for key in [event.key] if event.key is not None else list(now):
                row = event.row and {**event.row, **{n: now.get(key, {}).get(n) for n in event.unchanged}}
                if event.log and not before:
                    passed.setdefault(key, []).append(row)
                if row is None:
                    now.pop(key, None)
                else:
                    now[key] = row
        return (dict(now) if before else then), now, passed

    def _events(self, schema: TableSchema) -> Iterator[Event]:
        name = str(schema.table)
        yield from self.damage.get(name, ())
        for manifest in self._staging.manifests():
            yield from (Event(m.offset, None, None, log=True) for m in manifest.marks if (m.table, m.op) == (name, "t"))
            for file in (f for f in manifest.files if f.table == name):
                for batch in self._staging.log_batches(file):
                    yield from (_event(row, schema) for row in batch.to_pylist())
            for chunk in (c for c in manifest.chunks if c.table == name):
                rows = self._staging.read_chunk(chunk.path).to_pylist()
                for number, row in enumerate(rows):
                    if number not in chunk.evicted:
                        yield Event(chunk.first_offset + number, _key(row, schema), row, log=False)


def _inside(key: Key, comparison: Comparison, schema: TableSchema) -> bool:
    ends = [[None if end is None else key_from_json(end, schema) for end in pair] for pair in comparison.within]
    return any((after is None or key > after) and (upto is None or key <= upto) for after, upto in ends)


def _event(line: Row, schema: TableSchema) -> Event:
    row = None if line["op"] == "d" else line["after"]
    key = _key(line["before"] if row is None else row, schema)
    return Event(line["offset"], key, row, line["origin"] == "log", frozenset(line["unchanged"] or ()))


def _key(row: Row, schema: TableSchema) -> Key:
    return tuple(row[name] for name in schema.key)


def _kind(
    hashed: int | None, then: Row | None, now: Row | None, passed: list[Row | None] | None, schema: TableSchema
) -> str | None:
    if hashed == _hash(now, schema):
        return None
    if passed is not None:
        return None if hashed in [_hash(row, schema) for row in (then, *passed)] else "undecided"
    return "missing" if now is None else "extra" if hashed is None else "different"


def _hash(row: Row | None, schema: TableSchema) -> int | None:
    return None if row is None else row_hash(schema, row)


def _columns(source: Row, lake: Row) -> tuple[str, ...]:
    return tuple(name for name, value in source.items() if value != lake[name])
