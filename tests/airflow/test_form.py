"""What a filled form asks for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import ParamValidationError

from dblog_core.airflow.params import (
    form,
    named_tables,
    repair_form,
    replay_form,
    request,
    verify_form,
)
from dblog_core.config.loader import load
from dblog_core.dumps.requests import DumpRequest
from dblog_core.errors import RequestError
from dblog_core.model.filters import Typed
from tests.airflow.test_factory import write


def test_a_form_that_is_left_as_it_is_asks_for_all_tables_with_the_usual_options(tmp_path: Path) -> None:
    write(tmp_path, "shop.toml", name="shop", tables=["shop.orders"])
    config = load(tmp_path / "shop.toml", secrets=False)
    for fields in (form(config), verify_form(config), repair_form(config), replay_form(config)):
        left = {name: field.resolve() for name, field in fields.items()}
        assert left["tables"] == ["*.*"] and named_tables(left) is None
        assert named_tables({}) is None, "as a request that names no table"
    assert request({"tables": ["*.*"], "pks": None, "chunk_size": None}) == DumpRequest(tables=None)


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        (None, "no table is named"),
        (["", " "], "the list is empty"),
        (["*.*", "shop.orders"], r"\*\.\* is all tables, and shop\.orders is named too"),
    ],
)
def test_all_tables_are_a_choice_and_never_what_is_left_of_a_slip(tables: Any, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as refused:
        request({"tables": tables})
    assert refused.value.where == "tables"


@pytest.mark.parametrize("typed", ["shop.ordrs", "shop.*", "shop.orders; DROP TABLE orders"])
def test_what_a_person_has_typed_is_what_is_asked_for(tmp_path: Path, typed: str) -> None:
    write(tmp_path, "shop.toml", name="shop", tables=["shop.orders"])
    field = form(load(tmp_path / "shop.toml", secrets=False))["tables"]
    assert "examples" not in field.schema, "a list to choose from drops what it does not know"
    assert request({"tables": field.resolve([typed])}).tables == (typed,)


def test_every_parameter_arrives() -> None:
    dump_request = request(
        {
            "tables": ["shop.orders ", ""],
            "key_from": 10,
            "key_to": "20",
            "chunk_size": 5,
            "delay_seconds": 0.5,
            "rows_per_second": 100,
            "workers": 3,
            "ranges": 9,
            "adaptive": True,
            "max_retained": " 10G ",
        }
    )
    form_values = {"key_from": 10, "key_to": 20, "chunk_size": 5, "workers": 3, "delay": 0.5, "rate": 100}
    form_values |= {"ranges": 9, "adaptive": True, "max_retained": 10 << 30}
    assert dump_request == DumpRequest(tables=("shop.orders",), **form_values)


@pytest.mark.parametrize(
    ("item", "key"),
    [
        (5, 5),
        ("5", 5),
        ([7, "EUR"], [7, "EUR"]),
        ('[7, "EUR"]', [7, "EUR"]),
        ('"A-17"', "A-17"),
        ("A-17", "A-17"),
        ('"5"', "5"),
        ("12345678901234567890.12", "12345678901234567890.12"),
        ("NaN", "NaN"),
        ("1; DROP TABLE orders", "1; DROP TABLE orders"),
    ],
)
def test_a_key_is_json_or_a_string_that_holds_it(item: Any, key: Any) -> None:
    assert request({"tables": ["shop.orders"], "pks": [item]}).keys == (key,)


@pytest.mark.parametrize(
    ("item", "condition"),
    [
        ("amount >= 10.10", ("amount", ">=", Typed("10.10"))),
        ('  state  in  ["new", "paid"] ', ("state", "in", Typed('["new", "paid"]'))),
        ("note = two words", ("note", "=", Typed("two words"))),
        ('["my column", "=", 5]', ("my column", "=", 5)),
        ('["amount", "=", 5.10]', ("amount", "=", "5.10")),
        (["day", "<", "2026-11-01"], ("day", "<", "2026-11-01")),
    ],
)
def test_a_condition_is_a_line_or_an_array(item: Any, condition: Any) -> None:
    assert request({"tables": ["shop.orders"], "filters": [item, "", " "]}).filters == (condition,)


@pytest.mark.parametrize("item", ["amount", "amount =", "amount>5", "[1, 2", '["a", "="]', "[1, 2, 3]", {"a": 1}, 5])
def test_what_is_no_condition_is_refused(item: Any) -> None:
    with pytest.raises(RequestError, match="filters"):
        request({"tables": ["shop.orders"], "filters": [item]})


@pytest.mark.parametrize(("text", "size"), [(None, None), ("", None), (" ", None), ("0", 0), ("5", 5), ("2k", 2048)])
def test_a_size_may_be_left_empty(text: str | None, size: int | None) -> None:
    assert request({"max_retained": text}).max_retained == size


@pytest.mark.parametrize(
    ("params", "fits"),
    [
        ({}, True),
        ({"ranges": 64, "adaptive": False, "max_retained": "10G", "filters": ["a = 1", ["b", "in", [1]]]}, True),
        ({"max_retained": "", "filters": None, "ranges": None, "adaptive": None}, True),
        ({"tables": ["shop.*", "shop.ordrs"]}, True),
        ({"tables": None}, False),
        ({"tables": []}, False),
        ({"tables": ["orders"]}, False),
        ({"ranges": 65}, False),
        ({"ranges": 0}, False),
        ({"adaptive": "maybe"}, False),
        ({"max_retained": "much"}, False),
        ({"filters": [5]}, False),
        ({"filters": [{"column": "a"}]}, False),
        ({"filters": "a = 1"}, False),
    ],
)
def test_the_schema_checks_what_the_form_the_api_and_backfills_send(
    tmp_path: Path, params: dict[str, Any], fits: bool
) -> None:
    write(tmp_path, "shop.toml", name="shop")
    fields = form(load(tmp_path / "shop.toml", secrets=False))
    for name, value in params.items():
        with contextlib.nullcontext() if fits else pytest.raises(ParamValidationError):
            fields[name].resolve(value)


@pytest.mark.parametrize("name", ["tables", "pks", "filters"])
def test_a_list_without_a_name_in_it_does_not_mean_everything(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        request({"tables": ["shop.orders"], name: ["", " "]})
