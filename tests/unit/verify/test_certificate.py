"""A certificate's file: what stands in it, and what of it can be looked at again."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core import __version__
from dblog_core.commands.verify import check_text
from dblog_core.config.settings import Config
from dblog_core.errors import RequestError
from dblog_core.verify import certificate
from dblog_core.verify.certificate import Certificate, Claim, Span, UncertifiedTable
from dblog_core.verify.certificate_check import check_certificate
from dblog_core.verify.compared_columns import NotCompared
from dblog_core.verify.judge.comparison import Sum
from dblog_core.verify.judge.judge import Judge
from dblog_core.verify.pinned_version import Pin
from dblog_core.verify.report import TableReport
from tests.fake_source import ORDERS

SUM = 3 << 70  # beyond what other readers of JSON take for a whole number
SPANS = (Span([7], 3, SUM, 10, 12, "a/1"), Span(None, 2, -SUM, 11, 14, "a/2"))
COLUMNS = (NotCompared("mail", "hashed with hash_key"),)
REPORT = TableReport("shop.orders", rows=5, missing=(1,), undecided=(2, 3), staged=4, not_compared=COLUMNS)
WRITTEN: dict[str, Any] = {
    "table": "shop.orders",
    "equal": False,
    "outcome": "1 keys differ",
    "not_compared": [{"column": "mail", "reason": "hashed with hash_key"}],
    "rows": 5,
    "found": 1,
    "undecided": 2,
    "schema": ORDERS.to_json(),
    "ranges": [
        {"key_to": [7], "rows": 3, "since": 10, "upto": 12, "position": "a/1", "hash": str(SUM)},
        {"key_to": None, "rows": 2, "since": 11, "upto": 14, "position": "a/2", "hash": str(-SUM)},
    ],
    "lake": {
        "version": 6,
        "offset": 9,
        "segment": 2,
        "staged": 4,
        "bounds": [[7]],
        "sums": [{"rows": 3, "hash": str(SUM)}, {"rows": 2, "hash": str(-SUM)}],
    },
}
EQUAL = {**WRITTEN, "equal": True, "outcome": "equal", "found": 0, "undecided": 0}
NOW = "2026-01-02T03:04:05+00:00"


def test_the_file_holds_the_evidence_of_each_table(tmp_path: Path) -> None:
    sums = (Sum(3, SUM), Sum(2, -SUM))
    table = certificate.describe_table(replace(REPORT, pin=Pin(6, 9, 2, 20)), ORDERS, SPANS, ([7],), sums)
    without_lake = certificate.describe_table(REPORT, ORDERS, SPANS, (), ())
    uncertified = [UncertifiedTable("shop.b", "locked"), UncertifiedTable("shop.c", "no key", counts=False)]
    asked = ["shop.orders", "shop.c", "shop.b"]
    data = orjson.loads(certificate.certificate("shop", NOW, asked, [table, without_lake], uncertified))
    assert data == {
        "format": 2,
        "dblog": __version__,
        "source": "shop",
        "at": NOW,
        "asked": ["shop.b", "shop.c", "shop.orders"],
        "tables": [WRITTEN, {**WRITTEN, "lake": None}],
        "not_certified": [
            {"table": "shop.b", "reason": "locked", "counts": True},
            {"table": "shop.c", "reason": "no key", "counts": False},
        ],
    }


def write(file: Path, *tables: Any, **changes: Any) -> Path:
    """A certificate as it stands in a file."""
    asked = [table["table"] for table in tables]
    data = {"format": 2, "source": "shop", "at": NOW, "asked": asked, "tables": tables, "not_certified": []}
    file.write_bytes(orjson.dumps({**data, **changes}))
    return file


def test_a_certificate_is_read_as_it_was_written(tmp_path: Path) -> None:
    read = certificate.read_certificate(write(tmp_path / "c.json", {**WRITTEN, "lake": None}, WRITTEN), source="shop")
    sums = (Sum(3, SUM), Sum(2, -SUM))
    said: dict[str, Any] = {"equal": False, "outcome": "1 keys differ", "not_compared": ("mail",), "schema": ORDERS}
    with_lake = Claim("shop.orders", **said, pin=Pin(6, 9, 2, 9), staged=4, bounds=([7],), sums=sums)
    without_lake = Claim("shop.orders", **said, pin=None, staged=0, bounds=(), sums=())
    assert read == Certificate(NOW, (without_lake, with_lake), ())


def test_a_table_that_was_asked_for_and_is_not_there_is_not_certified(tmp_path: Path) -> None:
    file = write(tmp_path / "c.json", WRITTEN, asked=["shop.orders", "shop.a"])
    (table,) = certificate.read_certificate(file, source="shop").uncertified
    assert table.table == "shop.a" and table.counts and "does not say" in table.reason


@pytest.mark.parametrize(
    ("changes", "equal"),
    [
        ({}, True),
        ({"asked": ["shop.orders", "shop.a"]}, False),
        ({"not_certified": [{"table": "shop.a", "reason": "locked", "counts": True}]}, False),
        ({"not_certified": [{"table": "shop.a", "reason": "no key", "counts": False}]}, True),
        ({"tables": [{**EQUAL, "equal": False, "outcome": "2 keys undecided"}]}, False),
        ({"tables": [], "asked": []}, False),
    ],
    ids=["equal", "silent", "locked", "keyless", "undecided", "none"],
)
def test_a_check_fails_unless_each_table_was_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], equal: bool
) -> None:
    """Whatever the lake has: what the certificate does not say is not proven."""
    config = Config.model_validate(
        {
            "source": {"name": "shop", "kind": "mysql", "database": "shop", "tables": ["shop.*"]},
            "staging": {"path": str(tmp_path / "staging")},
            "state": {"url": f"sqlite:///{tmp_path / 'state.db'}"},
            "lake": {"path": str(tmp_path / "lake")},
        }
    )
    monkeypatch.setattr(Judge, "sum_hashes", lambda *_: (Sum(3, SUM), Sum(2, -SUM)))
    file = write(tmp_path / "c.json", EQUAL, **changes)
    check = check_certificate(config, file, stop=threading.Event())
    assert check.equal == equal == check.to_json()["equal"]
    assert ("NOT PROVEN" in check_text(check)) == (not equal), check_text(check)
    if not changes:
        line = "version 6 of the lake has the same rows still (without 4 rows that were staged then)"
        assert check_text(check) == f"shop.orders: equal to the source at {NOW}; {line}; not compared: mail"
        monkeypatch.setattr(Judge, "sum_hashes", lambda *_: (Sum(3, SUM),))
        assert "has other rows now" in check_text(check_certificate(config, file, stop=threading.Event()))


@pytest.mark.parametrize(
    "changes",
    [
        {"tables": [{**WRITTEN, "schema": {}}]},
        {"tables": [{**WRITTEN, "schema": {**WRITTEN["schema"], "columns": [{"name": "id"}]}}]},
        {"tables": [{**WRITTEN, "schema": None}]},
        {"format": 1},
    ],
)
def test_a_file_that_cannot_be_read_and_one_of_an_older_format_are_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(RequestError, match="no certificate"):
        certificate.read_certificate(write(tmp_path / "c.json", WRITTEN, **changes), source="shop")
