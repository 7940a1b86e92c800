"""Verification of Delta tables that a merge has written: damage by others, certificates, and values without a form."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog_core.capture.run_capture import run_capture
from dblog_core.lake.lake_status import table_location
from dblog_core.model.schema import TableName
from dblog_core.verify.certificate_check import check_certificate
from dblog_core.wiring import open_lake
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.integration import test_swapped_tables as swapped
from tests.integration.verify_shop import ROWS, Merge, Shop, count_dumped_rows, open_shop


@pytest.fixture
def delta(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merge_here: Merge, spark: SparkSession
) -> Iterator[Delta]:
    """Table a alone is captured, and is in the lake; few windows, each of which costs Spark a job."""
    config = database.config(tmp_path, dump={"chunk_size": 100})
    source = config.source.model_copy(update={"tables": (f"{database.schema}.a",)})
    shop = Shop(database, config.model_copy(update={"source": source}))
    with open_shop(shop, monkeypatch, window_rows=ROWS // 2):
        merge_here(shop.config)
        yield Delta(shop, spark, str(table_location(open_lake(shop.config), TableName.parse(shop.a))))


@dataclass(frozen=True, slots=True)
class Delta:
    """A shop whose table a is in the lake."""

    shop: Shop
    spark: SparkSession
    location: str

    def damage(self) -> None:
        """By somebody else's commits, as far as the merge can tell: 7 differs, 9 and ROWS are missing, -10 is extra."""
        other_session = self.spark.newSession()
        other_session.conf.set("spark.databricks.delta.commitInfo.userMetadata", "theirs")
        table = f"delta.`{self.location}`"
        other_session.sql(f"UPDATE {table} SET v = 'other', n = NULL WHERE id = 7")
        other_session.sql(f"DELETE FROM {table} WHERE id IN (9, {ROWS})")
        other_session.sql(
            f"INSERT INTO {table} SELECT -id, v, n, d, t, NULL, NULL, NULL, NULL FROM {table} WHERE id = 10"
        )

    def rows(self) -> list[tuple[Any, ...]]:
        """Those that the workload leaves alone, as a reader of the lake has them."""
        read = f"SELECT id, v, n, d, t FROM delta.`{self.location}` WHERE id <= {ROWS} ORDER BY id"
        return [tuple(row) for row in self.spark.sql(read).collect()]


@pytest.mark.one_of(4)
@pytest.mark.in_turn
@pytest.mark.timeout(1800)
def test_every_damaged_row_is_found_and_mended_while_rows_are_written(
    delta: Delta, verify_here: Verify, tmp_path: Path
) -> None:
    """In the Delta table, by dump and merge."""
    shop = delta.shop
    if shop.database.kind == "mysql":  # it is the lake's side alone, and the same for all sources
        _certify(delta, verify_here, tmp_path / "certificate.json")
    else:
        delta.damage()
    source = shop.database.query(f"SELECT id, v, n, d, t FROM a WHERE id <= {ROWS} ORDER BY id")
    assert len(source) == ROWS and delta.rows() != source
    with shop.workload(pause_seconds=0.02):  # where Spark is slow, it has the less to merge
        report = verify_here(shop.config, shop.a, repair=True)
    assert report.equal, report.to_json()
    (table,) = report.tables
    repaired = table.repaired
    assert repaired is not None
    differences = repaired.differences
    assert (sorted(differences.missing), differences.extra) == ([9, ROWS], (-10,))
    assert differences.different == ((7, ("v", "n")),)
    assert count_dumped_rows(shop, repaired.dump_id) == 4, "exactly those keys"
    assert delta.rows() == source


def _certify(delta: Delta, verify_here: Verify, file: Path) -> None:
    """Certifies the table, damages it, holds the certificate against it, and draws a sample of it."""
    shop = delta.shop
    assert verify_here(shop.config, shop.a, certificate=file).equal
    (written,) = json.loads(file.read_text())["tables"]
    assert (written["table"], written["rows"], sum(r["rows"] for r in written["ranges"])) == (shop.a, ROWS, ROWS)
    sides = [[(part["rows"], part["hash"]) for part in of] for of in (written["ranges"], written["lake"]["sums"])]
    assert sides[0] == sides[1]

    delta.damage()
    check = check_certificate(shop.config, file, stop=threading.Event())
    assert check.equal, "of its own version"
    data = json.loads(file.read_text())
    data["tables"][0]["lake"]["version"] += 1
    file.write_text(json.dumps(data))
    check = check_certificate(shop.config, file, stop=threading.Event())
    assert not check.equal and check.tables[0].error is not None and "has other rows now" in check.tables[0].error
    assert not verify_here(shop.config, shop.a, certificate=file).equal
    check = check_certificate(shop.config, file, stop=threading.Event())
    assert not check.equal and "was not equal to the source when" in str(check.tables[0].error)

    (drawn,) = verify_here(shop.config, shop.a, sample={"share": 1.0, "confidence": 0.9}).tables
    assert drawn.sample is not None and drawn.sample.source_rows >= ROWS // 2
    assert 0.001 < drawn.sample.source_at_most < 0.03


@pytest.mark.in_turn
@pytest.mark.parametrize("source_kind", ["mysql", "mariadb"], indirect=True)
def test_rows_with_a_zero_date_are_named_with_their_column_and_all_other_columns_are_compared(
    database: Database, tmp_path: Path, merge_here: Merge, verify_here: Verify
) -> None:
    """A session without a strict mode gives them to all rows that are there when the column comes."""
    config = database.config(tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))")
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')")
    run_capture(config, stop=threading.Event(), until_current=True)
    merge_here(config)
    with swapped.capturing(config):
        database.execute(
            "SET SESSION sql_mode = ''",
            "ALTER TABLE t ADD COLUMN dt DATE NOT NULL",
            "SET SESSION sql_log_bin = 0",
            "UPDATE t SET v = 'lost' WHERE id IN (2, 4)",
            "UPDATE t SET dt = '2024-05-06' WHERE id >= 3",
        )
        (report,) = verify_here(config, f"{database.schema}.t").tables
    assert report.error is None
    assert dict(report.different) == {1: ("dt",), 2: ("v", "dt"), 3: ("dt",), 4: ("v", "dt")}
    (dt,) = [column for column in report.not_compared if column.column == "dt"]
    assert dt.reason.endswith("in the rows 1, 2") and "zero date" in dt.reason
