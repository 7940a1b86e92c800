"""XA transactions in the log of MySQL: prepared ones lie in the position until they end."""

from __future__ import annotations

import struct

import pytest

from dblog_core.errors import LogPositionLost, UnknownLogEvent
from dblog_core.model.events import ChangedByStatement
from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.xa import row_memory
from tests.unit.logged_events import UUID, XID, event, gtid, prepare, query, reread, state, take, xa_prepare


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


def test_rows_that_are_read_again_are_those_of_the_same_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_memory, "MEMORY_BYTES", 0)
    log = state()
    prepare(log)
    take(log, gtid(2), query(f"XA COMMIT {XID}"))
    assert log.prepared_rows is not None and log.prepared_rows.remembered is None
    reread(log, event(events.Type.QUERY, b"no matter"), gtid(9), query("TRUNCATE t"))  # not ours: passed over
    reread(log, gtid(1), query(f"XA START {XID}"))
    with pytest.raises(LogPositionLost, match="X'79'"):
        reread(log, xa_prepare(xid=b"y"))


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


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_statements_that_change_rows_count_from_the_commit(memory_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_memory, "MEMORY_BYTES", memory_bytes)
    log = state()
    statements = (query(f"XA START {XID}"), query("INSERT INTO t VALUES (1)"), query("XA END"))
    take(log, gtid(1), *statements, xa_prepare(end=700))
    assert not log.flush().signals
    take(log, gtid(2), query(f"XA COMMIT {XID}"))
    assert log.prepared_rows is not None
    if (remembered := log.prepared_rows.remembered) is None:
        reread(log, gtid(1), *statements, xa_prepare())
    else:
        for event_ in remembered:
            log.take_prepared(event_)
    (signal,) = log.flush().signals
    assert isinstance(signal, ChangedByStatement) and signal.tables is None and log.is_between_transactions
