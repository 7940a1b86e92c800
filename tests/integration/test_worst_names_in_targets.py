"""The worst names from a real server to what others read: the lake by Spark and by delta-rs, Kafka, and files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core import wiring
from dblog_core.config.settings import Config
from dblog_core.errors import OutputError
from dblog_core.lake.lake_status import history_location, table_location
from dblog_core.local.servers.kafka import KafkaServer
from dblog_core.model.schema import TableName
from dblog_core.outputs.relay import run_relay
from dblog_core.staging.reader import lines
from tests.contract.targets import FilesOne, KafkaOne
from tests.fix_day import OfADay
from tests.fix_servers import Database
from tests.integration.test_read_only import capturing, run_dump
from tests.integration.test_worst_names import ALWAYS, LABELS, Worst
from tests.waiting import wait_until
from tests.worst_names import TABLES

pytestmark = [pytest.mark.in_turn]
A_DAY = 1
HERE = (ALWAYS[0], "%2F", "a\nb")


@pytest.fixture
def worst(database: Database, of_a_day: OfADay) -> Iterator[Worst]:
    """Tables of which key, columns and types have the same names; not captured yet."""
    others = [name for name in TABLES[database.kind] if name not in HERE]
    tables = Worst(database, [*HERE, *of_a_day(others, A_DAY)])
    try:
        tables.create()
        yield tables
    finally:
        tables.drop()


@pytest.fixture
def config(worst: Worst, database: Database, tmp_path: Path) -> Config:
    """Of a source whose super-changelog has rows of dumps and of the log of each table."""
    usual = database.config(tmp_path).source.model_dump(exclude_unset=True)
    patterns = [str(TableName(schema, "*")) for schema in sorted({table.schema for table in worst.tables})]
    config = database.config(
        tmp_path,
        source={**usual, "tables": patterns},
        lake={"path": str(tmp_path / "lake"), "history": True},
        output={},
    )
    with capturing(config):
        run_dump(config, tables=None)
        worst.change()
        wait_until(
            lambda: {each["table"] for each in all_lines(config) if each["op"] == "d"} == set(map(str, worst.tables)),
            "the changes of all tables are staged",
        )
    return config


def all_lines(config: Config) -> list[dict[str, Any]]:
    return [orjson.loads(orjson.dumps(line)) for line in lines(wiring.open_staging(config))]


def rows_at_the_end(name: str) -> list[dict[str, Any]]:
    """What `Worst.change` leaves of each table."""
    return [{name: "one", "kind": LABELS[1], "v": 3}, {name: "two", "kind": LABELS[2], "v": 2}]


def by_key(rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    source_rows = [{column: row[column] for column in (name, "kind", "v")} for row in rows]
    return sorted(source_rows, key=lambda row: str(row[name]))


@pytest.mark.one_of(8)
def test_spark_and_delta_rs_read_tables_of_the_worst_names_as_the_server_has_them(
    worst: Worst,
    config: Config,
    merge_here: Callable[[Config], None],
    read_lake: Callable[[Any], list[dict[str, Any]]],
) -> None:
    merge_here(config)
    lake = wiring.open_lake(config)
    for table in worst.tables:
        name = table.name
        server_rows = worst.database.query(f"SELECT {worst.quote(name)}, kind, v FROM {worst.of(table)}")
        expected = by_key([dict(zip((name, "kind", "v"), row, strict=True)) for row in server_rows], name)
        assert expected == rows_at_the_end(name)
        place = table_location(lake, table)
        assert by_key(read_lake(place), name) == expected
        read = QueryBuilder().register("t", DeltaTable(str(place))).execute("SELECT * FROM t").read_all()
        assert by_key(pa.table(read).to_pylist(), name) == expected
        history = read_lake(history_location(lake, table))
        assert {(row["_dblog_op"], row[name]) for row in history if row["_dblog_op"] in "cud"} == {
            ("c", "two"),
            ("u", "one"),
            ("d", "gone"),
        }


def relay(config: Config, name: str, output: dict[str, Any]) -> None:
    data = {**config.model_dump(exclude_unset=True), "output": {name: {**output, "start": "earliest"}}}
    run_relay(Config.model_validate(data), name, stop=threading.Event(), once=True)


@pytest.mark.one_of(4)
def test_files_have_tables_and_columns_of_the_worst_names_as_the_server_has_them(
    worst: Worst, config: Config, tmp_path: Path
) -> None:
    jsonl = FilesOne(tmp_path / "jsonl", "jsonl")
    relay(config, "lines", jsonl.settings)
    files = sorted((tmp_path / "jsonl" / config.source.name / "lines").glob("0*.jsonl"))
    sent = [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]
    assert sent == all_lines(config)
    check_names(worst, sent)
    parquet = FilesOne(tmp_path / "parquet", "parquet")
    relay(config, "table", parquet.settings)
    files = sorted((tmp_path / "parquet" / config.source.name / "table").glob("0*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert [orjson.loads(row["line"]) for row in rows] == sent
    assert [row["table"] for row in rows] == [line["table"] for line in sent]


def check_names(worst: Worst, sent: list[dict[str, Any]]) -> None:
    for table in worst.tables:
        (update,) = [line for line in sent if line["table"] == str(table) and line["op"] == "u"]
        assert update["key"] == {table.name: "one", "kind": LABELS[1]}
        assert update["after"] == {table.name: "one", "kind": LABELS[1], "v": 3}


@pytest.mark.one_of(4)
def test_kafka_has_rows_of_the_worst_names_in_topics_that_the_configuration_names(
    worst: Worst, config: Config, kafka: KafkaServer
) -> None:
    target = KafkaOne(kafka)
    with pytest.raises(OutputError) as caught:
        relay(config, target.name, target.settings)
    assert "topics" in caught.value.fix
    prefix = target.settings["topic_prefix"]
    topics = {str(table): f"{prefix}{number}" for number, table in enumerate(worst.tables)}
    target.settings["topics"] = topics
    relay(config, target.name, target.settings)
    sent = target.lines()
    assert {line["offset"] for line in sent} == {line["offset"] for line in all_lines(config)}
    check_names(worst, sent)
    table_of = {topic: TableName.parse(table) for table, topic in topics.items()}
    for message in target.messages():
        table = table_of[message.topic()]
        if message.value() is not None:
            assert orjson.loads(message.value())["table"] == str(table)
        if message.key() is not None:
            assert set(orjson.loads(message.key())) == {table.name, "kind"}
