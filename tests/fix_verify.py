"""Verifications in this process: of a lake that merges have written, or of one that is the replayed log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from dblog_core.config.settings import Config
from dblog_core.verify import repair, table_comparison, verification
from dblog_core.verify.report import Report
from dblog_core.verify.sample import SampleSize
from dblog_core.verify.verification import VerifyRequest
from tests.plain_judge import PlainLake

Verify = Callable[..., Report]


@pytest.fixture
def verify_here(monkeypatch: pytest.MonkeyPatch, merge_here: Callable[[Config], None]) -> Verify:
    """`verify(config, *tables, **wishes)`; what a repair dumps is merged here too."""
    monkeypatch.setattr(repair, "merge_staged", lambda config, *_, **__: merge_here(config))
    return _verify


@pytest.fixture
def verify_plainly(monkeypatch: pytest.MonkeyPatch) -> Callable[[Config], tuple[Verify, PlainLake]]:
    """The same over a lake that is the replayed log: no Spark."""

    def over(config: Config) -> tuple[Verify, PlainLake]:
        lake = PlainLake(config)
        monkeypatch.setattr(verification, "Judge", lake.open)
        monkeypatch.setattr(table_comparison, "pin", lake.pin)
        monkeypatch.setattr(table_comparison, "read_lake_columns", lambda *_: [])
        monkeypatch.setattr(repair, "merge_staged", lambda *_, **__: None)
        return _verify, lake

    return over


def _verify(config: Config, *tables: str, **wishes: Any) -> Report:
    sample = SampleSize(**wishes.pop("sample", {}))
    say = wishes.pop("say", lambda _: None)
    request = VerifyRequest(tables=tables or None, sample=sample, **wishes)
    return verification.verify(config, request, stop=threading.Event(), say=say)
