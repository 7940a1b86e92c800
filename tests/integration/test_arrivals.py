"""Rows that change their key between two SELECTs of a dump, from what is still to be read to what has been, while the
log leaves columns out: the dump brings them all the same, whatever its consumers had of them before."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from dblog_core import wiring
from dblog_core.algorithm import arriving_rows
from dblog_core.algorithm.arriving_rows import LOOKS_BY_KEYS
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import control, dump_store, filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.interfaces import Chunk
from dblog_core.model.schema import TableSchema
from dblog_core.sources.postgres.sql.chunks import PostgresChunkReader
from dblog_core.staging.reader import Line, lines
from tests.fix_servers import Database
from tests.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.parametrize("source_kind", ["postgres"], indirect=True)  # others' images are whole

ROWS = 800
BIG = secrets.token_hex(6_000)  # is stored out of line: an update that leaves it alone leaves it out of the log


@contextmanager
def setting(stop: threading.Event) -> Iterator[None]:
    try:
        yield
    finally:
        stop.set()


@contextmanager
def capturing(config: Config, *, fresh_start: bool = False) -> Iterator[None]:
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        capture = pool.submit(run_capture, config, stop=stop, fresh_start=fresh_start)
        with setting(stop):
            yield
        capture.result(timeout=PATIENCE_SECONDS)


@contextmanager
def written_all_along(database: Database, statements: Iterator[str]) -> Iterator[None]:
    """A writer that never rests."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            database.execute(*islice(statements, 20))

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        with setting(stop):
            yield
        writing.result(timeout=PATIENCE_SECONDS)


def moves(rows: int, free: int, *, dice: random.Random) -> Iterator[str]:
    """As `moves_of`, of all rows."""
    return moves_of(list(range(1, rows + 1)), list(range(rows + 1, rows + free + 1)), dice=dice)


def moves_of(keys: list[int], left: list[int], *, dice: random.Random) -> Iterator[str]:
    """Statements that leave the large column alone: each third one gives a row of `keys` one that is `left`."""
    while True:
        at = dice.randrange(len(keys))
        to = dice.randrange(len(left))
        yield f"UPDATE t SET v = v + 1 WHERE id = {dice.choice(keys)}"
        yield f"UPDATE t SET v = v + 1 WHERE id = {dice.choice(keys)}"
        yield f"UPDATE t SET id = {left[to]} WHERE id = {keys[at]}"
        keys[at], left[to] = left[to], keys[at]


def known_since(log_lines: list[Line], since: int) -> dict[int, dict[str, Any]]:
    """What a consumer has that knew nothing before offset `since`."""
    rows: dict[int, dict[str, Any]] = {}
    rows_gone: dict[int, dict[str, Any]] = {}
    for line in (line for line in log_lines if line["offset"] > since):
        if line["op"] == "d":
            rows_gone[line["key"]["id"]] = rows.pop(line["key"]["id"], {})
        elif line["op"] in "cur":
            moved = line.get("moved_from")
            old = rows_gone.get(moved["id"], {}) if moved else rows.get(line["key"]["id"], {})
            left = {name: old[name] for name in line["unchanged"] if name in old}
            rows[line["key"]["id"]] = {**left, **line["after"]}
    return rows


@pytest.mark.in_turn("ranges", "moved")
@pytest.mark.parametrize("moved", [1, 150])
@pytest.mark.parametrize("ranges", [1, 3])
def test_a_dump_brings_rows_that_left_what_it_was_still_to_read(
    database: Database, tmp_path: Path, ranges: int, moved: int
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, big text)")
    values = ", ".join(f"({n}, {n}, '{n:04d}{BIG}')" for n in range(1, ROWS + 1))
    database.execute(f"INSERT INTO t VALUES {values}")
    config = database.config(tmp_path)
    name = f"{database.schema}.t"
    stop = threading.Event()
    with capturing(config), closing(wiring.open_state(config)) as state:
        slow = DumpRequest(tables=(name,), chunk_size=5, ranges=ranges, delay=0.2)  # so that it is paused early
        dump_id = filing.submit(config, slow, state=state)
        with ThreadPoolExecutor(1) as pool, setting(stop):
            working = pool.submit(work_loop.work, config, stop=stop, dump_id=dump_id, workers=1)
            while dump_store.read_dump(state, dump_id).tasks[0].progress.ordinal < 2:
                assert not working.done(), "the dump is over before it could be paused"
            control.pause(state, dump_id)
            pause = threading.Event()
            while (placed := dump_store.read_dump(state, dump_id).rows) < ROWS:
                pause.wait(1.0)
                if dump_store.read_dump(state, dump_id).rows == placed:
                    break
            assert placed < ROWS - moved, "what is to move is read already"
            database.execute(f"UPDATE t SET id = id - {ROWS}, v = -v WHERE id > {ROWS - moved}")
            control.retune(state, dump_id, delay=0)
            control.resume(state, dump_id)
            working.result(timeout=PATIENCE_SECONDS)
        assert dump_store.read_dump(state, dump_id).state == "done"
    staged_lines = list(lines(wiring.open_staging(config)))
    (end,) = (line for line in staged_lines if line["op"] == "f")
    known_rows = known_since([line for line in staged_lines if line["offset"] < end["offset"]], end["since"])
    source = {row[0]: {"id": row[0], "v": row[1], "big": row[2]} for row in database.query("SELECT id, v, big FROM t")}
    assert {key: row.keys() for key, row in known_rows.items()} == {key: row.keys() for key, row in source.items()}
    assert known_rows == source
    arrived = [line for line in staged_lines if line.get("moved_from")]
    assert len(arrived) == moved and all("big" in line["unchanged"] for line in arrived), "nothing was left out"


def test_a_dump_ends_under_a_writer_that_never_rests(database: Database, tmp_path: Path) -> None:
    """Each row is looked for until one look has found it, and a look at the whole table misses none."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, big text)")
    values = ", ".join(f"({n}, {n}, '{n:04d}{BIG}')" for n in range(1, 121))
    database.execute(f"INSERT INTO t VALUES {values}")
    config = database.config(tmp_path)
    name = f"{database.schema}.t"
    with capturing(config), closing(wiring.open_state(config)) as state:
        stop = threading.Event()
        with (
            written_all_along(database, moves(120, 300, dice=random.Random(7))),
            ThreadPoolExecutor(1) as pool,
            setting(stop),
        ):
            dump_id = filing.submit(config, DumpRequest(tables=(name,), chunk_size=10), state=state)
            working = pool.submit(work_loop.work, config, stop=stop, dump_id=dump_id, workers=1)
            working.result(timeout=PATIENCE_SECONDS)
        status = dump_store.read_dump(state, dump_id)
    assert status.state == "done"
    (task,) = status.tasks
    assert 0 < task.progress.looks <= LOOKS_BY_KEYS + 1
    run_capture(config, stop=threading.Event(), until_current=True)
    staged_lines = list(lines(wiring.open_staging(config)))
    (end,) = (line for line in staged_lines if line["op"] == "f")
    source = {row[0]: {"id": row[0], "v": row[1], "big": row[2]} for row in database.query("SELECT id, v, big FROM t")}
    assert known_since(staged_lines, end["since"]) == source


def test_a_dump_of_more_rows_than_a_chunk_has_ends_under_such_a_writer(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows together have fewer bytes than a chunk may: it is read whole, here with the first look."""
    monkeypatch.setattr(arriving_rows, "LOOKS_BY_KEYS", 0)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, big text)")
    database.execute("INSERT INTO t SELECT n, n, 'small ' || n FROM generate_series(1, 3000) n")
    restless = list(range(100, 3001, 150))  # among all others, and the only ones whose large column the log leaves out
    larger = secrets.token_hex(10_000)
    database.execute(f"UPDATE t SET big = id || '{larger}' WHERE id IN ({', '.join(map(str, restless))})")
    config = database.config(tmp_path)
    name = f"{database.schema}.t"
    with capturing(config), closing(wiring.open_state(config)) as state:
        stop = threading.Event()
        free = [-n for n in range(1, 1_000)]
        with (
            written_all_along(database, moves_of(restless, free, dice=random.Random(8))),
            ThreadPoolExecutor(1) as pool,
            setting(stop),
        ):
            dump_id = filing.submit(config, DumpRequest(tables=(name,), chunk_size=100, ranges=1), state=state)
            working = pool.submit(work_loop.work, config, stop=stop, dump_id=dump_id, workers=1)
            working.result(timeout=PATIENCE_SECONDS)
        status = dump_store.read_dump(state, dump_id)
    assert status.state == "done"
    (task,) = status.tasks
    assert task.progress.looks <= 2
    assert task.progress.rows > 2 * 3_000 - 500, "the table was not read whole"
    run_capture(config, stop=threading.Event(), until_current=True)
    staged_lines = list(lines(wiring.open_staging(config)))
    (end,) = (line for line in staged_lines if line["op"] == "f")
    source = {row[0]: {"id": row[0], "v": row[1], "big": row[2]} for row in database.query("SELECT id, v, big FROM t")}
    assert known_since(staged_lines, end["since"]) == source and len(source) == 3_000


@pytest.mark.usefixtures("system_dumps_in_this_process")
def test_a_row_that_moves_between_two_selects_after_a_lost_log_is_whole(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its large column was written in the log that is lost, and the log of its move leaves that column out: only a look
    at the key that it has moved to brings it (the simulation's seed 217616755 of an earlier day)."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int, big text)")
    config = database.config(tmp_path, dump={"chunk_size": 2})
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(f"INSERT INTO t SELECT n, n, '20{BIG}' FROM generate_series(11, 15) n")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(f"UPDATE t SET big = '62{BIG}' WHERE id = 15")
    database.execute(f"SELECT pg_drop_replication_slot('dblog_{database.name}')")
    real = PostgresChunkReader.read
    moved = threading.Event()

    def read(self: PostgresChunkReader, schema: TableSchema, **bounds: Any) -> Chunk:
        chunk = real(self, schema, **bounds)
        if not moved.is_set():  # between the SELECT of the first keys and that of the others
            moved.set()
            database.execute("UPDATE t SET id = 10 WHERE id = 15")
        return chunk

    monkeypatch.setattr(PostgresChunkReader, "read", read)
    with capturing(config, fresh_start=True), closing(wiring.open_state(config)) as state:
        wait_until(lambda: [d.state for d in dump_store.list_dumps(state)] == ["done"], "the fresh start's dump")
    staged_lines = list(lines(wiring.open_staging(config)))
    (move,) = (line for line in staged_lines if line.get("moved_from"))
    assert move["unchanged"] == ["big"], "nothing was left out"
    known_rows = known_since(staged_lines, 0)
    assert known_rows[10] == {"id": 10, "v": 15, "big": f"62{BIG}"}
    assert known_rows.keys() == {10, 11, 12, 13, 14}


def test_a_row_whose_key_is_nan_is_evicted_by_what_the_log_has_of_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL takes NaN for equal to itself, and Python does not. Each row is changed behind its SELECT, within the
    window; the log has its old row too, or its new one alone."""
    names = ("single", "whole")
    for name, kind in zip(names, ("real", "double precision"), strict=True):
        database.execute(
            f"CREATE TABLE {name} (id {kind} PRIMARY KEY, v int)", f"INSERT INTO {name} VALUES (1, 1), ('NaN', 1)"
        )
    database.execute("ALTER TABLE whole REPLICA IDENTITY FULL")
    config = database.config(tmp_path)
    run_capture(config, stop=threading.Event(), until_current=True)
    real = PostgresChunkReader.read
    changed: set[str] = set()

    def read(self: PostgresChunkReader, schema: TableSchema, **bounds: Any) -> Chunk:
        chunk = real(self, schema, **bounds)
        if schema.table.name not in changed:
            changed.add(schema.table.name)
            database.execute(f"UPDATE {schema.table.name} SET v = 2 WHERE id = 'NaN'")
        return chunk

    monkeypatch.setattr(PostgresChunkReader, "read", read)
    with capturing(config), closing(wiring.open_state(config)) as state:
        dump_id = filing.submit(config, DumpRequest(tables=None), state=state)
        work_loop.work(config, stop=threading.Event(), dump_id=dump_id, workers=1)
        tasks = dump_store.read_dump(state, dump_id).tasks
    assert [(task.error, task.progress.evicted) for task in tasks] == [(None, 1)] * 2
    for name in names:
        values = [
            (line["op"], str(line["after"]["id"]), line["after"]["v"])
            for line in lines(wiring.open_staging(config))
            if line["table"] == f"public.{name}" and line["op"] in "cur"
        ]
        assert values == [("u", "NaN", 2), ("r", "1.0", 1)]
