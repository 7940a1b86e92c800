"""Signals: what they ask for, each once by its id, in order, whatever dies in between."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dblog_core.clock import SystemClock
from dblog_core.dumps import dump_records, dump_store, filing, requests
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError, StateUnavailable, VersionConflict
from dblog_core.model.events import SignalSeen
from dblog_core.model.filters import Literal
from dblog_core.signals import inbox, sql_conditions, table
from dblog_core.signals.file import SignalFile
from dblog_core.signals.message import Message, Order, Verb, translate
from dblog_core.signals.processor import SignalProcessor
from tests.unit.requests_world import World, make

NOW = time.time_ns() // 1000


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return make(tmp_path, monkeypatch)


@pytest.fixture
def desk(world: World) -> SignalProcessor:
    return SignalProcessor(world.config, world.state, SystemClock())


def execute(*tables: str, **more: Any) -> str:
    return json.dumps({"data-collections": tables or ("shop.orders",), **more})


def send(world: World, id_: str, type_: str = "execute-snapshot", data: str | None = None, at: int = 0) -> bool:
    return inbox.put_signal(world.state, Message(id_, type_, data or execute()), channel="test", at_us=NOW + at)


# What is asked for ----------------------------------------------------------------------------------------------------


def asked(data: dict[str, Any], type_: str = "execute-snapshot", kind: str = "mysql") -> DumpRequest | Order:
    return translate(Message("one", type_, json.dumps(data)), kind=kind)


@pytest.mark.parametrize("type_", [None, "incremental", "INCREMENTAL", "blocking"])
def test_either_type_of_snapshot_is_an_ordinary_dump(type_: str | None) -> None:
    data = {"data-collections": ["shop.orders"], **({"type": type_} if type_ else {})}
    assert asked(data) == DumpRequest(tables=("shop.orders",))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("shop.orders", "shop.orders"), ("shop.cust*", "shop.cust*"), ("shop.*", "shop.*"), (".*", "*.*"),
        ("shop\\.orders", "shop.orders"), ("shop\\..*", "shop.*"), ("shop..*", "shop.*"), ("shop.cust.*", "shop.cust*"),
        ("shop\\.cust.*", "shop.cust*"), (".*\\.orders", "*.orders"), ("shop.a$b", "shop.a$b"), ("shop.o?", "shop.o?"),
    ],
)  # fmt: skip
def test_patterns_are_ours_with_debeziums_dots_understood(given: str, meant: str) -> None:
    found = asked({"data-collections": [given]})
    assert isinstance(found, DumpRequest) and found.tables == (meant,)


@pytest.mark.parametrize(
    ("type_", "data", "what"),
    [
        ("log", "{}", "no signal 'log'"),
        ("execute-snapshot", None, "names no table"),
        ("execute-snapshot", "[1]", "no JSON object"),
        ("execute-snapshot", "{", "not JSON"),
        ("execute-snapshot", '{"data-collections": []}', "names no table"),
        ("execute-snapshot", '{"data-collections": ["orders"]}', "no pattern of tables"),
        ("execute-snapshot", '{"data-collections": ["shop.(a|b)"]}', "no pattern of tables"),
        ("execute-snapshot", '{"data-collections": ["shop.a"], "typ": "x"}', "has no typ"),
        ("execute-snapshot", '{"data-collections": ["shop.a"], "type": "initial"}', "no snapshot of type"),
        ("execute-snapshot", '{"data-collections": ["shop.a"], "additional-condition": "x=1"}', "old form"),
        ("execute-snapshot", '{"data-collections": ["shop.a"], "additional-conditions": "x=1"}', "no list"),
        ("execute-snapshot", '{"data-collections": ["shop.a"], "additional-conditions": [{"filter": "x=1"}]}', "with"),
        ("execute-snapshot", '{"data-collections": ["shop.a"], "surrogate-key": 1}', "is no text"),
        ("pause-snapshot", '{"additional-conditions": []}', "has no additional-conditions"),
    ],
)
def test_what_cannot_be_done_as_asked_is_refused_by_name(type_: str, data: str | None, what: str) -> None:
    with pytest.raises(RequestError, match=re.escape(what)) as refused:
        translate(Message("one", type_, data), kind="mysql")
    assert refused.value.fix


def test_a_word_to_dumps_may_name_tables_or_one_dump() -> None:
    assert asked({}, "pause-snapshot") == Order(Verb.PAUSE, None, None)
    assert asked({"data-collections": ["shop.a"]}, "stop-snapshot") == Order(Verb.STOP, ("shop.a",), None)
    assert asked({"dump": "ad-hoc-1"}, "resume-snapshot") == Order(Verb.RESUME, None, "ad-hoc-1")
    assert translate(Message("one", "stop-snapshot", None), kind="mysql") == Order(Verb.STOP, None, None)


# Conditions -----------------------------------------------------------------------------------------------------------


def said(text: str, kind: str = "mysql") -> list[tuple[str, str, Any]]:
    def plain(value: Any) -> Any:
        return [plain(one) for one in value] if isinstance(value, tuple) else (value.text, value.quoted)

    return [(column, op, plain(value)) for column, op, value in sql_conditions.parse(text, kind=kind)]


def test_conditions_are_comparisons_joined_by_and() -> None:
    assert said("city = 'Berlin' AND (id > -5 and price<=1.50)") == [
        ("city", "=", ("Berlin", True)),
        ("id", ">", ("-5", False)),
        ("price", "<=", ("1.50", False)),
    ]
    assert said("state IN ('new', 'it''s') AND id BETWEEN 1 AND 9 and paid = true") == [
        ("state", "in", [("new", True), ("it's", True)]),
        ("id", ">=", ("1", False)),
        ("id", "<=", ("9", False)),
        ("paid", "=", ("true", False)),
    ]


def test_names_are_read_as_the_server_reads_them() -> None:
    assert said("`City` = 1") == [("City", "=", ("1", False))]
    assert said("City = 1") == [("City", "=", ("1", False))]
    assert said("City = 1", "postgres") == [("city", "=", ("1", False))]
    assert said('"City" = 1', "postgres") == [("City", "=", ("1", False))]


REFUSED = [
    "", "id", "id =", "= 1", "id = 1 OR id = 2", "NOT id = 1", "id <> 1", "id != 1", "id IS NULL", "id = NULL",
    "id = other",
    "name LIKE 'a%'", "id = 1; DROP TABLE a", "id = 1 -- all", "id = 1 /* x */", "lower(name) = 'a'", "id + 1 = 2",
    "t.id = 1", "id IN ()", "id IN (SELECT 1)", "(id = 1", "id = 1)", "id = 1 AND", "id BETWEEN 1", "id = 'a' 'b'",
    "id = 'a\\'b'", "id = 1e5", "id = 0x10", "id = DATE '2026-01-01'", "SELECT * FROM a WHERE id = 1",
    "1 = 1", "id = ?",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_a_condition_that_filters_cannot_say_exactly_is_refused(text: str, kind: str) -> None:
    with pytest.raises(RequestError) as refused:
        sql_conditions.parse(text, kind=kind)
    assert "COLUMN" in refused.value.fix


def test_quotes_that_mean_something_else_on_the_server_are_refused() -> None:
    for text, kind in (('city = "Berlin"', "mysql"), ('"city" = 1', "mariadb"), ("`city` = 1", "postgres")):
        with pytest.raises(RequestError):
            sql_conditions.parse(text, kind=kind)


_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=12)
_NUMBERS = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-1000, max_value=1000).map(
        lambda d: f"{d:f}"
    ),
)
_TEXTS = st.text(st.characters(exclude_characters="\\\0", exclude_categories=("Cs",)), max_size=20)
_LITERALS = st.one_of(_NUMBERS.map(lambda n: Literal(n, quoted=False)), _TEXTS.map(lambda t: Literal(t, quoted=True)))
_COMPARISONS = st.lists(
    st.one_of(
        st.tuples(_NAMES, st.sampled_from(["=", "<", "<=", ">", ">="]), _LITERALS),
        st.tuples(_NAMES, st.just("in"), st.lists(_LITERALS, min_size=1, max_size=4).map(tuple)),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


def _sql(comparisons: list[Any], quote: str, space: str) -> str:
    def value(one: Literal) -> str:
        return "'" + one.text.replace("'", "''") + "'" if one.quoted else one.text

    def one(column: str, op: str, given: Any) -> str:
        right = f"({f'{space},{space}'.join(map(value, given))})" if op == "in" else value(given)
        return f"{quote}{column.replace(quote, quote * 2)}{quote}{space}{op}{space}{right}"

    return f"{space} AND {space}".join(one(*c) for c in comparisons)


@given(_COMPARISONS, st.sampled_from([("mysql", "`"), ("postgres", '"')]), st.sampled_from(["", " ", "\n\t"]))
def test_a_condition_that_is_written_is_read_back_whatever_names_and_texts_hold(
    comparisons: list[Any], dialect: tuple[str, str], space: str
) -> None:
    kind, quote = dialect
    assert list(sql_conditions.parse(_sql(comparisons, quote, space), kind=kind)) == comparisons


@given(st.text(max_size=80), st.sampled_from(["mysql", "mariadb", "postgres"]))
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    with contextlib.suppress(RequestError):
        assert sql_conditions.parse(text, kind=kind)


def filters(world: World, text: str, table_: str = "shop.customers") -> list[Any]:
    data = execute(table_, **{"additional-conditions": [{"data-collection": table_, "filter": text}]})
    request = translate(Message("one", "execute-snapshot", data), kind="mysql")
    assert isinstance(request, DumpRequest)
    wanted, _ = requests.resolve(world.config, request)
    return [(f.column, f.op, *f.values) for f in wanted[0].filters]


def test_values_are_typed_by_their_columns(world: World) -> None:
    assert filters(world, "id >= 5 AND name = '5' AND born < '2026-01-01' AND balance IN (1.50, 2)") == [
        ("id", ">=", 5),
        ("name", "=", "5"),
        ("born", "<", dt.date(2026, 1, 1)),
        ("balance", "in", decimal.Decimal("1.50"), decimal.Decimal(2)),
    ]


@pytest.mark.parametrize(
    "text", ["name = 5", "id = '5'", "balance = '1.5'", "born = 20260101", "id = true", "id = 1.5", "nobody = 1"]
)
def test_a_comparison_whose_meaning_depends_on_the_server_is_refused(world: World, text: str) -> None:
    with pytest.raises(RequestError):
        filters(world, text)


def test_conditions_belong_to_their_tables(world: World) -> None:
    one = {"data-collection": "shop.orders", "filter": "id > 5"}
    request = asked({"data-collections": ["shop.orders", "shop.customers"], "additional-conditions": [one]})
    assert isinstance(request, DumpRequest)
    wanted, _ = requests.resolve(world.config, request)
    assert {str(w.schema.table): len(w.filters) for w in wanted} == {"shop.orders": 1, "shop.customers": 0}
    other = asked({"data-collections": ["shop.customers"], "additional-conditions": [one]})
    assert isinstance(other, DumpRequest)
    with pytest.raises(RequestError, match="not asked for"):
        requests.resolve(world.config, other)


def test_another_key_to_cut_by_is_refused_with_the_reason(world: World) -> None:
    def resolved(key: str, *tables: str) -> Any:
        found = asked({"data-collections": tables, "surrogate-key": key})
        assert isinstance(found, DumpRequest)
        return requests.resolve(world.config, found)

    assert resolved("id", "shop.orders")
    with pytest.raises(RequestError, match="known by \\(id\\)"):
        resolved("name", "shop.orders")
    with pytest.raises(RequestError, match="known by \\(id, line\\)"):
        resolved("id", "shop.lines")


# Carried out ----------------------------------------------------------------------------------------------------------


def test_a_signal_files_one_dump_with_its_id(world: World, desk: SignalProcessor) -> None:
    assert send(world, "ad hoc/1")
    desk.carry_out_waiting()
    (dump,) = dump_store.list_dumps(world.state)
    assert (dump.signal, dump.requested_by, dump.state, dump.tables) == (
        "ad hoc/1", dump_records.SIGNAL, "requested", ("shop.orders",),
    )  # fmt: skip
    assert "-ad-hoc-1-" in dump.id
    assert inbox.find_signal(world.state, "ad hoc/1")["state"] == inbox.DONE
    assert inbox.find_signal(world.state, "ad hoc/1")["dump"] == dump.id


def test_a_signal_that_comes_again_does_nothing(world: World, desk: SignalProcessor) -> None:
    for _ in range(3):
        send(world, "one")
        desk.carry_out_waiting()
    assert not send(world, "one", data=execute("shop.customers"))
    SignalProcessor(world.config, world.state, SystemClock()).carry_out_waiting()
    assert len(dump_store.list_dumps(world.state)) == 1


class Dies(Exception):
    """The process is gone."""


class Fragile:
    """A state store whose user dies before or after the n-th change."""

    def __init__(self, state: Any, step: int, *, after: bool) -> None:
        self._state = state
        self._left = step
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._state, name)
        return self._counted(found) if name in ("create", "update", "delete") else found

    def create_all(self, nodes: Any) -> None:
        for path, data in nodes.items():
            self.create(path, data)

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Dies
            found = change(*arguments)
            if self._left == 0:
                raise Dies
            return found

        return counted


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 7))
def test_a_crash_at_any_step_files_one_whole_dump(world: World, step: int, after: bool) -> None:
    send(world, "one", data=execute("shop.orders", "shop.customers"))
    try:
        SignalProcessor(world.config, Fragile(world.state, step, after=after), SystemClock()).carry_out_waiting()  # type: ignore[arg-type]
        died = False
    except Dies:
        died = True
    assert died, "two tasks, the signal, the list, the request, the signal: fewer steps than are tried?"
    SignalProcessor(world.config, world.state, SystemClock()).carry_out_waiting()
    (dump,) = dump_store.list_dumps(world.state)
    assert [t.table for t in dump.tasks] == ["shop.orders", "shop.customers"]
    assert inbox.find_signal(world.state, "one")["state"] == inbox.DONE


@pytest.mark.parametrize("step", range(1, 6), ids=["tasks", "filing", "list", "request", "done"])
def test_a_slow_leader_beside_its_successor_files_no_second_dump(world: World, step: int) -> None:
    """The successor carries the signal out in the very middle of what the first one does."""
    send(world, "one")
    successor = SignalProcessor(world.config, world.state, SystemClock())

    class Interrupted(Fragile):
        def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*arguments: Any) -> Any:
                self._left -= 1
                if self._left == 0:
                    successor.carry_out_waiting()
                return change(*arguments)

            return counted

    slow = SignalProcessor(world.config, Interrupted(world.state, step, after=False), SystemClock())  # type: ignore[arg-type]
    with contextlib.suppress(VersionConflict):  # from its step on the successor was faster
        slow.carry_out_waiting()
    successor.carry_out_waiting()
    assert len(dump_store.list_dumps(world.state)) == 1
    assert inbox.find_signal(world.state, "one")["state"] == inbox.DONE


def test_signals_are_carried_out_in_the_order_in_which_they_came(world: World, desk: SignalProcessor) -> None:
    send(world, "b-execute", at=1)
    send(world, "a-pause", "pause-snapshot", "{}", at=2)
    desk.carry_out_waiting()
    assert [d.state for d in dump_store.list_dumps(world.state)] == ["paused"]
    send(world, "c", "resume-snapshot", "{}", at=3)
    desk.carry_out_waiting()
    assert [d.state for d in dump_store.list_dumps(world.state)] == ["requested"]
    send(world, "d", "stop-snapshot", "{}", at=4)
    desk.carry_out_waiting()
    assert [d.state for d in dump_store.list_dumps(world.state)] == ["cancelled"]


def test_what_may_pass_keeps_the_order(world: World, desk: SignalProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    send(world, "one", at=1)
    send(world, "two", "pause-snapshot", "{}", at=2)

    def away(*_: Any, **__: Any) -> Any:
        raise StateUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(filing, "make_draft", away)
        with pytest.raises(StateUnavailable):
            desk.carry_out_waiting()
    assert {r["state"] for r in inbox.list_signals(world.state)} == {inbox.WAITING}
    desk.carry_out_waiting()
    assert [d.state for d in dump_store.list_dumps(world.state)] == ["paused"]


def test_a_refused_signal_says_why_and_lets_the_next_one_through(world: World, desk: SignalProcessor) -> None:
    send(world, "one", data=execute("shop.nothing"), at=1)
    send(world, "two", at=2)
    desk.carry_out_waiting()
    refused = inbox.find_signal(world.state, "one")
    assert refused["state"] == inbox.REFUSED
    assert "'shop.nothing' is not a captured table" in refused["error"] and "shop.orders" in refused["fix"]
    assert [d.signal for d in dump_store.list_dumps(world.state)] == ["two"]


def test_words_leave_dumps_of_the_system_alone(world: World, desk: SignalProcessor) -> None:
    mends = filing.submit(world.config, requests.WHOLE, requested_by=dump_records.SYSTEM, state=world.state)
    person = filing.submit(world.config, DumpRequest(("shop.orders",)), state=world.state)
    send(world, "one", "stop-snapshot", "{}")
    desk.carry_out_waiting()
    assert dump_store.read_dump(world.state, mends).state == "requested"
    assert dump_store.read_dump(world.state, person).state == "cancelled"
    assert person in inbox.find_signal(world.state, "one")["what"]


def test_tables_of_a_dump_are_stopped_and_its_others_go_on(world: World, desk: SignalProcessor) -> None:
    send(world, "one", data=execute("shop.orders", "shop.customers"), at=1)
    send(world, "two", "stop-snapshot", execute("shop.orders"), at=2)
    desk.carry_out_waiting()
    (dump,) = dump_store.list_dumps(world.state)
    assert [(t.table, t.error) for t in dump.tasks] == [
        ("shop.orders", "stopped by signal two"),
        ("shop.customers", None),
    ]
    assert dump_store.read_settings(world.state, dump.id, "shop.orders")[0] == "cancelled", "what its worker reads"
    assert dump_store.read_settings(world.state, dump.id, "shop.customers")[0] == "requested"
    send(world, "three", "stop-snapshot", execute("shop.*"), at=3)
    desk.carry_out_waiting()
    assert dump_store.read_dump(world.state, dump.id).state == "cancelled"


def test_one_dump_is_named_by_its_id_or_by_that_of_its_signal(world: World, desk: SignalProcessor) -> None:
    send(world, "one", at=1)
    send(world, "two", at=2)
    send(world, "p", "pause-snapshot", '{"dump": "two"}', at=3)
    send(world, "q", "pause-snapshot", '{"dump": "nobody"}', at=4)
    desk.carry_out_waiting()
    assert {d.signal: d.state for d in dump_store.list_dumps(world.state)} == {"one": "requested", "two": "paused"}
    assert inbox.find_signal(world.state, "q")["state"] == inbox.REFUSED


def test_ids_are_forgotten_only_long_after(world: World) -> None:
    class Later(SystemClock):
        def time(self) -> float:
            return (NOW + inbox.KEPT_US + 10) / 1e6

    send(world, "old", at=0)
    send(world, "new", at=20)
    SignalProcessor(world.config, world.state, Later()).carry_out_waiting()
    assert [r["id"] for r in inbox.list_signals(world.state)] == ["new"]
    assert len(dump_store.list_dumps(world.state)) == 2


def test_ids_that_look_alike_are_two_signals(world: World, desk: SignalProcessor) -> None:
    for number, id_ in enumerate(("a b", "a-b", "a/b", "../a", "ä" * 250)):
        assert send(world, id_, at=number)
    desk.carry_out_waiting()
    assert len(dump_store.list_dumps(world.state)) == 5


# The table ------------------------------------------------------------------------------------------------------------


def test_a_row_without_an_id_is_refused_and_debeziums_own_are_left_alone(world: World) -> None:
    table.put_row(world.state, SignalSeen.of(1, 0, [None, "x", None]), at_us=NOW)
    table.put_row(world.state, SignalSeen.of(2, 0, []), at_us=NOW + 1)
    table.put_row(world.state, SignalSeen.of(3, 0, ["w", "snapshot-window-open", "{}"]), at_us=NOW + 2)
    table.put_row(world.state, SignalSeen.of(4, 0, [b"one", b"pause-snapshot", None]), at_us=NOW + 3)
    found = [(r["id"], r["state"]) for r in inbox.list_signals(world.state)]
    assert found == [(f"row-{NOW}", inbox.REFUSED), (f"row-{NOW + 1}", inbox.REFUSED), ("one", inbox.WAITING)]


def test_a_signal_that_no_node_could_hold_is_refused(world: World, desk: SignalProcessor) -> None:
    table.put_row(world.state, SignalSeen.of(1, 0, ["one", "execute-snapshot", "x" * 200_000]), at_us=NOW)
    desk.carry_out_waiting()
    found = inbox.find_signal(world.state, "one")
    assert found["state"] == inbox.REFUSED and found["data"] is None and found["fix"]


# The file -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


def line(id_: str, **more: Any) -> bytes:
    data = {"data-collections": ["shop.orders"]}
    return orjson.dumps({"id": id_, "type": "execute-snapshot", "data": data, **more}) + b"\n"


def reader(world: World, path: Path) -> SignalFile:
    return SignalFile(path, world.state, SystemClock())


def ids(world: World) -> list[str]:
    return [r["id"] for r in inbox.list_signals(world.state)]


def test_lines_are_taken_in_once_and_a_half_written_one_waits(world: World, lines: Path) -> None:
    reader(world, lines).read_new_lines()  # nobody has made it yet
    lines.write_bytes(line("one") + line("two")[:20])
    reader(world, lines).read_new_lines()
    assert ids(world) == ["one"]
    lines.write_bytes(line("one") + line("two") + b"\n")
    for _ in range(2):
        reader(world, lines).read_new_lines()
    assert ids(world) == ["one", "two"]


def test_a_file_that_is_another_one_is_read_from_its_beginning(world: World, lines: Path) -> None:
    lines.write_bytes(line("one") + line("two"))
    follower = reader(world, lines)
    follower.read_new_lines()
    lines.write_bytes(line("three"))
    follower.read_new_lines()
    lines.write_bytes(line("four") + line("five") + line("six"))
    follower.read_new_lines()
    assert ids(world) == ["one", "two", "three", "four", "five", "six"]


def test_a_line_that_is_no_signal_is_refused_once_and_holds_up_nothing(world: World, lines: Path) -> None:
    lines.write_bytes(b"what?\n\xff\n" + orjson.dumps({"type": "x"}) + b"\n" + line("one") + line("two", data="{}"))
    for _ in range(2):
        reader(world, lines).read_new_lines()
    assert [r["state"] for r in inbox.list_signals(world.state)] == [*[inbox.REFUSED] * 3, inbox.WAITING, inbox.WAITING]


def test_a_crash_between_a_line_and_its_place_repeats_nothing(world: World, lines: Path, desk: SignalProcessor) -> None:
    lines.write_bytes(line("one") + line("two"))
    for step in (1, 2, 3):
        with pytest.raises(Dies):
            SignalFile(lines, Fragile(world.state, step, after=True), SystemClock()).read_new_lines()  # type: ignore[arg-type]
        desk.carry_out_waiting()
    reader(world, lines).read_new_lines()
    desk.carry_out_waiting()
    assert len(dump_store.list_dumps(world.state)) == 2


@given(st.lists(st.integers(0, 400), max_size=8))
def test_however_a_file_grows_each_line_is_taken_in_once(cuts: list[int]) -> None:
    import tempfile

    from dblog_core.state.memory import MemoryState

    whole = b"".join(line(str(n)) for n in range(5))
    state = MemoryState()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "lines"
        for end in (*sorted(cuts), len(whole)):
            path.write_bytes(whole[:end])
            SignalFile(path, state, SystemClock()).read_new_lines()
    assert [r["id"] for r in inbox.list_signals(state)] == [str(n) for n in range(5)]
