"""A certificate's file: what stands in it, and what of it can be looked at again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from dblog_core import __version__
from dblog_core.errors import RequestError
from dblog_core.verify import certificate
from dblog_core.verify.certificate import CertifiedTable, Claim, Evidence, Span
from dblog_core.verify.exchange import Pin, Sum
from dblog_core.verify.report import TableReport
from tests.fake_source import ORDERS

SUM = 3 << 70  # beyond what other readers of JSON take for a whole number
SPANS = (Span([7], 3, SUM, 10, 12, "a/1"), Span(None, 2, -SUM, 11, 14, "a/2"))
REPORT = TableReport("shop.orders", rows=5, missing=(1,), undecided=(2, 3), staged=4)
WRITTEN: dict[str, Any] = {
    "table": "shop.orders",
    "equal": False,
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


def test_the_file_holds_the_evidence_of_each_table(tmp_path: Path) -> None:
    evidence = Evidence(ORDERS, Pin(6, 9, 2, 20), SPANS, ([7],))
    table = CertifiedTable(REPORT, evidence, (Sum(3, SUM), Sum(2, -SUM)))
    without_lake = CertifiedTable(REPORT, Evidence(ORDERS, None, SPANS, ()), ())
    data = orjson.loads(certificate.certificate("shop", "2026-01-02T03:04:05+00:00", [table, without_lake]))
    assert data == {
        "format": 1,
        "dblog": __version__,
        "source": "shop",
        "at": "2026-01-02T03:04:05+00:00",
        "tables": [WRITTEN, {**WRITTEN, "lake": None}],
    }


def test_tables_with_a_lake_copy_can_be_looked_at_again(tmp_path: Path) -> None:
    file = tmp_path / "certificate.json"
    file.write_bytes(orjson.dumps({"format": 1, "source": "shop", "tables": [{**WRITTEN, "lake": None}, WRITTEN]}))
    sums = (Sum(3, SUM), Sum(2, -SUM))
    assert certificate.claims(file, source="shop") == [Claim("shop.orders", ORDERS, Pin(6, 9, 2, 9), ([7],), sums)]


@pytest.mark.parametrize("schema", [{}, {**WRITTEN["schema"], "columns": [{"name": "id"}]}, None])
def test_a_file_whose_schema_cannot_be_read_is_no_certificate(tmp_path: Path, schema: Any) -> None:
    file = tmp_path / "certificate.json"
    file.write_bytes(orjson.dumps({"format": 1, "source": "shop", "tables": [{**WRITTEN, "schema": schema}]}))
    with pytest.raises(RequestError, match="no certificate"):
        certificate.claims(file, source="shop")
