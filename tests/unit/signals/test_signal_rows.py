"""What one transaction may put into the signal table: so much is taken in, and the rest is refused, once and aloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from dblog_core.algorithm.visibility import LogOrder
from dblog_core.capture.sequencer import Sequencer
from dblog_core.capture.signal_rows import MOST_OF_A_TRANSACTION as MOST
from dblog_core.model.events import LogBatch, SignalSeen, Transaction
from dblog_core.rows.column_rules import Rules
from dblog_core.signals import inbox
from dblog_core.signals.message import MAX_DATA_BYTES, MAX_ID_CHARS
from dblog_core.signals.signal_record import SignalState
from dblog_core.signals.table import put_refusal_of_rest, put_row
from dblog_core.staging import Staging
from dblog_core.state.memory import MemoryState
from tests.unit.staged import manifest


@pytest.fixture
def sequencer(tmp_path: Path) -> Sequencer:
    staging = Staging(str(tmp_path), source="shop")
    staging.publish(first := manifest(1, 1, 0))
    return Sequencer(staging, source="shop", epoch=1, head=first, visibility=LogOrder(), rules=Rules({}))


def rows(sequencer: Sequencer, transaction: str, first: int, count: int) -> list[str]:
    """A batch with so many rows of a transaction; ids of those that are taken in."""
    seen = tuple(SignalSeen.of(2 * n, 0, (f"s{n}", "log", "{}")) for n in range(first, first + count))
    sequencer.process(LogBatch((), seen, (Transaction(transaction, "p", 1, None),), "p"))
    waiting = sequencer.signals.waiting
    rows = sequencer.signals.take()
    assert len(rows) == waiting
    return [signal.id for signal in rows]


def test_the_first_rows_of_a_transaction_count_over_all_batches_that_it_comes_in(sequencer: Sequencer) -> None:
    assert len(rows(sequencer, "t1", 0, MOST - 1)) == MOST - 1
    assert rows(sequencer, "t1", MOST - 1, 5) == [f"s{MOST - 1}"] and sequencer.signals.take_overfull() == ["t1"]
    assert rows(sequencer, "t1", 2 * MOST, 5) == [] and sequencer.signals.take_overfull() == [], "it is told once"
    assert len(rows(sequencer, "t2", 3 * MOST, MOST)) == MOST and sequencer.signals.take_overfull() == []


def test_the_refusal_says_how_to_ask_and_stands_beside_what_was_taken_in() -> None:
    state = MemoryState()
    put_row(state, SignalSeen.of(0, 0, ("s1", "execute-snapshot", "{}")), at_us=1)
    put_refusal_of_rest(state, "t1", MOST, at_us=2)
    put_refusal_of_rest(state, "t1", MOST, at_us=3)  # read again after a crash
    accepted, refused = inbox.list_signals(state)
    assert (accepted.id, accepted.state) == ("s1", SignalState.WAITING)
    assert refused.state == SignalState.REFUSED and "1,000" in refused.error and "inserted again" in refused.fix


def test_a_row_of_any_size_is_kept_as_far_as_shows_that_it_is_too_large() -> None:
    seen = SignalSeen.of(0, 0, ("i" * 10**6, "t" * 10**6, b"d" * 10**7))
    assert len(seen.id) > MAX_ID_CHARS and len(seen.data or "") > MAX_DATA_BYTES
    assert len(seen.id) + len(seen.type) + len(seen.data or "") < 100_000
    state = MemoryState()
    put_row(state, seen, at_us=1)
    assert [record.state for record in inbox.list_signals(state)] == [SignalState.REFUSED]
