"""Dump workers in one thread: whenever one waits, the drawn clock goes on and the capture places what is in the log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core import wiring
from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.healing.confirmed_reads import ConfirmedReads
from dblog_core.capture.sequencer import Sequencer
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, task_store, work_loop
from dblog_core.dumps.dump_records import DumpRecord
from dblog_core.dumps.status import DumpStatus
from dblog_core.interfaces import Chunk, Spawn, Strain
from dblog_core.model import watermark
from dblog_core.model.filters import Filter
from dblog_core.model.schema import TableName, TableSchema
from dblog_core.model.values import Key
from dblog_core.model.watermark import High, Low
from dblog_core.rows.acceptance import Acceptance, digest_columns
from dblog_core.rows.column_rules import Rules
from dblog_core.rows.table_guard import TableGuard
from dblog_core.staging import Staging
from dblog_core.staging.table_records import TableRecords
from dblog_core.state import accepted_shapes
from dblog_core.state.memory import MemoryState
from tests.fake_source import ORDERS, FakeDatabase, FakeReader, FakeSource
from tests.unit.staged import manifest

DUMP = "d1"
LINES = TableSchema(TableName("shop", "lines"), ORDERS.columns, ("id",))
OPTIONS = {
    "chunk_size": 10, "workers": 2, "delay": 0, "rate": 0, "in_flight": 4, "adaptive": False, "max_retained": 0,
}  # fmt: skip


class DrawnClock:
    """Goes on by waits alone; `hooks` run at each wait, before it ends."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.hooks: list[Callable[[], None]] = []

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.now += seconds
        for hook in self.hooks:
            hook()
        assert self.now < 1e6, "a worker waits for ever"
        return event.is_set()


class AtOnce:
    """What goes on beside a worker is over before the worker goes on: one thread, one order."""

    def __init__(self, name: str, function: Callable[[], None]) -> None:
        function()

    def join(self, timeout: float | None = None) -> None:
        return None


class Reader(FakeReader):
    """Notes what it reads; `on_read` may do anything right before a SELECT."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.database)
        self._source = source

    def read(
        self,
        schema: TableSchema,
        *,
        after: Key | None,
        upto: Key | None,
        limit: int,
        filters: Sequence[Filter] = (),
        most: int | None = None,
    ) -> Chunk:
        self._source.reads.append((after, upto, limit))
        self._source.before_read()
        return super().read(schema, after=after, upto=upto, limit=limit, filters=filters, most=most)

    def read_keys(
        self, schema: TableSchema, keys: Sequence[Key], *, filters: Sequence[Filter] = (), most: int | None = None
    ) -> Chunk:
        self._source.reads.append(tuple(keys))
        self._source.before_read()
        return super().read_keys(schema, keys, filters=filters, most=most)


class Source(FakeSource):
    """Counts its connections, and suffers what a test says; `database.rows` may be changed without the log."""

    def __init__(self, database: FakeDatabase, clock: DrawnClock) -> None:
        super().__init__(database)
        self._clock = clock
        self.reads: list[Any] = []
        self.begun: list[float] = []
        self.looks: list[float] = []
        self.on_read: Callable[[], None] | None = None
        self.suffers: Callable[[], Strain] = lambda: Strain(None, None, None)

    def before_read(self) -> None:
        self.begun.append(self._clock.now)
        if self.on_read is not None:
            self.on_read()

    def open_reader(self, *, lock_seconds: float | None = None) -> Reader:
        return Reader(self)

    def strain(self) -> Strain:
        self.looks.append(self._clock.now)
        return self.suffers()


class World:
    """A source, a state store, staging, and a capture that `place` lets work."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.stop = DrawnClock(), threading.Event()
        self.database = FakeDatabase(schemas={ORDERS.table: ORDERS, LINES.table: LINES})
        self.source, self.state = Source(self.database, self.clock), MemoryState()
        self.config = Config.model_validate(
            {
                "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
                "staging": {"path": str(path / "staging")},
                "state": {"url": "sqlite:///unused"},
                "lake": {"path": str(path / "lake")},
            }
        )
        self.staging: Staging = wiring.open_staging(self.config)
        self.staging.publish(first := manifest(1, 1, 0))
        self.records = TableRecords()
        self.sequencer = Sequencer(
            self.staging, source="shop", epoch=1, head=first, visibility=LogOrder(), rules=Rules({})
        )
        self.stream = self.source.open_log("0")
        self.confirmed_reads: ConfirmedReads | None = None
        self.capturing = True
        self.spawn: Spawn = AtOnce
        self.clock.hooks.append(self.place)
        self._ids = 0
        monkeypatch.setattr(wiring, "open_source", lambda config: self.source)
        monkeypatch.setattr(wiring, "open_state", lambda config: MemoryState(shared=self.state))

    # The source and the request ---------------------------------------------------------------------------------------

    def fill(self, *keys: int, table: TableSchema = ORDERS, name: str = "n") -> None:
        """Rows that the log never showed."""
        rows = self.database.rows.setdefault(table.table, {})
        rows.update({(k,): {"id": k, "name": name, "big": "b"} for k in keys})

    def request(self, *tasks: dict[str, Any], dump_id: str = DUMP, **options: Any) -> None:
        """Files a dump as `requests.submit` does."""
        usual = {
            "table": "shop.orders", "keys": None, "key_from": None, "after": None, "key_to": None, "filters": [],
            "parts": len(tasks), "heals": None, "estimated": None, "attempt": 0,
        }  # fmt: skip
        for number, task in enumerate(tasks):
            self.state.create(f"dumps/{dump_id}/tasks/{number}/task", orjson.dumps({**usual, **task}))
        record = {
            "tables": ["shop.orders"], "options": {**OPTIONS, **options}, "state": "requested", "error": None,
            "requested_at": "2026-11-21T09:00:00+00:00", "requested_by": "user", "refused": [],
        }  # fmt: skip
        dump_store.file_dump(self.state, dump_id, DumpRecord.from_json(record))

    # The capture ------------------------------------------------------------------------------------------------------

    def place(self) -> None:
        """Stages all that is in the log, as a leader does."""
        if not self.capturing:
            return
        while (batch := self.stream.read(0)) is not None:
            self.sequencer.process(batch)
        if self.confirmed_reads is not None:
            self.confirmed_reads.look(self.sequencer.position, is_inside=False)
        if self.sequencer.dirty or self.records.has_news:
            sealed = self.sequencer.seal(0)
            accepted_shapes.save(self.records, self.sequencer._guard.acceptances)
            records = self.records.write(self.staging.storage, segment=sealed.segment, epoch=1)
            self.staging.publish(replace(sealed, records=records))
            self.sequencer.begin_next_segment()
            for task, progress in self.sequencer.take_progress().items():
                task_store.put_progress(self.state, task, progress)

    def take_rules(self, config: Config) -> None:
        """The capture goes by the rules of this configuration, and has accepted its tables as they are."""
        rules = Rules.of(config.source)
        acceptances = {
            str(table): Acceptance(rules.digest(table), digest_columns(shape))
            for table, shape in self.database.schemas.items()
        }
        guard = TableGuard(config.source.columns, rules.entry_digests())
        for table, acceptance in acceptances.items():
            guard.accept(table, acceptance)
        self.sequencer._rules = rules
        self.sequencer._guard = guard
        self.confirmed_reads = ConfirmedReads(self.state, self.source, self.clock, guard)

    # The workers ------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """One worker until no task is free."""
        work_loop.work_here(self.config, stop=self.stop, clock=self.clock, new_id=self.new_id, spawn=self.spawn)

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    # What came of it --------------------------------------------------------------------------------------------------

    def status(self, dump_id: str = DUMP) -> DumpStatus:
        return dump_store.read_dump(self.state, dump_id)

    def watermarks(self) -> list[Low | High]:
        payloads = [c.after["payload"] for tx in self.database.log for c in tx if c.op == "w" and c.after]
        return [watermark.parse(payload) for payload in payloads]

    def highs(self) -> list[High]:
        return [w for w in self.watermarks() if isinstance(w, High)]

    def placed_keys(self) -> list[int]:
        """Keys of all placed chunks, in their order."""
        keys: list[int] = []
        for published in self.staging.manifests():
            for ref in published.chunks:
                keys += self.staging.read_chunk(ref.path).column("id").to_pylist()
        return keys

    def held_leases(self) -> list[str]:
        """Leases that are held now."""
        return sorted(self.state._nodes.leases)

    def expire(self, *names: str) -> None:
        """Leases end by themselves, as those of a dead process do."""
        for name in names or self.held_leases():
            self.state._nodes.leases[name].expire()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)
