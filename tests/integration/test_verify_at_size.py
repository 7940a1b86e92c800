"""Exactly the damaged rows of a large table are found and mended under writes: a million rows in the soak."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog_core.config.settings import Config
from dblog_core.dumps import dump_store
from dblog_core.lake.lake_status import table_location
from dblog_core.local.servers.server import DatabaseServer
from dblog_core.model.schema import TableName
from dblog_core.wiring import open_lake, open_state
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.integration.verify_shop import Shop
from tests.waiting import PATIENCE_SECONDS

ROWS, FEW_ROWS = 1_000_000, 20_000  # in the soak; in a run of one seed
FIRST = 1_000  # rows that are made one by one, to be doubled from there
DAMAGED = (1, 10, 1000)
KINDS = ("mysql", "mariadb", "postgres")
COLUMNS = ("note", "n", "d")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_exactly_the_damaged_rows_are_found_and_mended(
    soak_seed: int,
    request: pytest.FixtureRequest,
    new_database: Callable[[DatabaseServer], Database],
    verify_here: Verify,
    merge_here: Callable[[Config], None],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Nine seeds in a row are every number of rows on every database."""
    rows = ROWS if request.config.option.soak_seeds > 1 else FEW_ROWS
    database = new_database(request.getfixturevalue(KINDS[soak_seed % 3]))
    damage = Damage.draw(random.Random(soak_seed), rows, DAMAGED[soak_seed // 3 % 3])
    fill(database, rows)
    shop = Shop(database, database.config(tmp_path))
    big = f"{database.schema}.big"
    with shop.capturing():
        shop.dump()
        merge_here(shop.config)
        with writes(database, rows, soak_seed, spared=damage.keys):
            clean = verify_here(shop.config, big)
            assert clean.equal, clean.to_json()
            damage.do(spark, str(table_location(open_lake(shop.config), TableName.parse(big))))
            (mended,) = verify_here(shop.config, big, repair=True).tables
        repaired = mended.repaired
        assert mended.equal and repaired is not None, mended.to_json()
        assert sorted(repaired.differences.missing) == sorted(damage.removed)
        assert sorted(repaired.differences.extra) == sorted(-key for key in damage.added)
        assert dict(repaired.differences.different) == {key: (column,) for key, column in damage.changed.items()}
        with closing(open_state(shop.config)) as state:
            assert dump_store.read_dump(state, repaired.dump_id).rows == len(damage.keys), "exactly those keys"
        after = verify_here(shop.config, big)
        assert after.equal, after.to_json()


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to the lake, each key in one way: a column of it changed, removed, or added with its sign turned."""

    changed: dict[int, str]
    removed: list[int]
    added: list[int]

    @classmethod
    def draw(cls, chance: random.Random, rows: int, number: int) -> Damage:
        checks = cls({}, [], [])
        for key in chance.sample(range(1, rows + 1), number):
            way = chance.choice((*COLUMNS, "removed", "added"))
            if way in COLUMNS:
                checks.changed[key] = way
            else:
                (checks.removed if way == "removed" else checks.added).append(key)
        return checks

    @property
    def keys(self) -> frozenset[int]:
        return frozenset((*self.changed, *self.removed, *self.added))

    def do(self, spark: SparkSession, table: str) -> None:
        """By somebody else's commits, as far as the merge can tell."""
        other_session = spark.newSession()
        other_session.conf.set("spark.databricks.delta.commitInfo.userMetadata", "theirs")
        delta = f"delta.`{table}`"
        for column, value in zip(COLUMNS, ("'other'", "n + 1", "d + 1e-6"), strict=True):
            if keys := [key for key, changed in self.changed.items() if changed == column]:
                other_session.sql(f"UPDATE {delta} SET {column} = {value} WHERE id IN ({_list_keys(keys)})")
        if self.removed:
            other_session.sql(f"DELETE FROM {delta} WHERE id IN ({_list_keys(self.removed)})")
        if self.added:
            own_query = "SELECT -id, note, n, d, NULL, NULL, NULL, NULL"
            other_session.sql(f"INSERT INTO {delta} {own_query} FROM {delta} WHERE id IN ({_list_keys(self.added)})")


def fill(database: Database, rows: int) -> None:
    """Made by the server itself: the first ones, and then as many again until there are enough."""
    columns = "note varchar(60), n decimal(12,2), d double precision"
    note = "CASE WHEN id % 10 > 0 THEN concat('a note of row ', id) END"
    first = ", ".join(f"({i}, NULL, {i}, {i})" for i in range(1, FIRST + 1))
    database.execute(f"CREATE TABLE big (id bigint PRIMARY KEY, {columns})", f"INSERT INTO big VALUES {first}")
    have = FIRST
    while have < rows:
        database.execute(f"INSERT INTO big SELECT id + {have}, NULL, n, d FROM big WHERE id + {have} <= {rows}")
        have = min(2 * have, rows)
    statistics = "ANALYZE big" if database.kind == "postgres" else "ANALYZE TABLE big"
    database.execute(f"UPDATE big SET note = {note}, n = id / 4, d = id / 8e0", statistics)


@contextmanager
def writes(database: Database, rows: int, seed: int, *, spared: Iterable[int]) -> Iterator[None]:
    """Rows all over the table change, new ones come and go; what is spared stays as it is."""
    stop = threading.Event()
    faults = list[BaseException]()
    chance = random.Random(seed)
    left_alone = frozenset(spared)

    def write() -> None:
        connection = database.connect()
        try:
            with connection.cursor() as cursor:
                for number in range(1 << 40):
                    if stop.wait(0.003):  # a pace: the machine has more to do
                        return
                    _step(cursor, chance, rows, number, left_alone)
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


def _step(cursor: Any, chance: random.Random, rows: int, number: int, spared: frozenset[int]) -> None:
    key = chance.randint(1, rows)
    if key in spared or number % 4 == 0:
        cursor.execute("INSERT INTO big VALUES (%s, 'new', 1, 0.5)", (rows + 1 + number,))
    elif number % 4 == 1:
        cursor.execute("DELETE FROM big WHERE id = %s", (rows + 1 + chance.randrange(number + 1),))
    elif number % 4 == 2:
        cursor.execute("UPDATE big SET d = %s WHERE id = %s", (chance.random(), key))
    else:
        cursor.execute("UPDATE big SET note = %s, n = n + 1 WHERE id = %s", (f"write {number}", key))


def _list_keys(keys: Iterable[int]) -> str:
    return ", ".join(map(str, keys))
