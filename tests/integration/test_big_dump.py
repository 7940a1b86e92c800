"""A table of a million rows is dumped under a live workload; every process is killed in the middle, and it goes on."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.staging import Staging
from tests.fix_servers import Database
from tests.nemesis.processes import Dblog, kill
from tests.waiting import wait_until

pytestmark = pytest.mark.one_of(6)

ROWS = 1_000_000
CHUNK = 5_000
RANGES = 6
IN_FLIGHT = 4
BUCKET = 1_000
WEIGHTS = 1_009
_FILE = re.compile(r"^(\d{8})-[0-9a-f]+")


def fill(database: Database) -> None:
    """Rows with op = -id, made by the server itself."""
    database.execute("CREATE TABLE big (id bigint PRIMARY KEY, op bigint NOT NULL, note varchar(60))")
    if database.kind == "postgres":
        rows = f"SELECT i, -i, 'a note of row ' || i FROM generate_series(1, {ROWS}) i"
        database.execute(f"INSERT INTO big {rows}", "ANALYZE big")
        return
    digit = "(" + " UNION ".join(f"SELECT {d} d" for d in range(10)) + ")"
    number = "a.d + 10 * b.d + 100 * c.d + 1000 * e.d + 10000 * f.d + 100000 * g.d + 1"
    numbers = f"SELECT {number} n FROM {', '.join(f'{digit} {name}' for name in 'abcefg')}"
    database.execute(
        f"INSERT INTO big SELECT n, -n, CONCAT('a note of row ', n) FROM ({numbers}) s ORDER BY n", "ANALYZE TABLE big"
    )


class Workload:
    """Updates, deletes and inserts at random keys; every operation has its number."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stop = threading.Event()
        self.operations = 0
        self._faults = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Workload:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._faults, self._faults

    def _run(self) -> None:
        draw = random.Random(7)
        connection = self._database.connect()
        try:
            with connection.cursor() as cursor:
                while not self._stop.wait(0.002):
                    self.operations += 1
                    self._operation(cursor, draw.randint(1, ROWS), draw.randrange(6))
        except Exception as error:  # noqa: BLE001 - shown by the test's own thread
            self._faults.append(error)
        finally:
            connection.close()

    def _operation(self, cursor: Any, key: int, kind: int) -> None:
        if kind == 0:
            cursor.execute("DELETE FROM big WHERE id = %s", (key,))
        elif kind == 1:
            key += ROWS  # above the largest key that the dump has fixed: the log's alone
            cursor.execute("DELETE FROM big WHERE id = %s", (key,))
            cursor.execute("INSERT INTO big VALUES (%s, %s, 'new')", (key, self.operations))
        else:
            cursor.execute("UPDATE big SET op = %s WHERE id = %s", (self.operations, key))


def count_selects(config: Config) -> dict[str, Counter[int]]:
    """Every chunk that was read, by task and ordinal: each SELECT makes a file in staging."""
    counters_by_op: dict[str, Counter[int]] = {}
    for file in Path(config.staging.path).rglob("chunks/*/*/*"):
        if match := _FILE.match(file.name):
            counters_by_op.setdefault("/".join(file.parts[-3:-1]), Counter())[int(match[1])] += 1
    return counters_by_op


def count_placed_chunks(staging: Staging) -> dict[str, int]:
    """Chunks in the super-changelog, by task."""
    return Counter(chunk.task for manifest in staging.manifests() for chunk in manifest.chunks)


def count_told_chunks(config: Config) -> int:
    """Chunks that the state store has as placed."""
    with closing(wiring.open_state(config)) as state:
        return sum(dump.chunks for dump in dump_store.list_dumps(state))


def replay_rows(staging: Staging, table: str) -> dict[str, np.ndarray[Any, Any]]:
    """The table's rows as the super-changelog has them: the last line of each key, but deletes."""
    parts: dict[str, list[Any]] = {"id": [], "offset": [], "op": [], "alive": []}

    def add(offsets: Any, image: Any, alive: bool) -> None:
        parts["offset"].append(np.asarray(offsets))
        for name in ("id", "op"):
            parts[name].append(np.asarray(image.column(name).fill_null(0)))
        parts["alive"].append(np.full(len(offsets), alive))

    for manifest in staging.manifests():
        for file in (f for f in manifest.files if f.table == table):
            rows = staging.rows(file).combine_chunks()
            is_delete = pa.compute.equal(rows["op"], "d")
            for alive, image in ((True, "after"), (False, "before")):
                some = rows.filter(pa.compute.invert(is_delete) if alive else is_delete).combine_chunks().to_batches()
                for batch in some:
                    add(batch.column("offset"), pa.RecordBatch.from_struct_array(batch.column(image)), alive)
        for chunk in (c for c in manifest.chunks if c.table == table):
            rows = staging.read_chunk(chunk.path, checksum=chunk.checksum).combine_chunks()
            stays = np.ones(rows.num_rows, bool)
            stays[list(chunk.evicted)] = False
            add((chunk.first_offset + np.arange(rows.num_rows))[stays], rows.filter(pa.array(stays)), True)
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    order = np.lexsort((columns["offset"], columns["id"]))
    keys = columns["id"][order]
    last = order[np.append(keys[1:] != keys[:-1], True)]
    last = last[columns["alive"][last]]
    return {name: columns[name][last] for name in ("id", "op")}


def check_equal(database: Database, rows: dict[str, np.ndarray[Any, Any]]) -> None:
    """The same rows, by counts and weighted sums over a thousand keys each; the server adds up its own."""
    bucket = f"id {'/' if database.kind == 'postgres' else 'DIV'} {BUCKET}"
    sums = f"COUNT(*), SUM(op), SUM(op * (id % {WEIGHTS})), SUM(id * (id % {WEIGHTS}))"
    query = f"SELECT {bucket} AS b, {sums} FROM big GROUP BY {bucket} ORDER BY b"
    totals_of_source = [tuple(map(int, row)) for row in database.query(query)]
    ids = rows["id"]
    ops = rows["op"]
    number = ids // BUCKET
    weights = ids % WEIGHTS
    names, starts = np.unique(number, return_index=True)
    totals = [np.add.reduceat(v, starts) for v in (np.ones_like(ids), ops, ops * weights, ids * weights)]
    totals_of_log = [tuple(map(int, row)) for row in zip(names, *totals, strict=True)]
    assert len(totals_of_log) == len(totals_of_source)
    assert [(a, b) for a, b in zip(totals_of_log, totals_of_source, strict=True) if a != b] == []


@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "postgres"], indirect=True)
def test_a_dump_of_a_million_rows_goes_on_after_every_process_was_killed(database: Database, tmp_path: Path) -> None:
    fill(database)
    table = f"{database.schema}.big"
    config = database.config(tmp_path, dump={"chunk_size": CHUNK, "in_flight": IN_FLIGHT}, state={"ttl": 4.0})
    dblog = Dblog(config, tmp_path)
    staging = wiring.open_staging(config)
    try:
        dblog.run("capture", "--until-current")
        with Workload(database) as workload:
            capture = dblog.start("capture")
            work = [dblog.start("work"), dblog.start("work")]
            options = ["--table", table, "--ranges", str(RANGES), "--workers", "3", "--rate", "25000"]
            work.append(dblog.start("dump", *options))
            wait_until(
                lambda: sum(count_placed_chunks(staging).values()) >= ROWS / CHUNK / 4,
                "a quarter of the chunks",
                describe=dblog.output,
            )
            for process in [*work, capture]:
                kill(process)
            killed = count_placed_chunks(staging)
            before = count_selects(config)
            assert sum(killed.values()) < ROWS / CHUNK * 3 / 4, "it was to be killed in the middle"
            began = time.monotonic()
            capture = dblog.start("capture")
            # A worker that looks before reads a chunk again of whose placing the state store has not heard.
            wait_until(
                lambda: count_told_chunks(config) >= sum(killed.values()),
                "what was placed is told",
                describe=dblog.output,
            )
            dblog.run("work", "--once")
            wait_until(
                lambda: sum(count_placed_chunks(staging).values()) >= ROWS / CHUNK, "all chunks", describe=dblog.output
            )
            print(f"{database.kind}: {time.monotonic() - began:.0f} s for the rest, {workload.operations} operations")
        dblog.run("capture", "--until-current")
        kill(capture)
    finally:
        dblog.close()
    with closing(wiring.open_state(config)) as state:
        assert [dump.state for dump in dump_store.list_dumps(state)] == ["done"]
    judge(killed, before, count_selects(config), count_placed_chunks(staging))
    check_equal(database, replay_rows(staging, table))


def judge(
    killed: dict[str, int], before: dict[str, Counter[int]], after: dict[str, Counter[int]], placed: dict[str, int]
) -> None:
    """Each task went on behind its last placed chunk, and read no more again than the windows that were open."""
    repeated_rows = 0
    assert len(after) == len(placed) == RANGES
    for task, chunks in after.items():
        fresh = chunks - before.get(task, Counter())
        assert min(fresh, default=placed[task]) >= killed.get(task, 0), f"{task}: placed chunks were read again"
        assert set(chunks) == set(range(placed[task])), f"{task}: {sorted(chunks)}, {placed[task]} placed"
        repeats = chunks.total() - placed[task]
        assert repeats <= IN_FLIGHT, f"{task}: {repeats} chunks were read again, {IN_FLIGHT} windows may be open"
        repeated_rows += repeats
    print(
        f"{sum(killed.values())} chunks were placed at the kill, "
        f"{repeated_rows} of {sum(placed.values())} were read again"
    )
