"""What the suites share: of sources a prepared one without tables and a chunk reader of it, of outputs a target."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from dblog_core.config.settings import Config
from dblog_core.interfaces import ChunkReader, Source, StateStore
from dblog_core.state.memory import MemoryState
from dblog_core.wiring import open_source
from tests.contract.keyed import TYPES
from tests.contract.lease_holder import store
from tests.contract.relayed import World
from tests.contract.stores import Open
from tests.contract.targets import ExampleOne, FilesOne, HttpOne, KafkaOne, MemoryOne, TableOne, Target
from tests.fix_servers import Database
from tests.waiting import wait_until


@pytest.fixture
def preparation() -> dict[str, list[str]]:
    """Statements by kind of database, for the types and collations that tests use."""
    return {"postgres": list(TYPES)}


@pytest.fixture
def source(database: Database, source_config: Config, preparation: dict[str, list[str]]) -> Source:
    """Prepared, over a database that has no tables yet but the watermark table."""
    database.execute(*preparation.get(database.kind, []))
    source = open_source(source_config.source)
    source.prepare()
    return source


@pytest.fixture
def reader(source: Source) -> Iterator[ChunkReader]:
    reader = source.open_reader()
    yield reader
    reader.close()


@pytest.fixture
def target(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Target]:
    if kind == "memory":
        yield MemoryOne()
    elif kind in ("jsonl", "parquet"):
        yield FilesOne(tmp_path / "files", kind)
    elif kind == "example":
        monkeypatch.syspath_prepend(str(tmp_path))
        yield ExampleOne(tmp_path)
    elif kind == "http":
        receiver = HttpOne()
        yield receiver
        receiver.stop()
    elif kind == "kafka":
        yield KafkaOne(request.getfixturevalue("kafka"))
    else:
        server = request.getfixturevalue(kind)
        yield TableOne(request.getfixturevalue("new_database")(server))


@pytest.fixture
def world(tmp_path: Path, target: Target) -> World:
    return World(tmp_path, target)


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    wait_until(lambda: threading.active_count() <= before, what="threads to end")


@pytest.fixture
def state_url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    if kind == "zookeeper":
        return str(request.getfixturevalue("zookeeper_url"))
    return f"sqlite://{tmp_path / 'state' / 'state.db'}"


@pytest.fixture
def open_store(kind: str, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens clients of one store."""
    opened: list[StateStore] = []
    memory = MemoryState()

    def open_one(prefix: str = "shop") -> StateStore:
        if kind == "memory":
            client: StateStore = MemoryState(shared=memory)
        else:
            client = store(request.getfixturevalue("state_url"), prefix)
        opened.append(client)
        return client

    yield open_one
    for client in opened:
        client.close()
