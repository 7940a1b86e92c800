"""`dblog cut`: which versions make one moment, what lies next, and what can no longer be read."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from dblog_core import cli
from dblog_core.lake import cuts
from dblog_core.lake.lake_status import lake_at, table_location
from dblog_core.lake.merge_plan import Span
from dblog_core.lake_engine.merging import cuts as written
from dblog_core.lake_engine.merging.merge_records import Intent
from dblog_core.model.schema import TableName

CONFIG = """
[source]
name = "shop"
kind = "mysql"
database = "shop"
tables = ["shop.*"]
[staging]
path = "staging"
[state]
url = "sqlite:////unused"
[lake]
path = "lake"
"""
SECOND = 1_000_000


class Shop:
    """A lake with one table, written by three merges; the second table had stopped at the third."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "shop.toml"
        self.file.write_text(CONFIG)
        self.lake = lake_at(str(directory / "lake"))
        self.orders = str(table_location(self.lake, TableName("shop", "orders")))
        for number in (1, 2, 3):
            write_deltalake(self.orders, pa.table({"id": [number]}), mode="overwrite")
            span = Span(number, number, 10 * number, 10 * number, f"p{number}", number * SECOND)
            behind = {"shop.orders": 20} if number == 3 else {}
            incomplete = {"shop.orders": "no full dump of it is merged"} if number == 2 else {}
            path = cuts.cuts_location(self.lake)
            versions = {"shop.orders": number - 1}
            table = written.open_cuts(path)
            intent = Intent(number, span, {})
            written.append(table, intent, versions, behind=behind, incomplete=incomplete, app="a", now=number)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli.app, ["--config", str(self.file), "cut", *arguments])


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.parametrize("at", ["20", "29", "1970-01-01T00:00:02Z", "1970-01-01T02:00:02.999999+02:00"])
def test_the_newest_cut_that_is_not_after_the_moment(shop: Shop, at: str) -> None:
    answer = json.loads(shop.run("--at", at, "--json").stdout)
    assert answer == {
        "cut": 2,
        "offset": 20,
        "position": "p2",
        "commit_time": "1970-01-01T00:00:02.000000Z",
        "merged_at": "1970-01-01T00:00:02.000000Z",
        "tables": {"shop.orders": 1},
        "behind": {},
        "incomplete": {"shop.orders": "no full dump of it is merged"},
        "next": {"cut": 3, "offset": 30, "commit_time": "1970-01-01T00:00:03.000000Z"},
    }


def test_the_newest_cut_for_people(shop: Shop) -> None:
    text = shop.run().stdout
    assert "cut       3" in text and "next      none yet" in text
    assert "shop.orders: version 2; it had stopped, and holds changes up to offset 20 only" in text


def test_a_table_that_lacked_rows_is_named_with_the_cause(shop: Shop) -> None:
    assert "shop.orders: version 1; incomplete: no full dump of it is merged" in shop.run("--at", "20").stdout


def test_a_moment_before_the_first_cut_fails(shop: Shop) -> None:
    done = shop.run("--at", "9")
    assert done.exit_code == 1 and "the first, 1, ends at offset 10" in done.stderr


def test_what_is_no_moment_is_wrong_use(shop: Shop) -> None:
    assert shop.run("--at", "noon").exit_code == 2


def test_a_cut_whose_files_are_vacuumed_is_refused(shop: Shop) -> None:
    DeltaTable(shop.orders).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    done = shop.run("--at", "20")
    assert done.exit_code == 1 and "shop.orders at version 1: 1 of its 1 files are removed" in done.stderr
    assert shop.run().exit_code == 0


def test_a_cut_whose_log_is_cleaned_up_is_refused(shop: Shop) -> None:
    DeltaTable(shop.orders).create_checkpoint()
    for number in (0, 1):
        (Path(shop.orders) / "_delta_log" / f"{number:020d}.json").unlink()
    done = shop.run("--at", "20")
    assert done.exit_code == 1 and "shop.orders at version 1" in done.stderr
    assert shop.run().exit_code == 0
