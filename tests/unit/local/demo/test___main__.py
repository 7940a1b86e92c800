"""The demo without servers: how it ends where one row differs, what it shows without a terminal, what it refuses."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from dblog_core.local.demo import __main__, shop
from dblog_core.local.demo.board import LINE_SECONDS, Board
from dblog_core.local.demo.story import Story
from dblog_core.local.demo.verdict import Comparison, Verdict
from dblog_core.local.demo.view import Sight

ALIKE = Comparison("shop.orders", 3)
DAMAGED = Comparison(
    "shop.customers", 3, different=1, examples=[{"key": "C1", "kind": "different", "columns": ["name"]}]
)


def test_one_row_that_differs_is_the_verdict_with_its_key() -> None:
    verdict = Verdict((ALIKE, DAMAGED))
    assert not verdict.equal
    summary = verdict.summary()
    assert summary["verdict"] == "SOURCE AND LAKE DIFFER"
    assert summary["shop.customers"].startswith("3 rows; missing 0, extra 0, different 1") and "C1" in str(summary)
    assert Verdict((ALIKE,)).summary()["verdict"] == "every row and column is equal"


@pytest.mark.parametrize(("tables", "code"), [((ALIKE,), 0), ((ALIKE, DAMAGED), 1), ((), 1)])
def test_the_demos_exit_code_is_that_of_the_verdict(
    tables: tuple[Comparison, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBLOG_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("signal.signal", lambda *_: None)  # those of this process stay
    monkeypatch.setattr(Story, "play", lambda _: Verdict(tables))
    assert __main__.main(["--quick"]) == code


def test_another_argument_is_refused_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["--fast"]) == 2
    assert "--quick" in capsys.readouterr().err


def test_a_short_demo_has_twenty_thousand_rows() -> None:
    assert 20_000 <= sum(shop.SIZES["small"].values()) < 21_000
    assert shop.SIZES["small"].keys() == shop.ROWS.keys()


def test_without_a_terminal_it_tells_a_line_every_ten_seconds() -> None:
    out = io.StringIO()
    now = [0.0]
    board = Board(Console(file=out, width=200), clock=lambda: now[0])
    board.stage("a dump of all tables")
    for second in range(1, 35):
        now[0] = float(second)
        board.show({"capture": "a long line", "lake": "another one"}, f"dump {second * 1000:,} rows")
        board.tick()
    assert LINE_SECONDS == 10
    assert out.getvalue().splitlines() == [
        "0:00  a dump of all tables",
        "0:10    dump 10,000 rows …",
        "0:20    dump 20,000 rows …",
        "0:30    dump 30,000 rows …",
    ]


def test_while_nothing_is_seen_the_line_is_the_stage() -> None:
    out = io.StringIO()
    now = [0.0]
    board = Board(Console(file=out, width=200), clock=lambda: now[0])
    board.stage("starting mysql")
    now[0] = 12.0
    board.tick()
    assert out.getvalue().splitlines()[-1] == "0:12    starting mysql …"


def test_a_sight_in_a_few_words() -> None:
    sight = Sight("host:1, epoch 1", 1200, 0.25, 10.0, (), 0, 250.0, 99)
    assert sight.brief() == "offset 1,200, lag 0.2 s"
    assert (
        Sight("nobody leads", 1200, None, 0.0, (), 1000, 0.0, 99).brief()
        == "lake 200 behind, offset 1,200, lag unknown"
    )
