"""What `dblog verify` does about captured tables that it cannot compare."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from dblog_core.clock import SystemClock
from dblog_core.dumps import requests
from dblog_core.dumps.dump_records import Refusal
from dblog_core.verify import verification as verify_run

REFUSED = Refusal("shop.v", "shop.v: it is system-versioned", "leave it out of source.tables")
KEYLESS = Refusal("shop.k", "shop.k has no primary key", "give it one", keyless=True)


@pytest.mark.parametrize(
    ("refused", "options", "code"),
    [
        ((REFUSED,), [], 1),
        ((REFUSED,), ["--pass-over-refused"], 0),
        ((KEYLESS,), [], 0),  # the lake has no such table either
        ((KEYLESS, REFUSED), [], 1),
        ((), [], 0),
    ],
)
def test_a_table_that_is_left_out_is_named_and_ends_in_1_unless_it_is_to_be_passed_over(
    run: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    refused: tuple[Refusal, ...],
    options: list[str],
    code: int,
) -> None:
    @contextlib.contextmanager
    def open_tools(*_: Any) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(clock=SystemClock(), state=None)

    monkeypatch.setattr(requests, "resolve", lambda *_: ((), refused))
    monkeypatch.setattr(verify_run, "_open_tools", open_tools)
    result = run("verify", "--all", *options)
    assert result.exit_code == code, result.output
    for refusal in refused:
        assert f"NOT COMPARED {refusal.reason}\n  fix: {refusal.fix}" in result.stdout
