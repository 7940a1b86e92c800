"""The worst names in the lake: merged, kept in the history, and read by Spark and delta-rs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from dblog_core.lake import cuts
from dblog_core.lake.lake_status import history_location, table_location
from dblog_core.model.schema import Column, TableName, TableSchema
from tests.fix_day import OfADay
from tests.spark.lakes import TestLake
from tests.worst_names import EMOJI, EVERY, SCHEMAS

A_DAY = 2
ALWAYS = ("a`b", "%2F")
WORST = SCHEMAS["postgres"]


def shape(schema: str, name: str) -> TableSchema:
    """Both the key and a column are called as the table is."""
    columns = (Column(name, "text", pa.string()), Column(f"{name} ", "bigint", pa.int64()))
    return TableSchema(TableName(schema, name), columns, (name,))


@pytest.mark.one_of(4)
def test_the_lake_takes_the_worst_names(lake: TestLake, of_a_day: OfADay) -> None:
    names = [*ALWAYS, *of_a_day([name for name in EVERY if name not in ALWAYS], A_DAY)]
    tables = [shape(WORST[i % len(WORST)], name) for i, name in enumerate(names)]
    lake.history = True
    build = lake.build
    for table in tables:
        key, value = (c.name for c in table.columns)
        build.create(table, {key: "one", value: 1})
        build.create(table, {key: EMOJI, value: 2})
    build.seal()
    lake.merge_well()
    for table in tables:
        key, value = (c.name for c in table.columns)
        build.line(table, "u", before={key: "one", value: 1}, after={key: "one", value: 3})
        build.line(table, "d", before={key: EMOJI, value: 2})
        build.chunk(table, [{key: "two", value: 4}])
    build.seal()
    lake.merge_well()
    cuts.check_readable(lake.location, cuts.find_cut(lake.location).cut)
    for table in tables:
        key, value = (c.name for c in table.columns)
        want = [{key: "one", value: 3}, {key: "two", value: 4}]
        assert lake.rows(table) == want
        place = table_location(lake.location, table.table)
        history = history_location(lake.location, table.table)
        read = QueryBuilder().register("t", DeltaTable(str(place))).execute("SELECT * FROM t").read_all()
        rows_read = [{name: row[name] for name in (key, value)} for row in pa.table(read).to_pylist()]
        assert sorted(rows_read, key=lambda row: str(row[key])) == want
        rows = lake.spark.read.format("delta").load(str(history)).collect()
        assert sorted((row["_dblog_op"], row[key], row[value]) for row in rows if row["_dblog_op"] != "d") == [
            ("c", "one", 1),
            ("c", EMOJI, 2),
            ("r", "two", 4),
            ("u", "one", 3),
        ]
        assert len(rows) == 5 and DeltaTable(str(history)).version() >= 1
