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
from dblog_core.verify.exchange import Answer, Ask, Desk, Pin, Task
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
    """Stands where `LakeSide` does. `damage`: events that nobody staged: what somebody did to the lake."""

    config: Config
    damage: dict[str, list[Event]] = field(default_factory=dict)
    tasks_asked: list[Task] = field(default_factory=list)
    blind: bool = False
    """A mistake: it takes every event up to the high watermark for seen."""

    def open(self, config: Config, desk: Desk, *_: Any) -> PlainLake:
        self._staging = open_staging(config)
        self._desk = desk
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

    def prepare(self, task: Task) -> None:
        """Nothing: the log is replayed for each task."""

    def ask(self, task: Task) -> Answer:
        self.tasks_asked.append(task)
        schema = task.shape
        source = self._source(task, schema)
        since = task.upto if self.blind else task.since
        then, now, passed = self._replay(schema, since, task.upto)
        if task.within:
            now = {key: row for key, row in now.items() if _inside(key, task, schema)}
        keys = source.keys() if task.for_chosen_keys else source.keys() | now.keys()
        if task.ask is Ask.COLUMNS:
            both = [key for key in keys if key in now and key not in passed]
            return Answer(different=tuple((key_to_json(k), _columns(source[k], now[k])) for k in both))
        keys_by_kind: dict[str, list[Any]] = {}
        for key in keys:
            kind = _kind(source.get(key), then.get(key), now.get(key), passed.get(key), schema)
            if kind is not None:
                keys_by_kind.setdefault(kind, []).append(key_to_json(key))
        return Answer(
            rows=sum(value is not None for value in source.values()),
            lake_rows=len(now),
            missing=tuple(keys_by_kind.get("missing", ())),
            extra=tuple(keys_by_kind.get("extra", ())),
            different=tuple((key, ()) for key in keys_by_kind.get("different", ())),
            undecided=tuple(keys_by_kind.get("undecided", ())),
        )

    def _source(self, task: Task, schema: TableSchema) -> dict[Key, Any]:
        rows: dict[Key, Any] = {}
        for batch in (batch for table in self._desk.tables(task.files) for batch in table.to_batches()):
            values = batch.column(HASH).to_pylist() if task.ask is Ask.COMPARE else batch.to_pylist()
            rows.update(zip(keys_of(batch, schema), values, strict=True))
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


def _inside(key: Key, task: Task, schema: TableSchema) -> bool:
    ends = [[None if end is None else key_from_json(end, schema) for end in pair] for pair in task.within]
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
