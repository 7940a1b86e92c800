"""Witnesses: a manifest names one as soon as its position lies behind it, and never before."""

from __future__ import annotations

import pytest

from dblog_core.capture.healing.witness import INTERVAL_SECONDS, Witness
from dblog_core.clock import SystemClock
from dblog_core.errors import SourceUnavailable
from dblog_core.interfaces import WrittenWitness
from dblog_core.model.watermark import Probe, encode, encode_witness, parse_for, parse_witness


class Clock(SystemClock):
    """Stands still unless a test moves it."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Source:
    """Witnesses are numbers; the position behind one is ten times that."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.is_overtaken = False

    def write_witness(self, after: str) -> WrittenWitness | None:
        if self.fault is not None:
            raise self.fault
        number = int(after or 0) + 1
        return None if self.is_overtaken else WrittenWitness(str(number), str(10 * number))

    def has_reached(self, position: str, target: str) -> bool:
        return int(position) >= int(target)


def test_a_manifest_names_a_witness_once_its_position_lies_behind_it() -> None:
    clock = Clock()
    witness = Witness(Source(), clock, "4")
    assert witness.staged_at("70", is_whole=True) == "4", "none is written"
    witness.write_when_due()
    assert witness.staged_at("49", is_whole=True) == "4"
    assert witness.staged_at("50", is_whole=False) == "4", "the transaction at the position is not read yet"
    assert witness.staged_at("50", is_whole=True) == "5"
    assert witness.staged_at("51", is_whole=False) == "5"


def test_witnesses_are_rare_and_the_next_one_waits_until_the_last_is_staged() -> None:
    clock = Clock()
    witness = Witness(Source(), clock)
    witness.write_when_due()
    clock.now += INTERVAL_SECONDS
    witness.write_when_due()
    assert witness.staged_at("10", is_whole=True) == "1"
    assert witness.staged_at("20", is_whole=True) == "1", "one was written while the first was on its way"
    witness.write_when_due()
    assert witness.staged_at("20", is_whole=True) == "2"
    witness.write_when_due()
    assert witness.staged_at("30", is_whole=True) == "2", "another one was written within the interval"


def test_a_fault_or_a_faster_process_costs_one_witness() -> None:
    clock = Clock()
    source = Source()
    witness = Witness(source, clock)
    source.fault = SourceUnavailable("away")
    with pytest.raises(SourceUnavailable):
        witness.write_when_due()
    source.fault = None
    source.is_overtaken = True
    clock.now += INTERVAL_SECONDS
    witness.write_when_due()
    assert witness.staged_at("99", is_whole=True) == ""
    source.is_overtaken = False
    clock.now += INTERVAL_SECONDS
    witness.write_when_due()
    assert witness.staged_at("99", is_whole=True) == "1"


def test_the_text_of_a_witness_is_no_watermark_and_no_other_text_is_one() -> None:
    assert parse_witness(encode_witness("shop", 7)) == 7
    assert parse_for("shop", encode_witness("shop", 7)) is None
    for text in (
        "",
        "[]",
        "{",
        '{"number": 7}',
        '{"dblog": 2, "kind": "witness", "number": 7}',
        '{"dblog": 1, "kind": "witness", "number": "7"}',
        encode(Probe("shop", "w", "shop.t", high=False)),
    ):
        assert parse_witness(text) == 0, text
