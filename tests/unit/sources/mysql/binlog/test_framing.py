"""Packets and events found by compiled code are those that plain Python finds, in any pieces; what lies is an error."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import pytest

from dblog_core.errors import SourceUnavailable
from dblog_core.sources.mysql.binlog import compressed, events, headers
from dblog_core.sources.mysql.binlog.events import Event, Type
from dblog_core.sources.mysql.binlog.framing import Events, Framing, NoEvent
from dblog_core.sources.mysql.row_events import row_event_header
from tests.unit import mysql_binlog as binlog

FAULTS = (ValueError, SourceUnavailable, NoEvent)


def feed_pieces(
    pieces: Iterable[bytes], *, checksums: bool = False, sequence: int = 1, brief: bool = False
) -> Iterator[Events]:
    """What a connection that brings these pieces gives."""
    split = Framing(packets=True, checksums=checksums, sequence=sequence)
    for piece in pieces:
        left = memoryview(piece)
        while len(left):
            room = split.room()
            count = min(len(room), len(left))
            room[:count] = left[:count]
            split.add_received(count)
            left = left[count:]
            while (stretch := split.next(brief=brief)) is not None:
                yield stretch


def cut(stream: bytes, draw: random.Random) -> Iterator[bytes]:
    at = 0
    longest = draw.choice([1, 3, 50] if len(stream) < 9000 else [1000, 5000, 1 << 22])
    while at < len(stream):
        size = draw.randint(1, longest)
        yield stream[at : at + size]
        at += size


def take_events(stretches: Iterable[Events]) -> list[Event]:
    """All events, each checked against its code."""
    every: list[Event] = []
    owner: bytes | None = None
    for stretch in stretches:
        for number, code, end, size, start, stop, a, b, c in stretch.rest:
            event = stretch.event(number)
            assert (end, size, stop - start) == (event.end, event.size, len(event.body))
            check_event(event, code, start, a, b, c, owner)
            if event.type == Type.GTID and code in (headers.GTID, headers.GTID_BEGIN):
                owner = event.body[1:17]
            every.append(event)
    return every


def check_event(event: Event, code: int, start: int, a: int, b: int, c: int, owner: bytes | None) -> None:
    """What the kernel says of an event is what reading it in Python says."""
    body = event.body
    if code <= headers.DELETES:
        op, extended, packed = row_event_header.KINDS[Type(event.type)]
        assert "cud"[code] == op and not packed and a == int.from_bytes(body[:6], "little")
        count = c
        size = (c + 7) // 8
        at = b - start
        bitmaps = body[at - size * (2 if op == "u" else 1) : at]
        every = (1 << count) - 1
        for i in range(0, len(bitmaps), size or 1):
            assert int.from_bytes(bitmaps[i : i + size], "little") & every == every
        assert (8 + int.from_bytes(body[8:10], "little") if extended else 8) < at <= len(body)
    elif code in (headers.GTID, headers.GTID_BEGIN):
        read = events.gtid(body, anonymous=False)
        assert read.gtid is not None and read.gtid.endswith(f":{a}") and read.commit_time == b
        assert not c or body[1:17] == owner
    elif code == headers.MARIADB_GTID:
        read = events.mariadb_gtid(body, event.server_id, event.timestamp)
        assert read.gtid == f"{b}-{event.server_id}-{a}" and (read.standalone, read.prepared) == (c & 1 > 0, c & 64 > 0)
    elif code == headers.BEGIN:
        assert event.type == Type.QUERY and events.query(body)[1] == "BEGIN"
    elif code in (headers.XID, headers.SAME_MAP):
        assert event.type == {headers.XID: Type.XID, headers.SAME_MAP: Type.TABLE_MAP}[code]
    else:
        assert code == headers.OTHER


def some_event(draw: random.Random, *, checksums: bool) -> bytes:
    number = draw.choice([1, 5, 2**40])
    table = draw.choice([1, 2, 65, 2**33])
    more = {"checksummed": checksums, "end": draw.choice([0, 4, 900, 2**32 - 1])}
    texts = ["x" * draw.choice([0, 5, 20])] * draw.choice([1, 8, 130])
    columns = tuple(f"c{i}" for i in range(1 + len(texts)))
    image = binlog.image(7, *texts)
    return draw.choice(
        [
            lambda: binlog.gtid(number, uuid=draw.choice([binlog.UUID, binlog.OTHER_UUID]), **more),
            lambda: binlog.mariadb_gtid(number, draw.choice([0, 1, 64]), domain=draw.choice([0, 2**32 - 1]), **more),
            lambda: binlog.query(draw.choice(["BEGIN", "COMMIT", "BEGINS", "begin"]), variables=b"v" * 9, **more),
            lambda: binlog.xid(**more),
            lambda: binlog.table_map(table, draw.choice("ab"), **more),
            lambda: binlog.rows(
                draw.choice([23, 24, 25, 30, 31, 32]),
                table,
                [image] * draw.choice([1, 2, 40]),
                columns=len(columns),
                whole=draw.random() < 0.9,
                **more,
            ),
            lambda: binlog.event(draw.choice([0, 4, 27, 29, 160, 200]), draw.randbytes(draw.randint(0, 60)), **more),
            lambda: binlog.event(Type.ROWS_QUERY, bytes(draw.choice([2000, 2100, 70_000])), **more),
            lambda: binlog.xid(**more, flags=events.ARTIFICIAL),
        ]
    )()


@lru_cache(maxsize=64)
def some_stream(seed: int) -> tuple[bytes, bool]:
    draw = random.Random(seed)
    checksums = draw.random() < 0.5
    events_written = [some_event(draw, checksums=checksums) for _ in range(draw.choice([1, 20, 300]))]
    if draw.random() < 0.3:
        return binlog.packets(
            [*events_written, binlog.description(checksums=True), binlog.xid(checksummed=True)]
        ), checksums
    return binlog.packets(events_written), checksums


@pytest.mark.parametrize("seed", range(60))
def test_events_are_those_of_plain_python_in_any_pieces(seed: int) -> None:
    stream, checksums = some_stream(seed)
    pieces = cut(stream, random.Random(seed))
    assert take_events(feed_pieces(pieces, checksums=checksums)) == list(binlog.split(stream, checksums=checksums))


@pytest.mark.parametrize("seed", range(60))
def test_in_brief_only_what_says_nothing_new_is_left_out(seed: int) -> None:
    stream, checksums = some_stream(seed)
    every = list(binlog.split(stream, checksums=checksums))
    events_read = take_events(feed_pieces(cut(stream, random.Random(seed)), checksums=checksums, brief=True))
    last = -1
    for event in events_read:
        at = next(i for i in range(last + 1, len(every)) if every[i] is event or every[i] == event)
        for i in range(last + 1, at):
            assert needless(every, i), f"event {i} is left out"
        last = at
    assert all(needless(every, i) for i in range(last + 1, len(every)))


def needless(every: list[Event], i: int) -> bool:
    """Whether event `i` is a BEGIN after a GTID, or a table map that its number had before."""
    if every[i].type == Type.QUERY:
        return events.query(every[i].body)[1] == "BEGIN" and every[i - 1].type == Type.GTID
    if every[i].type != Type.TABLE_MAP or every[i].artificial:
        return False
    maps = [e.body for e in every[:i] if e.type == Type.TABLE_MAP and e.body[:6] == every[i].body[:6]]
    return maps[-1:] == [every[i].body]


@pytest.mark.parametrize(
    ("between", "is_told"),
    [
        ([], False),
        ([binlog.event(Type.ROWS_QUERY, b"x")], False),
        ([binlog.gtid(1), binlog.query("BEGIN")], False),
        ([binlog.mariadb_gtid(1, 0)], False),
        ([binlog.mariadb_gtid(1, 64)], True),
        ([binlog.query("XA COMMIT X'78',X'',1")], True),
        ([binlog.description(checksums=False)], True),
        ([binlog.event(Type.XA_PREPARE, bytes(14))], True),
        ([binlog.event(Type.TRANSACTION_PAYLOAD, b"\0")], True),
        ([binlog.event(Type.ROTATE, bytes(12))], True),
        ([binlog.event(Type.ROWS_QUERY, bytes(17_000_000))], True),
    ],
)
def test_a_map_is_told_again_where_numbers_may_mean_something_else(between: list[bytes], is_told: bool) -> None:
    table_map = binlog.table_map(1, "a")
    events_read = take_events(feed_pieces([binlog.packets([table_map, *between, table_map])], brief=True))
    assert [e.type for e in events_read].count(Type.TABLE_MAP) == 1 + is_told


def outcome(read_events: Iterable[Event]) -> tuple[list[Event], bool]:
    """The events up to the first fault, and whether there was one."""
    every: list[Event] = []
    try:
        every.extend(read_events)  # those before the fault stay
    except FAULTS:
        return every, True
    return every, False


def one_by_one(stream: bytes, pieces: Iterable[bytes], *, checksums: bool) -> Iterator[Event]:
    for stretch in feed_pieces(pieces, checksums=checksums):
        for row in stretch.rest:
            yield stretch.event(row[0])


@pytest.mark.thorough
def test_bytes_that_lie_are_the_same_error_as_in_plain_python() -> None:
    for seed in range(1500):
        draw = random.Random(seed)
        stream, checksums = some_stream(seed % 50)
        broken = bytearray(stream[: draw.randint(1, min(len(stream), 5_000))])
        for _ in range(draw.choice([0, 1, 3])):
            broken[draw.randrange(len(broken))] = draw.choice([0, 1, 255, draw.randrange(256)])
        expected_events = outcome(binlog.split(bytes(broken), checksums=checksums))
        pieces = cut(bytes(broken), random.Random(seed))
        assert outcome(one_by_one(broken, pieces, checksums=checksums)) == expected_events, seed


def test_numbers_of_packets_go_round() -> None:
    stream = binlog.packets([binlog.xid()] * 600, sequence=250)
    assert len(take_events(feed_pieces([stream], sequence=250))) == 600


def test_a_lost_packet_is_noticed() -> None:
    stream = binlog.packets([binlog.xid()]) + binlog.packets([binlog.xid()], sequence=3)
    events_fed = feed_pieces([stream])
    assert len(take_events([next(events_fed)])) == 1
    with pytest.raises(SourceUnavailable, match="3 came where 2 was due"):
        next(events_fed)


def test_what_is_no_event_comes_as_its_payload() -> None:
    stream = binlog.packets([binlog.xid()]) + b"\5\0\0\2\xff1236"
    events_fed = feed_pieces([stream[:30], stream[30:]])
    assert len(take_events([next(events_fed)])) == 1
    with pytest.raises(NoEvent) as raised:
        next(events_fed)
    assert raised.value.payload == b"\xff1236"


@pytest.mark.thorough
@pytest.mark.parametrize("size", [0xFFFFFF - 1, 0xFFFFFF, 0xFFFFFF + 1, 2 * 0xFFFFFF, 40_000_000])
def test_events_of_more_than_a_packet_are_joined(size: int) -> None:
    """`size`: of the payload, with the byte before the event."""
    body = random.Random(1).randbytes(size - 1 - events.HEADER - 4)
    large = binlog.event(Type.ROWS_QUERY, body, checksummed=True)
    stream = binlog.packets([binlog.xid(checksummed=True), large, binlog.xid(checksummed=True)])
    pieces = [stream[at : at + 700_001] for at in range(0, len(stream), 700_001)]
    events_read = take_events(feed_pieces(pieces, checksums=True))
    assert [e.type for e in events_read] == [Type.XID, Type.ROWS_QUERY, Type.XID] and events_read[1].body == body
    broken = bytearray(stream)
    broken[1000] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        take_events(feed_pieces([bytes(broken)], checksums=True))


def test_memory_goes_back_after_a_large_event() -> None:
    large = binlog.event(Type.ROWS_QUERY, bytes(9_000_000))
    split = Framing(packets=True, checksums=False)
    stream = binlog.packets([large, *[binlog.event(Type.ROWS_QUERY, bytes(500_000))] * 40])
    at = 0
    while at < len(stream):
        room = split.room()
        piece = stream[at : at + min(len(room), 300_000)]
        room[: len(piece)] = piece
        split.add_received(len(piece))
        at += len(piece)
        while (stretch := split.next()) is not None:
            assert len(list(stretch.rest)) > 0
    assert len(split._raw) < 4_000_000


@pytest.mark.parametrize("size", [100, headers.SMALL, headers.SMALL + 1, 50_000])
def test_events_before_a_wrong_checksum_are_whole(size: int) -> None:
    good = [binlog.event(Type.ROWS_QUERY, bytes(size), checksummed=True) for _ in range(5)]
    bad = bytearray(good[2])
    bad[40] ^= 8
    events_fed = feed_pieces([binlog.packets([*good[:2], bytes(bad), *good[3:]])], checksums=True)
    assert len(take_events([next(events_fed)])) == 2
    with pytest.raises(ValueError, match="ROWS_QUERY does not match its checksum"):
        next(events_fed)


@pytest.mark.parametrize("kind", sorted(row_event_header.KINDS))
def test_no_bit_of_an_event_can_turn_unnoticed(kind: int) -> None:
    """The checksum finds each, in the event's head too; the head of the packet is the connection's own."""
    draw = random.Random(int(kind))
    good = binlog.rows(kind, 7, [binlog.image(7, "text")], columns=2, whole=True, checksummed=True)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << draw.randrange(8)
        with pytest.raises(FAULTS):
            take_events(feed_pieces([binlog.packets([bytes(bad)])], checksums=True))


def test_checksums_are_zlib_s() -> None:
    data = random.Random(5).randbytes(3000)
    raw = np.frombuffer(data, dtype=np.uint8)
    for start, stop in [(0, 0), (0, 1), (3, 10), (0, 8), (5, 3000), (1, 2049)]:
        assert int(headers.crc32(raw, start, stop)) == zlib.crc32(data[start:stop])


def test_a_map_is_the_same_only_if_every_byte_is() -> None:
    """Table numbers 1 and 65 share a slot of the kernel's memory."""
    maps = [binlog.table_map(i, name) for i, name in [(1, "a"), (1, "a"), (1, "b"), (1, "a"), (65, "a"), (1, "a")]]
    (events_fed,) = feed_pieces([binlog.packets(maps)])
    assert [row[1] == headers.SAME_MAP for row in events_fed.rest] == [False, True, False, False, False, False]


def inner(count: int) -> bytes:
    image = binlog.image(1, "x" * 20)
    return b"".join(
        binlog.table_map(1, "a") if n % 9 == 0 else binlog.rows(Type.WRITE_ROWS, 1, [image] * (n % 50))
        for n in range(count)
    )


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("count", [0, 1, 20_000])
def test_compressed_transactions_are_unpacked_in_pieces(count: int, compress: bool) -> None:
    plain = inner(count)
    body = binlog.payload(plain, compress=compress)
    events_read = take_events(compressed.unpack_events(body))
    assert (
        len(events_read) == count
        and b"".join(binlog.event(e.type, e.body, time=e.timestamp) for e in events_read) == plain
    )
    stretches = sum(1 for _ in compressed.unpack_events(body))
    assert stretches >= len(plain) / (1 << 20)


def test_compressed_transactions_that_lie_are_errors() -> None:
    plain = inner(300)
    for size in (0, len(plain) - 1, len(plain) + 1, 2**62):
        with pytest.raises(ValueError, match="another length than it says"):
            take_events(compressed.unpack_events(binlog.payload(plain, size=size)))
    for stop in (len(plain) - 1, len(plain) - 30):
        with pytest.raises(ValueError, match="cut short"):
            take_events(compressed.unpack_events(binlog.payload(plain[:stop], compress=False)))
    body = binlog.payload(plain)
    expected_events = take_events(compressed.unpack_events(binlog.payload(plain)))
    for seed in range(2000):
        draw = random.Random(seed)
        broken = bytearray(body[: draw.randint(1, len(body))] if seed % 2 else body)
        broken[draw.randrange(len(broken))] ^= draw.randint(1, 255)
        try:
            events_read = take_events(compressed.unpack_events(bytes(broken)))
        except (ValueError, IndexError):
            continue
        assert len(events_read) == len(expected_events) or len(broken) < 30 or events_read != expected_events


def test_a_length_inside_that_lies_asks_for_no_memory() -> None:
    broken = bytearray(inner(5))
    broken[9:13] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(ValueError, match="cut short"):
        take_events(compressed.unpack_events(binlog.payload(bytes(broken))))


def test_a_stretch_may_be_left_and_gone_on_with() -> None:
    (events_fed,) = feed_pieces([binlog.packets([binlog.xid(end=n) for n in range(1, 6)])])
    for row in events_fed.rest:
        if row[0] == 1:
            break
    assert [row[2] for row in events_fed.rest] == [3, 4, 5]


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_an_empty_packet_is_no_event(size: int) -> None:
    stream = binlog.packets([binlog.xid(), binlog.xid()]) + b"\0\0\0\3"
    events_fed = feed_pieces([stream[at : at + size] for at in range(0, len(stream), size)])
    with pytest.raises(NoEvent) as raised:
        take_events(events_fed)
    assert raised.value.payload == b""
