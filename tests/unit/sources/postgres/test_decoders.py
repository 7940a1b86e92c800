"""pgoutput and wal2json by hand-made messages: what no server sends today must stop the capture, by name."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from dblog_core.config.source import SourceConfig
from dblog_core.errors import LogPositionLost, UnknownLogEvent
from dblog_core.model import table_patterns
from dblog_core.model.events import LogBatch, SchemaSeen, Truncated, Unreadable, WatermarkSeen
from dblog_core.model.schema import TableName
from dblog_core.sources.postgres import timelines
from dblog_core.sources.postgres.logical.batch import Assembly
from dblog_core.sources.postgres.logical.message_buffer import Messages
from dblog_core.sources.postgres.logical.pgoutput import PgoutputDecoder
from dblog_core.sources.postgres.logical.relations import Forms, Types
from dblog_core.sources.postgres.logical.wal2json import Wal2jsonDecoder
from dblog_core.sources.postgres.logical.wal2json_shapes import Shapes
from dblog_core.sources.postgres.position import Lsn, Point
from dblog_core.sources.postgres.values.types import arrow_type, comparable
from tests.unit.pgoutput_messages import begin, change, commit, relation, row

OID_NAMES = {20: "bigint", 25: "text", 17: "bytea"}
SHOP = SourceConfig.model_validate({"name": "shop", "kind": "postgres", "database": "shop", "tables": ["public.t*"]})


T = relation("t", [(1, "id", 20), (0, "v", 25), (0, "big", 25)])


def pgoutput(*, skip: int = 0) -> tuple[PgoutputDecoder, Assembly]:
    assembly = Assembly(Lsn(1), skip=skip)
    types = Types(lambda oid, typmod: OID_NAMES[oid], lambda table: ("id",))
    return PgoutputDecoder(SHOP, assembly, types, forms=Forms(binary=False)), assembly


def feed(*messages: bytes, skip: int = 0) -> LogBatch:
    decoder, _ = pgoutput(skip=skip)
    assert decoder.feed(Messages.of(messages))
    return decoder.take()


def rows(batch: LogBatch) -> list[dict[str, Any]]:
    row_lines = [line for changes in batch.changes for line in changes.batch.to_pylist()]
    return sorted(row_lines, key=lambda line: line["sequence"])


def test_an_lsn_prints_and_reads_as_the_server_does() -> None:
    assert str(Lsn.parse("16/B374D848")) == "16/B374D848" and int(Lsn.parse("1/0")) == 1 << 32
    assert Lsn.parse("0/FFFFFFFF") < Lsn.parse("1/0")
    with pytest.raises(LogPositionLost):
        Lsn.parse("mysql-bin.000001:4")


def test_a_position_is_an_lsn_on_a_timeline() -> None:
    for text in ("16/B374D848", "16/B374D848@2"):
        assert str(Point.parse(text)) == text
    assert Point.parse("1/0@12") == Point(Lsn(1 << 32), 12) and Point.parse("1/0").timeline is None
    for wrong in ("1/0@", "1/0@two", "@2"):
        with pytest.raises(LogPositionLost):
            Point.parse(wrong)


def test_a_history_file_says_where_each_timeline_was_left() -> None:
    history = "1\t0/5000148\tno recovery target specified\n\n# by hand\n2\t1/60000A0\tbefore 2026-01-01 00:00:00+00\n"
    assert timelines.ends(history) == {1: Lsn(0x5000148), 2: Lsn(0x1060000A0)} and timelines.ends("") == {}


@pytest.mark.parametrize(
    ("text", "staged"),
    [
        ("numeric(38,38)", "decimal128(38, 38)"),
        ("numeric(39,2)", "string"),
        ("numeric(2,-3)", "string"),
        ("numeric(3,5)", "string"),
        ("numeric", "string"),
        ("timestamp(3) with time zone", "timestamp[us, tz=UTC]"),
        ("timestamp without time zone", "timestamp[us]"),
        ("integer[]", "string"),
        ("public.mood", "string"),
        ("real", "float"),
        ("bytea", "binary"),
        ("date", "date32[day]"),
    ],
)
def test_a_type_is_known_by_its_text(text: str, staged: str) -> None:
    assert str(arrow_type(text)) == staged


@pytest.mark.parametrize(
    ("text", "cast"),
    [
        ("character varying(5)", "character varying"),
        ("character(5)", "bpchar"),
        ("numeric(5,2)", "numeric"),
        ("timestamp(3) without time zone", "timestamp without time zone"),
        ("bit(3)", "bit(3)"),
        ("uuid", "uuid"),
    ],
)
def test_a_bound_is_cast_without_a_length(text: str, cast: str) -> None:
    assert comparable(text) == cast


def test_rows_of_all_kinds_are_decoded_together() -> None:
    batch = feed(
        begin(),
        T,
        change(b"I", (b"N", row("1", "é\nx", None))),
        change(b"U", (b"N", row("1", "", b"u"))),
        change(b"U", (b"K", row("1", None, None)), (b"N", row("2", "w", b"u"))),
        change(b"U", (b"O", row("2", "w", "old")), (b"N", row("2", "x", b"u"))),
        change(b"D", (b"K", row("2", None, None))),
        commit(),
    )
    row_tuples = [(r["op"], r["key_only"], r["unchanged"], r["before"], r["after"]) for r in rows(batch)]
    empty = {"v": None, "big": None}
    assert row_tuples == [
        ("c", False, None, None, {"id": 1, "v": "é\nx", "big": None}),
        ("u", False, ["big"], None, {"id": 1, "v": "", "big": None}),
        ("u", True, ["big"], {"id": 1, **empty}, {"id": 2, "v": "w", "big": None}),
        ("u", False, None, {"id": 2, "v": "w", "big": "old"}, {"id": 2, "v": "x", "big": "old"}),
        ("d", True, None, {"id": 2, **empty}, None),
    ]
    assert (batch.position, batch.partial) == ("0/6E", 0)
    assert [(t.id, t.xid, t.position, t.commit_time) for t in batch.transactions] == [
        ("7", 7, "0/64", 946_684_800_000_000)
    ]


def test_several_tables_keep_their_order_by_sequence() -> None:
    other = relation("t2", [(1, "id", 20)], oid=2)
    batch = feed(
        begin(),
        T,
        change(b"I", (b"N", row("1", None, None))),
        other,
        change(
            b"I",
            (
                b"N",
                row(
                    "5",
                ),
            ),
            oid=2,
        ),
        b"T" + struct.pack(">IBII", 2, 0, 1, 2),
        change(
            b"I",
            (
                b"N",
                row(
                    "6",
                ),
            ),
            oid=2,
        ),
        commit(),
    )
    places = [(r["sequence"], r["op"]) for r in rows(batch)]
    places += [(s.sequence, type(s).__name__) for s in batch.signals]
    assert sorted(places) == [
        (1, "SchemaSeen"),
        (2, "c"),
        (3, "SchemaSeen"),
        (4, "c"),
        (5, "Truncated"),
        (6, "Truncated"),
        (7, "c"),
    ]


def test_an_open_transaction_is_partial_and_resumes_after_what_was_delivered() -> None:
    inserts = [change(b"I", (b"N", row(str(number), None, None))) for number in range(5)]
    truncate = b"T" + struct.pack(">IBI", 1, 0, 1)
    first = feed(begin(), T, *inserts[:2], truncate)
    assert (first.position, first.partial) == ("0/1", 3)
    assert [type(s) for s in first.signals] == [SchemaSeen, Truncated]
    rest = feed(begin(50), commit(60), begin(), T, *inserts[:2], truncate, *inserts[2:], commit(), skip=3)
    assert [r["after"]["id"] for r in rows(rest)] == [2, 3, 4]
    assert [type(s) for s in rest.signals] == [SchemaSeen] and (rest.position, rest.partial) == ("0/6E", 0)
    with pytest.raises(UnknownLogEvent, match="fewer rows"):
        feed(begin(), T, *inserts[:2], commit(), skip=3)


def test_nothing_is_handed_on_while_rows_are_skipped() -> None:
    decoder, assembly = pgoutput(skip=2)
    decoder.feed(Messages.of([begin(), T, change(b"I", (b"N", row("1", None, None)))]))
    assembly.advance(Lsn(90))
    assert not assembly.ready and assembly.position == 1


def test_watermarks_are_no_rows_and_strangers_are_left_out() -> None:
    marks = relation("dblog_watermark", [(1, "worker", 25), (0, "payload", 25)], oid=2)
    stranger = relation("strange", [(1, "id", 20)], oid=3)
    batch = feed(
        begin(),
        marks,
        change(b"I", (b"N", row("w", "one")), oid=2),
        change(b"U", (b"K", row("w", None)), (b"N", row("x", "two")), oid=2),
        change(b"D", (b"K", row("x", None)), oid=2),
        stranger,
        change(b"I", (b"N", row("1")), oid=3),
        b"T" + struct.pack(">IBII", 2, 0, 2, 3),
        commit(),
    )
    assert [s.payload for s in batch.signals if isinstance(s, WatermarkSeen)] == ["one", "two"]
    assert not batch.changes and len(batch.signals) == 2


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"Z\0\0\0\1\1", "unknown kind"),
        (b"S\0\0\0\1\1", "inside a transaction"),
        (change(b"I", (b"N", row("1")), oid=9), "before its description"),
    ],
)
def test_what_is_unknown_stops_the_capture_by_name(message: bytes, words: str) -> None:
    with pytest.raises(UnknownLogEvent, match=words):
        feed(begin(), T, message, commit())


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (change(b"I", (b"N", row("1", b"x", None))), "column value of an unknown kind"),
        (change(b"I", (b"N", row("1", "2"))), "another number of columns"),
        (change(b"I", (b"N", row("1", None, None))) + b"x", "unknown length"),
        (change(b"U", (b"K", row("1", None, None)), (b"X", row("1", None, None))), "row image of an unknown kind"),
    ],
)
def test_what_is_unknown_in_a_row_stops_its_table_by_name(message: bytes, words: str) -> None:
    insert = change(b"I", (b"N", row("1", None, None)))
    batch = feed(begin(), T, insert, message, commit())
    (stop,) = [signal for signal in batch.signals if isinstance(signal, Unreadable)]
    assert words in stop.why and "public.t" in stop.why and "LSN" in stop.why
    assert len(rows(batch)) == 1


def test_messages_that_change_no_row_are_passed_over() -> None:
    batch = feed(
        begin(),
        b"Y\0\0\0\1public\0mood\0",
        b"O" + b"\0" * 8 + b"origin\0",
        b"M\0" + b"\0" * 8 + b"p\0\0\0\0\0",
        commit(),
    )
    assert not batch.signals and not batch.changes and batch.position == "0/6E"


COLUMNS = ("id", 20), ("v", 25), ("big", 25)


@pytest.mark.parametrize(
    ("identity", "flagged", "expected_text"),
    [
        ("i", "v", "identifies old rows by (v), and the key is (id)"),
        ("n", "id", "identifies old rows by (nothing), and the key is (id)"),
        ("d", "", "identifies old rows by (nothing), and the key is (none)"),
    ],
)
def test_rows_that_cannot_be_told_by_the_key_are_passed_over_and_the_others_are_not(
    identity: str, flagged: str, expected_text: str
) -> None:
    odd = relation("t", [(int(name == flagged), name, kind) for name, kind in COLUMNS], identity=identity)
    other = relation("t2", [(1, "id", 20)], oid=2)
    insert = change(b"I", (b"N", row("1", None, None)))
    more = change(b"I", (b"N", row("7")), oid=2)
    delete = change(b"D", (b"K", row(None, "v", None)))
    batch = feed(begin(), T, insert, odd, insert, other, more, odd, delete, more, T, insert, commit())
    assert [(s.table.name, s.why) for s in batch.signals if isinstance(s, Unreadable)] == [
        ("t", f"the log {expected_text}")
    ]
    assert [r["after"]["id"] for r in rows(batch)] == [1, 7, 7, 1]
    seen = [(s.sequence, s.schema.table.name) for s in batch.signals if isinstance(s, SchemaSeen)]
    assert [name for _, name in seen] == ["t", "t2", "t"] and seen[2][0] < rows(batch)[3]["sequence"]


def test_rows_that_are_passed_over_count_for_a_restart() -> None:
    """By then the table may be one that can be read."""
    odd = relation("t", [(0, *c) for c in COLUMNS])
    insert = change(b"I", (b"N", row("1", None, None)))
    other = relation("t2", [(1, "id", 20)], oid=2)
    more = change(b"I", (b"N", row("7")), oid=2)
    first = feed(begin(), odd, insert, insert, other, more)
    assert first.partial == 3
    rest = feed(begin(), T, insert, insert, other, more, more, commit(), skip=first.partial)
    assert [r["after"]["id"] for r in rows(rest)] == [7]
    second_batch = feed(begin(), odd, insert, insert, other, more, more, commit(), skip=first.partial)
    assert [r["after"]["id"] for r in rows(second_batch)] == [7]


def test_a_table_without_its_key_column_is_passed_over() -> None:
    batch = feed(begin(), relation("t", [(1, "v", 25)], identity="f"), change(b"I", (b"N", row("x"))), commit())
    (signal,) = batch.signals
    assert isinstance(signal, Unreadable) and "without the key column id" in signal.why and not batch.changes


def test_a_relation_sent_again_is_a_new_schema_only_if_it_changed() -> None:
    wider = relation("t", [(1, "id", 20), (0, "v", 25), (0, "big", 25), (0, "w", 17)])
    batch = feed(
        begin(),
        T,
        T,
        change(b"I", (b"N", row("1", None, None))),
        wider,
        change(b"I", (b"N", row("2", None, None, "\\x00ff"))),
        commit(),
    )
    assert [len(s.schema.columns) for s in batch.signals if isinstance(s, SchemaSeen)] == [3, 4]
    assert rows(batch)[1]["after"]["w"] == b"\x00\xff"


def wal2json(*records: str) -> LogBatch:
    assembly = Assembly(Lsn(1))
    decoder = Wal2jsonDecoder(SHOP, assembly, Shapes(SHOP, lambda table: None, lambda name: name))
    assert decoder.feed(Messages.of(record.encode() for record in records))
    return decoder.take()


BEGIN = '{"action":"B","xid":7,"timestamp":"2026-11-21 10:08:57.204539+00","lsn":"0/64","nextlsn":"0/6E"}'
COMMIT = '{"action":"C","xid":7,"timestamp":"2026-11-21 10:08:57.204539+00","lsn":"0/64","nextlsn":"0/6E"}'


def test_wal2json_keeps_every_digit_and_text_that_looks_like_a_number() -> None:
    columns = (
        '[{"name":"id","type":"bigint","value":9223372036854775807},{"name":"n","type":"numeric","value":-1.1000000000000001},'
        '{"name":"v","type":"text","value":"\\"value\\":12.50}"},'
        '{"name":"value","type":"double precision","value":1e+300}]'
    )
    batch = wal2json(
        BEGIN,
        f'{{"action":"I","schema":"public","table":"t","columns":{columns},"pk":[{{"name":"id","type":"bigint"}}]}}',
        COMMIT,
    )
    assert rows(batch)[0]["after"] == {
        "id": 2**63 - 1,
        "n": "-1.1000000000000001",
        "v": '"value":12.50}',
        "value": 1e300,
    }
    assert batch.changes[0].schema.key == ("id",) and batch.transactions[0].commit_time == 1795255737204539


def test_wal2json_passes_over_what_cannot_be_told_by_the_key() -> None:
    columns = '[{"name":"id","type":"bigint","value":1},{"name":"v","type":"text","value":"a"}]'
    table = '"schema":"public","table":"t","pk":[{"name":"id","type":"bigint"}]'
    insert = f'{{"action":"I",{table},"columns":{columns}}}'
    odd = f'{{"action":"U",{table},"columns":{columns},"identity":[{{"name":"v","type":"text","value":"a"}}]}}'
    batch = wal2json(BEGIN, insert, odd, odd, insert, COMMIT)
    assert [type(s).__name__ for s in batch.signals] == ["SchemaSeen", "Unreadable", "SchemaSeen"]
    assert [r["op"] for r in rows(batch)] == ["c", "c"]
    (reason,) = [s.why for s in batch.signals if isinstance(s, Unreadable)]
    assert reason == "the log identifies old rows by (v), and the key is (id)"


def test_wal2json_names_an_unknown_action() -> None:
    with pytest.raises(UnknownLogEvent, match="'X'"):
        wal2json(BEGIN, '{"action":"X"}')


def test_wal2json_filters_by_schema_where_a_pattern_may_match_new_tables() -> None:
    def options(*tables: str) -> str | None:
        config = SHOP.model_copy(update={"tables": tables})
        return (
            Wal2jsonDecoder(config, Assembly(Lsn(1)), Shapes(config, lambda t: None, str)).options().get("add-tables")
        )

    assert options("public.t*", "s.a b,c") == r"public.*,s.a\ b\,c,public.dblog_watermark"
    assert options("*.t") is None


def test_a_table_name_is_matched_part_by_part() -> None:
    from dblog_core.sources.postgres.sql.catalogue import is_wanted

    def matches(name: TableName, pattern: str) -> bool:
        return table_patterns.matches(name, [pattern])

    assert matches(TableName("public", "t1"), "public.t?") and not matches(TableName("publicx", "t1"), "public.t?")
    assert matches(TableName("a", "b.c[1]"), "a.b.c[1]") and not matches(TableName("a", "b"), "A.b")
    assert not is_wanted(TableName("public", "dblog_watermark"), SHOP.model_copy(update={"tables": ("public.*",)}))
