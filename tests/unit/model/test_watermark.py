"""Watermarks are read as they were written, whatever keys they name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dblog_core.errors import UnknownLogEvent
from dblog_core.model import watermark
from dblog_core.model.task_id import TaskId
from dblog_core.model.watermark import Heals, High, Low, Mark, Probe

MARK = Mark("shop", TaskId("d", 0), 1, 0, "w", "shop.orders")
HIGH = High(MARK, file=None, rows=0, bytes=0, checksum="", schema="s", last_key=1, final=False)
KEYS = [None, 0, -5, -(2**63), 1.5, -0.5, True, "", "-7", "NaN", [-1, "x"], [["nested"]]]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_any_key_goes_there_and_back(key: Any) -> None:
    for written in (
        replace(HIGH, last_key=key),
        replace(HIGH, absent=(key, key)),
        Low(replace(MARK, heals=Heals(key, key), parts=3)),
    ):
        assert watermark.parse_for("shop", watermark.encode(written)) == written


def test_files_snapshots_and_probes_go_there_and_back() -> None:
    high = replace(HIGH, file="f", snapshot="1:2:", end="binlog.1:4", arrived=("[-1]",), final=True)
    for written in (
        high,
        Probe("shop", "w", "shop.orders", high=False),
        Probe("shop", "w", "shop.orders", True, "1:2:"),
    ):
        assert watermark.parse_for("shop", watermark.encode(written)) == written
        assert watermark.parse_for("another", watermark.encode(written)) is None


@pytest.mark.parametrize("name", ["attempt", "ordinal", "parts"])
def test_numbers_of_ours_are_never_negative(name: str) -> None:
    with pytest.raises(UnknownLogEvent):
        watermark.parse(watermark.encode(Low(replace(MARK, **{name: -1}))))


def test_a_watermark_names_its_task_as_it_always_has() -> None:
    """Workers and captures of different versions read each other's."""
    text = (
        '{"dblog":1,"kind":"low","mark":{"source":"shop","task":"20261121T090000-a1b2c3/7","attempt":2,"ordinal":3,'
        '"window":"w","table":"shop.orders","parts":4,"heals":{"key_from":null,"key_to":9}}}'
    )
    mark = Mark("shop", TaskId("20261121T090000-a1b2c3", 7), 2, 3, "w", "shop.orders", 4, Heals(key_to=9))
    assert watermark.parse(text) == Low(mark)
    assert watermark.encode(Low(mark)) == text


@pytest.mark.parametrize("task", ["", "d", "d/", "/1", "d/x", "d/-1", "d/1/2", "d/\u0661"])
def test_what_names_no_task_is_no_watermark_of_ours(task: str) -> None:
    text = watermark.encode(Low(MARK)).replace('"d/0"', f'"{task}"')
    with pytest.raises(UnknownLogEvent):
        watermark.parse(text)
