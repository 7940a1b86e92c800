"""The model of docs/scaling.md: a line through all points but the largest, and by how much it misses that one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import scaling
from tests.benchmarks.model import Axis, fit_line


def axis(rounds: dict[int, list[float]], **more: object) -> Axis:
    fields = {"name": "a", "what": "merge", "unit": "s", "size": "rows of the table", "beyond": 100_000_000, **more}
    return Axis(rounds=rounds, **fields)  # type: ignore[arg-type]


def test_a_line_is_found_whatever_its_scale() -> None:
    for fixed, slope in ((3.0, 0.5), (0.0, 1e-6), (1e6, 2.0)):
        line = fit_line({size: fixed + slope * size for size in (1, 10, 1000)})
        assert line.fixed == pytest.approx(fixed, abs=1e-6) and line.slope == pytest.approx(slope)


def test_the_largest_point_is_held_out_and_its_error_is_told() -> None:
    scaling_axis = axis({4: [7.0], 1: [9.0, 4.0, 3.0], 2: [5.0]})
    assert scaling_axis.points == {1: 4.0, 2: 5.0, 4: 7.0}
    assert scaling_axis.model.at(4) == pytest.approx(7.0) and scaling_axis.error == pytest.approx(0.0)
    worse = axis({1: [4.0], 2: [5.0], 4: [14.0]})
    assert worse.model == scaling_axis.model and worse.error == pytest.approx(-0.5)


def test_too_few_points_tell_no_line() -> None:
    with pytest.raises(ValueError, match="1 points tell no line"):
        _ = axis({1: [1.0], 2: [2.0]}).model


def test_what_was_measured_is_kept_and_the_page_has_it(tmp_path: Path) -> None:
    page = scaling.Page("usual", tmp_path / "figures.json")
    page.add(axis({10_000: [1.0], 100_000: [1.09], 1_000_000: [2.2]}))
    page.add(axis({1: [2.0], 2: [3.0], 4: [5.0]}, name="b", what="nodes", unit="nodes", size="sources", beyond=50))
    text = scaling.body(json.loads((tmp_path / "figures.json").read_text()))
    assert "| merge, s | 10,000: 1, 100,000: 1.09, 1,000,000: 2.2 | 0.99 + 1 × million rows of the table |" in text
    assert "| 1.99 predicted, 2.2 measured (-10%) | 100,000,000: 101 |" in text
    assert "### By sources" in text and "| 1 + 1 × sources | 5 predicted, 5 measured (+0%) | 50: 51.0 |" in text


def test_the_page_says_what_its_figures_say() -> None:
    page_figures = scaling.Page("usual").read()
    assert scaling.body(page_figures) in scaling.PAGE.read_text()
    assert {scaling.axis_of(axis_record).size for axis_record in page_figures["axes"].values()} <= set(scaling.SIZES)


def test_noise_is_not_told_as_growth_far_beyond_what_was_measured() -> None:
    level = {250_000: [319.0], 500_000: [321.0], 1_000_000: [328.0]}
    assert "does not grow | 328 measured" in scaling.row(axis(level, beyond=1_000_000_000))
    assert "does not grow" not in scaling.row(axis(level, beyond=10_000_000))
    assert "does not grow" not in scaling.row(axis({**level, 1_000_000: [340.0]}, beyond=1_000_000_000))
