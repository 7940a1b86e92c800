"""Positions in the log of MySQL and MariaDB: sets of GTIDs grow, lack, compare, and survive their text."""

from __future__ import annotations

import struct

import pytest

from dblog_core.errors import LogPositionLost
from dblog_core.sources.mysql.binlog import stream_request
from dblog_core.sources.mysql.position import MariadbGtids, MysqlGtids, Position, Prepared
from tests.unit.logged_events import UUID


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
    ("our_numbers", "their_numbers", "lacking"),
    [
        ("1-9", "1-9", None),
        ("1-9", "1-4:6-12", "5"),
        ("1-9", "3:5-6", "1-2:4:7-9"),
        ("2:5-9", "1-5", "6-9"),
        ("1-3:nightly:1-2", "1-3", None),
    ],
)
def test_what_a_server_lacks_of_a_gtid_set_is_named(our_numbers: str, their_numbers: str, lacking: str | None) -> None:
    our_set = MysqlGtids.parse(f"{UUID}:{our_numbers}")
    other = MysqlGtids.parse(f"{UUID}:{their_numbers}")
    named = f"{UUID}:nightly:1-2" if "nightly" in our_numbers else lacking and f"{UUID}:{lacking}"
    beyond = our_set.beyond(other)
    assert (beyond and str(beyond)) == named
    assert (beyond is None) == other.contains(our_set)


def test_what_a_mariadb_server_lacks_is_judged_by_domain_and_server() -> None:
    our_set = MariadbGtids.parse("0-1-100,7-1-5")
    assert our_set.beyond("0-1-100,0-2-130,7-1-5") is None
    assert str(our_set.beyond("0-1-99,0-2-130,7-1-5")) == "0-1-100"
    assert str(our_set.beyond("0-1-100")) == "7-1-5" and our_set.beyond("") == our_set


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
