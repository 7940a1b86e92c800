"""Positions, statements and events of the MySQL log, without a server."""

from __future__ import annotations

import struct
import zlib

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost, SourceUnavailable, UnknownLogEvent
from dblog_core.model.events import Altered, Created, DatabaseDropped, Rewritten, Truncated
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog import events, stream_request
from dblog_core.sources.mysql.binlog.log_state import LogState
from dblog_core.sources.mysql.binlog.server_errors import translate_fatal_error
from dblog_core.sources.mysql.binlog.xa import ids, row_memory
from dblog_core.sources.mysql.ddl.statements import Means, classify
from dblog_core.sources.mysql.position import MariadbGtids, MysqlGtids, Position, Prepared
from dblog_core.sources.mysql.sql.catalogue import TableFilter
from dblog_core.sources.mysql.values.charsets import Charsets
from tests.unit import mysql_binlog

CONFIG = SourceConfig.model_validate({"name": "s", "kind": "mysql", "database": "shop", "tables": ["shop.*"]})
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ORDERS = TableName("shop", "orders")


def test_gtid_sets_grow_merge_and_compare() -> None:
    have = MysqlGtids.parse(f"{UUID}:1-5:7,\n{UUID}:nightly:1")
    grown = have.with_transaction(f"{UUID}:6")
    assert str(grown) == f"{UUID}:1-7,{UUID}:nightly:1" and grown.has_tags
    assert grown.contains(have) and not have.contains(grown) and have.contains(MysqlGtids.parse(""))


@pytest.mark.parametrize(
    ("gtid", "rest"),
    [
        ("1", f"{UUID}:2-5:7"),
        ("3", f"{UUID}:1-2:4-5:7"),
        ("5", f"{UUID}:1-4:7"),
        ("7", f"{UUID}:1-5"),
        ("9", f"{UUID}:1-5:7"),
    ],
)
def test_a_transaction_is_taken_out_of_a_gtid_set(gtid: str, rest: str) -> None:
    assert str(MysqlGtids.parse(f"{UUID}:1-5:7").without(f"{UUID}:{gtid}")) == rest
    assert str(MysqlGtids.parse(f"{UUID}:3").without(f"{UUID}:3")) == ""


@pytest.mark.parametrize(
    ("ours", "theirs", "lacking"),
    [
        ("1-9", "1-9", None),
        ("1-9", "1-4:6-12", "5"),
        ("1-9", "3:5-6", "1-2:4:7-9"),
        ("2:5-9", "1-5", "6-9"),
        ("1-3:nightly:1-2", "1-3", None),
    ],
)
def test_what_a_server_lacks_of_a_gtid_set_is_named(ours: str, theirs: str, lacking: str | None) -> None:
    mine = MysqlGtids.parse(f"{UUID}:{ours}")
    other = MysqlGtids.parse(f"{UUID}:{theirs}")
    named = f"{UUID}:nightly:1-2" if "nightly" in ours else lacking and f"{UUID}:{lacking}"
    found = mine.beyond(other)
    assert (found and str(found)) == named
    assert (found is None) == other.contains(mine)


def test_what_a_mariadb_server_lacks_is_judged_by_domain_and_server() -> None:
    ours = MariadbGtids.parse("0-1-100,7-1-5")
    assert ours.beyond("0-1-100,0-2-130,7-1-5") is None
    assert str(ours.beyond("0-1-99,0-2-130,7-1-5")) == "0-1-100"
    assert str(ours.beyond("0-1-100")) == "7-1-5" and ours.beyond("") == ours


def test_a_gtid_set_is_asked_for_in_the_servers_own_form() -> None:
    """Without and with a tag (tests/integration/test_mysql_failover.py has a server read both)."""
    server = bytes.fromhex(UUID.replace("-", ""))
    plain = struct.pack("<Q16sQQQQQ", 1, server, 2, 1, 6, 7, 8)
    assert stream_request.encode_gtids(MysqlGtids.parse(f"{UUID}:1-5:7")) == plain
    head = bytes([1, 2, 0, 0, 0, 0, 0, 1])
    tagged = head + struct.pack("<16sBQQQ", server, 0, 1, 1, 6) + struct.pack("<16sB1sQQQ", server, 2, b"t", 1, 3, 4)
    assert stream_request.encode_gtids(MysqlGtids.parse(f"{UUID}:1-5:t:3")) == tagged


def test_mariadb_gtids_compare_by_domain() -> None:
    have = MariadbGtids.parse("0-1-5,1-2-9")
    assert have.contains(MariadbGtids.parse("0-3-5")) and not have.contains(MariadbGtids.parse("2-1-1"))
    assert str(have.with_transaction("0-3-6")) == "0-3-6,1-2-9"


def test_positions_survive_their_text() -> None:
    position = Position("binlog.000009", 1234, MysqlGtids.parse(f"{UUID}:1-5"), None, f"{UUID}:6")
    assert Position.decode(position.encode(), mariadb=False) == position
    assert "prepared" not in position.encode()  # as positions were before there was such a thing
    places = (Prepared("X'78',X'',1", "binlog.000008", 4, f"{UUID}:3", None), Prepared("y", "b.1", 5, None, "0-1-2"))
    position = position.with_changes(prepared=places)
    assert Position.decode(position.encode(), mariadb=False) == position
    with pytest.raises(LogPositionLost):
        Position.decode('{"lsn": 1}', mariadb=False)


def test_file_positions_compare_by_number() -> None:
    assert Position("b.1000000", 4, None).has_reached(Position("b.999999", 9000, None))
    assert not Position("b.000001", 4, None).has_reached(Position("b.000001", 5, None))


@pytest.mark.parametrize(
    "sql",
    [
        "TRUNCATE TABLE t",
        "truncate t",
        "/* x */ TRUNCATE /*!40000 TABLE */ `t` -- end",
        "TRUNCATE TABLE\n`shop` . `t`",
        "# first\nTRUNCATE shop.t",
        "SET STATEMENT max_statement_time=9 FOR TRUNCATE t WAIT 5",
        'TRUNCATE TABLE "t"',
        "TRUNCATE .`t`",
        "DROP TABLE . t RESTRICT",
        "CREATE OR REPLACE TABLE .`t` (id int)",
        "DROP TABLE IF EXISTS `t` /* generated by server */",
        "CREATE OR REPLACE TABLE t (id int)",
    ],
)
def test_statements_that_empty_a_table(sql: str) -> None:
    found = classify(sql, "shop")
    assert (found.means, found.tables, found.renamed_away) == (Means.EMPTIES, (TableName("shop", "t"),), ())


@pytest.mark.parametrize(
    ("sql", "means"),
    [
        ("BEGIN", Means.BEGIN),
        ("COMMIT", Means.COMMIT),
        ("ROLLBACK", Means.ROLLBACK),
        ("ROLLBACK TO `s`", Means.ROLLBACK_TO),
        ("SAVEPOINT `s`", Means.HARMLESS),
        ("XA START X'78',X'',1", Means.XA_START),
        ("XA COMMIT X'78',X'',1", Means.XA_COMMIT),
        ("XA ROLLBACK X'78',X'',1", Means.XA_ROLLBACK),
        ("XA END X'78',X'',1", Means.HARMLESS),
        ("INSERT INTO t VALUES ('TRUNCATE')", Means.CHANGES_ROWS),
        ("UPDATE mysql.t SET a = 1", Means.HARMLESS),
        ("UPDATE mysql.t, shop.t SET a = 1", Means.CHANGES_ROWS),
        ("WITH c AS (SELECT 1) DELETE FROM t", Means.CHANGES_ROWS),
        ("CREATE TABLE t (c varchar(9) DEFAULT 'SELECT')", Means.HARMLESS),
        ("CREATE TABLE t AS SELECT 1", Means.REWRITES),
        ("RENAME TABLE a TO b", Means.SWAPS),
        ("RENAME TABLE .`a` TO .`b`", Means.SWAPS),
        ("ALTER TABLE .`t` ADD COLUMN a int", Means.HARMLESS),
        ("CREATE TABLE .`t` (id int)", Means.HARMLESS),
        ("RENAME USER a TO b", Means.HARMLESS),
        ("ALTER TABLE t RENAME TO u", Means.SWAPS),
        ("ALTER TABLE t RENAME COLUMN a TO b", Means.HARMLESS),
        ("ALTER TABLE t DROP PARTITION p0", Means.DROPS_PARTITIONS),
        ("ALTER TABLE `t` TRUNCATE PARTITION ALL", Means.DROPS_PARTITIONS),
        ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE u", Means.SWAPS),
        ("ALTER TABLE t ADD COLUMN a int", Means.HARMLESS),
        ("DROP DATABASE `shop`", Means.DROPS_SCHEMA),
        ("DROP TEMPORARY TABLE t", Means.HARMLESS),
        ("# Dummy event replacing event type 160", Means.HARMLESS),
        ("FROBNICATE t", Means.UNKNOWN),
    ],
)
def test_statements_mean(sql: str, means: Means) -> None:
    assert classify(sql, "shop").means is means


@pytest.mark.parametrize(
    ("sql", "stay", "gone"),
    [
        ("RENAME TABLE a TO b", "b", "a"),
        ("RENAME TABLES IF EXISTS a WAIT 3 TO other.b", "other.b", "a"),
        ("rename table `shop`.`t` to `shop`.`_t_del`, `shop`.`_t_gho` to `shop`.`t`", "t _t_del", "_t_gho"),
        ("RENAME TABLE a TO c, b TO a, c TO b", "a b", "c"),
        ("ALTER TABLE t RENAME u", "u", "t"),
        ("ALTER TABLE t ADD COLUMN a int, RENAME AS `u`, RENAME COLUMN b TO c", "u", "t"),
        ("ALTER TABLE t RENAME = o.u", "o.u", "t"),
        ("ALTER TABLE t EXCHANGE PARTITION p0 WITH TABLE s.u WITHOUT VALIDATION", "t s.u", ""),
        ("ALTER TABLE t CONVERT PARTITION p0 TO TABLE u", "t u", ""),
        ("ALTER TABLE t CONVERT TABLE u TO PARTITION p0 VALUES LESS THAN (1)", "t", "u"),
        ("ALTER TABLE t IMPORT TABLESPACE", "t", ""),
        ("ALTER TABLE t DISCARD PARTITION p0 TABLESPACE", "t", ""),
    ],
)
def test_of_tables_that_are_renamed_or_swapped_it_is_known_which_names_are_left(sql: str, stay: str, gone: str) -> None:
    def named(names: str) -> set[TableName]:
        return {TableName.parse(n if "." in n else f"shop.{n}") for n in names.split()}

    found = classify(sql, "shop")
    assert (found.means, set(found.renamed_away)) == (Means.SWAPS, named(gone))
    assert set(found.tables) == named(stay) | named(gone)


def event(kind: int, body: bytes, *, end: int = 0, checksummed: bool = False) -> bytes:
    size = events.HEADER + len(body) + (4 if checksummed else 0)
    data = struct.pack("<IBIIIH", 1, kind, 1, size, end, 0) + body
    return data + zlib.crc32(data).to_bytes(4, "little") if checksummed else data


def test_a_wrong_checksum_is_an_error() -> None:
    good = event(events.Type.XID, b"12345678", checksummed=True)
    assert mysql_binlog.parse(good, 0, True).body == b"12345678"
    with pytest.raises(ValueError, match="checksum"):
        mysql_binlog.parse(good[:25] + b"X" + good[26:], 0, True)


def state(*, skip: int = 0) -> LogState:
    return LogState(
        tables=TableFilter(CONFIG),
        keys={},
        charsets=Charsets({}, {}),
        zero_dates="error",
        mariadb=False,
        server=UUID,
        position=Position("binlog.000001", 4, MysqlGtids.parse("")),
        rows_to_skip=skip,
        is_table=lambda _: True,
    )


def gtid(number: int) -> bytes:
    sid = bytes.fromhex(UUID.replace("-", ""))
    return event(
        events.Type.GTID,
        b"\1" + sid + struct.pack("<QBQQ", number, 2, 0, 1) + (1_700_000_000_000_000).to_bytes(7, "little"),
    )


def query(sql: str, *, variables: bytes = b"") -> bytes:
    return event(
        events.Type.QUERY, struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0" + sql.encode()
    )


def take(log: LogState, *found: bytes) -> None:
    for data in found:
        log.take(mysql_binlog.parse(data, 0, False))


@pytest.mark.parametrize("kind", [0, 6, 99, events.Type.INCIDENT, 172])
def test_an_unknown_event_is_named_with_its_place(kind: int) -> None:
    with pytest.raises(UnknownLogEvent, match="event") as raised:
        take(state(), event(kind, b"", end=500))
    assert "binlog.000001:" in str(raised.value) and raised.value.fix


def test_a_truncate_is_signalled_in_its_transaction() -> None:
    log = state()
    take(log, gtid(1), query("TRUNCATE TABLE t"))
    batch = log.flush()
    assert batch.signals == (Truncated(0, 0, TableName("shop", "t")),)
    assert batch.transactions[0].id == f"{UUID}:1" and batch.transactions[0].commit_time == 1_700_000_000_000_000
    assert f"{UUID}:1" in batch.position


def test_the_position_moves_only_between_transactions() -> None:
    log = state()
    take(log, gtid(1), query("BEGIN"))
    assert not log.is_between_transactions and not log.has_news
    take(log, event(events.Type.XID, bytes(8), end=900))
    assert log.is_between_transactions and log.has_news and log.position.offset == 900


def test_a_shorter_transaction_than_was_staged_is_an_error() -> None:
    with pytest.raises(LogPositionLost):
        take(state(skip=3), gtid(1), query("BEGIN"), event(events.Type.XID, bytes(8)))


XID = "X'78',X'',1"


def prepared(*, one_phase: bool = False, xid: bytes = b"x", end: int = 0) -> bytes:
    return event(events.Type.XA_PREPARE, struct.pack("<?III", one_phase, 1, len(xid), 0) + xid, end=end)


def prepare(log: LogState, number: int = 1, xid: bytes = b"x") -> None:
    take(log, gtid(number), query(f"XA START X'{xid.hex()}',X'',1"), query("XA END"), prepared(xid=xid, end=700))


def test_a_prepared_transaction_is_in_the_position_until_it_ends() -> None:
    log = state()
    prepare(log)
    prepare(log, 2, b"y")
    assert [(p.xid, p.gtid) for p in log.position.prepared] == [(XID, f"{UUID}:1"), ("X'79',X'',1", f"{UUID}:2")]
    assert log.is_between_transactions and str(log.position.gtids) == f"{UUID}:1-2"
    take(log, gtid(3), query("XA ROLLBACK X'79',X'',1"))
    assert [p.xid for p in log.position.prepared] == [XID] and log.is_between_transactions
    prepare(log, 4)  # its second phase never came, and the id is used again
    assert [p.gtid for p in log.position.prepared] == [f"{UUID}:4"]
    take(log, gtid(5), query(f"XA COMMIT {XID}"))
    assert (
        log.prepared_rows is not None and log.prepared_rows.remembered is not None and not log.is_between_transactions
    )
    for event_ in log.prepared_rows.remembered:
        log.take_prepared(event_)
    assert log.is_between_transactions and log.prepared_rows is None and not log.position.prepared
    assert str(log.position.gtids) == f"{UUID}:1-5"


def test_a_commit_of_what_was_never_prepared_is_an_error_and_its_rollback_is_none() -> None:
    log = state()
    take(log, gtid(1), query(f"XA ROLLBACK {XID}"))
    with pytest.raises(UnknownLogEvent, match="X'78'") as raised:
        take(log, gtid(2), query(f"XA COMMIT {XID}"))
    assert "fresh-start" in raised.value.fix


@pytest.mark.parametrize("last", [query("COMMIT"), query("ROLLBACK"), event(events.Type.XID, bytes(8))])
def test_an_xa_transaction_that_ends_like_a_plain_one_is_an_error(last: bytes) -> None:
    with pytest.raises(UnknownLogEvent, match="XA"):
        take(state(), gtid(1), query(f"XA START {XID}"), last)


def reread(log: LogState, *found: bytes) -> None:
    for data in found:
        log.take_prepared(mysql_binlog.parse(data, 0, False))


def test_rows_that_are_read_again_are_those_of_the_same_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_memory, "MEMORY_BYTES", 0)
    log = state()
    prepare(log)
    take(log, gtid(2), query(f"XA COMMIT {XID}"))
    assert log.prepared_rows is not None and log.prepared_rows.remembered is None
    reread(log, event(events.Type.QUERY, b"no matter"), gtid(9), query("TRUNCATE t"))  # not ours: passed over
    reread(log, gtid(1), query(f"XA START {XID}"))
    with pytest.raises(LogPositionLost, match="X'79'"):
        reread(log, prepared(xid=b"y"))


def test_table_numbers_of_prepared_rows_are_not_those_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_memory, "MEMORY_BYTES", 0)
    described = event(events.Type.TABLE_MAP, struct.pack("<IHH", 7, 0, 1) + b"\5other\0\1t\0")
    rows_of_7 = event(events.Type.WRITE_ROWS, struct.pack("<IHHH", 7, 0, 1, 2) + b"\1\1\0\0")
    log = state()
    prepare(log)
    take(log, gtid(2), query("BEGIN"), described, rows_of_7, event(events.Type.XID, bytes(8)))
    take(log, gtid(3), query(f"XA COMMIT {XID}"))
    reread(log, gtid(1), query(f"XA START {XID}"))
    with pytest.raises(UnknownLogEvent, match="not described"):
        reread(log, rows_of_7)


def test_statements_that_change_rows_are_refused_when_they_are_prepared() -> None:
    log = state()
    take(log, gtid(1), query(f"XA START {XID}"))
    with pytest.raises(UnknownLogEvent, match="statement form"):
        take(log, query("INSERT INTO t VALUES (1)"))


def test_rows_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_memory, "MEMORY_BYTES", 3000)
    monkeypatch.setattr(row_memory, "TRANSACTION_BYTES", 1500)
    kept = row_memory.RowMemory()

    def held(size: int) -> row_memory.UndecidedRows:
        group = row_memory.UndecidedRows(4, None)
        group.add(mysql_binlog.parse(event(events.Type.XID, bytes(size)), 0, False))
        return group

    for number in range(4):
        kept.put(str(number), held(800))
    kept.put("large", held(1400))
    assert [kept.pop(str(n)) is not None for n in range(4)] == [False, False, True, True]
    assert kept.pop("large") is None and kept._size_bytes == 0
    kept.put("twice", held(800))
    kept.put("twice", held(700))
    assert kept.pop("twice") is not None and kept.pop("twice") is None and kept._size_bytes == 0


@pytest.mark.parametrize("form", [0, 1, 2**31 - 1, 2**32 - 1])
def test_ids_of_event_and_statement_agree(form: int) -> None:
    body = struct.pack("<?III", True, form, 3, 2) + b"\0\xff'b\x80"
    assert ids.parse_prepare_event(body) == (True, ids.parse_statement(f"xa commit X'00FF27',X'6280',{form}"))
    with pytest.raises(ValueError, match="cut short"):
        ids.parse_prepare_event(body[:-1])
    with pytest.raises(ValueError, match="no xid"):
        ids.parse_statement("XA COMMIT")


def test_rows_that_nobody_described_are_an_error() -> None:
    with pytest.raises(UnknownLogEvent, match="not described"):
        take(
            state(),
            gtid(1),
            query("BEGIN"),
            event(events.Type.WRITE_ROWS, struct.pack("<IHHH", 7, 0, 1, 2) + b"\1\1\0\0"),
        )


def test_errors_of_the_log_are_told_apart() -> None:
    position = Position("binlog.000001", 4, None)
    taken = translate_fatal_error(
        "A slave with the same server_uuid/server_id as this slave has connected to the master", CONFIG, position
    )
    assert isinstance(taken, SourceUnavailable) and "server_id" in taken.fix
    gone = translate_fatal_error("Could not find first log file name in binary log index file", CONFIG, position)
    assert isinstance(gone, LogPositionLost)


def test_patterns_know_two_wildcards_only() -> None:
    tables = TableFilter(CONFIG.model_copy(update={"tables": ("shop.a[b]*", "shop.c?")}))
    assert tables.wants(TableName("shop", "a[b]x")) and not tables.wants(TableName("shop", "ab"))
    assert tables.wants(TableName("shop", "cx")) and not tables.wants(TableName("shop", "cxy"))


def spoken(sql: bytes, *, collation: int | None = None, schema: bytes = b"shop") -> bytes:
    """A QUERY event as servers log it: with flags, sql_mode and catalogue before the session's character sets."""
    variables = b"\0" + bytes(4) + b"\1" + bytes(8) + b"\6\3std" + b"\3" + bytes(4)
    if collation is not None:
        variables += b"\4" + struct.pack("<HHH", collation, collation, 45)
    head = struct.pack("<IIBHH", 1, 0, len(schema), 0, len(variables))
    return event(events.Type.QUERY, head + variables + schema + b"\0" + sql)


def talking(*, any_case: bool = False, tables: str = "shop.*") -> LogState:
    return LogState(
        tables=TableFilter(CONFIG.model_copy(update={"tables": (tables,)})),
        keys={},
        charsets=Charsets({8: "latin1", 28: "gbk", 45: "utf8mb4"}, {"latin1": bytes(range(256)).decode("latin-1")}),
        zero_dates="error",
        any_case=any_case,
        mariadb=False,
        server=UUID,
        position=Position("binlog.000001", 4, MysqlGtids.parse("")),
        rows_to_skip=0,
        is_table=lambda _: True,
    )


@pytest.mark.parametrize(
    ("sql", "collation", "table"),
    [
        ("TRUNCATE TABLE aufträge".encode("latin-1"), 8, "aufträge"),
        ("TRUNCATE TABLE `誠`".encode("gbk"), 28, "誠"),  # whose second byte is a backslash
        ("TRUNCATE TABLE aufträge".encode(), 45, "aufträge"),
        ("TRUNCATE TABLE aufträge".encode(), None, "aufträge"),
    ],
)
def test_a_statement_is_read_in_its_sessions_character_set(sql: bytes, collation: int | None, table: str) -> None:
    log = talking()
    take(log, gtid(1), spoken(sql, collation=collation))
    assert log.flush().signals == (Truncated(0, 0, TableName("shop", table)),)


def test_a_name_that_is_no_text_is_refused_where_it_may_be_a_captured_tables() -> None:
    with pytest.raises(UnknownLogEvent, match="no text in its session's character set"):
        take(talking(), gtid(1), spoken(b"TRUNCATE TABLE auftr\xe4ge", collation=45))
    log = talking()
    take(log, gtid(1), spoken(b"TRUNCATE TABLE other.auftr\xe4ge", collation=45))
    take(log, gtid(2), spoken(b"ALTER TABLE a COMMENT = '\xe4'", collation=45))  # a text may be any bytes
    assert {signal.table.name for signal in log.flush().signals if isinstance(signal, Altered)} == {"a"}


def test_the_text_that_mysql_generates_for_create_select_is_utf8() -> None:
    sql = "CREATE TABLE `誠表` (\n  `id` int DEFAULT NULL\n) START TRANSACTION".encode()
    log = talking()
    take(log, gtid(1), query("BEGIN"), spoken(sql, collation=28))
    assert [signal.table.name for signal in log.flush().signals if isinstance(signal, Altered)] == ["誠表"]


@pytest.mark.parametrize("pattern", ["shop.orders", "shop.*"])
def test_where_the_server_does_not_mind_the_case_statements_are_told_in_lower_case(pattern: str) -> None:
    log = talking(any_case=True, tables=pattern)
    take(log, gtid(1), query("TRUNCATE TABLE ORDERS"))
    take(log, gtid(2), query("RENAME TABLE Orders TO Shop.tmp, shop.new TO ORDERS, tmp TO old"))
    take(log, gtid(3), query("ALTER TABLE ORDERS DROP PARTITION p0"))
    take(log, gtid(4), query("DROP DATABASE Shop"))
    told = [
        (type(s), s.schema if isinstance(s, DatabaseDropped) else s.table.name, s.any_case)
        for s in log.flush().signals
        if isinstance(s, DatabaseDropped | Truncated | Rewritten) and getattr(s, "table", ORDERS) == ORDERS
    ]
    expected = [(Truncated, "orders"), (Rewritten, "orders"), (Rewritten, "orders"), (DatabaseDropped, "shop")]
    assert list(dict.fromkeys(told)) == list(dict.fromkeys((kind, name, True) for kind, name in expected))


def test_where_the_server_minds_the_case_another_table_is_another_table() -> None:
    log = talking(tables="shop.orders")
    take(log, gtid(1), query("TRUNCATE TABLE ORDERS"), gtid(2), query("DROP DATABASE SHOP"))
    assert log.flush().signals == ()


_HEAD = "0000000000012000a04500000000060373746404ff00ff00ff000c0170726f626500"
_MARIADB = "00000000010100002054000000000603737464042d002d000800"


@pytest.mark.parametrize(
    ("sql", "variables", "made"),
    [
        ("CREATE TABLE orders (id int)", "", True),
        ("CREATE TABLE orders LIKE other", "", True),
        ("CREATE TABLE IF NOT EXISTS orders (id int)", f"{_HEAD}11080000000000000012ff001300", True),
        ("CREATE TABLE IF NOT EXISTS orders (id int)", f"{_HEAD}12ff001300", False),
        ("CREATE TABLE IF NOT EXISTS orders (id int)", f"{_MARIADB}810700000000000000", True),
        ("CREATE TABLE IF NOT EXISTS orders (id int)", _MARIADB, False),
        ("CREATE TABLE IF NOT EXISTS orders (id int)", f"0c02{b'shop'.hex()}00{b'b'.hex()}00110800", True),
        ("CREATE TABLE IF NOT EXISTS orders (id int)", "0cfe12ff00", False),
        ("CREATE TABLE IF NOT EXISTS orders (id int)", "05035554430b01780179c8", False),
        ("CREATE TABLE IF NOT EXISTS orders (id int) START TRANSACTION", "", True),
        ("CREATE TABLE orders (id int) ENGINE=MERGE UNION=(a, b)", "", False),
        ("CREATE OR REPLACE TABLE orders (id int)", "", True),
        ("CREATE TEMPORARY TABLE orders (id int)", "", False),
        ("CREATE TABLE other.orders (id int)", "", False),
        ("ALTER TABLE orders ADD c int", "", False),
    ],
)
def test_a_table_that_is_made_has_no_row_where_the_statement_has_certainly_made_it(
    sql: str, variables: str, made: bool
) -> None:
    """The variables are those of MySQL 9 and MariaDB 10.11, for a statement that made a table and one that found it."""
    log = talking()
    take(log, gtid(1), query(sql, variables=bytes.fromhex(variables)))
    found = [signal.table for signal in log.flush().signals if isinstance(signal, Created)]
    assert found == ([ORDERS] if made else [])


@pytest.mark.parametrize(
    ("sql", "means"),
    [
        ("CREATE TABLE x TABLE t", Means.REWRITES),
        ("CREATE TABLE x AS VALUES ROW(1)", Means.REWRITES),
        ("CREATE TABLE x AS VALUES (1), (2)", Means.REWRITES),
        ("CREATE TABLE x (a int) PARTITION BY LIST (a) (PARTITION p VALUES IN (1, 2))", Means.HARMLESS),
        ("CREATE TABLE x (a int) PARTITION BY RANGE (a) (PARTITION p VALUES LESS THAN (9))", Means.HARMLESS),
        ("CREATE TABLE x (`table` int, `values` int)", Means.HARMLESS),
    ],
)
def test_a_statement_that_fills_the_table_that_it_makes_is_known_by_any_query(sql: str, means: Means) -> None:
    assert classify(sql, "shop").means is means
