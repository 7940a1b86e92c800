"""A dump's chunk is bounded in bytes, and its worker in memory, whatever the rows are: narrow, then wide, and back."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store, filing
from dblog_core.dumps.requests import DumpRequest
from dblog_core.staging import Staging
from tests.fix_servers import Database
from tests.nemesis.processes import Dblog
from tests.waiting import wait_until

CHUNK_ROWS = 1_000
CHUNK_BYTES = 4 << 20
BYTES_MORE = 128 << 10
"""A chunk may have more than it should, since the last bytes are seen when they have arrived."""
BYTES_OF_MEMORY = 10
"""For each byte of a chunk, as docs/scaling.md says."""
BYTES_OF_MEMORY_ALONE = 15
"""For each byte of a row that is a chunk of its own: drivers receive it whole, in buffers that double."""

NARROW = 20
WIDE = 1 << 20
HUGE = 12 << 20
SPARSE_COLUMNS = 500
SPARSE_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """So many rows, one key after the other, each with a text of so many bytes."""

    rows: int
    width: int


@dataclass(frozen=True, slots=True)
class PlacedChunk:
    """What a chunk brought, and how many bytes its values have."""

    keys: list[int]
    value_bytes: int


NARROW_TABLE = (Stretch(3 * CHUNK_ROWS, NARROW),)
CHANGING_TABLE = (
    Stretch(3 * CHUNK_ROWS, NARROW),
    Stretch(60, WIDE),
    Stretch(3 * CHUNK_ROWS, NARROW),
    Stretch(30, WIDE),
)
HUGE_ROW_TABLE = (Stretch(500, NARROW), Stretch(1, HUGE), Stretch(500, NARROW), Stretch(1, HUGE))


class World:
    """Tables of stretches, a capture, and one process that works on dumps for as long as the test lasts."""

    def __init__(self, database: Database, directory: Path) -> None:
        self._database = database
        self.config: Config = database.config(directory)
        self.staging: Staging = wiring.open_staging(self.config)
        self.dblog = Dblog(self.config, directory)

    def begin(self) -> None:
        """Starts the processes; the log is captured from here on, so rows of before come by dumps alone."""
        self.dblog.run("capture", "--until-current")
        self._capture = self.dblog.start("capture")
        self._worker = self.dblog.start("work")

    def fill(self, table: str, stretches: tuple[Stretch, ...]) -> None:
        text = "text" if self._database.kind == "postgres" else "mediumtext"
        self._database.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, body {text})")
        with closing(self._database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for key, width in enumerate(widths(stretches)):
                cursor.execute(f"INSERT INTO {table} VALUES (%s, %s)", (key, body(key, width)))
            cursor.execute("COMMIT")

    def fill_sparse(self, table: str) -> None:
        """Rows of many columns, all but the key NULL."""
        columns = ", ".join(f"c{number} decimal(20, 0)" for number in range(SPARSE_COLUMNS))
        keys = ", ".join(f"({key})" for key in range(SPARSE_ROWS))
        self._database.execute(
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, {columns})", f"INSERT INTO {table} (id) VALUES {keys}"
        )

    def dump(self, table: str, keys: tuple[int, ...] = (), *, chunk_rows: int = CHUNK_ROWS) -> list[PlacedChunk]:
        """The chunks of a dump of the table, or of listed keys of it, in their order, once it is done."""
        request = DumpRequest(
            tables=(f"{self._database.schema}.{table}",),
            keys=keys,
            ranges=None if keys else 1,
            chunk_size=chunk_rows,
            chunk_bytes=CHUNK_BYTES,
            workers=1,
        )
        dump_id = filing.submit(self.config, request)
        with closing(wiring.open_state(self.config)) as state:

            def is_over() -> bool:
                for process in (self._capture, self._worker):
                    assert process.poll() is None, self.dblog.output()
                return dump_store.read_dump(state, dump_id).state == "done"

            wait_until(is_over, f"the dump of {table}", describe=self.dblog.output)
        chunks = [chunk for manifest in self.staging.manifests() for chunk in manifest.chunks if chunk.dump == dump_id]
        assert not any(chunk.evicted for chunk in chunks), "nothing is written meanwhile"
        return [self._read_chunk(chunk.path, chunk.checksum) for chunk in chunks]

    def _read_chunk(self, path: str, checksum: str) -> PlacedChunk:
        rows = self.staging.read_chunk(path, checksum=checksum)
        keys = rows["id"].to_pylist()
        if "body" in rows.column_names:
            for key, text in zip(keys, rows["body"].to_pylist(), strict=True):
                assert text == body(key, len(text)), f"row {key}"
        return PlacedChunk(keys, rows.nbytes)

    def peak_bytes(self) -> int:
        """The most memory that the worker has had."""
        return peak_bytes(self._worker.pid)


def peak_bytes(process_id: int) -> int:
    """The most resident memory that a process has had; what the system counts misses no moment, as a poll would."""
    status = Path(f"/proc/{process_id}/status").read_text()
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert peak is not None, status
    return int(peak[1]) << 10


def widths(stretches: tuple[Stretch, ...]) -> Iterator[int]:
    """The bytes of each row's text, in the order of keys."""
    for stretch in stretches:
        for _ in range(stretch.rows):
            yield stretch.width


def body(key: int, width: int) -> str:
    """A text of the row that does not compress to less than half."""
    return random.Random(key).randbytes(width // 2).hex()


def check_chunks(chunks: list[PlacedChunk], keys: list[int]) -> None:
    """The keys come in their order and once; no chunk has more bytes than it may, except for one row alone."""
    assert [key for chunk in chunks for key in chunk.keys] == keys
    too_large = [chunk for chunk in chunks if chunk.value_bytes > CHUNK_BYTES + BYTES_MORE and len(chunk.keys) > 1]
    assert [(chunk.keys[0], len(chunk.keys), chunk.value_bytes) for chunk in too_large] == []


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    world = World(database, tmp_path)
    yield world
    world.dblog.close()


@pytest.mark.one_of(4)
@pytest.mark.in_turn
def test_a_chunk_and_its_workers_memory_are_bounded_in_bytes_whatever_the_rows_are(world: World) -> None:
    world.fill("narrow", NARROW_TABLE)
    world.fill("changing", CHANGING_TABLE)
    world.fill_sparse("sparse")
    world.fill("with_huge_rows", HUGE_ROW_TABLE)
    world.begin()

    keys = list(range(NARROW_TABLE[0].rows))
    check_chunks(world.dump("narrow"), keys)
    peak_of_narrow = world.peak_bytes()

    number_of_keys = sum(stretch.rows for stretch in CHANGING_TABLE)
    chunks = world.dump("changing")
    check_chunks(chunks, list(range(number_of_keys)))
    first_wide = CHANGING_TABLE[0].rows
    last_stretch = number_of_keys - CHANGING_TABLE[-1].rows
    largest_between = max(len(chunk.keys) for chunk in chunks if first_wide < chunk.keys[0] < last_stretch)
    assert largest_between == CHUNK_ROWS, "narrow rows after wide ones come in whole chunks again"

    wide_keys = tuple(range(first_wide, first_wide + CHANGING_TABLE[1].rows))
    absent_key = number_of_keys + 5
    check_chunks(world.dump("changing", (*wide_keys, absent_key)), list(wide_keys))
    growth_of_wide = world.peak_bytes() - peak_of_narrow
    print(f"chunks of {CHUNK_BYTES / 2**20:.0f} MB: {growth_of_wide / 2**20:.0f} MB more than for narrow rows")
    assert growth_of_wide < BYTES_OF_MEMORY * CHUNK_BYTES

    world.dump("sparse", keys=tuple(range(10)))
    peak_of_few_rows = world.peak_bytes()
    chunks = world.dump("sparse", chunk_rows=SPARSE_ROWS)
    assert [key for chunk in chunks for key in chunk.keys] == list(range(SPARSE_ROWS))
    growth_of_sparse = world.peak_bytes() - peak_of_few_rows
    print(f"rows of {SPARSE_COLUMNS} NULLs: {growth_of_sparse / 2**20:.0f} MB more than for ten of them")
    assert growth_of_sparse < BYTES_OF_MEMORY * CHUNK_BYTES

    chunks = world.dump("with_huge_rows")
    check_chunks(chunks, list(range(sum(stretch.rows for stretch in HUGE_ROW_TABLE))))
    assert [chunk.value_bytes > HUGE for chunk in chunks if len(chunk.keys) == 1].count(True) == 2
    growth_of_huge = world.peak_bytes() - peak_of_narrow
    print(f"a row of {HUGE / 2**20:.0f} MB: {growth_of_huge / 2**20:.0f} MB more than for narrow rows")
    assert growth_of_huge < BYTES_OF_MEMORY_ALONE * HUGE
