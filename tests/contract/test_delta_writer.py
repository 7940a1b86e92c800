"""Two writers of one Delta table on an object store: each version is one writer's, and no row is lost or doubled."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.delta_writer import snapshot
from dblog_core.delta_writer.checkpoints.checkpoint_writer import write_checkpoint
from dblog_core.delta_writer.files import TableFiles
from dblog_core.delta_writer.open_table import OpenTable
from dblog_core.delta_writer.rewriting.join_files import join_files
from dblog_core.delta_writer.upserting.upsert import upsert
from dblog_core.storage.location import Location
from tests.fix_s3 import Bucket
from tests.unit.delta_writer.tables import FIELDS, OFFSET, Table, metadata, protocol, row, schema_string


class Shared:
    """A table in a bucket; `Table` makes its rows."""

    def __init__(self, bucket: Bucket, table: Table) -> None:
        self.bucket = bucket
        self.made = table
        head = [protocol(), metadata(schema_string(FIELDS))]
        import orjson

        place = self.place() / "_delta_log" / f"{0:020d}.json"
        place.create(b"".join(orjson.dumps(action) + b"\n" for action in head))

    def place(self) -> Location:
        return Location(self.bucket.storage("lake"), "table")

    def writer(self) -> OpenTable:
        return OpenTable(self.place(), ["id"], order=OFFSET, mark="dblog")

    def read(self) -> list[dict[str, object]]:
        settings = self.bucket.settings
        options = {
            "aws_endpoint_url": settings.endpoint,
            "aws_region": "us-east-1",
            "aws_access_key_id": settings.access_key,
            "aws_secret_access_key": settings.secret_key.get_secret_value(),
            "aws_allow_http": "true",
        }
        table = DeltaTable(str(self.place()), storage_options=options)
        selected = pa.table(QueryBuilder().register("t", table).execute("select * from t order by id"))
        rows: list[dict[str, object]] = selected.to_pylist()
        return rows


@pytest.fixture
def shared_table(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    return Shared(bucket, Table(tmp_path_factory.mktemp("rows")))


def test_changes_on_s3_are_read_back(shared_table: Shared) -> None:
    writer = shared_table.writer()
    upsert(writer, shared_table.made.changes([row(i, offset=1) for i in range(50)]), "shop", 1)
    upsert(writer, shared_table.made.changes([row(3, "new", offset=2)], [row(4)]), "shop", 2)
    upsert(shared_table.writer(), shared_table.made.changes([row(5, "newer", offset=3)], [row(6)]), "shop", 3)
    rows = shared_table.read()
    assert [r["id"] for r in rows] == [i for i in range(50) if i not in (4, 6)]
    assert {r["id"]: r["note"] for r in rows if r["id"] in (3, 5)} == {3: "new", 5: "newer"}
    assert join_files(writer) > 0 and shared_table.read() == rows


def test_two_writers_at_once_lose_nothing(shared_table: Shared) -> None:
    """Each changes keys of its own, and one that both have; with one driver's look and put, commits would vanish."""
    upsert(shared_table.writer(), shared_table.made.changes([row(i, offset=1) for i in range(20)]), "shop", 1)
    rounds = 8
    faults = list[BaseException]()

    def work(who: int) -> None:
        writer = shared_table.writer()
        try:
            for number in range(rounds):
                puts = [row(100 * who + number, f"of {who}", offset=5), row(7, f"of {who}", offset=5)]
                upsert(writer, shared_table.made.changes(puts, [row(who * 10 + number)]), f"app {who}", number)
        except BaseException as error:  # noqa: BLE001  # told by the test
            faults.append(error)

    threads = [threading.Thread(target=work, args=(who,)) for who in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    rows = shared_table.read()
    own_keys = {100 * who + number for who in (1, 2) for number in range(rounds)}
    deleted_keys = {who * 10 + number for who in (1, 2) for number in range(rounds)}
    assert [r["id"] for r in rows] == sorted((own_keys | set(range(20))) - deleted_keys | {7})
    log = [name for name in (shared_table.place() / "_delta_log").names() if name.endswith(".json")]
    assert len(log) == 2 + 2 * rounds, "a version each"


def test_a_checkpoint_on_s3_stands_for_the_log_before_it(shared_table: Shared) -> None:
    """Two make it at the same time, and a third one upon it."""
    writer = shared_table.writer()
    log = shared_table.place() / "_delta_log"
    upsert(writer, shared_table.made.changes([row(i, offset=1) for i in range(50)]), "shop", 1)
    for number in (2, 3):
        upsert(
            writer, shared_table.made.changes([row(number, "new", offset=number)], [row(9 + number)]), "shop", number
        )
        rows = shared_table.read()
        with ThreadPoolExecutor(2) as pool:
            for write in [pool.submit(write_checkpoint, TableFiles.at(shared_table.place()), 0) for _ in range(2)]:
                write.result()
        for name in list(log.names()):
            if name[:20].isdecimal() and int(name[:20]) < number:
                (log / name).remove()
        assert sorted(log.names()) == [f"{number:020d}.checkpoint.parquet", f"{number:020d}.json", "_last_checkpoint"]
        assert shared_table.read() == rows and len(rows) == 50 - (number - 1)
        by_checkpoint = snapshot.newest(TableFiles.at(shared_table.place()))
        assert by_checkpoint.txns == {"shop": number} and by_checkpoint.files.keys() == writer.snapshot.files.keys()
