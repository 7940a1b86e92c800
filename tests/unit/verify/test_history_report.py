"""What a verification says of a table whose history another program has changed, or that differs from its table."""

from __future__ import annotations

import pytest

from dblog_core.airflow import lake_operators
from dblog_core.commands import verify
from dblog_core.verify.report import Differences, HistoryReport, Report, TableReport

GAP = "commit 3 of another program (UPDATE) has removed or replaced rows"
FIX = "`dblog reset shop.a` dumps the table"


@pytest.mark.parametrize(
    ("history", "equal", "outcome"),
    [
        (HistoryReport(), True, "equal"),
        (HistoryReport(not_compared="the table has no key"), True, "equal"),
        (HistoryReport(Differences(missing=(1,)), fix=FIX), False, "1 keys of its history differ"),
        (HistoryReport(gap=GAP, fix=FIX), False, "its history may lack lines"),
        (HistoryReport(not_compared="it cannot be read", gap=GAP, fix=FIX), False, "its history may lack lines"),
    ],
)
def test_a_table_is_equal_only_if_its_history_is_not_known_to_be_wrong(
    history: HistoryReport, equal: bool, outcome: str
) -> None:
    table = TableReport("shop.a", rows=2, history=history)
    assert (table.equal, table.outcome, Report((table,)).equal) == (equal, outcome, equal)
    assert table.to_json()["history"]["gap"] == history.gap
    for text in (verify.text(Report((table,))), lake_operators.describe_table(table)):
        told = (history.not_compared, history.gap, history.fix)
        assert all(each is None or each in " ".join(text.split()) for each in told)
    assert ("DIFFERS" in verify.text(Report((table,)))) != equal
