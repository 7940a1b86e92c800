"""Events of the MySQL log as bytes, and the state of a log that takes them."""

from __future__ import annotations

import struct
import zlib

from dblog_core.config.source import ColumnRules, SourceConfig
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.log_state import LogState
from dblog_core.sources.mysql.binlog.reach.statement_reach import LookAhead
from dblog_core.sources.mysql.ddl import known_forms
from dblog_core.sources.mysql.position import MysqlGtids, Position
from dblog_core.sources.mysql.row_events.table_ids import Lookups
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.values.charsets import Charsets
from tests.unit import mysql_binlog

CONFIG = SourceConfig.model_validate({"name": "s", "kind": "mysql", "database": "shop", "tables": ["shop.*"]})


UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


ORDERS = TableName("shop", "orders")


def event(kind: int, body: bytes, *, end: int = 0, checksummed: bool = False, flags: int = 0) -> bytes:
    size = events.HEADER + len(body) + (4 if checksummed else 0)
    data = struct.pack("<IBIIIH", 1, kind, 1, size, end, flags) + body
    return data + zlib.crc32(data).to_bytes(4, "little") if checksummed else data


def state(*, skip: int = 0, loses_commits: bool = False, is_file_cut: bool = False) -> LogState:
    return LogState(
        tables=TableFilter(CONFIG),
        keys={},
        charsets=Charsets({}, {}),
        zero_dates="error",
        mariadb=False,
        server=UUID,
        position=Position("binlog.000001", 4, MysqlGtids.parse("")),
        rows_to_skip=skip,
        lookups=Lookups(lambda _: True, lambda _: ()),
        loses_commits=loses_commits,
        is_file_cut=is_file_cut,
    )


def gtid(number: int) -> bytes:
    sid = bytes.fromhex(UUID.replace("-", ""))
    return event(
        events.Type.GTID,
        b"\1" + sid + struct.pack("<QBQQ", number, 2, 0, 1) + (1_700_000_000_000_000).to_bytes(7, "little"),
    )


def query(sql: str, *, variables: bytes = b"", flags: int = 0) -> bytes:
    head = struct.pack("<IIBHH", 1, 0, 4, 0, len(variables))
    return event(events.Type.QUERY, head + variables + b"shop\0" + sql.encode(), flags=flags)


def take(log: LogState, *bodies: bytes) -> None:
    for data in bodies:
        log.take(mysql_binlog.parse(data, 0, False))


XID = "X'78',X'',1"


def xa_prepare(*, one_phase: bool = False, xid: bytes = b"x", end: int = 0) -> bytes:
    return event(events.Type.XA_PREPARE, struct.pack("<?III", one_phase, 1, len(xid), 0) + xid, end=end)


def prepare(log: LogState, number: int = 1, xid: bytes = b"x") -> None:
    take(log, gtid(number), query(f"XA START X'{xid.hex()}',X'',1"), query("XA END"), xa_prepare(xid=xid, end=700))


def reread(log: LogState, *bodies: bytes) -> None:
    for data in bodies:
        log.take_prepared(mysql_binlog.parse(data, 0, False))


def session_query(sql: bytes, *, collation: int | None = None, schema: bytes = b"shop") -> bytes:
    """A QUERY event as servers log it: with flags, sql_mode and catalogue before the session's character sets."""
    variables = b"\0" + bytes(4) + b"\1" + bytes(8) + b"\6\3std" + b"\3" + bytes(4)
    if collation is not None:
        variables += b"\4" + struct.pack("<HHH", collation, collation, 45)
    head = struct.pack("<IIBHH", 1, 0, len(schema), 0, len(variables))
    return event(events.Type.QUERY, head + variables + schema + b"\0" + sql)


def talking(
    *,
    any_case: bool = False,
    tables: str = "shop.*",
    mask: str | None = None,
    forms: known_forms.Ask = known_forms.ask_nobody,
    look_ahead: LookAhead = lambda _: None,
) -> LogState:
    columns = {} if mask is None else {str(ORDERS): ColumnRules(mask=(mask,))}
    return LogState(
        tables=TableFilter(CONFIG.model_copy(update={"tables": (tables,), "columns": columns})),
        keys={},
        charsets=Charsets(
            {8: "latin1", 13: "sjis", 28: "gbk", 45: "utf8mb4"}, {"latin1": bytes(range(256)).decode("latin-1")}
        ),
        zero_dates="error",
        any_case=any_case,
        mariadb=False,
        server=UUID,
        position=Position("binlog.000001", 4, MysqlGtids.parse("")),
        rows_to_skip=0,
        lookups=Lookups(lambda _: True, lambda _: (), forms),
        look_ahead=look_ahead,
    )
