"""What a filled form asks for."""

from __future__ import annotations

from typing import Any

import pytest

from dblog_core.airflow.form import request
from dblog_core.errors import RequestError
from dblog_core.requests import DumpRequest


def test_an_empty_form_asks_for_all_tables_with_the_usual_options() -> None:
    assert request({"tables": None, "pks": None, "key_from": None, "chunk_size": None}) == DumpRequest(tables=None)


def test_every_parameter_arrives() -> None:
    asked = request(
        {
            "tables": ["shop.orders ", ""],
            "key_from": 10,
            "key_to": "20",
            "chunk_size": 5,
            "delay_seconds": 0.5,
            "rows_per_second": 100,
            "workers": 3,
        }
    )
    wanted = {"key_from": 10, "key_to": 20, "chunk_size": 5, "workers": 3, "delay": 0.5, "rate": 100}
    assert asked == DumpRequest(tables=("shop.orders",), **wanted)


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


@pytest.mark.parametrize("name", ["tables", "pks"])
def test_a_list_without_a_name_in_it_does_not_mean_everything(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        request({"tables": ["shop.orders"], name: ["", " "]})
