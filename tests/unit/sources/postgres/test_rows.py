"""The compiled reading of pgoutput against a plain one: any rows, in any pieces, streamed or whole, or damaged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dblog_core.config.source import SourceConfig
from dblog_core.errors import SourceUnavailable, UnknownLogEvent, ValueOutOfRange
from dblog_core.model.events import LogBatch, SchemaSeen, Truncated, Unreadable
from dblog_core.sources.postgres.logical.batch import MAX_ROWS, Assembly
from dblog_core.sources.postgres.logical.message_buffer import Messages
from dblog_core.sources.postgres.logical.pgoutput import PgoutputDecoder
from dblog_core.sources.postgres.logical.relations import Forms, Types
from dblog_core.sources.postgres.position import Lsn
from dblog_core.sources.postgres.values import types
from tests.unit.pgoutput_messages import (
    Wrong,
    begin,
    binary,
    change,
    commit,
    read_change,
    relation,
    row,
    stream_abort,
    stream_commit,
    stream_start,
    streamed_message,
)

NAMES = {
    1007: "integer[]",
    20: "bigint",
    25: "text",
    17: "bytea",
    1700: "numeric(12,2)",
    1114: "timestamp without time zone",
    16: "boolean",
}
SHOP = SourceConfig.model_validate({"name": "shop", "kind": "postgres", "database": "shop", "tables": ["public.t*"]})
WIDE = [(1, "id", 20), (0, "n", 1700), (0, "v", 25), (0, "at", 1114), (0, "ok", 16), (0, "bin", 17)]
COLUMNS = tuple(types.column(name, NAMES[oid]) for _, name, oid in WIDE)
T = relation("t", WIDE)
T2 = relation("t2", WIDE, oid=2)

texts = st.tuples(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.none() | st.decimals(-9999999999, 9999999999, places=2).map(lambda d: f"{d:.2f}"),
    st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9),
    st.none() | st.datetimes().map(lambda d: d.isoformat(" ")),
    st.none() | st.sampled_from("tf"),
    st.none() | st.binary(max_size=5).map(lambda b: r"\x" + b.hex()),
)
kept_columns = st.lists(st.booleans(), min_size=6, max_size=6)


@st.composite
def row_messages(draw: st.DrawFn) -> bytes:
    """An INSERT, UPDATE or DELETE with any images."""
    kind = draw(st.sampled_from([b"I", b"U", b"D"]))
    oid = draw(st.sampled_from([1, 2]))
    old = draw(texts)
    new = draw(texts)
    images = []
    if kind == b"D" or (kind == b"U" and draw(st.booleans())):
        whole = draw(st.booleans())
        images.append((b"O", row(*old)) if whole else (b"K", row(old[0], *[None] * 5)))
    if kind != b"D":
        left_out = draw(kept_columns) if kind == b"U" else [False] * 6
        values = [
            b"u" if out and place in (1, 2, 5) else v for place, (v, out) in enumerate(zip(new, left_out, strict=True))
        ]
        images.append((b"N", row(*values)))
    return change(kind, *images, oid=oid)


def decoder(*, skip: int = 0, forms: Forms | None = None) -> PgoutputDecoder:
    names = Types(lambda oid, typmod: NAMES.get(oid, "text"), lambda table: ("id",))
    return PgoutputDecoder(SHOP, Assembly(Lsn(1), skip=skip), names, forms=forms or Forms(binary=False))


def feed_arrivals(reader: PgoutputDecoder, *arrivals: list[bytes]) -> Iterator[LogBatch]:
    """Batches of messages that come in these pieces; what is left of a piece lies before the next one."""
    rest = Messages()
    for piece in arrivals:
        rest = Messages.of([*(rest.message(n) for n in range(rest.next, rest.count)), *piece])
        while not reader.feed(rest):
            yield reader.take()
            rest.clear()
        yield reader.take()
        rest.clear()
    reader.close()


def lines_in_log_order(batches: list[LogBatch]) -> list[tuple[Any, ...]]:
    """Rows and truncations in log order, each with its transaction."""
    lines = []
    for number, batch in enumerate(batches):
        for changes in batch.changes:
            for r in changes.batch.to_pylist():
                what = (changes.schema.table.name, r["op"], r["key_only"], r["unchanged"], r["before"], r["after"])
                lines.append((number, r["sequence"], what, batch.transactions[r["transaction"]]))
        signals = [s for s in batch.signals if isinstance(s, Truncated)]
        lines += [(number, s.sequence, ("truncated", s.table.name), batch.transactions[s.transaction]) for s in signals]
    return [line[2:] for line in sorted(lines, key=lambda line: line[:2])]


def unreadable(batches: list[LogBatch]) -> list[Unreadable]:
    return [signal for batch in batches for signal in batch.signals if isinstance(signal, Unreadable)]


def cut(messages: list[bytes], cuts: list[int]) -> list[list[bytes]]:
    places = sorted({0, len(messages), *(c % (len(messages) + 1) for c in cuts)})
    return [messages[a:b] for a, b in pairwise(places)]


@pytest.mark.thorough
@given(st.lists(row_messages(), min_size=1, max_size=12))
@settings(deadline=None, max_examples=60)
def test_rows_are_what_a_plain_reading_makes_of_them(changes: list[bytes]) -> None:
    row_lines = lines_in_log_order(list(feed_arrivals(decoder(), [begin(), T, T2, *changes, commit()])))
    expected = [read_change(message, COLUMNS) for message in changes]
    assert [line[0][1:] for line in row_lines] == [(r.op, r.key_only, r.unchanged, r.old, r.new) for r in expected]
    assert [line[0][0] for line in row_lines] == ["t" if message[4] == 1 else "t2" for message in changes]


@dataclass(frozen=True)
class Story:
    """Transactions: whole ones, and streams whose blocks come between them."""

    whole: list[bytes]
    as_streams: list[bytes]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Messages as a server sends them that keeps large transactions to itself, and as one that streams them."""
    whole: list[bytes] = []
    streams: list[list[bytes]] = []
    truncate = b"T" + struct.pack(">IBII", 2, 0, 1, 2)
    for number in range(draw(st.integers(1, 3))):
        xid = 10 * (number + 1)
        final = 1000 * (number + 1)
        body: list[tuple[bytes, int]] = [(T, xid), (T2, xid)]
        changes = draw(st.lists(row_messages() | st.just(truncate), max_size=8))
        body += [(message, xid + draw(st.sampled_from([0, 0, 1, 2]))) for message in changes]
        rolled_back = draw(st.sampled_from([(), (1,), (1, 2)]))
        whole += [begin(final, xid), *(m for m, sub in body if sub - xid not in rolled_back), commit(final + 10)]
        blocks = cut([streamed_message(m, sub) for m, sub in body], draw(st.lists(st.integers(0, 20), max_size=3)))
        stream = [[stream_start(xid, first=not n), *block, b"E"] for n, block in enumerate(blocks)]
        streams.append([m for block in stream for m in block])
        aborts = [stream_abort(xid, xid + sub) for sub in rolled_back]
        streams[-1] += [*aborts, stream_commit(final, final + 10, xid)]
    return Story(whole, interleave_streams(draw, streams))


def interleave_streams(draw: st.DrawFn, streams: list[list[bytes]]) -> list[bytes]:
    """Blocks of several streams in turn; their commits stay in order, and one aborted stream is among them."""
    queues = [[[*block] for block in blocks_of(stream)] for stream in streams]
    aborted_blocks = [[stream_start(99, first=True), streamed_message(T, 99), b"E"], [stream_abort(99, 99)]]
    mixed: list[bytes] = []
    while any(queues):
        ready = [q for q in queues if q and (q[0][0][:1] != b"c" or q is next(x for x in queues if x))]
        queue = draw(st.sampled_from(range(len(ready))))
        mixed += ready[queue].pop(0)
        if aborted_blocks and draw(st.booleans()):
            mixed += aborted_blocks.pop(0)
    return mixed


def blocks_of(stream: list[bytes]) -> Iterator[list[bytes]]:
    """A stream's blocks, and its other messages one by one."""
    block: list[bytes] = []
    for message in stream:
        block.append(message)
        if message == b"E" or (message[:1] in (b"A", b"c") and block == [message]):
            yield block
            block = []


@pytest.mark.thorough
@given(stories(), st.lists(st.integers(0, 60), max_size=5), st.data())
@settings(deadline=None, max_examples=60)
def test_streams_in_any_pieces_are_what_whole_transactions_are(
    story: Story, cuts: list[int], data: st.DataObject
) -> None:
    kept_back = list(feed_arrivals(decoder(), story.whole))
    pieces = cut(story.as_streams, cuts)
    batches = list(feed_arrivals(decoder(), *pieces))
    assert lines_in_log_order(batches) == lines_in_log_order(kept_back)
    assert batches[-1].position == kept_back[-1].position and batches[-1].partial == 0
    first = next((line[1] for line in lines_in_log_order(kept_back)), None)
    known_rows = sum(line[1] == first for line in lines_in_log_order(kept_back))
    skip = data.draw(st.integers(0, known_rows))
    assert lines_in_log_order(list(feed_arrivals(decoder(skip=skip), *pieces))) == lines_in_log_order(kept_back)[skip:]
    assert (
        lines_in_log_order(list(feed_arrivals(decoder(skip=skip), *cut(story.whole, cuts))))
        == lines_in_log_order(kept_back)[skip:]
    )


@given(row_messages(), st.integers(0, 400), st.integers(0, 255), st.booleans())
@settings(deadline=None, max_examples=200)
def test_a_damaged_row_is_refused_or_read_as_a_plain_reading_does(
    message: bytes, place: int, byte: int, shorter: bool
) -> None:
    place = 5 + place % (len(message) - 5)
    damaged = message[:place] if shorter else message[:place] + bytes([byte]) + message[place + 1 :]
    try:
        batches = list(feed_arrivals(decoder(), [begin(), T, T2, damaged, commit()]))
    except UnknownLogEvent as error:
        where = error.where
    else:
        where = "".join(signal.why for signal in unreadable(batches))
    if not where:
        row_lines = lines_in_log_order(batches)
        expected = read_change(damaged, COLUMNS)
        assert [line[0][1:] for line in row_lines] == [
            (expected.op, expected.key_only, expected.unchanged, expected.old, expected.new)
        ]
        return
    assert "LSN" in where
    with pytest.raises((Wrong, ValueOutOfRange)):
        read_change(damaged, COLUMNS)


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_rows_before_a_value_that_is_refused_stay_and_its_column_and_place_are_told(rows: int) -> None:
    """The first of the log, where several columns hold one: they are decoded column by column."""
    good = change(b"I", (b"N", row("1", "1.50", "v", "2024-01-01 00:00:00", "t", r"\x00")))
    late = change(b"I", (b"N", row("1", "NaN", "v", "2024-01-01 00:00:00", "t", r"\x00")))
    bad = change(b"I", (b"N", row("1", "1.50", "v", "infinity", "t", r"\x00")))
    log = [begin(16, 7), T, *[good] * rows, commit(20), begin(32, 8), *[good] * (rows - 1), bad, late, commit(40)]
    batches = list(feed_arrivals(decoder(), [*log, begin(48, 9), good, commit(50)]))
    (signal,) = unreadable(batches)
    assert signal.why.startswith("public.t.at at LSN 0/20 (transaction 8): 'infinity'") and "staged_as" in signal.fix
    before = [line for line in lines_in_log_order(batches) if line[1].id == "8"]
    assert len(lines_in_log_order(batches)) == 2 * rows - 1 and len(before) == rows - 1


@given(
    st.sampled_from(["begin", "relation", "row", "truncate", "commit", "S", "E", "A", "c"]),
    st.integers(0, 99),
    st.data(),
)
@settings(deadline=None, max_examples=150)
def test_any_message_cut_short_or_changed_ends_in_an_error_of_ours_or_in_rows(
    which: str, place: int, data: st.DataObject
) -> None:
    messages = {
        "begin": begin(), "relation": T, "row": change(b"I", (b"N", row("1", *[None] * 5))),
        "truncate": b"T" + struct.pack(">IBI", 1, 0, 1), "commit": commit(),
        "S": stream_start(9, first=True), "rest": streamed_message(T, 9), "E": b"E", "A": stream_abort(9, 10),
        "c": stream_commit(200, 210, 9),
    }  # fmt: skip
    original = messages[which]
    place %= len(original)
    changed = st.integers(0, 255).map(lambda byte: original[:place] + bytes([byte]) + original[place + 1 :])
    messages[which] = data.draw(st.just(original[:place]) | changed)
    reader = decoder()
    try:
        with suppress(UnknownLogEvent):
            list(feed_arrivals(reader, list(messages.values())))
    finally:
        reader.close()


def test_binary_values_are_read_by_their_own_form_and_an_uncertain_type_asks_for_text() -> None:
    values = (
        binary(struct.pack(">q", -5)),
        None,
        binary(b"v"),
        binary(struct.pack(">q", 1)),
        binary(b"\1"),
        binary(b"\0"),
    )
    forms = Forms()
    (batch,) = feed_arrivals(decoder(forms=forms), [begin(), T, change(b"I", (b"N", row(*values))), commit()])
    ((line, _),) = lines_in_log_order([batch])
    assert {k: str(v) for k, v in line[-1].items()} == {
        "id": "-5", "n": "None", "v": "v", "at": "2000-01-01 00:00:00.000001", "ok": "True", "bin": r"b'\x00'"
    }  # fmt: skip
    with pytest.raises(SourceUnavailable, match="read as text"):
        list(feed_arrivals(decoder(forms=forms), [begin(), relation("t", [*WIDE, (0, "many", 1007)])]))
    assert not forms.binary and decoder(forms=forms).options()["binary"] == "false"


def test_a_value_in_a_form_that_was_not_asked_for_stops_its_table() -> None:
    mixed = change(b"I", (b"N", row("1", *[None] * 5))), change(b"I", (b"N", row(binary(b"\0" * 8), *[None] * 5)))
    (batch,) = feed_arrivals(decoder(), [begin(), T, *mixed, commit()])
    (stop,) = [signal for signal in batch.signals if isinstance(signal, Unreadable)]
    assert "binary values" in stop.why


def test_batches_are_bounded_and_end_between_transactions_where_they_can() -> None:
    insert = change(b"I", (b"N", row("1", *[None] * 5)))
    small = [m for n in range(30) for m in (begin(100 * n + 100, n), *[insert] * 700, commit(100 * n + 110))]
    batches = list(feed_arrivals(decoder(), [begin(1, 1), T, T2, commit(20), *small]))
    assert sum(c.batch.num_rows for b in batches for c in b.changes) == 21_000 and len(batches) == 3
    assert not any(batch.partial for batch in batches)
    large = list(feed_arrivals(decoder(), [begin(), T, *[insert] * 25_000, commit()]))
    assert [sum(c.batch.num_rows for c in b.changes) for b in large] == [MAX_ROWS, MAX_ROWS, 5000]
    assert [b.partial for b in large] == [MAX_ROWS, 2 * MAX_ROWS, 0]
    sequences = [b.changes[0].batch.column("sequence").to_pylist() for b in large]  # the first after a shape
    assert sequences == [list(range(2, MAX_ROWS + 2)), list(range(1, MAX_ROWS + 1)), list(range(1, 5001))]


def test_an_aged_batch_ends_with_the_next_transaction() -> None:
    insert = change(b"I", (b"N", row("1", *[None] * 5)))
    arrived = Messages.of([begin(), T, insert, commit(), begin(200, 8), insert, insert, commit(210)])
    reader = decoder()
    assert not reader.feed(arrived, aged=True)
    assert (reader.take().position, reader.feed(arrived, aged=True)) == ("0/6E", True)
    second = reader.take()
    assert (second.position, second.transactions[0].xid, second.partial) == ("0/D2", 8, 0)


def test_the_end_of_a_transaction_is_handed_on_even_if_nothing_comes_with_it() -> None:
    assembly = Assembly(Lsn(1))
    names = Types(lambda oid, typmod: NAMES.get(oid, "text"), lambda table: ("id",))
    reader = PgoutputDecoder(SHOP, assembly, names, forms=Forms(binary=False))
    assert reader.feed(Messages.of([begin(), T, change(b"I", (b"N", row("1", *[None] * 5)))]))
    assert reader.take().partial == 1 and not assembly.ready
    assert reader.feed(Messages.of([commit()])) and assembly.ready
    last = reader.take()
    assert (last.partial, last.position, last.changes) == (0, "0/6E", ()) and not assembly.ready


def test_shapes_come_once_for_what_many_transactions_send_again() -> None:
    wider = relation("t", [*WIDE, (0, "w", 25)])
    insert = change(b"I", (b"N", row("1", *[None] * 5)))
    more = change(b"I", (b"N", row("1", *[None] * 6)))
    (batch,) = feed_arrivals(decoder(), [begin(), T, insert, T, insert, wider, more, wider, more, commit()])
    assert [len(s.schema.columns) for s in batch.signals if isinstance(s, SchemaSeen)] == [6, 7]
    assert [c.batch.num_rows for c in batch.changes] == [2, 2]
