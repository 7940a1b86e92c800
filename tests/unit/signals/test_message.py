"""What a signal asks for: dumps by patterns and options, and words to dumps."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dblog_core.dumps import requests
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.signals.message import Message, Order, Verb, translate
from tests.unit.requests_world import World
from tests.unit.signals_world import world

__all__ = ["world"]


def request_of(data: dict[str, Any], type_: str = "execute-snapshot", kind: str = "mysql") -> DumpRequest | Order:
    return translate(Message("one", type_, json.dumps(data)), kind=kind)


@pytest.mark.parametrize("type_", [None, "incremental", "INCREMENTAL", "blocking"])
def test_either_type_of_snapshot_is_an_ordinary_dump(type_: str | None) -> None:
    data = {"data-collections": ["shop.orders"], **({"type": type_} if type_ else {})}
    assert request_of(data) == DumpRequest(tables=("shop.orders",))


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("shop.orders", "shop.orders"), ("shop.cust*", "shop.cust*"), ("shop.*", "shop.*"), (".*", "*.*"),
        ("shop\\.orders", "shop.orders"), ("shop\\..*", "shop.*"), ("shop..*", "shop.*"), ("shop.cust.*", "shop.cust*"),
        ("shop\\.cust.*", "shop.cust*"), (".*\\.orders", "*.orders"), ("shop.a$b", "shop.a$b"), ("shop.o?", "shop.o?"),
    ],
)  # fmt: skip
def test_patterns_are_ours_with_debeziums_dots_understood(pattern: str, meant: str) -> None:
    request = request_of({"data-collections": [pattern]})
    assert isinstance(request, DumpRequest) and request.tables == (meant,)


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
    assert request_of({}, "pause-snapshot") == Order(Verb.PAUSE, None, None)
    assert request_of({"data-collections": ["shop.a"]}, "stop-snapshot") == Order(Verb.STOP, ("shop.a",), None)
    assert request_of({"dump": "ad-hoc-1"}, "resume-snapshot") == Order(Verb.RESUME, None, "ad-hoc-1")
    assert translate(Message("one", "stop-snapshot", None), kind="mysql") == Order(Verb.STOP, None, None)


def test_conditions_belong_to_their_tables(world: World) -> None:
    collection = {"data-collection": "shop.orders", "filter": "id > 5"}
    request = request_of({"data-collections": ["shop.orders", "shop.customers"], "additional-conditions": [collection]})
    assert isinstance(request, DumpRequest)
    resolved_tables, _ = requests.resolve(world.config, request)
    assert {str(w.schema.table): len(w.filters) for w in resolved_tables} == {"shop.orders": 1, "shop.customers": 0}
    other = request_of({"data-collections": ["shop.customers"], "additional-conditions": [collection]})
    assert isinstance(other, DumpRequest)
    with pytest.raises(RequestError, match="not asked for"):
        requests.resolve(world.config, other)


def test_another_key_to_cut_by_is_refused_with_the_reason(world: World) -> None:
    def resolve_by_key(key: str, *tables: str) -> Any:
        request = request_of({"data-collections": tables, "surrogate-key": key})
        assert isinstance(request, DumpRequest)
        return requests.resolve(world.config, request)

    assert resolve_by_key("id", "shop.orders")
    with pytest.raises(RequestError, match="known by \\(id\\)"):
        resolve_by_key("name", "shop.orders")
    with pytest.raises(RequestError, match="known by \\(id, line\\)"):
        resolve_by_key("id", "shop.lines")
