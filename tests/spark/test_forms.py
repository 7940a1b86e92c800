"""Columns that are staged in another form than the usual one, all the way: log and dump, `log`, merge, `verify`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dblog_core import wiring
from dblog_core.capture.run_capture import run_capture
from dblog_core.config.settings import Config
from dblog_core.dumps import filing, work_loop
from dblog_core.dumps.requests import DumpRequest
from dblog_core.lake.lake_status import table_location
from dblog_core.model.schema import TableName
from dblog_core.staging.reader import lines
from tests.fix_servers import Database
from tests.fix_verify import Verify
from tests.waiting import PATIENCE_SECONDS

FORMS = {
    "d": "double", "s": "text", "m": "text", "n": "bigint", "c": "microseconds", "b": "base64", "h": "hex",
    "o": "or_null",
}  # fmt: skip
MYSQL = (
    "d decimal(38,10), s decimal(65,20), m datetime(6), n bigint unsigned, c time(6), b varbinary(9), h varbinary(9), "
    "o datetime(6)",
    (
        "0.1, -0.00000000000000000001, '9999-12-31 23:59:59.999999', 9223372036854775807, '-838:59:58.999999', "
        "x'00ff', x'00ff', '0000-00-00'",
        (0.1, "-0.00000000000000000001", "9999-12-31 23:59:59.999999", 2**63 - 1, -3020398999999, "AP8=", "00ff", None),
    ),
    ("-9999999999999999999999999999.9999999999, 0, '1000-01-01', 0, '00:00:00', '', '', '2024-00-10'",
     (-1e28, "0.00000000000000000000", "1000-01-01 00:00:00.000000", 0, 0, "", "", None)),
)  # fmt: skip
POSTGRES = (
    "d numeric(38,10), s numeric, m timestamp, n numeric(18,0), c time, b bytea, h bytea, o timestamptz",
    (
        r"0.1, 'NaN', 'infinity', 999999999999999999, '24:00:00', '\x00ff', '\x00ff', 'infinity'",
        (0.1, "NaN", "infinity", 10**18 - 1, 86_400_000_000, "AP8=", "00ff", None),
    ),
    ("-9999999999999999999999999999.9999999999, 1e-30, '0044-03-15 BC', -1, '00:00:00.000001', '', '', '0044-03-15 BC'",
     (-1e28, "0.000000000000000000000000000001", "0044-03-15 00:00:00 BC", -1, 1, "", "", None)),
)  # fmt: skip


@pytest.mark.one_of(2)
@pytest.mark.in_turn
def test_columns_in_every_form_are_the_same_through_log_and_dump_and_equal_in_the_lake(
    database: Database,
    spark: SparkSession,
    merge_here: Callable[[Config], None],
    verify_here: Verify,
    tmp_path: Path,
) -> None:
    name = f"{database.schema}.t"
    columns, *rows = POSTGRES if database.kind == "postgres" else MYSQL
    config = database.config(tmp_path, source={"columns": {name: {"staged_as": FORMS}}})
    values = [*(sql for sql, _ in rows), ", ".join(["NULL"] * len(FORMS))]
    expected = [dict(zip(FORMS, row, strict=True)) for row in (*(row for _, row in rows), (None,) * len(FORMS))]
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    modes = [] if database.kind == "postgres" else ["SET sql_mode = 'ALLOW_INVALID_DATES'"]
    database.execute(*modes, *(f"INSERT INTO t VALUES ({n}, {sql})" for n, sql in enumerate(values)))  # for the dump
    run_capture(config, stop=threading.Event(), until_current=True)
    database.execute(*modes, *(f"INSERT INTO t VALUES ({10 + n}, {sql})" for n, sql in enumerate(values)))
    expected_by_id = {first + n: row for first in (0, 10) for n, row in enumerate(expected)}
    stop = threading.Event()
    capture = threading.Thread(target=run_capture, args=(config,), kwargs={"stop": stop})
    capture.start()
    try:
        with closing(wiring.open_state(config)) as state:
            while state.leader("capture") is None:
                assert capture.is_alive() and not stop.wait(0.05)
        run_capture(config, stop=stop, until_current=True)  # so that nothing of the dump is evicted
        work_loop.work(config, stop=stop, once=True, dump_id=filing.submit(config, DumpRequest((name,))))
        merge_here(config)
        (verified,) = verify_here(config, name).tables
    finally:
        stop.set()
        capture.join(timeout=PATIENCE_SECONDS)
    values_by_op: dict[str, dict[int, Any]] = {"c": {}, "r": {}}
    for line in lines(wiring.open_staging(config)):
        if line["op"] in values_by_op and line["table"] == name:
            values_by_op[line["op"]][line["after"]["id"]] = {c: line["after"][c] for c in FORMS}
    assert values_by_op["c"] == {n: row for n, row in expected_by_id.items() if n >= 10}
    assert values_by_op["r"] == expected_by_id
    place = table_location(wiring.open_lake(config), TableName.parse(name))
    read_rows = spark.read.format("delta").load(str(place)).select("id", *FORMS).collect()
    assert {row.id: {c: row[c] for c in FORMS} for row in read_rows} == expected_by_id
    assert verified.equal and verified.rows == len(expected_by_id), verified
