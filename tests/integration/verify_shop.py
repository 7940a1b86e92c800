"""A shop that tests of verification write to, merge and damage."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.verify import source_reader
from dblog_core.wiring import open_staging, open_state
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.plain_judge import PlainLake
from tests.waiting import PATIENCE_SECONDS, wait_until

ROWS = 600  # those that nobody writes; the workload has keys of its own


HOT = 100_000


Merge = Callable[[Config], None]


Plainly = Callable[[Config], tuple[Verify, PlainLake]]


class Shop:
    """A source with a capture that runs, a lake that holds it, and a workload to switch on."""

    def __init__(self, database: Database, config: Config) -> None:
        self.database, self.config = database, config
        self.a, self.b = (f"{database.schema}.{name}" for name in ("a", "b"))

    def fill(self) -> None:
        """An integer key and a wide row; a text key, in whose order Spark has no part."""
        text = "varchar(40)" if self.database.kind == "postgres" else "varchar(40) COLLATE utf8mb4_general_ci"
        self.database.execute(
            f"CREATE TABLE a (id bigint PRIMARY KEY, v {text}, n decimal(12,2), d double precision, t timestamp NULL)",
            f"CREATE TABLE b (code {text} PRIMARY KEY, n int)",
            "INSERT INTO a VALUES " + ", ".join(f"({i}, 'v{i}', {i}.25, {i}.125, NULL)" for i in range(1, ROWS + 1)),
            "INSERT INTO b VALUES " + ", ".join(f"('Code {i}', {i})" for i in range(1, 101)),
        )

    def dump(self) -> None:
        dump_id = filing.submit(self.config, DumpRequest(tables=None))
        work_loop.work(self.config, stop=threading.Event(), dump_id=dump_id)
        assert work_loop.wait(self.config, dump_id, stop=threading.Event()).state == "done"

    @contextmanager
    def capturing(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=run_capture, args=(self.config,), kwargs={"stop": stop})
        thread.start()
        try:
            wait_until(self._is_led, "a capture that leads")
            yield
        finally:
            stop.set()
            thread.join(PATIENCE_SECONDS)

    def _is_led(self) -> bool:
        state = open_state(self.config)
        try:
            return state.leader("capture") is not None and open_staging(self.config).head_number() > 0
        finally:
            state.close()

    @contextmanager
    def workload(self, seed: int = 1, *, pause_seconds: float = 0.002) -> Iterator[None]:
        """Hot keys, new and deleted rows, changed keys, rollbacks, and a TRUNCATE of b every few seconds."""
        stop, faults = threading.Event(), list[BaseException]()

        def write() -> None:
            chance, connection = random.Random(seed), self.database.connect()
            try:
                with connection.cursor() as cursor:
                    for number in range(1 << 40):
                        if stop.wait(pause_seconds):  # the machine has more to do
                            return
                        for statement in self._step(chance, number):
                            cursor.execute(statement)
            except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
                faults.append(error)
            finally:
                connection.close()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(PATIENCE_SECONDS)
        assert not faults, faults

    def _step(self, chance: random.Random, number: int) -> list[str]:
        key, new, far = HOT + chance.randrange(3), HOT + 1000 + number, HOT + 5_001_000
        upsert_clause = (
            "ON CONFLICT (id) DO UPDATE SET" if self.database.kind == "postgres" else "ON DUPLICATE KEY UPDATE"
        )
        upsert = f"INSERT INTO a VALUES ({key}, 'n{number}', {number}, 0.5, NULL) {upsert_clause} v = 'x{number}'"
        if number % 2000 == 1999:
            return ["TRUNCATE TABLE b", "INSERT INTO b VALUES ('Code 1', 1)"]
        return chance.choice(
            [
                [upsert],
                [upsert, f"UPDATE a SET d = {chance.random()} WHERE id = {key}"],
                [f"INSERT INTO a (id, v) VALUES ({new}, 'new')", f"UPDATE a SET id = {far + number} WHERE id = {new}"],
                [f"DELETE FROM a WHERE id = {far + chance.randrange(number + 1)}", f"DELETE FROM a WHERE id = {key}"],
                ["BEGIN", upsert, "ROLLBACK"],
                [f"INSERT INTO b VALUES ('hot {number}', 1)", f"DELETE FROM b WHERE code = 'hot {number - 20}'"],
            ]
        )  # fmt: skip


@contextmanager
def open_shop(shop: Shop, monkeypatch: pytest.MonkeyPatch, *, window_rows: int = 100) -> Iterator[Shop]:
    monkeypatch.setattr(source_reader, "WINDOW_ROWS", window_rows)
    monkeypatch.setattr(source_reader, "WINDOW_KEYS", 20)
    shop.fill()
    with shop.capturing():
        shop.dump()
        yield shop


def count_dumped_rows(shop: Shop, dump_id: str) -> int:
    """Rows of a dump, those that it found to be gone included."""
    state = open_state(shop.config)
    try:
        return dump_store.read_dump(state, dump_id).rows
    finally:
        state.close()
