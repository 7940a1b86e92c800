"""An ALTER TABLE that stands in no log (sql_log_bin = 0) shows in how the log describes the table's next row."""

from __future__ import annotations

import pytest

from dblog_core.model.events import Rewritten
from tests.unit import mysql_binlog as binlog
from tests.unit.sources.mysql.binlog.test_log_state import state


def row(number: int, table_id: int, *, is_long: bool = False) -> list[bytes]:
    """A transaction of one row of the table `a`, whose column `v` is a VARCHAR of 80 bytes, or of more than 255."""
    table_map = binlog.table_map(table_id, "a")
    if is_long:
        table_map = table_map.replace(b"\2\x50\0", b"\2\x50\1", 1)
    image = b"\0" + number.to_bytes(4, "little") + (b"\1\0x" if is_long else b"\1x")
    begin = [binlog.gtid(number), binlog.query("BEGIN")]
    return [*begin, table_map, binlog.rows(30, table_id, [image]), binlog.xid()]


@pytest.mark.parametrize(
    ("statement", "is_noticed"),
    [
        ("", True),
        ("ALTER TABLE other MODIFY v VARCHAR(90)", True),
        ("CREATE OR REPLACE TABLE a (id INT, v VARCHAR(90))", False),
    ],
)
def test_other_types_without_a_statement_owe_a_dump(statement: str, is_noticed: bool) -> None:
    log = state(mariadb=False)
    events = [*row(1, 1), *row(2, 1), *row(3, 2)]
    if statement:
        events += [binlog.gtid(4), binlog.query(statement)]
    events += [*row(5, 3, is_long=True), *row(6, 4, is_long=True)]
    for data in events:
        log.take(binlog.parse(data, 0, False))
    signals = [signal for signal in log.flush().signals if isinstance(signal, Rewritten)]
    rewritten = [signal.table.name for signal in signals if signal.table.name == "a"]
    assert rewritten == ["a"] * is_noticed
