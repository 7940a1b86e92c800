"""Events of the MySQL log, without a server: checksums, places, transactions, and errors told apart."""

from __future__ import annotations

import struct

import pytest

from dblog_core.errors import LogPositionLost, SourceUnavailable, UnknownLogEvent
from dblog_core.model.events import Rewritten, Truncated
from dblog_core.model.schema import TableName
from dblog_core.sources.mysql.binlog import events
from dblog_core.sources.mysql.binlog.purged_log import translate_fatal_error
from dblog_core.sources.mysql.binlog.xa import ids, row_memory
from dblog_core.sources.mysql.position import Position
from tests.unit import mysql_binlog
from tests.unit.logged_events import CONFIG, UUID, event, gtid, query, state, take


def test_a_wrong_checksum_is_an_error() -> None:
    good = event(events.Type.XID, b"12345678", checksummed=True)
    assert mysql_binlog.parse(good, 0, True).body == b"12345678"
    with pytest.raises(ValueError, match="checksum"):
        mysql_binlog.parse(good[:25] + b"X" + good[26:], 0, True)


@pytest.mark.parametrize("kind", [0, 6, 99, events.Type.INCIDENT, 172])
def test_an_unknown_event_is_named_with_its_place(kind: int) -> None:
    with pytest.raises(UnknownLogEvent, match="event") as raised:
        take(state(), event(kind, b"", end=500))
    assert "binlog.000001:" in str(raised.value) and raised.value.fix


@pytest.mark.parametrize("kind", [100, 101, 172, events.Type.IGNORABLE])
def test_an_event_that_replicas_pass_over_changes_nothing(kind: int) -> None:
    """Amazon Aurora writes types 100 and 101 with this flag, and no documentation says what they are."""
    log = state()
    take(log, event(kind, b"opaque", end=500, flags=events.IGNORABLE), gtid(1), query("TRUNCATE TABLE t"))
    assert log.flush().signals == (Truncated(0, 0, TableName("shop", "t")),)


@pytest.mark.parametrize("kind", [events.Type.INCIDENT, events.Type.PARTIAL_UPDATE_ROWS])
def test_an_event_that_is_known_to_matter_is_not_passed_over_whatever_its_flag_says(kind: int) -> None:
    with pytest.raises((UnknownLogEvent, ValueError)):
        take(state(), event(kind, b"", end=500, flags=events.IGNORABLE))


def test_a_truncate_is_signalled_in_its_transaction() -> None:
    log = state()
    take(log, gtid(1), query("TRUNCATE TABLE t"))
    batch = log.flush()
    assert batch.signals == (Truncated(0, 0, TableName("shop", "t")),)
    assert batch.transactions[0].id == f"{UUID}:1" and batch.transactions[0].commit_time == 1_700_000_000_000_000
    assert f"{UUID}:1" in batch.position


@pytest.mark.parametrize(
    ("statement", "emptied", "unproven"),
    [
        ("TRUNCATE TABLE t", [], ["t"]),
        ("/* a tool */ ALTER TABLE t RENAME TO u", ["t"], ["t", "u"]),
        ("DROP TABLE t", ["t"], []),
    ],
)
def test_where_a_session_has_temporary_tables_only_the_table_tells_what_is_emptied(
    statement: str, emptied: list[str], unproven: list[str]
) -> None:
    log = state()
    take(log, gtid(1), query(statement, flags=events.OF_SESSION))
    signals = log.flush().signals
    assert [signal.table.name for signal in signals if isinstance(signal, Truncated)] == emptied
    assert [signal.table.name for signal in signals if isinstance(signal, Rewritten)] == unproven


def test_the_position_moves_only_between_transactions() -> None:
    log = state()
    take(log, gtid(1), query("BEGIN"))
    assert not log.is_between_transactions and not log.has_news
    take(log, event(events.Type.XID, bytes(8), end=900))
    assert log.is_between_transactions and log.has_news and log.position.offset == 900


def test_a_shorter_transaction_than_was_staged_is_an_error() -> None:
    with pytest.raises(LogPositionLost):
        take(state(skip=3), gtid(1), query("BEGIN"), event(events.Type.XID, bytes(8)))


def test_rows_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_memory, "MEMORY_BYTES", 3000)
    monkeypatch.setattr(row_memory, "TRANSACTION_BYTES", 1500)
    memory = row_memory.RowMemory()

    def rows_of_size(size: int) -> row_memory.UndecidedRows:
        group = row_memory.UndecidedRows(4, None)
        group.add(mysql_binlog.parse(event(events.Type.XID, bytes(size)), 0, False))
        return group

    for number in range(4):
        memory.put(str(number), rows_of_size(800))
    memory.put("large", rows_of_size(1400))
    assert [memory.pop(str(n)) is not None for n in range(4)] == [False, False, True, True]
    assert memory.pop("large") is None and memory._size_bytes == 0
    memory.put("twice", rows_of_size(800))
    memory.put("twice", rows_of_size(700))
    assert memory.pop("twice") is not None and memory.pop("twice") is None and memory._size_bytes == 0


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
    slot_error = translate_fatal_error(
        "A slave with the same server_uuid/server_id as this slave has connected to the master", CONFIG, position
    )
    assert isinstance(slot_error, SourceUnavailable) and "server_id" in slot_error.fix
    purged_error = translate_fatal_error(
        "Could not find first log file name in binary log index file", CONFIG, position
    )
    assert isinstance(purged_error, LogPositionLost)
