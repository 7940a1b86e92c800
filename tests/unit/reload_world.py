"""A capture of a fake source whose configuration file can be changed while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dblog_core import wiring
from dblog_core.capture.config_reload import ConfigFile
from dblog_core.capture.run_capture import run_capture
from dblog_core.clock import SystemClock
from dblog_core.config import loader
from dblog_core.config.settings import Config
from dblog_core.config.source import SourceConfig
from dblog_core.dumps import dump_store
from dblog_core.interfaces import KeyOf
from dblog_core.model import table_patterns
from dblog_core.model.events import LogBatch
from dblog_core.model.schema import Column, TableName, TableSchema
from dblog_core.staging.reader import lines
from dblog_core.staging.table_records import TableRecords
from dblog_core.state.memory import MemoryState
from tests.fake_source import FakeDatabase, FakeSource, FakeStream
from tests.records import read_records
from tests.waiting import PATIENCE_SECONDS


def table(name: str) -> TableSchema:
    return TableSchema(
        TableName("shop", name), (Column("id", "bigint", pa.int64()), Column("v", "text", pa.string())), ("id",)
    )


A, B = table("a"), table("b")


class Crash(BaseException):
    """The process died here."""


class World:
    """A database with two tables, and the file of a configuration that captures some of them."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.database, self.state = path, FakeDatabase({t.table: t for t in (A, B)}), MemoryState()
        self.batch = 1000
        self.on_read: Callable[[], None] = lambda: None
        self.file = path / "shop.toml"
        self.write("shop.a")
        monkeypatch.setattr(wiring, "open_source", self.source)
        monkeypatch.setattr(wiring, "open_state", lambda config: MemoryState(shared=self.state))

    def write(self, *tables: str, more: str = "", staging: str = "") -> None:
        names = ", ".join(f'"{name}"' for name in tables)
        text = f"""
            [source]
            name = "shop"
            kind = "mysql"
            database = "shop"
            tables = [{names}]
            {more}
            [staging]
            path = "staging"
            max_age = 0.05
            max_bytes = 65536
            {staging}
            [state]
            url = "sqlite:////unused"
            [lake]
            path = "lake"
        """
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.rename(self.file)  # as editors do

    def source(self, config: SourceConfig) -> FakeSource:
        world = self

        class Stream(FakeStream):
            def read(self, timeout: float, *, linger: float = 0.0) -> LogBatch | None:
                world.on_read()
                return super().read(timeout, linger=linger)

        class Source(FakeSource):
            def open_log(self, position: str, *, skip: int = 0, keys: KeyOf | None = None) -> FakeStream:
                return Stream(self, int(position), skip, world.batch)

        return Source(self.database, wants=lambda t: table_patterns.matches(t, config.tables))

    @property
    def config(self) -> Config:
        return loader.load(self.file)

    @property
    def records(self) -> TableRecords:
        """What the newest manifest says of tables."""
        return read_records(self.config)

    @property
    def config_file(self) -> ConfigFile:
        return ConfigFile(self.file, loader.load)

    def put(self, schema: TableSchema, *keys: int, v: str = "v") -> None:
        self.database.commit(*(self.database.put({"id": k, "v": v}, schema.table) for k in keys))

    def remove(self, schema: TableSchema, key: int) -> None:
        self.database.commit(self.database.remove((key,), schema.table))

    def capture(self) -> None:
        """Stages all that is committed now, by a term of its own: there is always something new."""
        self.database.commit()
        run_capture(self.config, stop=threading.Event(), until_current=True)

    @contextmanager
    def capturing(self, **options: Any) -> Iterator[threading.Thread]:
        stop = threading.Event()
        settings = {"stop": stop, "file": self.config_file, **options}
        thread = threading.Thread(target=run_capture, args=(self.config,), kwargs=settings)
        thread.start()
        try:
            yield thread
        finally:  # a thread that goes on would keep the whole run from ending
            stop.set()
            thread.join(timeout=PATIENCE_SECONDS)
        assert not thread.is_alive()

    def lines(self, schema: TableSchema) -> list[dict[str, Any]]:
        return [line for line in lines(wiring.open_staging(self.config)) if line["table"] == str(schema.table)]

    def replay(self, schema: TableSchema) -> dict[Any, Any]:
        """What a keyed consumer ends with."""
        rows: dict[int, Any] = {}
        seen: dict[int, int] = {}
        for line in self.lines(schema):
            if line["op"] in "cudr":
                key = line["key"]["id"]
                seen[key] = line["offset"]
                rows.pop(key, None)
                if line["op"] != "d":
                    rows[key] = line["after"]
            if line["op"] == "f":
                rows = {k: v for k, v in rows.items() if seen[k] > line["since"]}
        return {(k,): v for k, v in rows.items()}

    def source_rows(self, schema: TableSchema) -> dict[Any, Any]:
        return dict(self.database.rows.get(schema.table, {}))

    def dumps(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(d.state, d.tables) for d in dump_store.list_dumps(self.state)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


class Clock(SystemClock):
    now = 0.0

    def monotonic(self) -> float:
        return self.now
